"""The table of exchanges, on the stand-in or (`--engine=real`) on vLLM: what drifts apart fails on one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.engine.exchanges import EXCHANGES, LAST, REFUSALS, Refusal, check_refusal

if TYPE_CHECKING:
    from e2e.engine.exchanges import Pair

pytestmark = pytest.mark.xdist_group("engines")  # one set of engines, on one worker


@pytest.mark.parametrize("name", EXCHANGES)
def test_exchange(pair: Pair, name: str) -> None:
    """The engine answers as the row of the table says."""
    EXCHANGES[name](pair)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.name)
def test_refusal(pair: Pair, refusal: Refusal) -> None:
    """The engine refuses the body with vLLM's status, type, parameter and message."""
    check_refusal(pair.prefill, refusal)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.ends_engine(order)) for order, name in enumerate(LAST, 1)]
)
def test_ending(pair: Pair, name: str) -> None:
    """The engine ends as the row of the table says."""
    LAST[name](pair)
