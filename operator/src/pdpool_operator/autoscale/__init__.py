"""The sizes of the roles.

Boundary: pure; it never calls the API. Sizes are fixed so far: what the spec asks for passes through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdpool_operator.records import Desired, Observed


def tick(_observed: Observed, desired: Desired) -> Desired:
    """The desired state with the sizes that demand asks for: here, those of the spec."""
    return desired
