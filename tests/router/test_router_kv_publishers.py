"""A router before publishers of KV events that a test writes itself: what each endpoint is then believed to hold."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import structlog

from e2e.engine.standin import Standin
from e2e.engine.standin.events import EventsConfig, Publisher
from e2e.ports import free_ports
from pdpool_api.names import Role
from tests.router.conftest import config, eventually, running

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pdpool_router.assembly import Router

SIZE = 16
CONFIGURED = 32
"""What the stand-in engines' own metrics say."""


def ids(seed: object, count: int = 64) -> list[int]:
    rng = random.Random(str(seed))
    return [rng.randint(300, 60_000) for _ in range(count)]


def stored(tokens: list[int], *, size: int = SIZE, first_name: int = 1, **fields: Any) -> dict[str, Any]:
    """All whole blocks of some tokens, under names of the engine's own."""
    count = len(tokens) // size
    return {
        "type": "BlockStored",
        "block_hashes": list(range(first_name, first_name + count)),
        "parent_block_hash": None,
        "token_ids": tokens[: count * size],
        "block_size": size,
        **fields,
    }


X, Y, T = ids("x"), ids("y"), ids("t")
LONG = ids("long", 1089)
PICTURED: dict[str, Any] = {"extra_keys": [None, [["image", 3]], None, None]}
"""Of a prompt with a picture: its tokens alone do not tell which one it is."""
ADAPTED: dict[str, Any] = {"lora_id": 1, "lora_name": "adapter-a", "extra_keys": [["adapter-a"]] * 4}


class Pods:
    """Two prefill pods of which only the events exist, and a router that hears them."""

    def __init__(self, router: Router, publishers: list[Publisher], client: httpx.AsyncClient) -> None:
        self.router = router
        self.names = [one.name for one in router.endpoints.all() if one.role is Role.PREFILL]
        self._publishers = publishers
        self._client = client

    async def publish(self, *of_pods: dict[str, Any]) -> None:
        """What each pod stores; waits until all of it has arrived."""
        for publisher, event in zip(self._publishers, of_pods, strict=False):
            publisher.publish([event])
        blocks = sum(len(event["block_hashes"]) for event in of_pods)
        await eventually(lambda: self.router.endpoints.prefixes.blocks.size == blocks)

    async def held(self, prompt: list[int], model: str = "tiny") -> list[int]:
        """Tokens of a prompt that each pod is believed to hold."""
        admin = f"http://127.0.0.1:{self.router.admin_port}/debug/decide"
        answer = await self._client.post(admin, json={"model": model, "prompt": prompt})
        assert answer.status_code == 200
        by_name = {row["endpoint"]: row["cachedTokens"] for row in answer.json()["prefill"]}
        return [by_name[name] for name in self.names]


@pytest.fixture
async def pods() -> AsyncIterator[Pods]:
    async with contextlib.AsyncExitStack() as stack:
        made, static = [], []
        for role in ("prefill", "prefill", "decode"):
            engine = await stack.enter_async_context(Standin(role))
            events, replay = free_ports(2)
            made.append(
                Publisher(
                    EventsConfig(
                        enable_kv_cache_events=True,
                        publisher="zmq",
                        endpoint=f"tcp://*:{events}",
                        replay_endpoint=f"tcp://*:{replay}",
                    ),
                    0,
                )
            )
            made[-1].open()
            stack.callback(made[-1].close)
            static.append(
                {
                    "role": role,
                    "url": engine.url,
                    "kvEvents": f"tcp://127.0.0.1:{events}",
                    "kvReplay": f"tcp://127.0.0.1:{replay}",
                }
            )
        model = {"servedNames": ["tiny"], "adapters": ["adapter-a", "adapter-b"]}
        router = await stack.enter_async_context(running(config(static, model=model)))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=20))
        groups = router.kv_events._subscriptions
        await eventually(
            lambda: (
                len(groups) == 3
                and all(one.connected and not one.replaying for each in groups.values() for one in each)
            )
        )
        yield Pods(router, made, client)


@pytest.mark.parametrize(
    ("of_pods", "prompt", "model", "held"),
    [
        pytest.param((stored(T), stored(T, first_name=900)), [*T, 5], "tiny", [64, 64], id="Q62-other-hash-seeds"),
        pytest.param((stored(X), stored(Y)), [*Y, *X], "tiny", [0, 64], id="Q56-y-then-x"),
        pytest.param((stored(X), stored(Y)), [*X, *Y], "tiny", [64, 0], id="Q56-x-then-y"),
        pytest.param((stored(X), stored(Y)), [*T[:16], *X[16:], 5], "tiny", [0, 0], id="Q56-only-the-middle"),
        pytest.param((stored(T), stored(T, **ADAPTED)), [*T, 5], "tiny", [64, 0], id="Q57-base"),
        pytest.param((stored(T), stored(T, **ADAPTED)), [*T, 5], "adapter-a", [0, 64], id="Q57-adapter"),
        pytest.param((stored(T), stored(T, **ADAPTED)), [*T, 5], "adapter-b", [0, 0], id="Q57-another-adapter"),
        pytest.param((stored(LONG, size=544), stored(LONG)), LONG, "tiny", [1088, 1088], id="Q99-two-block-sizes"),
        pytest.param((stored(T, **PICTURED), stored(T)), [*T, 5], "tiny", [16, 64], id="an-image-in-the-second-block"),
    ],
)
async def test_endpoints_hold_what_their_events_say(
    pods: Pods, of_pods: tuple[dict[str, Any], ...], prompt: list[int], model: str, held: list[int]
) -> None:
    """By the tokens of chained blocks and the adapter, never by the engine's names for them (Q56, Q57, Q62).

    A block has as many tokens as its event says (Q99).
    """
    await pods.publish(*of_pods)
    assert await pods.held(prompt, model) == held


async def test_a_block_size_that_is_not_the_configured_one_is_warned_of(pods: Pods) -> None:
    """The events' counts, and the difference is said once (Q99)."""
    uid = next(one.uid for one in pods.router.endpoints.all() if one.name == pods.names[0])
    with structlog.testing.capture_logs() as logs:
        await pods.publish(stored(LONG, size=544))
        await eventually(lambda: any("block size" in one["event"] for one in logs))
        pods.router.kv_events.engine_says(uid, CONFIGURED)
    warned = [one for one in logs if "block size" in one["event"]]
    assert [(one["log_level"], one["events"], one["configured"]) for one in warned] == [("warning", 544, CONFIGURED)]
    assert await pods.held(LONG) == [1088, 0]


async def test_events_that_never_match_what_is_asked_are_warned_of(pods: Pods) -> None:
    """A hundred repeats of a prompt with events, and none that fits: said once, until one does (Q62)."""
    await pods.publish(stored(X), stored(Y))
    with structlog.testing.capture_logs() as logs:
        for _ in range(101):
            assert await pods.held(T) == [0, 0]
        for _ in range(2):
            pods.router.kv_events.tick()
    assert [one["log_level"] for one in logs if "no repeated prompt matches" in one["event"]] == ["warning"]
    assert await pods.held([*X, 5]) == [64, 0]
    with structlog.testing.capture_logs() as logs:
        pods.router.kv_events.tick()
    assert not logs
