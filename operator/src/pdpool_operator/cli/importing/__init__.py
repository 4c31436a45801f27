"""Pools out of other systems' manifests, as far as that is mechanical.

Boundary: objects in, pools and remarks out. What has no counterpart becomes a remark beside the pool, never a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_operator.cli.importing import dynamo, llm_d, production_stack
from pdpool_operator.cli.importing.carried import Carried, CarryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pdpool_operator.records import Json

SOURCES: Final[Mapping[str, Callable[[Json], list[Carried]]]] = {
    "dynamo": dynamo.pools,
    "llm-d": llm_d.pools,
    "production-stack": production_stack.pools,
}
_TOLD_BY: Final = {"servingEngineSpec": "production-stack", "modelArtifacts": "llm-d"}


def source_of(document: Json) -> str | None:
    """Which system a document is of; None: of none that is known."""
    if document.get("kind") == "DynamoGraphDeployment":
        return "dynamo"
    return next((system for key, system in _TOLD_BY.items() if key in document), None)


def imported(documents: Iterable[Json], source: str | None = None) -> list[Carried]:
    """The pools of every document that is of a known system, or of the one that is named.

    Raises:
        CarryError: a document lacks what a pool cannot do without; the message names the field.
    """
    found: list[Carried] = []
    for document in documents:
        of = source or source_of(document)
        if of is not None:
            found += SOURCES[of](document)
    return found


__all__ = ["SOURCES", "Carried", "CarryError", "imported", "source_of"]
