"""Which attention backend is pinned: prefill and decode must use the same, and each chooses by its own hardware.

Boundary: pure. Nothing is pinned where the author names a backend, where both would choose the same by themselves, or
where the hardware is not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdpool_api import hardware, models
from pdpool_api.engines.vllm import flags
from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pdpool_api.pool import InferencePoolSpec

ATTENTION_BACKEND: Final = "--attention-backend"


def given_backend(found: Sequence[flags.Given]) -> Any:
    """The backend that a role's arguments name, in either flag; None: none.

    Raises:
        ArgumentError: `--attention-config` is no JSON object.
    """
    named = [each.value for each in found if each.flag == ATTENTION_BACKEND]
    return named[-1] if named else flags.json_value(found, "--attention-config").get("backend")


def choices(spec: InferencePoolSpec, role: Role) -> tuple[str, ...]:
    """Backends that run on the role's hardware, the engine's own choice first; empty: unknown.

    A model that is not known counts as one with ordinary attention, which nearly all have.
    """
    latent = bool(models.facts(spec.model).latent)
    return hardware.profile(spec.role(role).hardware).attention_backends(spec.engine.name, latent=latent)


def pinned_backend(spec: InferencePoolSpec) -> str | None:
    """The backend that both roles get because they would choose different ones by themselves; None: none is pinned.

    Raises:
        ArgumentError: `--attention-config` is no JSON object.
    """
    if not spec.disaggregated or any(given_backend(flags.given_flags(spec, role)) for role in spec.roles):
        return None
    prefill, decode = choices(spec, Role.PREFILL), choices(spec, Role.DECODE)
    if not prefill or not decode or prefill[0] == decode[0]:
        return None
    return next((each for each in prefill if each in decode), None)


def own_choice(spec: InferencePoolSpec, role: Role) -> str | None:
    """What the engine of the role would choose where the roles have no backend in common; None: no such conflict.

    Raises:
        ArgumentError: `--attention-config` is no JSON object.
    """
    if not spec.disaggregated or any(given_backend(flags.given_flags(spec, each)) for each in spec.roles):
        return None
    prefill, decode = choices(spec, Role.PREFILL), choices(spec, Role.DECODE)
    if not prefill or not decode or set(prefill) & set(decode):
        return None
    return choices(spec, role)[0]
