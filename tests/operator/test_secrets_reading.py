"""Reading of Secrets before a loopback server: faults end nothing, and only single Secrets are asked for."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from kubernetes.aio import client

from pdpool_api import names
from pdpool_operator.kube import Kube
from pdpool_operator.observe.secrets import Secrets
from pdpool_operator.records import Observed, PoolRef, SecretEntry, SecretsSeen
from tests.operator.loopback import answering

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

REF = PoolRef("serving", "tiny")
TOKEN = SecretEntry("hf", "HF_TOKEN")


class Store:
    """A stand-in for the API server's Secrets."""

    def __init__(self) -> None:
        key = base64.b64encode(bytes(range(32))).decode()
        self.secrets: dict[str, Any] = {names.DIGEST_KEY_SECRET: {"key": key}}
        self.status = 200
        self.asked: list[str] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        self.asked.append(f"{request.method} {request.path}")
        if self.status != 200:
            return web.json_response({"message": "no"}, status=self.status)
        if request.method == "POST":
            self.secrets[names.DIGEST_KEY_SECRET] = (await request.json())["data"]
            return web.json_response({"data": self.secrets[names.DIGEST_KEY_SECRET]}, status=201)
        if name not in self.secrets:
            return web.json_response({"message": "not found"}, status=404)
        return web.json_response({"data": self.secrets[name]})


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    found = Store()
    async with answering(found.handle) as found.url:
        yield found


def connected(store: Store) -> Kube:
    configuration = client.Configuration()
    configuration.host = store.url
    return Kube(configuration)


def observed(raw: dict[str, Any], **engine: Any) -> Observed:
    model = {**raw["spec"]["model"], "tokenSecretRef": {"name": "hf", "key": "HF_TOKEN"}}
    return Observed(REF, {**raw, "spec": {**raw["spec"], "model": model, "engine": engine}}, {})


async def look(reader: Secrets, raw: dict[str, Any]) -> SecretsSeen:
    found = (await reader.seen(observed(raw))).secrets
    assert found is not None
    return found


async def test_a_secret_is_missing_then_there_then_new(store: Store, raw_pool: dict[str, Any]) -> None:
    """Each turn wakes the pool; equal values have equal digests, and no value or plain hash is kept."""
    woken: list[PoolRef] = []
    async with connected(store) as api:
        reader = Secrets(api, frozenset({"serving"}), "home", woken.append)
        assert (await look(reader, raw_pool)).missing == ("Secret hf",)
        store.secrets["hf"] = {"OTHER": "eA=="}
        await reader._again("serving", "hf", reader._known["serving", "hf"])
        assert (await look(reader, raw_pool)).missing == ("key HF_TOKEN of Secret hf",)
        digests = []
        for value in ("b25l", "b25l", "dHdv"):
            store.secrets["hf"] = {"HF_TOKEN": value}
            await reader._again("serving", "hf", reader._known["serving", "hf"])
            digests.append((await look(reader, raw_pool)).digests[TOKEN])
    assert digests[0] == digests[1] != digests[2]
    assert woken == [REF] * 3
    assert not [each for each in store.asked if each.startswith("GET") and each.endswith("/secrets")], "never a list"


@pytest.mark.parametrize("status", [403, 500, 503])
async def test_faults_are_said_or_waited_out(store: Store, raw_pool: dict[str, Any], status: int) -> None:
    """Without the right the pool says so; a server in trouble changes nothing of what was seen."""
    store.secrets["hf"] = {"HF_TOKEN": "b25l"}
    async with connected(store) as api:
        reader = Secrets(api, frozenset({"serving"}), "home", lambda _ref: None)
        before = await look(reader, raw_pool)
        store.status = status
        await reader._again("serving", "hf", reader._known["serving", "hf"])
        after = await look(reader, raw_pool)
        assert (after == before) is (status != 403)
        assert ("may not read Secrets" in after.unwatched) is (status == 403)
        store.status = 200
        await reader._again("serving", "hf", reader._known["serving", "hf"])
        assert await look(reader, raw_pool) == before


async def test_a_lost_key_is_made_anew_and_an_odd_one_is_refused(store: Store, raw_pool: dict[str, Any]) -> None:
    """A key that is not there is created once; one that is too short is not used, and the pool says so."""
    store.secrets = {"hf": {"HF_TOKEN": "b25l"}}
    async with connected(store) as api:
        first = await look(Secrets(api, frozenset({"serving"}), "home", lambda _ref: None), raw_pool)
        second = await look(Secrets(api, frozenset({"serving"}), "home", lambda _ref: None), raw_pool)
        assert first == second
        assert first.key_id
        assert sum(each.startswith("POST") for each in store.asked) == 1
        store.secrets[names.DIGEST_KEY_SECRET] = {"key": "c2hvcnQ="}
        odd = await look(Secrets(api, frozenset({"serving"}), "home", lambda _ref: None), raw_pool)
        assert "holds no key" in odd.unwatched
        assert not odd.digests


async def test_what_nobody_uses_is_not_read(store: Store, raw_pool: dict[str, Any]) -> None:
    """Other namespaces and pools that are gone cost no reading."""
    async with connected(store) as api:
        reader = Secrets(api, frozenset({"elsewhere"}), "home", lambda _ref: None)
        assert "of namespace serving" in (await look(reader, raw_pool)).unwatched
        assert store.asked == []
        ignored = (await reader.seen(observed(raw_pool, secretRotation="Ignore"))).secrets
        assert ignored == SecretsSeen()
        reader = Secrets(api, frozenset({"serving"}), "home", lambda _ref: None)
        await look(reader, raw_pool)
        reader.forget(REF)
        assert reader._known == {}


async def test_without_rotation_only_what_is_missing_is_told(store: Store, raw_pool: dict[str, Any]) -> None:
    """With Ignore no digest is told, and a Secret that is not there still is."""
    async with connected(store) as api:
        reader = Secrets(api, frozenset({"serving"}), "home", lambda _ref: None)
        raw = observed(raw_pool, secretRotation="Ignore")
        assert (await reader.seen(raw)).secrets == SecretsSeen(missing=("Secret hf",))
        store.secrets["hf"] = {"HF_TOKEN": "b25l"}
        await reader._again("serving", "hf", reader._known["serving", "hf"])
        assert (await reader.seen(raw)).secrets == SecretsSeen()


async def test_a_mounted_secret_is_missing_or_there(store: Store, raw_pool: dict[str, Any]) -> None:
    """Of a volume only the Secret's existence counts: a new value reaches the pod without a new pod."""
    volume = {"name": "v", "secret": {"secretName": "files"}}
    raw = {**raw_pool, "spec": {**raw_pool["spec"], "decode": {"template": {"volumes": [volume]}}}}
    async with connected(store) as api:
        reader = Secrets(api, frozenset({"serving"}), "home", lambda _ref: None)
        found = (await reader.seen(Observed(REF, raw, {}))).secrets
        assert found is not None
        assert found.missing == ("Secret files",)
        store.secrets["files"] = {"a": "b25l"}
        await reader._again("serving", "files", reader._known["serving", "files"])
        found = (await reader.seen(Observed(REF, raw, {}))).secrets
        assert found is not None
        assert (found.missing, found.digests) == ((), {})
