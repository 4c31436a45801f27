"""Whether the expected requests speak against prefill and decode as two roles.

Boundary: pure; from `spec.workload` and first guesses of speeds to a reason. The checks are those that people who run
such systems publish: short prompts with short answers, prompts that are mostly cached and requests that decode only a
small share of their time gain nothing from a hop; a transfer that takes the time to the first token, or a prefill role
that idles, costs more than it gives. What is not told, or not known of model and hardware, speaks neither way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api import models, sizing, speeds
from pdpool_api.engines import vllm
from pdpool_api.names import Role

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePoolSpec
    from pdpool_api.workload_spec import Workload

SHORT_PROMPT_TOKENS: Final = 512
SHORT_ANSWER_TOKENS: Final = 100
MOSTLY_CACHED: Final = 0.8
LEAST_DECODE_SHARE: Final = 0.7
LARGE_TRANSFER_BYTES: Final = 500_000_000
FAST_LINK_GBPS: Final = 100
TRANSFER_SHARE_OF_TTFT: Final = 0.5
LEAST_PREFILL_LOAD: Final = 0.1


def against_two_roles(spec: InferencePoolSpec) -> str:
    """Why one role would serve the expected requests better; empty: nothing speaks against two.

    Raises:
        ArgumentError: see `vllm.parallelism`.
    """
    work = spec.workload
    if work is None or spec.prefill is None:
        return ""
    checks = (_short(work), _cached(work), _slow_transfer(spec, work), *_times(spec, work))
    return next((reason for reason in checks if reason), "")


def _short(work: Workload) -> str:
    prompt, answer = work.prompt_tokens.p50, work.output_tokens.p50
    if prompt is None or answer is None or prompt >= SHORT_PROMPT_TOKENS or answer >= SHORT_ANSWER_TOKENS:
        return ""
    return (
        f"median prompts of {prompt} tokens (below {SHORT_PROMPT_TOKENS}) with answers of {answer}"
        f" (below {SHORT_ANSWER_TOKENS}) are served faster whole"
    )


def _cached(work: Workload) -> str:
    hits = work.prefix_hit_ratio
    if hits is None or hits <= MOSTLY_CACHED:
        return ""
    return f"a prefix hit ratio of {hits:g} (above {MOSTLY_CACHED:g}) leaves little to compute for prefill"


def _slow_transfer(spec: InferencePoolSpec, work: Workload) -> str:
    link_gbps, shape = spec.transfer.bandwidth_gbps, models.facts(spec.model).kv
    value_bytes = vllm.kv_value_bytes(spec, Role.PREFILL)
    if link_gbps is None or shape is None or value_bytes is None:
        return ""
    median, longest = work.prompt_tokens.p50, work.prompt_tokens.p99
    if median is not None and link_gbps < FAST_LINK_GBPS:
        moved = shape.bytes_for(median, value_bytes)
        if moved > LARGE_TRANSFER_BYTES:
            return (
                f"KV of {moved / 1e6:.0f} MB a median prompt (above {LARGE_TRANSFER_BYTES / 1e6:.0f})"
                f" over {link_gbps:g} Gb/s (below {FAST_LINK_GBPS}) takes the time to the first token"
            )
    budget_ms = spec.slo.ttft_milliseconds if spec.slo is not None else None
    if longest is not None and budget_ms is not None:
        moved_ms = 1000 * sizing.transfer_seconds(shape.bytes_for(longest, value_bytes), link_gbps / 8)
        if moved_ms > TRANSFER_SHARE_OF_TTFT * budget_ms:
            return (
                f"the transfer of a p99 prompt takes {moved_ms:.0f} ms over {link_gbps:g} Gb/s, more than half of the"
                f" {budget_ms:g} ms of slo.ttftMilliseconds"
            )
    return ""


def _times(spec: InferencePoolSpec, work: Workload) -> tuple[str, ...]:
    """What follows from how long prefill and decode of a median request take."""
    guesses = speeds.first_guesses(spec)
    rate, step_ms = guesses.prefill.tokens_per_second, guesses.decode.step_milliseconds
    prompt, answer = work.prompt_tokens.p50, work.output_tokens.p50
    if not rate or prompt is None:
        return ()
    prefill_s = prompt * (1 - (work.prefix_hit_ratio or 0)) / rate
    found = []
    if step_ms and answer is not None:
        share = answer * step_ms / 1000 / (answer * step_ms / 1000 + prefill_s)
        if share < LEAST_DECODE_SHARE:
            found.append(f"decode is {share:.0%} of a median request (below {LEAST_DECODE_SHARE:.0%})")
    if work.requests_per_second is not None:
        load = work.requests_per_second * prefill_s
        if load < LEAST_PREFILL_LOAD:
            found.append(f"one prefill replica would be busy {load:.0%} of the time (below {LEAST_PREFILL_LOAD:.0%})")
    return tuple(found)
