"""The thread that kopf runs in, as the operator's end sees it."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pdpool_operator import handlers

if TYPE_CHECKING:
    import pytest


async def one_life() -> None:
    """Of kopf, on an API server whose kinds stay as they are."""

    async def until(_condition: Any) -> None:
        await asyncio.Event().wait()

    relist: Any = SimpleNamespace(until=until, serving=frozenset(), hurry=lambda: None)
    nothing: Any = None
    await handlers.Watches(nothing, nothing, relist, None, lambda _: None)._once()


def test_watches_that_do_not_end_hold_up_no_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kopf may hang where the API server is away: the event loop closes all the same, with its executor."""
    begun, released = threading.Event(), threading.Event()

    class Hangs(handlers._Thread):
        def run(self) -> None:
            begun.set()
            released.wait(60)

    monkeypatch.setattr(handlers, "_Thread", Hangs)
    monkeypatch.setattr(handlers, "_STOP_TIMEOUT_S", 0.1)

    async def life() -> None:
        watches = asyncio.create_task(one_life())
        await asyncio.to_thread(begun.wait, 60)
        watches.cancel()
        await asyncio.wait([watches])

    closed = threading.Thread(target=lambda: asyncio.run(life()), daemon=True)
    closed.start()
    closed.join(30)
    was_held_up = closed.is_alive()
    released.set()
    assert begun.is_set()
    assert not was_held_up


async def test_a_life_that_cannot_end_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that was refused ends kopf, which may then wait for ever for one that tries again."""
    released = threading.Event()

    async def refused() -> None:
        raise ValueError("410")

    async def spawn_tasks(**_: Any) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(refused())]

    async def run_tasks(tasks: list[asyncio.Task[None]], **_: Any) -> None:
        await asyncio.wait(tasks)
        await asyncio.to_thread(released.wait, 60)

    monkeypatch.setattr(handlers.kopf, "spawn_tasks", spawn_tasks)
    monkeypatch.setattr(handlers.kopf, "run_tasks", run_tasks)
    monkeypatch.setattr(handlers, "_STOP_TIMEOUT_S", 0.1)
    try:
        await asyncio.wait_for(one_life(), 30)
    finally:
        released.set()
