"""A load in the background: a coroutine on an event loop and in a thread of its own, while a block lasts.

Boundary: when it begins and how it is told to end; what it sends is its heirs' business.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType


@dataclass
class Background:
    """Use as a context manager."""

    _ended: threading.Event = field(init=False, default_factory=threading.Event)
    _thread: threading.Thread | None = field(init=False, default=None)

    def __enter__(self) -> Self:
        name = type(self).__name__.lower()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name=name, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    async def _run(self) -> None:
        """Goes on until `_ended` is set."""
        raise NotImplementedError
