"""Which turns of a status become Events, and how Events that repeat are written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio import client

from pdpool_api.conditions import ConditionType, Reason
from pdpool_operator import announcements
from pdpool_operator.announcements import Announcer
from pdpool_operator.kube import Kube
from pdpool_operator.news import News, NewsReason, news

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Json = dict[str, Any]
POOL: Json = {"metadata": {"name": "p", "namespace": "s", "uid": "u", "resourceVersion": "1"}}


def said(revision: str = "r1", decode: int = 1, **conditions: tuple[str, str] | tuple[str, str, str]) -> Json:
    """A status: conditions as `Type=(status, reason[, message])`."""
    return {
        "revision": revision,
        "decode": {"desiredReplicas": decode},
        "conditions": [
            {"type": kind, "status": each[0], "reason": each[1], "message": each[2] if len(each) > 2 else "why"}
            for kind, each in conditions.items()
        ],
    }


WELL = {"Ready": ("True", "Available"), "Progressing": ("False", "Complete"), "SpecValid": ("True", "Valid")}
ROLLING = {"Ready": ("False", "RollingOut"), "Progressing": ("True", "RollingOut"), "SpecValid": ("True", "Valid")}
STUCK = {**ROLLING, "Progressing": ("False", "RolloutStalled")}
REFUSED = dict.fromkeys(WELL, ("False", "IncompatibleRoles"))
MISSING = {**ROLLING, "Ready": ("False", "MissingReference")}
HURT = {**WELL, "Ready": ("False", "ReplicasNotReady")}


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({}, said(**ROLLING), ["Normal RolloutStarted"]),
        (said(**ROLLING), said(**ROLLING), []),
        (said(**ROLLING), said("r2", **ROLLING), ["Normal RolloutStarted"]),
        (said(**ROLLING), said(**WELL), ["Normal RolloutCompleted"]),
        (said(**WELL), said("r2", **ROLLING), ["Normal RolloutStarted"]),
        (said(**ROLLING), said(**STUCK), ["Warning RolloutStalled"]),
        (said(**STUCK), said(**WELL), ["Normal RolloutCompleted"]),
        (said(**WELL), said(decode=3, **WELL), ["Normal Scaled"]),
        ({}, said(**REFUSED), ["Warning IncompatibleRoles"]),
        (said(**WELL), said(**REFUSED), ["Warning IncompatibleRoles"]),
        (said(**REFUSED), said(**WELL), ["Normal SpecAccepted"]),
        (said(**REFUSED), said(**dict.fromkeys(WELL, ("False", "InvalidSpec"))), ["Warning InvalidSpec"]),
        (said(**ROLLING), said(**MISSING), ["Warning MissingReference"]),
        (said(**MISSING), said(**ROLLING), ["Normal ReferenceFound"]),
        (said(**WELL), said(**HURT), ["Warning ReplicasNotReady"]),
        (said(**HURT), said(**WELL), ["Normal Recovered"]),
        (said(**WELL), said(**WELL, TransferHealthy=("False", "TransferSlow")), ["Warning TransferSlow"]),
        (said(ScalingActive=("False", "x")), said(ScalingActive=("True", "y")), ["Normal Recovered"]),
        (said(ScalingActive=("Unknown", "x")), said(ScalingActive=("True", "y")), []),
        (said(**{**WELL, "Advisory": ("False", "NothingToNote")}), said(**{**WELL, "Advisory": ("True", "x")}), []),
    ],
)
def test_each_turn_is_told_once(before: Json, after: Json, told: list[str]) -> None:
    """Rollouts begun, done and stalled, sizes, refusals, missing references and recoveries; nothing for what stays."""
    assert [f"{each.kind} {each.reason}" for each in news(before, after)] == told


_conditions = st.dictionaries(
    st.sampled_from([each.value for each in ConditionType]),
    st.tuples(st.sampled_from(["True", "False", "Unknown"]), st.sampled_from([each.value for each in Reason])),
)


@given(_conditions, _conditions, st.integers(0, 3), st.integers(0, 3))
def test_a_status_that_stays_is_no_news(before: Any, after: Any, small: int, large: int) -> None:
    """Any status against itself is silent, whatever its messages say; any other has at most one Event a subject."""
    old, new = said(decode=small, **before), said(decode=large, **after)
    other_words = {kind: (*each[:2], "other words") for kind, each in before.items()}
    assert news(old, said(decode=small, **other_words)) == ()
    assert len(news(old, new)) <= 8
    for each in news(old, new):
        assert each.note
        assert re.fullmatch(r"([A-Z][a-z]+)+", each.reason)


def test_reasons_of_events_are_documented() -> None:
    """`docs/conditions.md` lists the reasons that Events have besides those of conditions."""
    page = (Path(__file__).parents[2] / "docs/conditions.md").read_text().split("## Events")[1]
    assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE) == [each.value for each in NewsReason]


@pytest.mark.parametrize("note", ["x" * 5000, "ä" * 1023, "short", "😀" * 300])
def test_notes_fit_the_limit_of_the_api(note: str) -> None:
    """The API takes fewer than 1024 bytes, and no half character."""
    found = announcements.event(POOL, News("Normal", "Scaled", "Scale", note), "2026-01-01T00:00:00.000000Z")["note"]
    assert 0 < len(found.encode()) < 1024
    assert note.startswith(found.removesuffix("…"))


class Store:
    """A stand-in for the API server's store of Events: takes everything, remembers it."""

    def __init__(self) -> None:
        self.made: list[Json] = []
        self.counted: list[tuple[str, int]] = []
        self.status = 200

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.status != 200:
            return web.json_response({"message": "no"}, status=self.status)
        if request.method == "POST":
            self.made.append(body)
        else:
            self.counted.append((request.path.rpartition("/")[2], body["series"]["count"]))
        return web.json_response(body)


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    found = Store()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", found.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"  # type: ignore[attr-defined]
    yield found
    await runner.cleanup()


def connected(store: Store) -> Kube:
    configuration = client.Configuration()
    configuration.host = store.url  # type: ignore[attr-defined]
    return Kube(configuration)


SLOW = News("Warning", "TransferSlow", "Observe", "slow")


async def test_repeated_news_is_one_event_that_counts(store: Store) -> None:
    """The same words within ten minutes raise a count, written once a minute at most; later they are a new Event."""
    now = 0.0
    async with connected(store) as api:
        announcer = Announcer(api, clock=lambda: now)
        for second in range(0, 180, 10):
            now = float(second)
            await announcer.tell(POOL, [SLOW])
        assert len(store.made) == 1
        name = store.made[0]["metadata"]["name"]
        assert store.counted == [(name, 7), (name, 13)]
        now = 1000.0
        await announcer.tell(POOL, [SLOW])
        assert len(store.made) == 2


async def test_a_pool_that_flaps_does_not_fill_the_store(store: Store) -> None:
    """Ever new words are written twenty times, then one a minute."""
    now = 0.0
    async with connected(store) as api:
        announcer = Announcer(api, clock=lambda: now)
        for number in range(300):
            now = float(number)
            await announcer.tell(POOL, [News("Warning", "X", "Observe", str(number))])
    assert len(store.made) == announcements.BURST + 4


@pytest.mark.parametrize("status", [403, 404, 409, 422, 500, 503])
async def test_an_event_that_cannot_be_written_is_no_fault(store: Store, status: int) -> None:
    """Whatever the store answers, telling ends without an error, and the next is tried again."""
    store.status = status
    async with connected(store) as api:
        announcer = Announcer(api)
        await announcer.tell(POOL, [SLOW])
        store.status = 200
        await announcer.tell(POOL, [SLOW])
    assert len(store.made) == 1
