"""What the operator would say of a pool of a file: every refusal, every warning, and what it could not check.

Boundary: pure; no cluster is asked, so kinds that a cluster may lack count as present.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pdpool_api.conditions import Reason
from pdpool_operator import intent
from pdpool_operator.records import OPTIONAL_RESOURCES, Desired, Refusal, Remark, Surroundings

if TYPE_CHECKING:
    from pdpool_operator.cli.pool_files import Written
    from pdpool_operator.records import Images

DEFAULT_OPERATOR_NAMESPACE: Final = "pdpool-system"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is to be said of one pool."""

    name: str
    refusals: tuple[Refusal, ...] = ()
    warnings: tuple[Remark, ...] = ()
    unchecked: str = ""
    desired: Desired | None = None
    """What it becomes; None: it is refused."""


def judged(written: Written, images: Images, operator_namespace: str = DEFAULT_OPERATOR_NAMESPACE) -> Judgement:
    """Judges one pool of a file as the operator would in a cluster that has every optional kind."""
    if written.pool is None:
        return Judgement(written.name, refusals=(Refusal(Reason.INVALID_SPEC, written.fault),))
    if refused := intent.refusals(written.pool, images):
        return Judgement(written.name, refusals=refused)
    around = Surroundings(operator_namespace, frozenset(OPTIONAL_RESOURCES))
    desired = intent.wanted(written.pool, images, around)
    assert isinstance(desired, Desired), "nothing else refuses"
    return Judgement(written.name, warnings=desired.remarks, unchecked=desired.unchecked, desired=desired)
