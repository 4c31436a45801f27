"""Command lines and configuration of containerd, kubelet, kube-proxy and CoreDNS.

Boundary: turns a layout into daemons and files; `lifecycle.py` starts them in order.
Every path the daemons would choose for themselves outside the cluster's folders is set here, so that taking down
means deleting folders.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from e2e.cluster.control_plane import DNS_USER, client_kubeconfig
from e2e.cluster.debian import CNI_FOLDER, program
from e2e.cluster.layout import NODE_NAME, Layout
from e2e.cluster.network import BRIDGE, DNS_ADDRESS, FIRST_POD_ADDRESS, NODE_ADDRESS, POD_RANGE, note_sysctl
from e2e.cluster.processes import Daemon
from e2e.cluster.progress import ClusterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from e2e.cluster.ledger import Ledger

SANDBOX_IMAGE: Final = "localhost/pause:1"
KUBELET_PORT: Final = 10250
CGROUP: Final = "kubepods"
CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
# What the kubelet insists on setting.
_KUBELET_SYSCTLS: Final = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
# Paths that kubelet and containerd were built with.
SHARED_FOLDERS: Final = ("/var/lib/kubelet", "/var/log/containers", "/run/containerd", "/var/lib/cni")
_CONTAINERD: Final = """\
version = 2
root = "{root}"
state = "{state}"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox_image}"
  # Lowering a process's OOM score needs a capability that nested machines lack.
  restrict_oom_score_adj = true
  # Beside our other mounts, where no `ip netns add` of somebody else can cover them.
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni_binaries}"
    conf_dir = "{cni}"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{registries}"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = "{run}/runc"
"""
# An image that was not imported must fail at once, here, and not ask a registry.
# containerd 1.6 heeds `server` only beside a host.
_NO_REGISTRY: Final = """\
server = "http://127.0.0.1:1"
[host."http://127.0.0.1:1"]
  capabilities = ["pull", "resolve"]
"""
_COREFILE: Final = """\
cluster.local in-addr.arpa ip6.arpa {{
    bind {address}
    errors
    ready 127.0.0.1:{ready_port}
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        pods insecure
        ttl 5
    }}
}}
. {{
    bind {address}
    # There is nothing outside.
    template ANY ANY {{
        rcode NXDOMAIN
    }}
}}
"""


def containerd(layout: Layout) -> Daemon:
    """The container runtime, with its own root, state, socket and network configuration."""
    folder, cni, registries = layout.folder / "containerd", layout.folder / "cni", layout.folder / "registries"
    for made in (folder, cni, registries / "_default"):
        made.mkdir(parents=True, exist_ok=True)
    (registries / "_default" / "hosts.toml").write_text(_NO_REGISTRY)
    (cni / "10-pdpool.conflist").write_text(json.dumps(_cni(layout), indent=2))
    settings = folder / "config.toml"
    settings.write_text(
        _CONTAINERD.format(
            root=folder / "root",
            state=layout.run / "containerd" / "state",
            socket=layout.containerd_socket,
            folder=folder,
            sandbox_image=SANDBOX_IMAGE,
            cni_binaries=CNI_FOLDER,
            cni=cni,
            registries=registries,
            run=layout.run,
        )
    )
    return _daemon(layout, "containerd", [program("containerd"), "--config", str(settings)])


def kubelet(layout: Layout, programs: Mapping[str, Path]) -> Daemon:
    """The node agent."""
    root = layout.folder / "kubelet"
    root.mkdir(parents=True, exist_ok=True)
    settings = root / "config.json"
    settings.write_text(json.dumps(_kubelet_settings(layout, root), indent=2))
    flags = {
        "config": settings,
        "kubeconfig": client_kubeconfig(layout, "kubelet"),
        "hostname-override": NODE_NAME,
        "node-ip": NODE_ADDRESS,
        "root-dir": root,
        "cert-dir": root / "pki",
    }
    return _daemon(
        layout, "kubelet", [str(programs["kubelet"]), *(f"--{flag}={value}" for flag, value in flags.items())]
    )


def kube_proxy(layout: Layout, programs: Mapping[str, Path]) -> Daemon:
    """Service addresses by tables of packet rules of its own."""
    settings = layout.folder / "kube-proxy.json"
    settings.write_text(json.dumps(_proxy_settings(layout), indent=2))
    return _daemon(layout, "kube-proxy", [str(programs["kube-proxy"]), f"--config={settings}"])


def coredns(layout: Layout, programs: Mapping[str, Path]) -> Daemon:
    """Names of Services; without a forwarder, so that outside names fail at once."""
    settings = layout.folder / "Corefile"
    settings.write_text(
        _COREFILE.format(
            address=DNS_ADDRESS, ready_port=layout.ports["dns_ready"], kubeconfig=client_kubeconfig(layout, "dns")
        )
    )
    return _daemon(layout, "coredns", [str(programs["coredns"]), "-conf", str(settings)])


def note_changes(ledger: Ledger) -> None:
    """Write down what kubelet and containerd will change on the machine outside the cluster's folders."""
    for name in _KUBELET_SYSCTLS:
        note_sysctl(ledger, name)
    for group in _control_groups():
        ledger.record("cgroup", str(group))
    for folder in SHARED_FOLDERS:
        if not Path(folder).exists():
            ledger.record("shared-folder", folder)
    ledger.record("file-prefix", "/var/lib/kubelet/device-plugins/kubelet")


def check_free() -> None:
    """Raise `ClusterError` if another kubelet has its control groups here."""
    for group in _control_groups():
        if group.exists():
            raise ClusterError(f"{group} exists: another kubelet runs on this machine, or left its control groups")


def _control_groups() -> list[Path]:
    """Where a kubelet puts its pods: in the one hierarchy (version 2), or in that of each controller (version 1)."""
    if (CGROUP_ROOT / "cgroup.controllers").exists():
        return [CGROUP_ROOT / CGROUP]
    hierarchies = (path for path in CGROUP_ROOT.iterdir() if path.is_dir() and not path.is_symlink())
    return [hierarchy / CGROUP for hierarchy in hierarchies if (hierarchy / "cgroup.procs").exists()]


def dns_rights() -> list[dict[str, object]]:
    """The objects that let CoreDNS watch what it answers for."""
    watch = ["get", "list", "watch"]
    rules = [
        {"apiGroups": [""], "resources": ["endpoints", "services", "pods", "namespaces"], "verbs": watch},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": watch},
    ]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": DNS_USER}}
    subject = {"kind": "User", "name": DNS_USER, "apiGroup": "rbac.authorization.k8s.io"}
    role = {"kind": "ClusterRole", "name": DNS_USER, "apiGroup": "rbac.authorization.k8s.io"}
    return [
        {**rbac, "kind": "ClusterRole", "rules": rules},
        {**rbac, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]},
    ]


def _cni(layout: Layout) -> dict[str, object]:
    addresses = {
        "type": "host-local",
        "dataDir": str(layout.run / "cni"),
        "ranges": [[{"subnet": POD_RANGE, "rangeStart": FIRST_POD_ADDRESS, "gateway": NODE_ADDRESS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": False,
        "ipMasq": False,
        # Without it a pod cannot reach itself through its own Service.
        "hairpinMode": True,
        "ipam": addresses,
    }
    return {"cniVersion": "1.0.0", "name": "pdpool", "plugins": [bridge]}


def _kubelet_settings(layout: Layout, root: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "kubelet.key"),
        "address": NODE_ADDRESS,
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": layout.ports["kubelet_health"],
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDomain": "cluster.local",
        "clusterDNS": [DNS_ADDRESS],
        # Not the machine's: its search domains would send pods' look-ups elsewhere.
        "resolvConf": "",
        "staticPodPath": "",
        "podLogsDir": str(root / "podlogs"),
        "volumePluginDir": str(root / "plugins-exec"),
        # kube-proxy brings what it needs; these would be rules in tables that others share.
        "makeIPTablesUtilChains": False,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # Imported images cannot be pulled again: never collect them.
        "imageGCHighThresholdPercent": 100,
        "enforceNodeAllocatable": [],
        "cgroupsPerQOS": True,
        "registerNode": True,
        "syncFrequency": "10s",
    }


def _proxy_settings(layout: Layout) -> dict[str, object]:
    untouched = {"maxPerCore": 0, "min": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"}
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "bindAddress": NODE_ADDRESS,
        "healthzBindAddress": f"127.0.0.1:{layout.ports['proxy_health']}",
        "metricsBindAddress": f"127.0.0.1:{layout.ports['proxy_metrics']}",
        "clientConnection": {"kubeconfig": str(client_kubeconfig(layout, "proxy"))},
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": NODE_NAME,
        "nodePortAddresses": [f"{NODE_ADDRESS}/32"],
        # Limits of the whole machine, which only its owner may set.
        "conntrack": untouched,
        "nftables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
    }


def _daemon(layout: Layout, name: str, command: list[str]) -> Daemon:
    return Daemon(name, command, layout.logs / f"{name}.log")
