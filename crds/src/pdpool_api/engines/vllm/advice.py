"""Settings that work and are probably not what their author wants.

Boundary: pure; nothing here is refused. Each piece of advice names the role, the setting and why. Only what the spec
shows is judged: a setting whose effect depends on unknown traffic is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api.engines.vllm import flags, sizes
from pdpool_api.engines.vllm.environment import environment
from pdpool_api.engines.vllm.version import doubtful_tag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec

MAX_UTILIZATION: Final = 0.95
"""Above it what the engine does not count (graphs, communication buffers) no longer finds room."""
SPECULATIVE_BATCH: Final = 32
"""Above it drafted tokens cost more than they save: the batch fills the compute by itself."""
REMOVED_FLAGS: Final = frozenset(
    {
        "--calculate-kv-scales",
        "--guided-decoding-backend",
        "--max-num-partial-prefills",
        "--max-seq-len-to-capture",
        "--num-scheduler-steps",
        "--num-speculative-tokens",
        "--speculative-draft-tensor-parallel-size",
        "--speculative-model",
        "--swap-space",
    }
)
"""Of articles and older engines; those that are supported end at an unknown flag."""
_SPECULATIVE: Final = ("--speculative-config", "--spec-model", "--spec-method", "--spec-tokens")


def advice(spec: InferencePoolSpec) -> tuple[str, ...]:
    """What is worth knowing of the spec's settings, each once."""
    found = (f"{role}: {words}" for role in spec.roles for words in _of_role(spec, role))
    doubtful = doubtful_tag(spec)
    return tuple(dict.fromkeys([*([doubtful] if doubtful else []), *found]))


def _of_role(spec: InferencePoolSpec, role: Role) -> Iterator[str]:
    given = flags.given_flags(spec, role)
    if sizes.is_on(spec, role, "--enforce-eager"):
        yield "--enforce-eager is for debugging: without CUDA graphs each token takes up to half again as long"
    utilization = sizes.number(sizes.setting(spec, role, sizes.MEMORY_UTILIZATION))
    if utilization is not None and utilization > MAX_UTILIZATION:
        yield f"--gpu-memory-utilization {utilization:g} is above {MAX_UTILIZATION:g}: the engine may run out of memory"
    seqs = sizes.number(sizes.setting(spec, role, "--max-num-seqs"))
    yield from _budget(spec, role, seqs)
    if any(each.flag in _SPECULATIVE for each in given) and (seqs is None or seqs > SPECULATIVE_BATCH):
        batch = "the engine's default" if seqs is None else f"{seqs:g}"
        yield f"speculative decoding with --max-num-seqs {batch}: it helps in batches of up to {SPECULATIVE_BATCH}"
    for each in given:
        if each.flag in REMOVED_FLAGS:
            yield f"{each.flag} is unknown to the supported engines, which end at an unknown flag"
    for variable in environment(spec, role):
        if variable["name"] == "PYTORCH_CUDA_ALLOC_CONF" and "expandable_segments:True" in variable.get("value", ""):
            yield "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ends an engine that transfers KV at its start"


def _budget(spec: InferencePoolSpec, role: Role, seqs: float | None) -> Iterator[str]:
    """A budget of tokens that all sequences at once, each as long as it may be, cannot fill."""
    tokens = sizes.number(sizes.setting(spec, role, "--max-num-batched-tokens"))
    longest = sizes.max_model_len(spec, role)
    if tokens is None or seqs is None or longest is None:
        return
    if seqs * longest < tokens:
        yield (
            f"--max-num-batched-tokens {tokens:g} can never be filled:"
            f" {seqs:g} sequences of at most {longest} tokens are {seqs * longest:g}"
        )
