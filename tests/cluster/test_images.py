"""Images: the same bytes from the same content, and containers that need no root and no writable root."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from typing import TYPE_CHECKING, Any

import pytest

from e2e.cluster import Cluster, Progress
from e2e.images import members, oci
from e2e.images.build import NAMES, build, image_name

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = oci.Settings(entrypoint=["/run-me"])
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
TELL = """
import json, os
def writable(path):
    try:
        open(path, "w").close()
    except OSError as refused:
        return refused.strerror
    return "yes"
print(json.dumps({"uid": os.getuid(), "gid": os.getgid(), "root": writable("/left"), "tmp": writable("/tmp/left")}))
"""


def _tree(root: Path, mtime_s: int) -> Path:
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "run-me").write_text("#!/bin/sh\n")
    (root / "bin" / "run-me").chmod(0o755)
    (root / "run-me").symlink_to("bin/run-me")
    (root / "again").hardlink_to(root / "bin" / "run-me")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    for path in root.rglob("*"):
        os.utime(path, (mtime_s, mtime_s), follow_symlinks=False)
    return root


def test_a_layer_depends_on_content_and_not_on_times(tmp_path: Path) -> None:
    """Two folders alike but for their times give one digest; a change of a mode gives another."""
    first = oci.layer(_tree(tmp_path / "a", 1_000), tmp_path / "a.tar")
    second = oci.layer(_tree(tmp_path / "b", 2_000), tmp_path / "b.tar")
    assert first.digest == second.digest
    (tmp_path / "b" / "bin" / "run-me").chmod(0o700)
    assert oci.layer(tmp_path / "b", tmp_path / "c.tar").digest != first.digest


def test_a_package_does_not_tell_who_installed_it(tmp_path: Path) -> None:
    """Neither its address nor the script that named the Python of the installing checkout stays in its record."""
    info = tmp_path / "p-1.dist-info"
    info.mkdir()
    (info / "direct_url.json").write_text("{}")
    kept = "p/bin/tool.py,sha256=a,1\np-1.dist-info/RECORD,,\n"
    (info / "RECORD").write_text("bin/p,sha256=of-a-path,312\np-1.dist-info/direct_url.json,,\n" + kept)
    members._forget_origins(tmp_path)
    assert (info / "RECORD").read_text() == kept
    assert not (info / "direct_url.json").exists()


def test_a_layer_keeps_links_modes_and_leaves_out_what_it_is_told_to(tmp_path: Path) -> None:
    """Symbolic and hard links, the sticky bit and root's ownership are in the tar; an excluded folder is not."""
    made = oci.layer(_tree(tmp_path / "a", 1), tmp_path / "a.tar", included=lambda name: name != "bin")
    with tarfile.open(made.path) as tar:
        members = {member.name: member for member in tar.getmembers()}
    assert sorted(members) == ["again", "run-me", "tmp"]
    assert members["run-me"].linkname == "bin/run-me"
    assert members["tmp"].mode == 0o1777
    assert {(member.uid, member.gid, member.mtime) for member in members.values()} == {(0, 0, 0)}
    with tarfile.open(oci.layer(tmp_path / "a", tmp_path / "b.tar").path) as tar:
        assert tar.getmember("bin/run-me").islnk()
        assert tar.getmember("bin/run-me").linkname == "again"


def test_an_archive_is_an_oci_layout_whose_digests_are_true(tmp_path: Path) -> None:
    """Every blob is named by the digest of its bytes, and index, manifest and configuration lead to each other."""
    layer = oci.layer(_tree(tmp_path / "a", 1), tmp_path / "a.tar")
    archive = oci.archive("localhost/thing:1", [layer], SETTINGS, tmp_path / "image.tar")
    blobs: dict[str, bytes] = {}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            stream = tar.extractfile(member)
            assert stream is not None
            blobs[member.name] = stream.read()
    for name, content in blobs.items():
        if name.startswith("blobs/"):
            assert name == f"blobs/sha256/{hashlib.sha256(content).hexdigest()}"
    [listed] = json.loads(blobs["index.json"])["manifests"]
    assert listed["annotations"]["io.containerd.image.name"] == "localhost/thing:1"
    manifest = json.loads(blobs[_blob(listed)])
    config = json.loads(blobs[_blob(manifest["config"])])
    assert [one["digest"] for one in manifest["layers"]] == config["rootfs"]["diff_ids"] == [f"sha256:{layer.digest}"]
    assert config["config"]["User"] == "65532:65532"


@pytest.mark.cluster
@pytest.mark.parametrize("name", [name for name in NAMES if name != "pause"])
def test_an_image_runs_where_pods_are_restricted(full_cluster: Cluster, name: str) -> None:
    """As user 65532, with a read-only root and no capability, the command tells its usage and Python runs."""
    full_cluster.import_image(build([name], Progress("images"))[name])
    namespace = f"image-test-{name}"
    metadata = {"name": namespace, "labels": RESTRICTED}
    full_cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])
    try:
        tell = ["/usr/bin/python3.11", "-c", TELL]
        usage, rights = _pod(namespace, "usage", name, args=["--help"]), _pod(namespace, "rights", name, command=tell)
        full_cluster.apply([usage, rights])
        for pod in ("usage", "rights"):
            finished = "--for=jsonpath={.status.phase}=Succeeded"
            full_cluster.kubectl("wait", finished, "--timeout=50s", f"pod/{pod}", "--namespace", namespace)
        assert f"usage: pdpool-{name}" in full_cluster.kubectl("logs", "usage", "--namespace", namespace)
        told = json.loads(full_cluster.kubectl("logs", "rights", "--namespace", namespace))
        assert told == {"uid": 65532, "gid": 65532, "root": "Read-only file system", "tmp": "yes"}
    finally:
        full_cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def _blob(descriptor: dict[str, Any]) -> str:
    return f"blobs/{descriptor['digest'].replace(':', '/')}"


def _pod(namespace: str, pod: str, image: str, **start: list[str]) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": image_name(image),
        "imagePullPolicy": "Never",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        **start,
    }
    spec = {
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": namespace}, "spec": spec}
