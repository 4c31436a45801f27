"""The router with prefixes: what it learns from answers and events, where it then goes, and what it says of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from e2e.engine.standin import EventsConfig, Standin
from e2e.ports import free_ports
from tests.router.conftest import Site, config, eventually, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from pdpool_router.assembly import Router

    MakePool = Callable[..., Awaitable[Site]]

HOP = {"localPrefill": {"maxUncachedTokens": 0}}
SHORT_TOO = {"localPrefill": {"maxUncachedTokens": 512}}
BLOCK = 32


def words(seed: object, count: int = 300) -> str:
    rng = random.Random(str(seed))
    return " ".join("".join(rng.choices("abcdefghij", k=rng.randint(2, 8))) for _ in range(count))


def tokens(seed: object, count: int = 320) -> list[int]:
    rng = random.Random(str(seed))
    return [rng.randint(300, 60_000) for _ in range(count)]


def events(ranks: int = 1) -> EventsConfig:
    """Events on free ports, one for each data-parallel rank from there on."""
    ports = free_ports(2, in_a_row=ranks)
    return EventsConfig(
        enable_kv_cache_events=True,
        publisher="zmq",
        endpoint=f"tcp://*:{ports[0]}",
        replay_endpoint=f"tcp://*:{ports[1]}",
    )


@pytest.fixture
async def pool() -> AsyncIterator[MakePool]:
    """Makes a site whose engines publish KV events (unless told not to), once the router hears them."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(
            prefill: int = 2,
            decode: int = 2,
            aggregated: int = 0,
            *,
            tells: bool = True,
            engine: dict[str, Any] | None = None,
            **over: Any,
        ) -> Site:
            groups: dict[str, list[Standin]] = {}
            for role, count in (("prefill", prefill), ("decode", decode), ("aggregated", aggregated)):
                groups[role] = [
                    await stack.enter_async_context(
                        Standin(role, **(engine or {}), **({"events": events()} if tells else {}))  # type: ignore[arg-type]
                    )
                    for _ in range(count)
                ]
            static = [{"role": role, "url": one.url} for role, group in groups.items() for one in group]
            router = await stack.enter_async_context(running(config(static, **over)))
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{router.port}", timeout=20)
            )
            here = Site(router, client, groups["prefill"], groups["decode"], groups["aggregated"])
            if tells:
                await followed(router, here.engines)
            return here

        yield make


async def followed(router: Router, engines: list[Standin]) -> None:
    """Waits until every engine is known: its events are followed, nothing is guessed, and it told its load.

    Until then some look busier than others, and a conversation may well begin where it does not stay.
    """
    feed, loads = router.kv_events, router.endpoints.loads.loads
    await eventually(
        lambda: (
            len(feed._subscriptions) == len(loads) == len(engines)
            and all(one.connected and not one.replaying for group in feed._subscriptions.values() for one in group)
            and all(load.reported for load in loads.values())
        )
    )


async def at_rest(here: Site) -> None:
    """Waits until nothing is in flight and events of the last answer have come."""
    await here.idle()
    await settled(here.router, here.engines)


async def settled(router: Router, engines: list[Standin]) -> None:
    """Waits until nothing more happens in the engines and the router has heard whatever they told."""
    ranks = {(one.url.removeprefix("http://"), rank.number): rank for one in engines for rank in one.engine.ranks}
    followed = [one for group in router.kv_events._subscriptions.values() for one in group]

    def told() -> list[int]:
        return [rank._publisher._sequence for rank in ranks.values()]

    def heard() -> bool:
        return all(
            (one._follower._next or 0) == ranks[one.endpoint.name, one.rank]._publisher._sequence for one in followed
        )

    before: list[int] = []
    while before != told():
        before = told()
        await eventually(heard)
        await asyncio.sleep(0.02)


def served_by(engines: list[Standin]) -> Standin:
    """The engine whose last generation is the newest."""
    return max(engines, key=lambda one: max((each.received_s for each in one.generations()), default=-1.0))


async def test_ids_are_asked_for_until_a_text_is_known(pool: MakePool) -> None:
    """The prefill leg of unknown text asks for the ids, that of known text does not; the client sees none."""
    here = await pool()
    text = words(1)
    asked = []
    for _ in range(2):
        answer = await here.complete(prompt=text)
        assert answer.status_code == 200
        assert "prompt_token_ids" not in answer.json()
        assert not answer.json()["choices"][0].get("prompt_token_ids")
        await at_rest(here)
        leg = max((leg for one in here.prefill for leg in one.generations("prefill")), key=lambda leg: leg.received_s)
        asked.append(leg.json().get("return_token_ids", False))
    assert asked == [True, False]
    decode_legs = [leg.json() for one in here.decode for leg in one.generations("decode")]
    assert not any("return_token_ids" in leg for leg in decode_legs)


@pytest.mark.parametrize("by", ["text", "ids", "chat"])
async def test_a_conversation_returns_to_what_it_has_cached(pool: MakePool, by: str) -> None:
    """All turns on one pair, though others are as idle; what is predicted is what the engine reports."""
    here = await pool(prefill=3, decode=3)
    for conversation in range(4):
        prefills, decodes = set(), set()
        for turn in range(1, 5):
            if by == "ids":
                answer = await here.complete(prompt=tokens(conversation, 160 * turn), max_tokens=2)
            elif by == "text":
                answer = await here.complete(prompt=words(conversation, 120 * turn), max_tokens=2)
            else:
                messages = [{"role": "system", "content": "be brief"}]
                messages += [
                    {"role": ("user", "assistant")[n % 2], "content": words((conversation, n), 80)}
                    for n in range(2 * turn - 1)
                ]
                answer = await here.client.post(
                    "/v1/chat/completions", json={"model": "tiny", "messages": messages, "max_tokens": 2}
                )
            assert answer.status_code == 200
            await at_rest(here)
            prefills.add(served_by(here.prefill).url)
            decodes.add(served_by(here.decode).url)
        assert len(prefills) == 1
        assert len(decodes) == 1
    predicted, actual = [await here.metric(f"{name}_cached_tokens_total") for name in ("predicted", "actual")]
    assert actual > 1000
    if by == "ids":
        assert predicted == actual
    else:
        assert 0.85 * actual <= predicted <= actual * 1.02
    assert await here.metric("prefix_hit_tokens_total") > 0
    assert await here.metric("prefix_query_tokens_total") > await here.metric("prefix_hit_tokens_total")


async def test_prompts_of_ids_follow_events_at_once(pool: MakePool) -> None:
    """A prompt that only the engine knew of (it was asked directly) is found by its events."""
    here = await pool(prefill=3)
    prompt = tokens("direct", 400)
    async with httpx.AsyncClient() as direct:
        await direct.post(
            f"{here.prefill[2].url}/v1/completions", json={"model": "tiny", "prompt": prompt, "max_tokens": 1}
        )
    await at_rest(here)
    assert (await here.complete(prompt=prompt)).status_code == 200
    assert served_by(here.prefill) is here.prefill[2]


async def test_salts_share_nothing(pool: MakePool) -> None:
    """The key of a prefix includes the salt: another salt's prompt is not believed to be cached."""
    here = await pool()
    prompt = tokens("salted", 320)
    for salt in ("a", "a", "b"):
        assert (await here.complete(prompt=prompt, cache_salt=salt)).status_code == 200
        await at_rest(here)
    assert await here.metric("prefix_hit_tokens_total") == 288
    assert await here.metric("predicted_cached_tokens_total") == await here.metric("actual_cached_tokens_total") == 288


async def test_short_and_cached_prompts_stay_with_decode(pool: MakePool) -> None:
    """The hop is skipped for few uncached tokens, and taken for many; the answer and a metric say so."""
    here = await pool(routing=SHORT_TOO)
    short = await here.complete(prompt=tokens("short", 100))
    assert short.headers["x-pdpool-prefill"] == "local"
    long = await here.complete(prompt=tokens("long", 4000))
    assert long.headers["x-pdpool-prefill"] == "remote"
    await at_rest(here)
    again = await here.complete(prompt=[*tokens("long", 4000), *tokens("more", 60)])
    assert again.headers["x-pdpool-prefill"] == "local"
    assert await here.metric("local_prefill_total", reason="short") == 1
    assert await here.metric("local_prefill_total", reason="cached") == 1


async def test_an_evicted_prefix_is_not_believed_in(pool: MakePool) -> None:
    """Engines with few blocks evict all the time: predicted and reported stay equal."""
    here = await pool(engine={"blocks": 60}, prefill=2, decode=2)
    rng = random.Random(5)
    for _ in range(40):
        conversation = rng.randrange(6)
        assert (await here.complete(prompt=tokens(conversation, 100 * rng.randint(2, 6)), max_tokens=2)).is_success
        await at_rest(here)
    predicted, actual = [await here.metric(f"{name}_cached_tokens_total") for name in ("predicted", "actual")]
    assert actual > 500
    assert predicted == actual
    blocks = await here.metric("kv_index_blocks")
    assert 0 < blocks <= 4 * 60


async def test_a_restarted_engine_is_believed_empty(pool: MakePool) -> None:
    """Its prefix is worth nothing to the new life, and metrics say what is known."""
    here = await pool(prefill=1, decode=1)
    prompt = tokens("restart", 320)
    assert (await here.complete(prompt=prompt)).is_success
    await at_rest(here)
    assert await here.metric("kv_index_blocks", endpoint=f"127.0.0.1:{here.p.port}") == 10
    publisher = here.p.engine.ranks[0]._publisher
    publisher.close()
    publisher._sequence = 0
    publisher._buffer.clear()
    publisher.open()
    await eventually(lambda: here.router.endpoints.prefixes.blocks_of(f"prefill/127.0.0.1:{here.p.port}") == 0)


async def test_without_events_it_is_said_that_all_is_guessed(pool: MakePool) -> None:
    """Affinity by own decisions, and a metric of it (Q81: something is known after the first request)."""
    here = await pool(prefill=3, tells=False, routing=HOP | {"index": {"source": "Approximate"}})
    assert await here.metric("index_approximate") == 1
    assert await here.metric("kv_events_missing") == 0
    homes = set()
    for turn in range(1, 6):
        assert (await here.complete(prompt=words("guess", 100 * turn))).is_success
        await here.idle()
        homes.add(served_by(here.prefill).url)
    assert len(homes) == 1
    assert await here.metric("kv_index_blocks") > 0
    assert await here.metric("predicted_cached_tokens_total") > 0


async def test_two_routers_agree_on_a_conversation(pool: MakePool) -> None:
    """Turns that come in by either router stay together (Q63)."""
    here = await pool(prefill=4, decode=2)
    static = [{"role": "prefill", "url": one.url} for one in here.prefill]
    static += [{"role": "decode", "url": one.url} for one in here.decode]
    async with (
        running(config(static)) as other,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{other.port}", timeout=20) as second,
    ):
        await followed(other, here.engines)
        moved = turns = 0
        for conversation in range(8):
            home = None
            for turn in range(1, 6):
                client = (here.client, second)[turn % 2]
                body = {"model": "tiny", "prompt": words(("two", conversation), 60 * turn), "max_tokens": 1}
                assert (await client.post("/v1/completions", json=body)).is_success
                await at_rest(here)
                await settled(other, here.engines)
                now = served_by(here.prefill)
                moved += home is not None and now is not home
                turns += home is not None
                home = home or now
    assert moved <= 0.1 * turns


async def test_a_burst_of_one_system_prompt_is_spread(pool: MakePool) -> None:
    """64 at once with the same long beginning: no engine gets more than 40 % (Q81)."""
    here = await pool(prefill=4, decode=1)
    for one in here.prefill:
        one.set_pace(prefill_s_per_token=0.0001)
    system = words("system", 700)
    await asyncio.gather(*(here.complete(prompt=system + words(n, 12), max_tokens=1) for n in range(64)))
    counts = [len(one.generations("prefill")) for one in here.prefill]
    assert sum(counts) == 64
    assert max(counts) <= 0.4 * 64, counts


async def test_what_would_be_chosen_is_explained(pool: MakePool) -> None:
    """`/debug/decide` lists every candidate with its terms, sends nothing, and repeats no word of the request."""
    here = await pool()
    admin = f"http://127.0.0.1:{here.router.admin_port}"
    prompt = words("explained", 300)
    assert (await here.complete(prompt=prompt)).is_success
    await at_rest(here)
    sent = sum(len(one.generations()) for one in here.engines)
    told = await here.client.post(f"{admin}/debug/decide", json={"model": "tiny", "prompt": prompt})
    assert told.status_code == 200
    page = told.json()
    assert page["policy"] == "KvAware"
    assert page["chosen"]["endpoint"] == page["prefill"][0]["endpoint"]
    assert page["prefill"][0]["cachedTokens"] > page["prefill"][1]["cachedTokens"] == 0
    assert set(page["prefill"][0]["terms"]) >= {"wait", "compute"}
    assert sum(len(one.generations()) for one in here.engines) == sent
    assert prompt[:20] not in told.text
    for body, route in ((b"{", ""), (b"{}", "/nowhere"), (b'{"model": "other"}', ""), (b'{"prompt": 5}', "")):
        answer = await here.client.post(f"{admin}/debug/decide", params={"route": route}, content=body)
        assert answer.status_code == (200 if body == b'{"prompt": 5}' else 400)
    page = (await here.client.get(f"{admin}/debug/snapshot")).json()
    assert page["index"]["blocks"] > 0
    assert page["index"]["blockTokens"] == [BLOCK]
    assert {each["blocksFrom"] for each in page["endpoints"]} == {"events"}


async def test_ranks_are_chosen_where_they_hold_the_prefix(pool: MakePool) -> None:
    """An endpoint of two data-parallel ranks gets the request for the rank that has it."""
    ranked = {"data_parallel": 2, "events": events(ranks=2)}
    here = await pool(prefill=0, decode=0, aggregated=1, tells=False, engine=ranked)
    feed = here.router.kv_events
    await eventually(lambda: sum(len(group) for group in feed._subscriptions.values()) >= 2)
    await eventually(
        lambda: all(one.connected and not one.replaying for group in feed._subscriptions.values() for one in group)
    )
    prompt = tokens("ranked", 320)
    for _ in range(3):
        assert (await here.complete(prompt=prompt)).is_success
        await at_rest(here)
    ranks = [leg.header("x-data-parallel-rank") for leg in here.aggregated[0].generations()]
    assert ranks[0] is None
    assert ranks[1] == ranks[2]
    assert ranks[1] in {"0", "1"}
    assert await here.metric("predicted_cached_tokens_total") == await here.metric("actual_cached_tokens_total") > 0
