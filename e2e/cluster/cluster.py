"""A running cluster as its users see it: credentials, kubectl, images, the audit log.

Boundary: asks the cluster's own programs; starting and ending it is `lifecycle.py`'s.
"""

from __future__ import annotations

import json
import tarfile
import time
from typing import TYPE_CHECKING, Any

from e2e.cluster import binaries
from e2e.cluster.asking import answer
from e2e.cluster.audit import AuditLog
from e2e.cluster.commands import run, succeeds
from e2e.cluster.debian import program
from e2e.cluster.layout import NODE_NAME, Layout
from e2e.cluster.pki import Authority, Identity, certificate_kubeconfig, token_kubeconfig
from e2e.cluster.progress import ClusterError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

IMAGE_NAMESPACE = "k8s.io"
IMPORT_TIMEOUT_S = 300.0
# What the API server answers for some seconds after a CRD was created.
NEW_KIND_WORDS = ("storage is (re)initializing", "no matches for kind")
NEW_KIND_PATIENCE_S = 30.0
POLL_S = 0.3


class Cluster:
    """One cluster that is up. Every method raises `ClusterError` with the program's own words when it is refused."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    @property
    def name(self) -> str:
        """The name it was begun under."""
        return self.layout.name

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self.layout.server

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig

    @property
    def audit(self) -> AuditLog:
        """Who did what."""
        return AuditLog(self.layout.audit_log)

    def kubectl(self, *arguments: str, text_input: str | None = None, timeout_s: float = 60.0) -> str:
        """The output of kubectl as administrator."""
        return run(self.kubectl_command(*arguments), text_input=text_input, timeout_s=timeout_s)

    def kubectl_command(self, *arguments: str) -> list[str]:
        """The command line of kubectl as administrator, for those who run it themselves (port-forward, logs -f)."""
        # What it has discovered goes with the cluster: the next one may have the same address and other kinds.
        cache = self.layout.folder / "kubectl"
        kubectl = str(binaries.cached_path("kubectl"))
        return [kubectl, f"--kubeconfig={self.kubeconfig}", f"--cache-dir={cache}", *arguments]

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        """Apply objects server-side as administrator, patiently where the kind was made a moment ago."""
        document = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        deadline_s = time.monotonic() + NEW_KIND_PATIENCE_S
        while True:
            try:
                self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text_input=document)
            except ClusterError as refusal:
                if not any(word in str(refusal) for word in NEW_KIND_WORDS) or time.monotonic() >= deadline_s:
                    raise
                time.sleep(POLL_S)
            else:
                return

    def wait_established(self, crd: str) -> None:
        """Wait until objects of a kind can be made. `kubectl wait` fails where nobody has written a status yet."""
        deadline_s = time.monotonic() + NEW_KIND_PATIENCE_S
        while not self._is_established(crd):
            if time.monotonic() >= deadline_s:
                raise ClusterError(f"{crd}: not established after {NEW_KIND_PATIENCE_S:.0f} s")
            time.sleep(POLL_S)

    def _is_established(self, crd: str) -> bool:
        found = self._read(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd}") or {}
        conditions = found.get("status", {}).get("conditions") or ()
        return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)

    def objects(self, *arguments: str) -> Any:
        """What `kubectl get … -o json` answers, as Python values."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def kubeconfig_for_user(self, user: str, groups: Sequence[str] = (), *, path: Path | None = None) -> Path:
        """A kubeconfig, in a file, of a user by client certificate. What they may do is for RBAC to say."""
        authority = Authority(self.layout.pki)
        stem = "".join(letter if letter.isalnum() else "-" for letter in f"user-{user}-{'-'.join(groups)}")
        certificate, key = authority.issue(stem, Identity(user, groups))
        return self._write(certificate_kubeconfig(self.server, authority, certificate, key), path, stem)

    def kubeconfig_for_service_account(
        self, namespace: str, name: str, *, duration_s: int = 24 * 3600, path: Path | None = None
    ) -> Path:
        """A kubeconfig, in a file, with a token of an existing service account; its context is that namespace."""
        token = self.kubectl("--namespace", namespace, "create", "token", name, f"--duration={duration_s}s").strip()
        document = token_kubeconfig(self.server, Authority(self.layout.pki), token, namespace)
        return self._write(document, path, f"service-account-{namespace}-{name}")

    def import_image(self, archive: Path) -> list[str]:
        """Bring the images of an OCI archive into the node, unless it has these very images; their names."""
        listed = _listed_images(archive)
        if not listed.items() <= self._image_digests().items():
            run([*self._ctr, "images", "import", str(archive)], timeout_s=IMPORT_TIMEOUT_S)
        return list(listed)

    def images(self) -> list[str]:
        """The names of the images the node has."""
        return run([*self._ctr, "images", "list", "--quiet"]).split()

    def has_default_service_account(self) -> bool:
        """Whether pods can be made in the default namespace yet."""
        return self._read("/api/v1/namespaces/default/serviceaccounts/default") is not None

    def runtime_answers(self) -> bool:
        """Whether containerd serves."""
        return succeeds([*self._ctr, "version"])

    def node_is_ready(self, name: str = NODE_NAME) -> bool:
        """Whether a node (the real one, unless another is named) is taken for alive and gets pods."""
        node = self._read(f"/api/v1/nodes/{name}")
        if node is None:
            return False
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
        return ready and not node["spec"].get("taints")

    def _read(self, path: str) -> Any:
        """What the administrator reads there, as Python values; None where there is nothing, or no answer."""
        pki = self.layout.pki
        told = answer(f"{self.server}{path}", pki / "ca.crt", (pki / "admin.crt", pki / "admin.key"))
        return None if told is None else json.loads(told)

    def _image_digests(self) -> dict[str, str]:
        lines = run([*self._ctr, "images", "list"]).splitlines()[1:]
        return {name: digest for name, _, digest, *_ in (line.split() for line in lines)}

    @property
    def _ctr(self) -> list[str]:
        return [program("ctr"), "--address", str(self.layout.containerd_socket), "--namespace", IMAGE_NAMESPACE]

    def _write(self, document: str, path: Path | None, stem: str) -> Path:
        target = path or self.layout.pki / f"{stem}.kubeconfig"
        target.touch(mode=0o600)
        target.write_text(document)
        return target


def _listed_images(archive: Path) -> dict[str, str]:
    """Names and digests of the images in an OCI archive; raises `ClusterError` if it is none."""
    try:
        with tarfile.open(archive) as tar:
            stream = tar.extractfile("index.json")
            index = json.load(stream) if stream is not None else {}
        return {one["annotations"]["io.containerd.image.name"]: one["digest"] for one in index["manifests"]}
    except (OSError, KeyError, ValueError, tarfile.TarError) as fault:
        raise ClusterError(f"{archive}: not an OCI archive with named images: {fault}") from fault
