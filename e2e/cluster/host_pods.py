"""Pods that run this machine's own Python from host mounts, for tests that need a program in a pod and no image.

Boundary: builds objects; nothing is applied here.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from e2e.cluster.node import SANDBOX_IMAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

PYTHON = os.path.realpath(sys.executable)


def python_pod(name: str, namespace: str, arguments: Sequence[str]) -> dict[str, Any]:
    """A pod labelled `app: <name>` whose one container runs `python ARGUMENTS` as root; it ends within a second."""
    mounts = {f"v{number}": path for number, path in enumerate(dict.fromkeys(["/usr", sys.base_prefix]))}
    container = {
        "name": "main",
        "image": SANDBOX_IMAGE,
        "imagePullPolicy": "Never",
        "command": [PYTHON, *arguments],
        "volumeMounts": [{"name": mount, "mountPath": path, "readOnly": True} for mount, path in mounts.items()],
        "workingDir": "/tmp",  # noqa: S108  (the pod's own)
    }
    spec = {
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [{"name": mount, "hostPath": {"path": path}} for mount, path in mounts.items()],
    }
    metadata = {"name": name, "namespace": namespace, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
