"""The admin port's page in real Chromium, over its DevTools protocol (`make test-page`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tests.router.conftest import MakeSite

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

SHOW_S = 20.0


class Tab:
    """One tab of a browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.complaints: list[str] = []
        """What the browser wrote to its console: script errors and refusals of the policy."""

    async def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            said = await self._socket.receive_json(timeout=SHOW_S)
            if said.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(json.dumps(said["params"]))
            if said.get("id") == self._number:
                assert "error" not in said, said
                return said["result"]

    async def value(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def text(self, element: str) -> str:
        # Before the page has come there is no such element.
        return str(await self.value(f"document.getElementById('{element}')?.innerText ?? ''"))

    async def shows(self, element: str, *words: str) -> str:
        """The element's text once it holds every word."""
        deadline = asyncio.get_running_loop().time() + SHOW_S
        while True:
            found = await self.text(element)
            if all(word in found for word in words):
                return found
            assert asyncio.get_running_loop().time() < deadline, f"{element} shows {found!r}, not {words}"
            await asyncio.sleep(0.1)


@pytest.fixture
async def tab(devtools: int) -> AsyncIterator[Callable[[str], Awaitable[Tab]]]:
    """Opens an address in the browser's one tab."""
    async with contextlib.AsyncExitStack() as stack:

        async def opened(url: str) -> Tab:
            async with httpx.AsyncClient() as http:
                pages = (await http.get(f"http://127.0.0.1:{devtools}/json")).json()
            (blank,) = [each for each in pages if each["type"] == "page"]
            session = await stack.enter_async_context(aiohttp.ClientSession())
            socket = await stack.enter_async_context(session.ws_connect(blank["webSocketDebuggerUrl"], max_msg_size=0))
            made = Tab(socket)
            for domain in ("Log", "Runtime", "Page"):
                await made.call(f"{domain}.enable")
            await made.call("Page.navigate", url=url)
            return made

        yield opened


async def test_the_page_shows_the_pool_live(site: MakeSite, tab: Callable[[str], Awaitable[Tab]]) -> None:
    """It opens without a complaint, shows roles, endpoints and figures, and a new decision appears without a reload."""
    here = await site(prefill=1, decode=2)
    page = await tab(f"http://127.0.0.1:{here.router.admin_port}/")
    await page.shows("models", "tiny")
    await page.shows("state", "ready")
    roles = await page.shows("roles", "prefill", "decode")
    assert roles.splitlines()[1].split()[:2] == ["decode", "2"] or roles.splitlines()[0].split()[:2] == ["decode", "2"]
    endpoints = await page.text("endpoints")
    assert all(each.name in endpoints for each in here.router.endpoints.all())
    await page.shows("decisions", "nothing was asked yet")
    assert (await here.complete()).status_code == httpx.codes.OK
    await page.shows("decisions", "two legs", here.router.endpoints.snapshot().prefill[0].name)
    await page.shows("figures", "prompt tokens found cached")
    assert page.complaints == []


async def test_names_are_shown_as_text(site: MakeSite, tab: Callable[[str], Awaitable[Tab]]) -> None:
    """A model name with markup in it is shown, never run."""
    here = await site(model={"servedNames": ["<img src=x onerror=document.title='owned'>"]})
    page = await tab(f"http://127.0.0.1:{here.router.admin_port}/")
    await page.shows("models", "<img src=x")
    assert await page.value("document.images.length") == 0


async def test_a_lost_connection_shows_and_mends(site: MakeSite, tab: Callable[[str], Awaitable[Tab]]) -> None:
    """When the router ends, the page says so instead of showing old figures as new."""
    here = await site()
    page = await tab(f"http://127.0.0.1:{here.router.admin_port}/")
    await page.shows("state", "ready")
    await here.router.admin.close()
    await page.shows("state", "connection lost")
