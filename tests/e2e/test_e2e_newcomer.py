"""The quick start, as it stands: helm install, a sample, the first answer, each command typed as the page has it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from e2e.scenarios.quickstart import PAGE, commands

if TYPE_CHECKING:
    from conftest import RealPool

    from e2e.scenarios.quickstart import Newcomer


def test_the_page_has_at_most_eight_commands() -> None:
    """A newcomer types no more than eight, and begins with helm."""
    path = commands(PAGE.read_text())
    assert len(path) <= 8
    assert path[0].startswith("helm install ")


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_its_commands_lead_to_the_first_answer(newcomer: Newcomer, real_pool: RealPool) -> None:
    """After what set the pool up, the rest of the page runs, and its last command prints a chat answer."""
    *_, shown, _, answer = newcomer.types(newcomer.left)
    assert real_pool.pool.name in shown
    assert "True" in shown
    said = json.loads(answer)
    assert said["model"] == real_pool.model
    assert said["choices"][0]["message"]["content"]
