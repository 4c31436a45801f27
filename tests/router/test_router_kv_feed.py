"""KV events over real sockets: replay, gaps, restarts, addresses, and publishers that never come."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from e2e.engine.standin.events import EventsConfig, Publisher
from e2e.ports import free_ports
from pdpool_api.names import Role
from pdpool_router.faults import ConnectFailed
from pdpool_router.feeds import kv_events
from pdpool_router.feeds.kv_events import KvEvents
from pdpool_router.kv.blocks import TokenChain, packed
from pdpool_router.kv.knowledge import Prefixes
from pdpool_router.records import Endpoint, Prompt
from pdpool_router.telemetry import Telemetry
from tests.router.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SIZE = 16
IDS = list(range(64))


def stored(first: int, count: int, **fields: Any) -> dict[str, Any]:
    """Blocks `first`… of `IDS`, named by their numbers."""
    return {
        "type": "BlockStored",
        "block_hashes": list(range(first, first + count)),
        "parent_block_hash": first - 1 if first else None,
        "token_ids": IDS[first * SIZE : (first + count) * SIZE],
        "block_size": SIZE,
        **fields,
    }


def removed(*names: int) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(names)}


class Answers:
    """What engines answer to the question for their sources."""

    def __init__(self) -> None:
        self.status = 200
        self.body = b""
        self.asked = 0

    async def fetch(self, endpoint: Endpoint, path: str, timeout_s: float) -> tuple[int, bytes]:
        del endpoint, timeout_s
        self.asked += 1
        assert path == "/kv_event_sources"
        if not self.status:
            raise ConnectFailed("no")
        return self.status, self.body


class Site:
    """A feed, and publishers on loopback."""

    def __init__(self) -> None:
        self.answers = Answers()
        self.telemetry = Telemetry()
        self.known = Prefixes(10_000)
        self.feed = KvEvents(self.known, self.telemetry, self.answers)
        self.ports = tuple(free_ports(2))
        self.publisher = self.publish()

    def publish(self, **over: Any) -> Publisher:
        events, replay = self.ports
        config = EventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=f"tcp://*:{events}",
            topic="kv",
            **{"replay_endpoint": f"tcp://*:{replay}", **over},
        )
        return Publisher(config, 0)

    def endpoint(self, uid: str = "p", *, replay: bool = True) -> Endpoint:
        events, again = self.ports
        return Endpoint(
            uid=uid,
            name=uid,
            role=Role.PREFILL,
            host="127.0.0.1",
            port=1,
            kv_events=f"tcp://127.0.0.1:{events}",
            kv_replay=f"tcp://127.0.0.1:{again}" if replay else "",
        )

    def cached(self, uid: str = "p") -> int:
        tokens = packed([*IDS, 1])
        assert tokens is not None
        prompt = Prompt(keys=[], whole=1, text_bytes=10, ids=TokenChain(tokens))
        return self.known.match(prompt).cached.get(uid, 0)

    async def heard(self, uid: str = "p") -> None:
        """Waits until the subscription holds and its replay is over."""
        await eventually(
            lambda: any(one.connected and not one.replaying for one in self.feed._subscriptions.get(uid, ()))
        )


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    try:
        yield made
    finally:
        await made.feed.close()
        made.publisher.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kv_events, "MISSING_AFTER_S", 0.2)
    monkeypatch.setattr(kv_events, "REPLAY_S", 0.2)
    monkeypatch.setattr(kv_events, "ASK_AGAIN_S", 0.1)
    return


async def test_a_fresh_router_learns_what_was_published_before(site: Site) -> None:
    """Replay fills the index; live events keep it; removals empty it."""
    site.publisher.open()
    site.publisher.publish([stored(0, 2)])
    site.feed.follow([site.endpoint()], listen=True)
    await eventually(lambda: site.cached() == 32)
    await site.heard()
    site.publisher.publish([stored(2, 2)])
    await eventually(lambda: site.cached() == 64)
    site.publisher.publish([removed(3), removed(2)])
    await eventually(lambda: site.cached() == 32)
    assert site.telemetry.kv_event_gaps == 0
    assert site.known.guessed == frozenset()


async def test_lost_messages_are_replayed(site: Site) -> None:
    """A skipped number is asked for; the removals that were lost count (Q59)."""
    site.publisher.open()
    site.publisher.publish([stored(0, 4)])
    site.feed.follow([site.endpoint()], listen=True)
    await eventually(lambda: site.cached() == 64)
    await site.heard()
    payload = msgspec.msgpack.encode([0.0, [removed(3), removed(2), removed(1), removed(0)], 0])
    site.publisher._buffer.append((site.publisher._sequence, payload))
    site.publisher._sequence += 1
    site.publisher.publish([])
    site.publisher.publish([{"type": "Odd"}])
    await eventually(lambda: site.cached() == 0)
    assert site.telemetry.kv_event_gaps == 1


async def test_without_replay_a_gap_empties_the_index(site: Site) -> None:
    """Nothing is believed that may be gone (Q59)."""
    site.publisher.close()
    site.publisher = site.publish(replay_endpoint=None)
    site.publisher.open()
    site.feed.follow([site.endpoint(replay=False)], listen=True)
    await site.heard()
    site.publisher.publish([stored(0, 4)])
    await eventually(lambda: site.cached() == 64)
    site.publisher._sequence += 3
    site.publisher.publish([{"type": "Odd"}])
    await eventually(lambda: site.cached() == 0)
    assert site.telemetry.kv_event_gaps == 1


async def test_a_restarted_engine_begins_empty(site: Site) -> None:
    """The same address, another life: what the old one held is not believed of the new one (Q60)."""
    site.publisher.open()
    site.publisher.publish([stored(0, 4)])
    site.feed.follow([site.endpoint()], listen=True)
    await eventually(lambda: site.cached() == 64)
    site.publisher.close()
    site.publisher = site.publish()
    site.publisher.open()
    await eventually(lambda: site.cached() == 0)
    await site.heard()
    site.publisher.publish([stored(0, 1)])
    await eventually(lambda: site.cached() == 16)


async def test_a_gone_endpoint_is_heard_no_more(site: Site) -> None:
    """Late events of it have no effect, and another uid at its address begins with what the engine holds (Q60, Q61)."""
    site.publisher.open()
    site.publisher.publish([stored(0, 2)])
    site.feed.follow([site.endpoint()], listen=True)
    await eventually(lambda: site.cached() == 32)
    (late,) = site.feed._subscriptions["p"]
    site.feed.follow([], listen=True)
    assert site.cached() == 0
    late._on_live([b"kv", (1).to_bytes(8, "big"), msgspec.msgpack.encode([0.0, [stored(0, 4)], 0])])
    assert site.cached() == 0
    assert site.known.blocks.size == 0
    site.feed.follow([site.endpoint("q")], listen=True)
    await eventually(lambda: site.cached("q") == 32)
    assert site.cached() == 0


async def test_a_publisher_that_never_comes_is_missed_until_it_does(site: Site, quick: None) -> None:
    """Said, and guessed from own decisions meanwhile; over as soon as it is heard (Q110)."""
    del quick
    site.feed.follow([site.endpoint()], listen=True)
    assert site.feed.missing() == []
    assert site.known.guessed == {"p"}
    await eventually(lambda: len(site.feed.missing()) == 1)
    site.feed.tick()
    site.publisher.open()
    await eventually(lambda: site.feed.missing() == [])
    await site.heard()
    assert site.known.guessed == frozenset()
    site.publisher.close()
    await eventually(lambda: len(site.feed.missing()) == 1)
    site.feed.tick()
    assert site.known.guessed == {"p"}


async def test_a_replay_that_never_ends_is_given_up(site: Site, quick: None) -> None:
    """A replay address that nobody answers: the index grows from what is published from now on."""
    del quick
    site.publisher.close()
    site.publisher = site.publish(replay_endpoint=None)
    site.publisher.open()
    site.feed.follow([site.endpoint()], listen=True)
    await site.heard()
    site.publisher.publish([stored(0, 2)])
    await eventually(lambda: site.cached() == 32)


async def test_engines_say_where_they_publish(site: Site, quick: None) -> None:
    """Asked again until they answer; only their ports are believed."""
    del quick
    site.publisher.open()
    events, replay = site.ports
    site.answers.status = 0
    where = {"0": {"endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://*:{replay}"}}
    site.answers.body = msgspec.json.encode(where)
    bare = msgspec.structs.replace(site.endpoint(), kv_events="", kv_replay="")
    site.feed.follow([bare], listen=True)
    await eventually(lambda: site.answers.asked > 1)
    site.answers.status = 200
    await site.heard()
    (subscription,) = site.feed._subscriptions["p"]
    assert subscription.events == f"tcp://127.0.0.1:{events}"


@pytest.mark.parametrize(("status", "body"), [(404, b""), (200, b"rubbish")])
async def test_engines_that_cannot_say_are_heard_at_the_usual_ports(site: Site, status: int, body: bytes) -> None:
    """Older engines have no such route: the ports that their pods declare are taken, of each rank, else the usual."""
    site.answers.status, site.answers.body = status, body
    bare = msgspec.structs.replace(site.endpoint(), kv_events="", kv_replay="", host="::1")
    site.feed.follow([bare], listen=True)
    await eventually(lambda: "p" in site.feed._subscriptions)
    (subscription,) = site.feed._subscriptions["p"]
    assert subscription.events == "tcp://[::1]:5557"
    assert subscription._replay_address == "tcp://[::1]:5657"
    site.feed.follow([], listen=True)
    declared = msgspec.structs.replace(bare, event_ports=((6557, 6657), (6558, None)))
    site.feed.follow([declared], listen=True)
    await eventually(lambda: len(site.feed._subscriptions.get("p", ())) == 2)
    told = [(each.rank, each.events, each._replay_address) for each in site.feed._subscriptions["p"]]
    assert told == [(0, "tcp://[::1]:6557", "tcp://[::1]:6657"), (1, "tcp://[::1]:6558", "")]


async def test_approximate_listens_to_nobody(site: Site) -> None:
    """Also when it was told to after it had begun to listen, and back."""
    site.publisher.open()
    site.publisher.publish([stored(0, 2)])
    for _ in range(2):
        site.feed.follow([site.endpoint()], listen=True)
        await eventually(lambda: site.cached() == 32)
        site.feed.follow([site.endpoint()], listen=False)
        assert site.cached() == 0
        assert site.known.guessed == {"p"}
        assert site.feed.missing() == []


async def test_rubbish_on_the_wire_is_passed_over(site: Site) -> None:
    """No message ends a subscription, and each kind of fault is said once."""
    site.publisher.open()
    site.feed.follow([site.endpoint()], listen=True)
    await site.heard()
    (subscription,) = site.feed._subscriptions["p"]
    for frames in ([], [b"x"], [b"kv", b"", b""], [b"kv", bytes(8), b"\xc1"], [b"kv", b"\xff" * 8, b""]):
        subscription._on_live(frames)
        subscription._on_replayed(frames)
    site.publisher.publish([stored(0, 2)])
    await eventually(lambda: site.cached() == 32)


async def test_a_burst_of_events_leaves_the_loop_free(site: Site) -> None:
    """Thousands of messages are taken some at a time: what else is due runs between them."""
    site.publisher.open()
    site.feed.follow([site.endpoint()], listen=True)
    await site.heard()
    turns = 0
    for _ in range(2000):
        site.publisher.publish([stored(0, 1), removed(0)])
    site.publisher.publish([stored(0, 3)])
    while site.cached() != 48:
        turns += 1
        await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0)
    assert turns > 5
