"""What mode Auto decides, and when it decides anew.

Boundary: pure. The rule:

1. Without the model's sizes, or without a prefill in the spec, one role.
2. Fewer than 4 accelerators: one role. Two pools would be one card each.
3. No fast way for KV (neither `transfer.rdma` nor NVLink on both profiles): one role.
4. The expected requests speak against two roles (`workload`): one role.
5. From 16 accelerators on, and from 4 on with NVLink: two roles.

The decision is kept in `status.mode`, and what it rests on as a hash in `status.modeInputs`: the size of a role is not
part of it, so that scaling never changes the mode.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from pdpool_api import accelerators, hardware, models
from pdpool_api.conditions import Reason
from pdpool_api.names import Role
from pdpool_operator.plan.workload import against_two_roles
from pdpool_operator.records import Remark

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePool, InferencePoolSpec

FEWEST: Final = 4
"""Two by two with NVLink is the smallest case in which two roles pay."""
PAYS_FROM: Final = 16

Mode = Literal["Disaggregated", "Aggregated"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The mode that a pool runs in."""

    mode: Mode
    inputs: str = ""
    """Hash of what Auto decided from; empty: the spec names the mode."""
    remark: Remark | None = None
    """What is worth knowing about it."""


def decided(pool: InferencePool) -> Decision:
    """The mode of a pool: what its spec says, what Auto decided before, or what it decides now.

    Raises:
        ArgumentError: an argument gives a size that is no whole number.
    """
    spec = pool.spec
    if spec.mode != "Auto":
        return Decision(spec.mode, remark=_contradiction(spec))
    of_spec = inputs(spec)
    mode, remark = _by_rule(spec)
    if pool.status.mode_inputs == of_spec and pool.status.mode == "Disaggregated" and spec.prefill is not None:
        mode = "Disaggregated"
    elif pool.status.mode_inputs == of_spec and pool.status.mode == "Aggregated":
        mode = "Aggregated"
    return Decision(mode, of_spec, remark)


def _by_rule(spec: InferencePoolSpec) -> tuple[Mode, Remark | None]:
    if not models.facts(spec.model).known:
        words = f"mode Auto is Aggregated: the sizes of {spec.model.id} are not known (spec.model.shape can tell them)"
        also = ", and two roles need spec.prefill" if spec.prefill is None else ""
        return "Aggregated", Remark(Reason.MODEL_UNKNOWN, words + also)
    if spec.prefill is None:
        return "Aggregated", None
    total = accelerators.of_pool(spec.with_sizes({role: spec.role(role).most_replicas for role in spec.roles}))
    count = total if spec.max_gpus is None else min(total, spec.max_gpus)
    on_nvlink = all(_has_nvlink(spec, role) for role in (Role.PREFILL, Role.DECODE))
    is_fast = on_nvlink or spec.transfer.rdma is not None
    two = is_fast and count >= (FEWEST if on_nvlink else PAYS_FROM) and not against_two_roles(spec)
    return ("Disaggregated" if two else "Aggregated"), None


def _contradiction(spec: InferencePoolSpec) -> Remark | None:
    """What the expected requests say against a mode that the spec names."""
    against = against_two_roles(spec) if spec.mode == "Disaggregated" else ""
    if not against:
        return None
    return Remark(Reason.MODE_CONTRADICTED, f"spec.workload speaks against mode Disaggregated: {against}")


def _has_nvlink(spec: InferencePoolSpec, role: Role) -> bool:
    link = hardware.profile(spec.role(role).hardware).link
    return link is not None and link.kind == "NVLink"


def inputs(spec: InferencePoolSpec) -> str:
    """Hash of what mode Auto decides from: while it stays the mode stays."""
    seen: dict[str, Any] = {
        "model": spec.model.model_dump(mode="json", exclude={"served_names", "token_secret_ref", "cache", "adapters"}),
        # A field that came later is left out where it is absent: else its coming would be a change of every pool.
        "transfer": spec.transfer.model_dump(
            mode="json", exclude={"bandwidth_gbps"} if spec.transfer.bandwidth_gbps is None else None
        ),
        "maxGpus": spec.max_gpus,
        **({"workload": spec.workload.model_dump(mode="json")} if spec.workload is not None else {}),
        **({"slo": spec.slo.model_dump(mode="json")} if spec.slo is not None else {}),
        "roles": {
            name: None
            if role is None
            else {"hardware": role.hardware, "parallelism": role.parallelism.model_dump(mode="json")}
            for name, role in (("prefill", spec.prefill), ("decode", spec.decode))
        },
    }
    return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()[:16]
