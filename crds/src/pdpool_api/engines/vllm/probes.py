"""Probes of the engine's container.

Boundary: pure. Every field is written out, defaults too: what is not applied could be changed by others and would stay
so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdpool_api.engines.vllm.lifecycle import exec_script
from pdpool_api.engines.vllm.ports import http_port

if TYPE_CHECKING:
    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec

PERIOD_S: Final = 2
"""Of startup and readiness: what a pool loses at most between an engine's first answer and its first request."""


def probes(spec: InferencePoolSpec, role: Role) -> dict[str, Any]:
    """`startupProbe`, `readinessProbe` and `livenessProbe` of the engine's container."""
    port = http_port(spec, role)
    health = {"httpGet": {"path": "/health", "port": port, "scheme": "HTTP"}}
    return {
        # /health answers before the model is loaded in some versions; the list of models is what clients see.
        "startupProbe": {
            **exec_script("startup.py", str(port), spec.model.names[0]),
            **_timing(
                period_s=PERIOD_S,
                timeout_s=10,
                failures=-(-spec.engine.startup_timeout_seconds // PERIOD_S),
            ),
        },
        "readinessProbe": {**health, **_timing(period_s=PERIOD_S, timeout_s=5, failures=3)},
        # Busy is not dead: an engine in a long step answers late.
        "livenessProbe": {**health, **_timing(period_s=10, timeout_s=10, failures=3)},
    }


def _timing(*, period_s: int, timeout_s: int, failures: int) -> dict[str, int]:
    return {
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
        "successThreshold": 1,
    }
