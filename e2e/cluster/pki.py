"""Keys and certificates of one cluster, and kubeconfigs that carry them.

Boundary: files made by `openssl`; who may do what is RBAC's business.
Elliptic curves, because a dozen RSA keys cost seconds at every start.
"""

from __future__ import annotations

import base64
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from e2e.cluster.commands import run

if TYPE_CHECKING:
    from collections.abc import Sequence

VALID_DAYS = "365"
CURVE = "ec_paramgen_curve:prime256v1"


@dataclass(frozen=True)
class Identity:
    """Whom a certificate speaks for: user and groups, and the names it serves under if it serves."""

    user: str
    groups: Sequence[str] = ()
    serves: Sequence[str] = field(default=())

    @property
    def subject(self) -> str:
        """The distinguished name in openssl's notation."""
        return "".join(f"/O={group}" for group in self.groups) + f"/CN={self.user}"

    @property
    def extensions(self) -> str:
        """The certificate's extensions in openssl's notation."""
        usages = ["clientAuth"] + (["serverAuth"] if self.serves else [])
        lines = [f"extendedKeyUsage={','.join(usages)}", "keyUsage=critical,digitalSignature"]
        if self.serves:
            lines.append(f"subjectAltName={','.join(self.serves)}")
        return "\n".join(lines) + "\n"


class Authority:
    """The one certificate authority of a cluster, living in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def certificate(self) -> Path:
        """The CA certificate every party trusts."""
        return self.folder / "ca.crt"

    @property
    def key(self) -> Path:
        """The CA's private key."""
        return self.folder / "ca.key"

    def found(self) -> None:
        """Make the CA and the key pair that signs service account tokens."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_key(self.key)
        run(["openssl", "req", "-x509", "-new", "-key", self.key, "-days", VALID_DAYS, "-subj", "/CN=pdpool-cluster-ca",
             "-addext", "keyUsage=critical,keyCertSign,digitalSignature", "-out", self.certificate])  # fmt: skip
        _make_key(self.folder / "sa.key")
        run(["openssl", "pkey", "-in", self.folder / "sa.key", "-pubout", "-out", self.folder / "sa.pub"])

    def issue(self, name: str, identity: Identity) -> tuple[Path, Path]:
        """Certificate and key files for an identity, under `<name>.crt` and `<name>.key`."""
        certificate, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        _make_key(key)
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            request, extensions = Path(scratch) / "request", Path(scratch) / "extensions"
            extensions.write_text(identity.extensions)
            run(["openssl", "req", "-new", "-key", key, "-subj", identity.subject, "-out", request])
            # A random serial rather than a counter file: two runs may mint certificates at once.
            run(["openssl", "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
                 "-days", VALID_DAYS, "-extfile", extensions, "-out", certificate])  # fmt: skip
        return certificate, key


def certificate_kubeconfig(server: str, authority: Authority, certificate: Path, key: Path) -> str:
    """A self-contained kubeconfig that authenticates by client certificate."""
    user = {"client-certificate-data": _embedded(certificate), "client-key-data": _embedded(key)}
    return _kubeconfig(server, authority, user)


def token_kubeconfig(server: str, authority: Authority, token: str, namespace: str) -> str:
    """A self-contained kubeconfig that authenticates by bearer token."""
    return _kubeconfig(server, authority, {"token": token}, namespace)


def _kubeconfig(server: str, authority: Authority, user: dict[str, str], namespace: str = "default") -> str:
    cluster = {"server": server, "certificate-authority-data": _embedded(authority.certificate)}
    context = {"cluster": "pdpool", "user": "pdpool", "namespace": namespace}
    # JSON is YAML, so that no YAML library is needed here.
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "pdpool", "cluster": cluster}],
        "users": [{"name": "pdpool", "user": user}],
        "contexts": [{"name": "pdpool", "context": context}],
        "current-context": "pdpool",
    }
    return json.dumps(document, indent=2) + "\n"


def _make_key(path: Path) -> None:
    run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", CURVE, "-out", path])


def _embedded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
