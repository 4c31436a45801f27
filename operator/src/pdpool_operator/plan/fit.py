"""Whether a spec fits: the model into the accelerators, a replica into a node, the pool under its cap.

Boundary: pure. A refusal is certain, and its message shows the arithmetic: the memory of an accelerator is taken for
the most that it can be (GiB, while makers say GB), weights and KV for the least. Without figures there is no verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api import accelerators, hardware, models
from pdpool_api.conditions import Reason
from pdpool_api.engines import vllm
from pdpool_operator.records import Refusal

if TYPE_CHECKING:
    from pdpool_api.hardware import Profile
    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec

GIB: Final = 2**30
GB: Final = 10**9


def refusals(spec: InferencePoolSpec) -> tuple[Refusal, ...]:
    """Why the spec cannot run on what it names; empty: it can, or nothing is known.

    Raises:
        vllm.ArgumentError: an argument gives a size that is no whole number.
    """
    found = (
        ([_node(spec, role) for role in spec.roles], Reason.REPLICA_EXCEEDS_NODE),
        ([_memory(spec, role) for role in spec.roles], Reason.MODEL_DOES_NOT_FIT),
        ([_cap(spec)], Reason.MAX_GPUS_EXCEEDED),
    )
    return tuple(Refusal(reason, "; ".join(filter(None, words))) for words, reason in found if any(words))


def unchecked(spec: InferencePoolSpec) -> str:
    """Says that the fit of the model was not checked, and what would be needed; empty: it was, or cannot be asked."""
    sized = any(_profile(spec, role).memory_gigabytes is not None for role in spec.roles)
    if not sized or models.facts(spec.model).weight_bytes is not None:
        return ""
    return f"whether {spec.model.id} fits was not checked: its size is not known (spec.model.shape can tell it)"


def _node(spec: InferencePoolSpec, role: Role) -> str:
    most = _profile(spec, role).gpus_per_node
    needed = accelerators.of_replica(spec, role)
    if most is None or needed <= most:
        return ""
    sizes = vllm.parallelism(spec, role)
    how = f"tensor {sizes.tensor} x pipeline {sizes.pipeline} x data {sizes.data}"
    node = f"a node of {_name(spec, role)} has {most}"
    return f"{spec.field_of(role)}: one replica ({how}) needs {needed} accelerators, {node}"


def _memory(spec: InferencePoolSpec, role: Role) -> str:
    known = models.facts(spec.model)
    memory = _profile(spec, role).memory_gigabytes
    if memory is None or known.weight_bytes is None:
        return ""
    if not known.weights_are_given and not vllm.weights_are_as_published(spec, role):
        return ""
    shards, how = _shards(spec, role)
    weights = known.weight_bytes / shards
    room, of_memory = _room(spec, role, memory)
    kv, for_kv = _kv(spec, role, known)
    if weights + kv <= room:
        return ""
    return (
        f"{spec.field_of(role)}: weights of {known.weight_bytes / GB:.1f} GB / ({how}) = {weights / GB:.1f} GB{for_kv}"
        f" do not fit into the {room / GB:.1f} GB of one accelerator ({_name(spec, role)}: {of_memory})"
    )


def _shards(spec: InferencePoolSpec, role: Role) -> tuple[int, str]:
    """Over how many accelerators the weights of one copy are spread, at most."""
    sizes = vllm.parallelism(spec, role)
    how = f"tensor {sizes.tensor} x pipeline {sizes.pipeline}"
    if vllm.is_on(spec, role, "--enable-expert-parallel"):
        return sizes.accelerators, f"{how} x data {sizes.data}"  # experts are spread over the ranks as well
    return sizes.tensor * sizes.pipeline, how


def _room(spec: InferencePoolSpec, role: Role, memory_gigabytes: float) -> tuple[float, str]:
    whole = memory_gigabytes * GIB
    if vllm.setting(spec, role, "--kv-cache-memory-bytes") is not None:
        return whole, f"{memory_gigabytes:g} GiB"
    share = vllm.memory_utilization(spec, role)
    return whole * share, f"{memory_gigabytes:g} GiB x {share:g}"


def _kv(spec: InferencePoolSpec, role: Role, known: models.ModelFacts) -> tuple[float, str]:
    """KV of one sequence of the greatest length: with less an engine does not start."""
    tokens, value_bytes = vllm.max_model_len(spec, role), vllm.kv_value_bytes(spec, role)
    if known.kv is None or tokens is None or value_bytes is None:
        return 0.0, ""
    sizes = vllm.parallelism(spec, role)
    kv = tokens * known.kv.bytes_per_token_and_shard(value_bytes, sizes.tensor) / sizes.pipeline
    return kv, f" and KV of {tokens} tokens = {kv / GB:.1f} GB"


def _cap(spec: InferencePoolSpec) -> str:
    most = spec.max_gpus
    if most is None:
        return ""
    spec = spec.with_sizes({role: spec.role(role).fewest_replicas for role in spec.roles})
    wanted = accelerators.of_pool(spec)
    parts = " + ".join(
        f"{role} {spec.role(role).desired_replicas} x {accelerators.of_replica(spec, role)}" for role in spec.roles
    )
    if wanted > most:
        return f"spec.maxGpus: {parts} = {wanted} accelerators, more than {most}"
    room = accelerators.surges(spec)
    stuck = [role for role in spec.roles if not room[role] and not spec.role(role).rollout.max_unavailable]
    if stuck and any(accelerators.of_replica(spec, role) for role in stuck):
        named = " and ".join(stuck)
        return (
            f"spec.maxGpus: {parts} = {wanted} accelerators leave no room under {most} for a surge of {named},"
            " whose rollout.maxUnavailable is 0"
        )
    return ""


def _profile(spec: InferencePoolSpec, role: Role) -> Profile:
    return hardware.profile(spec.role(role).hardware)


def _name(spec: InferencePoolSpec, role: Role) -> str:
    return spec.role(role).hardware or "no profile"
