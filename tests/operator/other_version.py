"""Another version of the operator: other arguments, variables, probes, shape of a pod, names of revisions, profiles.

Boundary: stands in for a release that does not exist yet. `python -m tests.operator.other_version` runs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pdpool_api import hardware
from pdpool_api.engines import vllm
from pdpool_operator import __main__ as operator
from pdpool_operator import build, plan, reconcile
from pdpool_operator.plan import mode

if TYPE_CHECKING:
    from collections.abc import Callable


def differences() -> dict[str, tuple[Any, str, Any]]:
    """What it does in another way, by kind: the module that holds it, its name, the other thing."""
    return {
        "arguments": (vllm, "arguments", _after(vllm.arguments, lambda found: [*found, "--a-new-flag"])),
        "variables": (vllm, "environment", _after(vllm.environment, lambda found: [*found, {"name": "NEW"}])),
        "probes": (vllm, "probes", _after(vllm.probes, lambda found: {**found, "readinessProbe": None})),
        "ports": (vllm, "ports", _after(vllm.ports, lambda found: [*found, {"name": "new", "containerPort": 1234}])),
        "shape": (
            build.engine_deployment.__globals__["pod"].__globals__["hardware"],
            "profile",
            _after(hardware.profile, lambda found: found.model_copy(update={"product": "other"})),
        ),
        "revision": (vllm, "revision", _after(vllm.revision, lambda found: found[::-1])),
        "remembered inputs": (plan, "inputs", _after(mode.inputs, lambda found: f"new-{found}")),
        "inputs": (mode, "inputs", _after(mode.inputs, lambda found: f"new-{found}")),
        "rule": (mode, "_by_rule", _after(mode._by_rule, lambda _found: ("Disaggregated", None))),
        "version": (reconcile, "VERSION", "9.9.9"),
    }


def _after(made: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *given: change(made(*given))


if __name__ == "__main__":
    for module, name, other in differences().values():
        setattr(module, name, other)
    sys.exit(operator.main())
