"""The door to the API server, before a loopback server that answers as told."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio import client

from pdpool_operator import kube
from pdpool_operator.kube import Kube
from pdpool_operator.lease import Election, Timing
from pdpool_operator.observe import relist
from pdpool_operator.observe.cluster import Cluster
from pdpool_operator.observe.relist import AT_ONCE, Relist
from pdpool_operator.probes import STALE_S, Probes, serving
from pdpool_operator.records import HTTP_ROUTES, POOLS, SERVICES, WATCHED
from tests.operator.harness import free_port
from tests.operator.loopback import answering

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """Answers every request by `handler`."""

    def __init__(self) -> None:
        self.handler: Handler = self._empty
        self.requests: list[str] = []
        self.url = ""

    async def _empty(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path_qs}")
        return await self.handler(request)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    async with answering(found.handle) as found.url:
        yield found


def connected(server: Server, **limits: Any) -> Kube:
    configuration = client.Configuration()
    configuration.host = server.url
    return Kube(configuration, **limits)


async def test_too_many_requests_waits_as_long_as_asked(server: Server) -> None:
    """A 429 is repeated after its Retry-After, not earlier, and its caller sees only the answer (Q05)."""
    times: list[float] = []

    async def busy_once(_request: web.Request) -> web.StreamResponse:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            return web.json_response({"message": "busy"}, status=429, headers={"Retry-After": "1"})
        return web.json_response({"metadata": {"name": "x"}})

    server.handler = busy_once
    async with connected(server) as api:
        assert await api.get(SERVICES, "ns", "x") == {"metadata": {"name": "x"}}
    assert times[1] - times[0] >= 1


async def test_patience_with_too_many_requests_ends(server: Server) -> None:
    """A server that stays busy is unreachable in the end, instead of holding its caller for ever."""

    async def busy(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "busy"}, status=429, headers={"Retry-After": "60"})

    server.handler = busy
    async with connected(server, patience_s=5) as api:
        with pytest.raises(kube.UnreachableError, match="too many requests"):
            await api.get(SERVICES, "ns", "x")


async def test_no_more_than_the_limit_are_in_flight(server: Server) -> None:
    """A burst of calls is sent a few at a time (Q05)."""
    at_once = most = 0

    async def slow(_request: web.Request) -> web.StreamResponse:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0.01)
        at_once -= 1
        return web.json_response({})

    server.handler = slow
    async with connected(server, in_flight=5) as api:
        await asyncio.gather(*(api.get(SERVICES, "ns", f"x{number}") for number in range(40)))
    assert most == 5


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (400, "bad", kube.RejectedError),
        (401, "who", kube.ForbiddenError),
        (403, "no", kube.ForbiddenError),
        (409, "changed", kube.ConflictError),
        (422, "invalid", kube.RejectedError),
        (500, "failed to create typed patch object (x): duplicate entries", kube.RejectedError),
        (500, "etcd", kube.UnreachableError),
        (503, "later", kube.UnreachableError),
        (504, "timeout", kube.UnreachableError),
    ],
)
async def test_answers_become_errors(server: Server, status: int, message: str, expected: type[Exception]) -> None:
    """Each status is the error that says whether a repetition can help; a 500 about the body never can."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"message": message}, status=status)

    server.handler = answer
    async with connected(server) as api:
        with pytest.raises(expected, match=message[:5]):
            await api.get(SERVICES, "ns", "x")


async def test_no_answer_is_unreachable(server: Server) -> None:
    """A server that is silent, cuts its answer, sends no JSON, or is not there is unreachable, by a deadline."""

    async def silent(_request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(5)
        return web.json_response({})

    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"items": [')
        assert request.transport is not None
        request.transport.close()
        return response

    async def text(_request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    async with connected(server, timeout_s=0.3) as api:
        for server.handler in (silent, cut, text):
            with pytest.raises(kube.UnreachableError):
                await api.get(SERVICES, "ns", "x")
        assert await api.answers() is False or server.handler is text
    server.url = "http://127.0.0.1:9"
    async with connected(server, timeout_s=0.3) as api:
        with pytest.raises(kube.UnreachableError):
            await api.get(SERVICES, "ns", "x")
        assert not await api.answers()


async def test_lists_follow_their_pages(server: Server) -> None:
    """A consistent list goes on until no `continue` is left, and asks for one kind in one namespace by label."""

    async def pages(request: web.Request) -> web.StreamResponse:
        token = {"": "more", "more": ""}[request.query.get("continue", "")]
        item = {"metadata": {"name": token or "last"}}
        return web.json_response({"items": [item], "metadata": {"resourceVersion": "7", "continue": token}})

    server.handler = pages
    async with connected(server) as api:
        listing = await api.list_all(POOLS, "ns", "a=b")
    assert [each["metadata"]["name"] for each in listing.items] == ["more", "last"]
    assert listing.version == 7
    assert server.requests[0].startswith(
        "GET /apis/pdpool.io/v1alpha1/namespaces/ns/inferencepools?labelSelector=a%3Db"
    )


async def test_a_list_is_taken_apart_only_where_it_is_asked(server: Server) -> None:
    """Of each object which it is and its version are known at once; the whole of it is what the server sent."""
    item = {"metadata": {"name": "x", "namespace": "ns", "resourceVersion": "5", "labels": {"a": "b"}}, "spec": [1.5]}

    async def page(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": [item, {"metadata": []}], "metadata": {"resourceVersion": "7"}})

    async def whole(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"items": [item], "metadata": {"resourceVersion": "7"}})

    async with connected(server) as api:
        server.handler = page
        with pytest.raises(kube.UnreachableError, match="no JSON"):
            await api.list_heads(SERVICES, None)
        server.handler = whole
        heads = await api.list_heads(SERVICES, None)
    (only,) = heads.items
    assert (only.namespace, only.name, only.version, heads.version) == ("ns", "x", 5, 7)
    assert only.read() == item


async def test_who_may_not_write_sends_nothing(server: Server) -> None:
    """Asked before each write, not only before work begins: a replica that was stopped wakes in the middle of it."""
    allowed = True

    async def taken(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {"name": "x"}})

    server.handler = taken
    async with connected(server, may_write=lambda: allowed) as api:
        await api.merge(SERVICES, "ns", "x", {})
        allowed = False
        writes = (
            api.merge(SERVICES, "ns", "x", {}),
            api.apply(SERVICES, "ns", {"metadata": {"name": "x"}}, force=True),
            api.create(SERVICES, "ns", {}),
            api.replace(SERVICES, "ns", {"metadata": {"name": "x"}}),
            api.delete(SERVICES, "ns", "x", uid="u"),
        )
        for each in writes:
            with pytest.raises(kube.UnreachableError, match="acts no more"):
                await each
        assert await api.get(SERVICES, "ns", "x")
    assert len(server.requests) == 2


def test_the_clock_alone_ends_the_right_to_write() -> None:
    """A leader may write until its last good renewal is too old, whether or not anything has run since (Q03)."""
    now = 100.0
    unused: Any = None
    election = Election(unused, "ns", "lease", "me", timing=Timing(), clock=lambda: now)
    assert not election.may_write()
    election._good_at = now
    assert election.may_write()
    now += Timing().step_down_s
    assert not election.may_write()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux's")
async def test_nothing_is_delivered_after_it_was_given_up(server: Server) -> None:
    """The kernel drops what nobody acknowledges before another replica may act: no write arrives later (Q03)."""
    address = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 1))
    with kube._socket(address) as made:
        limit_ms = made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    timing = Timing()
    # The last write is sent when the leader steps down at the latest.
    assert timing.step_down_s + limit_ms / 1000 < timing.expire_s
    async with connected(server) as api:
        assert await api.answers()
        connector = api._api.rest_client.pool_manager.connector
        assert connector._socket_factory is kube._socket


async def test_deleting_what_is_gone_is_done(server: Server) -> None:
    """A 404 of a deletion is a success."""

    async def gone(_request: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "not found"}, status=404)

    server.handler = gone
    async with connected(server) as api:
        await api.delete(SERVICES, "ns", "x", uid="u")
        assert await api.get(SERVICES, "ns", "x") is None


@asynccontextmanager
async def listing(found: Relist) -> AsyncIterator[None]:
    """Lists go on while inside."""
    running = asyncio.create_task(found.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_readiness_and_liveness_rest_on_lists(server: Server) -> None:
    """Not ready without a good list for two minutes; not alive only if, besides, the API server answers."""
    now = 0.0
    cluster = Cluster()
    async with connected(server, timeout_s=0.3) as api:
        found = Relist(api, cluster, None, lambda _ref: None, clock=lambda: now)
        probes = Probes(api, cluster, found, clock=lambda: now)
        request: Any = None
        assert (await probes.ready(request)).status == 503
        assert (await probes.live(request)).status == 200
        async with listing(found):
            await asyncio.wait_for(found.until(lambda serving: len(serving) == len(WATCHED)), 10)
        assert cluster.complete
        assert (await probes.ready(request)).status == 200
        now = STALE_S + 1
        assert (await probes.ready(request)).status == 503
        assert (await probes.live(request)).status == 503

        async def down(_request: web.Request) -> web.StreamResponse:
            return web.json_response({"message": "down"}, status=503)

        server.handler = down
        assert (await probes.ready(request)).status == 503
        assert (await probes.live(request)).status == 200
        metrics = await probes.metrics(request)
        assert isinstance(metrics.body, bytes)
        assert b"pdpool_operator_reconcile_errors_total" in metrics.body


async def test_kinds_are_listed_a_few_at_a_time(server: Server) -> None:
    """Whoever asks the API server for something else meanwhile does not wait for lists of every kind."""
    serve = server.handler
    under_way: list[str] = []
    most = 0

    async def slowly(request: web.Request) -> web.StreamResponse:
        nonlocal most
        under_way.append(request.path)
        most = max(most, len(under_way))
        await asyncio.sleep(0.02)
        under_way.remove(request.path)
        return await serve(request)

    server.handler = slowly
    async with connected(server) as api:
        found = Relist(api, Cluster(), None, lambda _ref: None)
        async with listing(found):
            await asyncio.wait_for(found.until(lambda serving: len(serving) == len(WATCHED)), 30)
    assert 0 < most <= AT_ONCE


async def test_after_the_first_lists_kinds_come_one_by_one(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once in a period, never two at a time; a list that fails brings all of them anew, from the storage."""
    monkeypatch.setattr(relist, "PERIOD_S", 0.2)
    monkeypatch.setattr(relist, "RETRY_S", 0.0)
    serve = server.handler
    asked: list[web.Request] = []
    under_way = most = 0
    failing: list[web.Request] = []
    fails = False

    async def watched(request: web.Request) -> web.StreamResponse:
        nonlocal under_way, most
        if fails and not failing:
            failing.append(request)
            asked.clear()
            return web.json_response({"message": "down"}, status=503)
        asked.append(request)
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return await serve(request)

    async def lists(count: int) -> list[web.Request]:
        async with asyncio.timeout(30):
            while len(asked) < count or (fails and not failing):  # noqa: ASYNC110 - what a server was asked is no event
                await asyncio.sleep(0.01)
        return asked[:count]

    server.handler = watched
    async with connected(server) as api:
        found = Relist(api, Cluster(), None, lambda _ref: None)
        async with listing(found):
            await asyncio.wait_for(found.until(lambda serving: len(serving) == len(WATCHED)), 30)
            asked.clear()
            most = 0
            once = await lists(len(WATCHED))
            assert most == 1
            assert len({each.path for each in once}) == len(WATCHED)
            assert {each.query.get("resourceVersion") for each in once} == {"0"}
            fails = True
            anew = await lists(len(WATCHED))
    assert {each.query.get("limit") for each in anew} == {"500"}


@pytest.mark.parametrize("status", [404, 403, 503])
async def test_a_kind_of_another_project_holds_up_nothing(server: Server, status: int) -> None:
    """Absent, forbidden or broken: the required kinds are complete, and the operator is ready without it."""
    serve = server.handler

    async def without(request: web.Request) -> web.StreamResponse:
        if HTTP_ROUTES.plural in request.path:
            return web.json_response({"message": "no"}, status=status)
        return await serve(request)

    server.handler = without
    cluster = Cluster()
    async with connected(server, timeout_s=0.3) as api:
        found = Relist(api, cluster, None, lambda _ref: None)
        async with listing(found):
            await asyncio.wait_for(found.until(lambda serving: serving == set(WATCHED) - {HTTP_ROUTES}), 10)
            await asyncio.wait_for(cluster.completed.wait(), 10)
            request: Any = None
            assert (await Probes(api, cluster, found).ready(request)).status == 200
            # A kind that was there and fails for now is kept; one that appears is taken up.
            server.handler = serve
            found.hurry()
            await asyncio.wait_for(found.until(lambda serving: HTTP_ROUTES in serving), 10)
            asked = asyncio.Event()

            async def told(request: web.Request) -> web.StreamResponse:
                answer = await without(request)
                # The second round begins when the first is over, so that its end is not guessed.
                if HTTP_ROUTES.plural in request.path:
                    rounds.append(request)
                    asked.set() if len(rounds) > 1 else found.hurry()
                return answer

            rounds: list[web.Request] = []
            server.handler = told
            found.hurry()
            await asyncio.wait_for(asked.wait(), 10)
        assert (HTTP_ROUTES in found.serving) is (status == 503)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", None])
async def test_probes_are_served_at_the_address_given(server: Server, host: str | None) -> None:
    """An address of either family, or every one of both."""
    async with connected(server) as api, aiohttp.ClientSession() as http:
        cluster = Cluster()
        probes = Probes(api, cluster, Relist(api, cluster, None, lambda _ref: None))
        async with serving(probes, free_port(), host) as port:
            for address in [host] if host else ["127.0.0.1", "::1"]:
                shown = f"[{address}]" if ":" in address else address
                async with http.get(f"http://{shown}:{port}/livez") as answer:
                    assert answer.status == 200
