"""The admin port's page: what the router knows and decides, live, for a person with a browser.

Boundary: it reads. One HTML file without any other asset, fed by server-sent events; a policy in its headers lets the
browser run this script and talk to this port, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
from importlib import resources
from time import monotonic, time
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web

from pdpool_api.names import ENGINE_ROLES
from pdpool_router.records import Decision, Unplaced, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pdpool_router.forward.choice import Recent
    from pdpool_router.records import Endpoint, Load
    from pdpool_router.state.endpoints import Endpoints
    from pdpool_router.telemetry import Telemetry

_EVERY_S: Final = 1.0
_MOST_WATCHERS: Final = 16
_SHOWN: Final = 25
STATES: Final = ("ready", "failing", "draining")
_HTML: Final = resources.files("pdpool_router.edge").joinpath("page.html").read_text(encoding="utf-8")


def _digest(tag: str) -> str:
    """Source expression of a Content-Security-Policy for the one element of that name in the page."""
    (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", _HTML, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


# The width of a bar is set by the script through the style object, which the policy lets pass.
_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_digest('script')}",
        f"style-src {_digest('style')}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


def state_of(endpoint: Endpoint, endpoints: Endpoints) -> str:
    """One of `ready`, `failing`, `draining`."""
    if endpoint.draining:
        return "draining"
    return "ready" if endpoints.usable(endpoint.uid) else "failing"


def described(endpoint: Endpoint, endpoints: Endpoints) -> dict[str, Any]:
    """One endpoint with its load; what is not known is null, never zero."""
    load = endpoints.inflight
    known = endpoints.snapshot().loads.get(endpoint.uid)
    return {
        "uid": endpoint.uid,
        "name": endpoint.name,
        "role": endpoint.role.value,
        "address": endpoint.authority,
        "revision": endpoint.revision,
        "state": state_of(endpoint, endpoints),
        "inflight": load.requests.get(endpoint.uid, 0),
        "localPrefills": load.local_prefills.get(endpoint.uid, 0),
        "unstarted": known.unstarted if known is not None else None,
        "others": known.others if known is not None and known.reported else None,
        "waitMs": known.wait_ms if known is not None else None,
        "unstartedPromptTokens": known.unstarted_tokens if known is not None else None,
        "speeds": _speeds(known) if known is not None else None,
        "blocks": endpoints.prefixes.blocks_of(endpoint.uid),
        "blocksFrom": "decisions" if endpoint.uid in endpoints.prefixes.guessed else "events",
    }


def _speeds(load: Load) -> dict[str, float]:
    """What was learned of an endpoint, or is guessed until then."""
    return {
        "fixedMilliseconds": round(load.fixed_ms, 3),
        "promptTokensPerSecond": round(1000 / load.token_ms, 1),
        "stepMilliseconds": round(load.step_ms, 3),
        "pulledTokensPerSecond": round(1000 / load.pull_ms, 1),
    }


class Page:
    """The page, and the stream that feeds it."""

    def __init__(
        self,
        telemetry: Telemetry,
        endpoints: Endpoints,
        recent: Iterable[Recent],
        *,
        models: Callable[[], Sequence[str]],
        ready: Callable[[], str],
    ) -> None:
        """`recent` holds the last decisions, the newest last; `models` the served names, `ready` why it is not."""
        self._telemetry = telemetry
        self._endpoints = endpoints
        self._recent = recent
        self._models = models
        self._ready = ready
        self._watchers = 0
        self._closing = asyncio.Event()

    def routes(self) -> list[web.RouteDef]:
        """Where it is found."""
        return [web.get("/", self._page), web.get("/debug/live", self._live)]

    def close(self) -> None:
        """Ends every stream; browsers come again by themselves."""
        self._closing.set()

    def view(self) -> dict[str, Any]:
        """Everything that is shown, as of now."""
        t = self._telemetry
        endpoints = [described(each, self._endpoints) for each in self._endpoints.all()]
        return {
            "at": time(),
            "models": list(self._models()),
            "state": self._ready() or "ready",
            "totals": {
                "requests": sum(t.requests.values()),
                "errors": sum(
                    count for (_, code), count in t.requests.items() if code >= web.HTTPInternalServerError.status_code
                ),
                "inflight": sum(each["inflight"] for each in endpoints),
                "queued": sum(t.queued.values()),
                "promptTokens": t.prompt_tokens,
                "completionTokens": t.completion_tokens,
                "cachedTokens": t.cached_tokens,
                "localPrefills": sum(t.local_prefills.values()),
                "truncatedStreams": t.truncated_streams,
            },
            "roles": [_role(role.value, endpoints) for role in ENGINE_ROLES if _of(role.value, endpoints)],
            "endpoints": sorted(endpoints, key=lambda each: (each["role"], each["name"])),
            "decisions": self._decisions(),
        }

    def _decisions(self) -> list[dict[str, Any]]:
        since = time() - monotonic()
        newest = list(self._recent)[: -_SHOWN - 1 : -1]
        return [{"at": since + at_s, "step": step, **_said(found)} for at_s, step, found in newest]

    async def _page(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text=_HTML, content_type="text/html", headers=_HEADERS)

    async def _live(self, request: web.Request) -> web.StreamResponse:
        if self._watchers >= _MOST_WATCHERS:
            return web.Response(
                status=503, text=f"{_MOST_WATCHERS} are watching already\n", headers={"retry-after": "5"}
            )
        self._watchers += 1
        try:
            stream = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-store"})
            await stream.prepare(request)
            while not self._closing.is_set():
                await stream.write(f"data: {json.dumps(self.view())}\n\n".encode())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), _EVERY_S)
            return stream
        finally:
            self._watchers -= 1


def _of(role: str, endpoints: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in endpoints if each["role"] == role]


def _role(role: str, endpoints: Iterable[dict[str, Any]]) -> dict[str, Any]:
    mine = _of(role, endpoints)
    counts = {state: sum(each["state"] == state for each in mine) for state in STATES}
    return {"role": role, **counts, "inflight": sum(each["inflight"] for each in mine)}


def _said(found: Decision | Unplaced | None) -> dict[str, Any]:
    if not isinstance(found, Decision):
        why = found.value if found is not None else Unplaced.NO_ENDPOINT.value
        return {"outcome": "refused", "endpoint": "", "reason": why}
    known = found.prompt_tokens > 0
    return {
        "outcome": _OUTCOMES[found.way],
        "endpoint": found.endpoint.name,
        "reason": found.reason,
        "promptTokens": found.prompt_tokens if known else None,
        "cachedTokens": found.cached_tokens if known else None,
        "predictedMs": found.predicted_ms or None,
    }


_OUTCOMES: Final = {Way.REMOTE: "two legs", Way.LOCAL: "decode alone", Way.NONE: "one engine"}
