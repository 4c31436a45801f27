"""How an engine pod starts, shows that it lives, and leaves.

Boundary: pure; the scripts that run in the pod are files beside this one. A leaving pod goes through: endpoint
withdrawn, preStop (waits for the work that it still has), SIGTERM (the engine's own drain, within its shutdown
timeout), SIGKILL.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

from pdpool_api.engines.vllm import flags, metrics
from pdpool_api.engines.vllm.ports import http_port
from pdpool_api.names import Role

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePoolSpec

DRAIN_MIN_S: Final = 5
"""A leaving pod stays at least so long: routers need up to 2 s to see it leave, and a request may be on its way."""
SHUTDOWN_TIMEOUT_S: Final = 10
LEASE_MARGIN_S: Final = 5
"""Prefill's engine drains so much longer than the lease, so that a pull begun at its end can finish."""
GRACE_MARGIN_S: Final = 10
"""An engine was seen to end up to 2.4 s after its own shutdown timeout."""


def drain_s(spec: InferencePoolSpec, role: Role) -> int:
    """Longest wait of the preStop hook, in seconds."""
    return max(spec.role(role).drain_seconds, DRAIN_MIN_S)


def shutdown_timeout_s(spec: InferencePoolSpec, role: Role) -> int:
    """Seconds that the engine itself drains after SIGTERM; the author's `--shutdown-timeout` where given."""
    timeout = spec.transfer.lease_seconds + LEASE_MARGIN_S if role is Role.PREFILL else SHUTDOWN_TIMEOUT_S
    for each in flags.given_flags(spec, role):
        if each.flag == "--shutdown-timeout" and each.value is not None and each.value.isdecimal():
            timeout = int(each.value)
    return timeout


def termination_grace_seconds(spec: InferencePoolSpec, role: Role) -> int:
    """`terminationGracePeriodSeconds`: the preStop hook, the engine's own drain, and a margin."""
    return drain_s(spec, role) + shutdown_timeout_s(spec, role) + GRACE_MARGIN_S


def pre_stop(spec: InferencePoolSpec, role: Role) -> dict[str, Any]:
    """The preStop handler: waits until the engine runs and waits for nothing and, on prefill, holds no unpulled KV."""
    idle = (metrics.RUNNING, metrics.WAITING, *((metrics.KV_USAGE,) if role is Role.PREFILL else ()))
    return exec_script(
        "pre_stop.py",
        str(http_port(spec, role)),
        str(DRAIN_MIN_S),
        str(drain_s(spec, role)),
        *(metric.name for metric in idle),
    )


def exec_script(script: str, *arguments: str) -> dict[str, Any]:
    """An exec handler that runs one of the scripts of this package by the image's `python3`."""
    # Isolated and without site-packages: it starts in a tenth of the time, and nothing of the image can get in its way.
    return {"exec": {"command": ["python3", "-I", "-S", "-c", _text(script), *arguments]}}


@cache
def _text(script: str) -> str:
    return resources.files(__package__).joinpath("scripts", script).read_text(encoding="utf-8")
