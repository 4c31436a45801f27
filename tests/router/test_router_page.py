"""The admin port's page and the stream that feeds it. A real browser opens it in `test_router_page_browser.py`."""

from __future__ import annotations

import asyncio
import json
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from pdpool_router.edge import page

if TYPE_CHECKING:
    from tests.router.conftest import MakeSite, Site

LOOKS = 20
SECRET = "a prompt that nobody else should read"


class References(HTMLParser):
    """Everything that a page asks a browser to fetch, and every handler written into markup."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [
            (f"{tag} {name}", value or "")
            for name, value in attrs
            if name in ("src", "href", "action", "srcset", "data") or name.startswith("on")
        ]


def admin(site: Site, path: str) -> str:
    return f"http://127.0.0.1:{site.router.admin_port}{path}"


async def views(site: Site, count: int) -> list[dict[str, Any]]:
    """The next events of the stream, as a browser would read them."""
    found: list[dict[str, Any]] = []
    async with site.client.stream("GET", admin(site, "/debug/live")) as stream:
        assert stream.headers["content-type"] == "text/event-stream"
        async for line in stream.aiter_lines():
            if line:
                found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == count:
                break
    return found


async def test_the_page_needs_nothing_but_itself(site: MakeSite) -> None:
    """One file: no script, style or picture from elsewhere, no handler in markup, and headers that allow no other."""
    here = await site()
    answer = await here.client.get(admin(here, "/"))
    assert answer.headers["content-type"].startswith("text/html")
    references = References()
    references.feed(answer.text)
    assert references.found == [("link href", "data:,")]
    assert not re.search(r"https?://|@import|innerHTML|document\.write|eval\(", answer.text)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


async def test_the_stream_tells_pool_roles_endpoints_and_why(site: MakeSite) -> None:
    """After a request: both roles with their endpoints, the totals, the decisions taken; no word of a prompt."""
    here = await site(prefill=2, decode=1)
    assert (await here.complete(prompt=SECRET)).status_code == httpx.codes.OK
    (now,) = await views(here, 1)
    assert now["models"] == ["tiny"]
    assert now["state"] == "ready"
    assert {each["role"]: each["ready"] for each in now["roles"]} == {"prefill": 2, "decode": 1}
    assert [each["inflight"] for each in now["endpoints"]] == [0, 0, 0]
    assert now["totals"]["requests"] == 1
    assert now["totals"]["completionTokens"] > 0
    newest, first = now["decisions"]
    assert (first["step"], first["outcome"]) == ("way", "two legs")
    assert (newest["step"], newest["endpoint"]) == ("decode", here.router.endpoints.snapshot().decode[0].name)
    assert SECRET not in json.dumps(now)


async def test_a_refusal_is_told_with_its_reason(site: MakeSite) -> None:
    """A request that nobody can serve shows as refused, and why."""
    here = await site(prefill=0, decode=1, routing={"onPrefillUnavailable": "Fail"})
    assert (await here.complete()).status_code == httpx.codes.SERVICE_UNAVAILABLE
    (now,) = await views(here, 1)
    assert now["decisions"][0] | {"at": 0} == {
        "at": 0,
        "step": "way",
        "outcome": "refused",
        "endpoint": "",
        "reason": "no_prefill",
    }


async def test_what_is_not_known_is_null(site: MakeSite) -> None:
    """A load that no engine reported is null, never zero."""
    here = await site()
    for engine in here.engines:
        engine.force_metrics(num_requests_running=None, num_requests_waiting=None)
    others: set[float | None] = set()
    for _ in range(LOOKS):
        for load in here.router.endpoints.loads.loads.values():
            load.reported = False  # what was told before is forgotten in time
        (now,) = await views(here, 1)
        others = {each["others"] for each in now["endpoints"]}
        if others == {None}:
            break  # else a reading was under way when engines fell silent
    assert others == {None}


async def test_too_many_watchers_are_refused_and_places_come_free(
    site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of streams is bounded; one that ends makes room."""
    monkeypatch.setattr(page, "_MOST_WATCHERS", 1)
    here = await site()
    async with here.client.stream("GET", admin(here, "/debug/live")) as first:
        await anext(first.aiter_lines())
        refused = await here.client.get(admin(here, "/debug/live"))
        assert refused.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert "retry-after" in refused.headers

    for _ in range(100):  # the end of the first is noticed at its next write
        async with here.client.stream("GET", admin(here, "/debug/live")) as again:
            if again.status_code == httpx.codes.OK:
                return
        await asyncio.sleep(0.05)
    pytest.fail("no place came free")


async def test_the_end_of_the_router_ends_the_stream(site: MakeSite) -> None:
    """A watcher does not hold up a shutdown."""
    here = await site()
    async with here.client.stream("GET", admin(here, "/debug/live")) as stream:
        lines = stream.aiter_lines()
        await anext(lines)
        async with asyncio.timeout(10):
            await here.router.admin.close()
        assert [line async for line in lines] == [""]
