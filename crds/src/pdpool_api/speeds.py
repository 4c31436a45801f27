"""First guesses of how fast a pool's engines are, for its router: from the model's size and the hardware profiles.

Boundary: pure. What is not known stays 0, which the router takes for unknown; it learns the real speeds from what it
sees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pdpool_api import hardware, models, sizing
from pdpool_api.engines import vllm
from pdpool_api.names import Role
from pdpool_api.router_config import DecodeSpeed, PrefillSpeed, Speeds, TransferSpeed

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePoolSpec

_SIGNIFICANT = 3


def first_guesses(spec: InferencePoolSpec) -> Speeds:
    """Speeds of one replica of each role; 0: unknown.

    Raises:
        ArgumentError: see `vllm.parallelism`.
    """
    known = models.facts(spec.model)
    computes = Role.PREFILL if Role.PREFILL in spec.roles else Role.AGGREGATED
    answers = Role.DECODE if Role.DECODE in spec.roles else Role.AGGREGATED
    tflops = hardware.profile(spec.role(computes).hardware).dense_tflops
    bandwidth = hardware.profile(spec.role(answers).hardware).bandwidth_terabytes_per_second
    rate = step_s = 0.0
    if known.parameters is not None and tflops is not None:
        rate = sizing.prefill_tokens_per_second(known.parameters, tflops.bf16, _shards(spec, computes))
    if known.weight_bytes is not None and bandwidth is not None:
        step_s = sizing.decode_step_seconds(known.weight_bytes, bandwidth, _shards(spec, answers))
    link = spec.transfer.bandwidth_gbps
    return Speeds(
        prefill=PrefillSpeed(tokens_per_second=_rounded(rate)),
        decode=DecodeSpeed(step_milliseconds=_rounded(step_s * 1000)),
        transfer=TransferSpeed(bytes_per_second=_rounded(link * 1e9 / 8) if link is not None else 0),
    )


def _shards(spec: InferencePoolSpec, role: Role) -> int:
    """Accelerators that work on one prompt together."""
    sizes = vllm.parallelism(spec, role)
    return sizes.tensor * sizes.pipeline


def _rounded(value: float) -> float:
    """A guess has few digits, so that a file does not change with the last of them."""
    return float(f"{value:.{_SIGNIFICANT}g}")
