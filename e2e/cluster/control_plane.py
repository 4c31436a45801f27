"""Command lines, certificates and policies of etcd, the API server, the controller manager and the scheduler.

Boundary: turns a layout into daemons and files; `lifecycle.py` starts them in order.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from e2e.cluster.layout import NODE_NAME, Layout
from e2e.cluster.network import API_SERVICE_ADDRESS, NODE_ADDRESS, SERVICE_RANGE
from e2e.cluster.pki import Authority, Identity, certificate_kubeconfig
from e2e.cluster.processes import Daemon

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

AUDIT_LOG_MEGABYTES: Final = "2000"
GARBAGE_PERCENT: Final = 400
"""Of a control plane alone, of which a test run has several: a fifth less CPU than with Go's 100, for 200 MB each."""
DNS_USER: Final = "system:coredns"

_CLIENTS: Final = {
    "admin": Identity("admin", ("system:masters",)),
    "controller-manager": Identity("system:kube-controller-manager"),
}
_NODE_CLIENTS: Final = {
    "scheduler": Identity("system:kube-scheduler"),
    "proxy": Identity("system:kube-proxy"),
    "dns": Identity(DNS_USER),
    "kubelet": Identity(f"system:node:{NODE_NAME}", ("system:nodes",), (f"DNS:{NODE_NAME}", f"IP:{NODE_ADDRESS}")),
}
_API_NAMES: Final = (
    "DNS:kubernetes",
    "DNS:kubernetes.default",
    "DNS:kubernetes.default.svc",
    "DNS:kubernetes.default.svc.cluster.local",
    "DNS:localhost",
    "IP:127.0.0.1",
    f"IP:{API_SERVICE_ADDRESS}",
    f"IP:{NODE_ADDRESS}",
)
_COMPONENTS: Final = (
    "system:apiserver",
    "system:kube-controller-manager",
    "system:kube-scheduler",
    "system:kube-proxy",
)


def make_keys(layout: Layout) -> None:
    """Found the authority, issue every certificate and write a kubeconfig beside each client's."""
    authority = Authority(layout.pki)
    authority.found()
    authority.issue("apiserver", Identity("kube-apiserver", (), _API_NAMES))
    authority.issue("kubelet-client", Identity("kube-apiserver-kubelet-client", ("system:masters",)))
    for name, identity in {**_CLIENTS, **(_NODE_CLIENTS if layout.node else {})}.items():
        certificate, key = authority.issue(name, identity)
        client_kubeconfig(layout, name).write_text(certificate_kubeconfig(layout.server, authority, certificate, key))
    layout.kubeconfig.write_text(client_kubeconfig(layout, "admin").read_text())
    layout.kubeconfig.chmod(0o600)


def client_kubeconfig(layout: Layout, name: str) -> Path:
    """The kubeconfig of one of the cluster's own clients."""
    return layout.pki / f"{name}.kubeconfig"


def audit_policy() -> dict[str, object]:
    """Who did what at the Metadata level, without the noise no test asks about.

    Left out: heartbeats of nodes, probes of the API server, and what Kubernetes' own components read.
    """
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/version", "/metrics", "/api*"]},
            {"level": "None", "nonResourceURLs": ["/openapi/*"]},
            {"level": "None", "namespaces": ["kube-node-lease"]},
            {"level": "None", "users": list(_COMPONENTS), "verbs": ["get", "list", "watch"]},
            {"level": "None", "userGroups": ["system:nodes"], "verbs": ["get", "list", "watch"]},
            {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"], "verbs": ["get", "list", "watch"]},
            {"level": "Metadata"},
        ],
    }  # fmt: skip


def etcd(layout: Layout, programs: Mapping[str, Path]) -> Daemon:
    """The store; it need not survive a power cut, so it does not wait for the disk."""
    client, peer = (f"http://127.0.0.1:{layout.ports[port]}" for port in ("etcd", "etcd_peer"))
    return _daemon(layout, "etcd", programs["etcd"], {
        "name": "only",
        "data-dir": layout.folder / "etcd",
        "listen-client-urls": client,
        "advertise-client-urls": client,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"only={peer}",
        "unsafe-no-fsync": "true",
        "log-level": "warn",
    })  # fmt: skip


def apiserver(layout: Layout, programs: Mapping[str, Path]) -> Daemon:
    """The API server, with RBAC, node authorization, Pod Security, the audit log and its default admission."""
    pki = layout.pki
    policy = layout.folder / "audit-policy.json"
    policy.write_text(json.dumps(audit_policy(), indent=2))
    return _daemon(layout, "apiserver", programs["kube-apiserver"], {
        "etcd-servers": f"http://127.0.0.1:{layout.ports['etcd']}",
        "bind-address": layout.api_address,
        "advertise-address": layout.api_address,
        "secure-port": str(layout.ports["apiserver"]),
        "service-cluster-ip-range": SERVICE_RANGE,
        "cert-dir": pki,
        "client-ca-file": pki / "ca.crt",
        "tls-cert-file": pki / "apiserver.crt",
        "tls-private-key-file": pki / "apiserver.key",
        "kubelet-certificate-authority": pki / "ca.crt",
        "kubelet-client-certificate": pki / "kubelet-client.crt",
        "kubelet-client-key": pki / "kubelet-client.key",
        "kubelet-preferred-address-types": "InternalIP",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": pki / "sa.pub",
        "service-account-signing-key-file": pki / "sa.key",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        # Without these the controller manager complains without end about a missing authentication ConfigMap.
        "requestheader-client-ca-file": pki / "ca.crt",
        "requestheader-allowed-names": "front-proxy",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "audit-policy-file": policy,
        "audit-log-path": layout.audit_log,
        "audit-log-format": "json",
        # A line is in the file before the client has its answer, and the file is never rotated: readers count on both.
        "audit-log-mode": "blocking",
        "audit-log-maxsize": AUDIT_LOG_MEGABYTES,
        # A loopback address cannot be an endpoint of the `kubernetes` Service.
        "endpoint-reconciler-type": "lease" if layout.node else "none",
        "profiling": "false",
    })  # fmt: skip


def controller_manager(layout: Layout, programs: Mapping[str, Path]) -> Daemon:
    """The controllers, alone and therefore without leader election."""
    pki = layout.pki
    return _daemon(layout, "controller-manager", programs["kube-controller-manager"], {
        **_client_flags(layout, "controller-manager"),
        "secure-port": str(layout.ports["controller_manager"]),
        "use-service-account-credentials": "true",
        "service-account-private-key-file": pki / "sa.key",
        "root-ca-file": pki / "ca.crt",
        "cluster-signing-cert-file": pki / "ca.crt",
        "cluster-signing-key-file": pki / "ca.key",
        "allocate-node-cidrs": "false",
        # Starting thirty controllers within the default of 20 requests a second takes longer than all the rest.
        "kube-api-qps": "500",
        "kube-api-burst": "1000",
        "flex-volume-plugin-dir": layout.folder / "flex-volumes",
    })  # fmt: skip


def scheduler(layout: Layout, programs: Mapping[str, Path]) -> Daemon:
    """The scheduler, alone and therefore without leader election."""
    return _daemon(layout, "scheduler", programs["kube-scheduler"], {
        **_client_flags(layout, "scheduler"),
        "secure-port": str(layout.ports["scheduler"]),
    })  # fmt: skip


def _client_flags(layout: Layout, name: str) -> dict[str, str | Path]:
    kubeconfig = client_kubeconfig(layout, name)
    return {
        "kubeconfig": kubeconfig,
        "authentication-kubeconfig": kubeconfig,
        "authorization-kubeconfig": kubeconfig,
        "bind-address": "127.0.0.1",
        "cert-dir": layout.pki / name,
        "leader-elect": "false",
        "profiling": "false",
    }


def _daemon(layout: Layout, name: str, program: Path, flags: Mapping[str, str | Path]) -> Daemon:
    command = [str(program), *(f"--{flag}={value}" for flag, value in flags.items())]
    if not layout.node:
        command = ["env", f"GOGC={GARBAGE_PERCENT}", *command]
    return Daemon(name, command, layout.logs / f"{name}.log")
