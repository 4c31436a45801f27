"""Pools of stand-in engines in pods: seconds to start instead of a minute, for what is about Kubernetes and the router.

Boundary: a manifest, and the pace of the engines in its pods. The stand-in speaks vLLM's API, metrics and KV transfer
by protocol only; nothing here is real inference. The pods run this checkout's sources by the interpreter and packages
of the environment that runs this, from the node's own files.
"""

from __future__ import annotations

import json
import site
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from e2e.scenarios.product import REPOSITORY
from pdpool_api.names import API_VERSION, KIND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from e2e.scenarios.api import JsonObject
    from e2e.scenarios.pools import PodView

MODEL: Final = "stand-in"
IMAGE: Final = "localhost/pause:1"
SETTINGS_VARIABLE: Final = "PDPOOL_STANDIN"
ADMIN_PORT: Final = 8900
ADMIN_TIMEOUT_S: Final = 30.0


def _mounts() -> Mapping[str, tuple[Path, str]]:
    """Volumes by name: path on the node, path in the pod."""
    return {
        "usr": (Path("/usr"), "/usr"),
        "python": (Path(sys.base_prefix).resolve(), "/opt/pdpool/python"),
        "packages": (Path(site.getsitepackages()[0]), "/opt/pdpool/packages"),
        "source": (REPOSITORY, "/opt/pdpool/source"),
    }


def _role(replicas: int, drain_s: int) -> JsonObject:
    return {
        "replicas": replicas,
        "hardware": "cpu",
        "drainSeconds": drain_s,
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
        "template": {
            "volumes": [
                {"name": name, "hostPath": {"path": str(path), "type": "Directory"}}
                for name, (path, _) in _mounts().items()
            ],
            "volumeMounts": [{"name": name, "mountPath": at, "readOnly": True} for name, (_, at) in _mounts().items()],
            "securityContext": {"runAsUser": 0, "runAsGroup": 0},
        },
    }


def manifest(
    name: str,
    namespace: str,
    *,
    prefill: int = 1,
    decode: int = 1,
    drain_s: int = 5,
    settings: Mapping[str, Any] | None = None,
) -> JsonObject:
    """An InferencePool of stand-in engines; `settings` are the stand-in's own (pace, start-up, rules)."""
    python = "/opt/pdpool/python"
    environment = {
        "PATH": f"{python}/bin:/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": "/opt/pdpool/source:/opt/pdpool/source/crds/src:/opt/pdpool/packages",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": f"{python}/lib",
        "HOME": "/tmp",  # noqa: S108 - of the pod, for programs that ask for a home
        SETTINGS_VARIABLE: json.dumps({"admin_port": ADMIN_PORT, **(settings or {})}),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "model": {"id": MODEL, "maxModelLen": 8192},
            "engine": {
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "version": "0.32.0",
                "command": [f"{python}/bin/python3", "-m", "e2e.engine.standin", "serve"],
                "env": [{"name": key, "value": value} for key, value in environment.items()],
            },
            "transfer": {"leaseSeconds": 12},
            "prefill": _role(prefill, drain_s),
            "decode": _role(decode, drain_s),
            # Prompts of tests are short and often equal: they hop all the same, and go to all engines.
            "router": {
                "replicas": 1,
                "drainSeconds": drain_s,
                "routing": {"policy": "LeastLoaded", "localPrefill": {"maxUncachedTokens": 0}},
            },
        },
    }


def set_pace(pod: PodView, *, step_s: float) -> None:
    """How long one token of a decode pod takes from now on, also in answers that are under way.

    Raises:
        httpx.HTTPError: the pod does not answer, or refuses.
    """
    url = f"http://{pod.ip}:{ADMIN_PORT}/pace"
    httpx.put(url, json={"step_s": step_s}, timeout=ADMIN_TIMEOUT_S).raise_for_status()


def add_rule(pod: PodView, **fields: Any) -> None:
    """A fault of an engine from now on, until it is restarted (`standin.script.Rule`).

    Raises:
        httpx.HTTPError: the pod does not answer, or refuses.
    """
    url = f"http://{pod.ip}:{ADMIN_PORT}/rules"
    httpx.post(url, json=fields, timeout=ADMIN_TIMEOUT_S).raise_for_status()
