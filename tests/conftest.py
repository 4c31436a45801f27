"""Settings of every test."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING

import httpx
import pytest
from httpx._transports import default as httpx_transports
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# No test asserts speed: a busy machine must not fail a property.
settings.register_profile("pdpool", deadline=None, print_blob=True)
settings.load_profile("pdpool")

# Each client, and each `httpx.get`, would read the machine's certificates anew, for plain HTTP too: 0.1 s of CPU for
# every look of a test that polls.
httpx_transports.create_ssl_context = cache(httpx.create_ssl_context)

ON_REQUEST = ("argocd", "browser", "helm", "node")
"""Markers of tests that install, build or wait for much: they run only where asked for by exactly this name."""


@pytest.fixture
async def last_turns() -> AsyncIterator[None]:
    """For tests that close TLS connections last: those end in turns of the loop that come after."""
    yield
    await asyncio.sleep(0.2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what nobody asked for by name, whatever else the expression of markers says."""
    unasked = {marker for marker in ON_REQUEST if config.option.markexpr != marker}
    left_out = [item for item in items if any(item.get_closest_marker(marker) for marker in unasked)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
