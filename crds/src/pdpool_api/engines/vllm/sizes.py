"""What arguments say about memory and batches: the author's, over those of the hardware profile, over fields.

Boundary: pure. An argument wins over the field, as it does in the engine: everything that counts bytes reads it here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api import hardware
from pdpool_api.engines.vllm import flags

if TYPE_CHECKING:
    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec

MEMORY_UTILIZATION: Final = "--gpu-memory-utilization"
DEFAULT_MEMORY_UTILIZATION: Final = 0.92
"""vllm/config/cache.py, 0.32 and 0.33."""

_KV_VALUE_BYTES: Final = {
    "auto": 2.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
}
_WEIGHTS_CHANGED_BY: Final = ("--quantization", "--cpu-offload-gb", "--load-format", "--hf-overrides")
"""With one of them the weights on the accelerator are not those that are published."""


def setting(spec: InferencePoolSpec, role: Role, flag: str) -> str | None:
    """The value that the engine gets for a flag: the author's last, else the profile's; None: its own default."""
    given = [each.value for each in flags.given_flags(spec, role) if each.flag == flag and not each.negated]
    if given:
        return given[-1]
    return hardware.profile(spec.role(role).hardware).settings(spec.engine.name, role).args.get(flag)


def is_on(spec: InferencePoolSpec, role: Role, flag: str) -> bool:
    """Whether a switch is on; the last word counts."""
    given = [not each.negated for each in flags.given_flags(spec, role) if each.flag == flag]
    if given:
        return given[-1]
    return flag in hardware.profile(spec.role(role).hardware).settings(spec.engine.name, role).args


def number(text: str | None) -> float | None:
    """A value as a number; None where it is absent or none (the engine then says so itself)."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def memory_utilization(spec: InferencePoolSpec, role: Role) -> float:
    """Share of an accelerator's memory that the engine may take."""
    return number(setting(spec, role, MEMORY_UTILIZATION)) or DEFAULT_MEMORY_UTILIZATION


def kv_value_bytes(spec: InferencePoolSpec, role: Role) -> float | None:
    """Bytes of one cached value; None: a form whose size is not known here."""
    return _KV_VALUE_BYTES.get(setting(spec, role, "--kv-cache-dtype") or "auto")


def weights_are_as_published(spec: InferencePoolSpec, role: Role) -> bool:
    """False where an argument changes what of the weights lies on the accelerator."""
    if setting(spec, role, "--dtype") in {"float", "float32"}:
        return False
    return all(setting(spec, role, flag) is None for flag in _WEIGHTS_CHANGED_BY)


def max_model_len(spec: InferencePoolSpec, role: Role) -> int | None:
    """Longest sequence in tokens; None: unknown, or left to the engine."""
    text = setting(spec, role, "--max-model-len")
    if text is not None:
        return int(text) if text.isdecimal() else None
    return spec.model.max_model_len
