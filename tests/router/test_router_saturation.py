"""How much more the stage that is short may get."""

from __future__ import annotations

import math

import pytest

from pdpool_api.names import Role
from pdpool_router.flow.saturation import FULL_LEGS, FULL_MS, spare_tokens
from pdpool_router.records import Endpoint, Load, Snapshot


def endpoint(uid: str, role: Role) -> Endpoint:
    return Endpoint(uid=uid, name=uid, role=role, host="127.0.0.1", port=1)


def snapshot(prefill: list[Load], decode: list[Load]) -> Snapshot:
    return Snapshot(
        prefill=tuple(endpoint(load.uid, Role.PREFILL) for load in prefill),
        decode=tuple(endpoint(load.uid, Role.DECODE) for load in decode),
        aggregated=(),
        inflight={},
        local_prefills={},
        max_local_prefills=4,
        local_allowed=True,
        loads={load.uid: load for load in (*prefill, *decode)},
    )


def test_a_stage_takes_what_each_engine_computes_in_time() -> None:
    """Faster engines take more, what they have is taken off, and one that is over its share lends nothing to others."""
    busy = snapshot([Load("p1", token_ms=0.1, unstarted_tokens=20_000), Load("p2", token_ms=0.05)], [Load("d")])
    assert spare_tokens(busy) == pytest.approx(FULL_MS / 0.1 - 20_000 + FULL_MS / 0.05)
    over = snapshot([Load("p1", token_ms=0.1, unstarted_tokens=10**9)], [Load("d")])
    assert spare_tokens(over) == 0


def test_decode_that_does_not_begin_to_answer_gets_no_more() -> None:
    """Only when every decode engine is in that state: one that is not can take the next."""
    stuck = Load("d1", unstarted=FULL_LEGS)
    assert spare_tokens(snapshot([Load("p")], [stuck])) == 0
    assert spare_tokens(snapshot([Load("p")], [stuck, Load("d2")])) > 0


def test_without_prefill_the_decode_engines_are_the_stage() -> None:
    """They compute the prompts themselves then."""
    assert spare_tokens(snapshot([], [Load("d", token_ms=0.1)])) == pytest.approx(FULL_MS / 0.1)


def test_a_slow_engine_still_gets_an_ordinary_prompt() -> None:
    """On a CPU 5 s are a few hundred tokens, and a prompt must not wait for ever because it is longer."""
    assert spare_tokens(snapshot([Load("p", token_ms=50)], [Load("d")])) > 4000


def test_nobody_there_is_not_a_line_to_wait_in() -> None:
    """Without engines the scheduler answers, not the line."""
    assert math.isinf(spare_tokens(snapshot([], [])))
