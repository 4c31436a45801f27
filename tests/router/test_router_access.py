"""Keys, what each may ask for, and salts: as files say, and on a running router."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdpool_api.engines.vllm import legs
from pdpool_api.router_config import ConfigError
from pdpool_router.assembly import Router
from pdpool_router.edge.access import Access, Key, own_salt, parse_keys
from pdpool_router.feeds import secret_files
from tests.router.conftest import RawClient, config, eventually, raw_post

if TYPE_CHECKING:
    from pathlib import Path

    import httpx

    from tests.router.conftest import MakeSite

ENGINE = [{"role": "decode", "url": "http://h:8000"}]
BODY = {"model": "tiny", "prompt": "x", "max_tokens": 2}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(autouse=True)
def quick_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_files, "POLL_S", 0.02)


# --- the keys file ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("sk-1", Key("", b"sk-1")),
        ("a=sk-1", Key("a", b"sk-1")),
        ("  a = sk-1  ", Key("a", b"sk-1")),
        ("a=sk=1=", Key("a", b"sk=1=")),
        ("c2VjcmV0cw==", Key("", b"c2VjcmV0cw==")),
        ("c2VjcmV0cy1=", Key("", b"c2VjcmV0cy1=")),
        ("a=c2VjcmV0cw==", Key("a", b"c2VjcmV0cw==")),
        ("=sk-1", Key("", b"=sk-1")),
    ],
)
def test_a_line_is_a_key_or_a_name_and_a_key(line: str, key: Key) -> None:
    """A line is split at the first `=` that has something after it; the padding of base64 is part of a key."""
    assert parse_keys(f"# keys\n\n{line}\r\n".encode()) == [key]


names = st.text(st.characters(categories=("L", "N"), include_characters="-_."), min_size=1)
keys = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1).filter(lambda key: key.strip("= "))


@given(st.lists(st.tuples(names, keys), max_size=8))
def test_named_keys_are_read_as_written(pairs: list[tuple[str, str]]) -> None:
    """Whatever characters a key is made of, also `=` in any place, name and key come back."""
    text = "\n".join(f"{name}={key}" for name, key in pairs)
    assert parse_keys(text.encode()) == [Key(name, key.encode()) for name, key in pairs]


@given(keys.filter(lambda key: not key.startswith("#") and "=" not in key), st.text(max_size=30))
def test_only_the_very_key_opens(key: str, other: str) -> None:
    """A key as it stands in the file opens, in either header; any other text does not."""
    access = Access(config(ENGINE, auth={"apiKeysFile": "f"}), keys=f"me={key}\n".encode(), salt=None)
    found = access.client({b"authorization": b"beARer " + key.encode()})
    assert found is not None
    assert found.name == "me"
    assert access.client({b"authorization": b"Bearer wrong", b"x-api-key": key.encode()}) == found
    if other.strip() != key:
        tried = other.strip().encode()
        assert access.client({b"authorization": b"Bearer " + tried, b"x-api-key": tried}) is None
    assert access.client({b"authorization": key.encode()}) is None
    assert access.client({}) is None


def test_an_empty_keys_file_lets_nobody_in() -> None:
    """No key is not the same as no need for one."""
    access = Access(config(ENGINE, auth={"apiKeysFile": "f"}), keys=b"\n# nobody\n", salt=None)
    assert access.client({b"authorization": b"Bearer "}) is None
    assert access.client({}) is None


def test_tenants_have_salts_of_their_own() -> None:
    """The salt is HMAC-SHA256 of the file and the key's name, so two keys of one name share KV and two names do not."""
    text = b"a=k1\na=k2\nb=k3\nk4\nk5\n"
    access = Access(config(ENGINE, auth={"apiKeysFile": "f", "saltFile": "s"}), keys=text, salt=b"pepper\n")

    def salt(key: bytes) -> str:
        found = access.client({b"x-api-key": key})
        assert found is not None
        return found.salt

    assert salt(b"k1") == salt(b"k2") == hmac.new(b"pepper\n", b"a", hashlib.sha256).hexdigest()
    assert len({salt(key) for key in (b"k1", b"k3", b"k4", b"k5")}) == 4
    assert own_salt(salt(b"k1"), "mine") != own_salt(salt(b"k3"), "mine")


def test_a_key_without_a_name_is_a_tenant_of_its_own() -> None:
    """Keys of one name are one tenant, a key without a name is nobody else's, and what it is called tells nothing."""
    access = Access(config(ENGINE, auth={"apiKeysFile": "f"}), keys=b"a=k1\na=k2\nb=k3\nk4\nk5\n", salt=None)
    clients = [access.client({b"x-api-key": key}) for key in (b"k1", b"k2", b"k3", b"k4", b"k5")]
    tenants = [client.tenant for client in clients if client is not None]
    assert tenants[:3] == ["a", "a", "b"]
    assert len(set(tenants)) == 4
    assert not {"", "k4", "k5", hashlib.sha256(b"k4").hexdigest()} & set(tenants)


@given(st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=8), max_size=5))
def test_a_salted_body_differs_in_its_salt_only(fields: dict[str, Any]) -> None:
    """A salt is put in, or takes the place of the client's; everything else stays as it was, in order."""
    fields.pop("kv_transfer_params", None)
    body = legs.received(json.dumps(fields).encode())
    salted = legs.salted(body, "s")
    want = {**{key: value for key, value in fields.items() if key != "vllm_xargs"}, "cache_salt": "s"}
    got = json.loads(salted.raw)
    assert {key: value for key, value in got.items() if key != "vllm_xargs"} == want
    assert list(json.loads(salted.raw)) == list(salted.fields)


# --- a running router ------------------------------------------------------------------------------------------------
async def test_without_a_key_nothing_is_served_but_health(site: MakeSite, tmp_path: Path) -> None:
    """Every route but `/health` needs a key, told in OpenAI's shape; no engine sees a request without one."""
    (tmp_path / "keys").write_text("team-a=sk-a\nsk-b\n")
    here = await site(auth={"apiKeysFile": str(tmp_path / "keys")})
    for headers in ({}, bearer("sk-c"), {"authorization": "Basic c2stYQ=="}, {"x-api-key": "sk"}):
        for path in ("/v1/completions", "/v1/messages", "/tokenize"):
            refused = await here.client.post(path, json=BODY, headers=headers)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        error = (await here.client.post("/v1/completions", json=BODY, headers=headers)).json()["error"]
        assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
        assert (await here.client.get("/v1/models", headers=headers)).status_code == 401
    assert (await here.client.get("/health")).status_code == 200
    assert [engine.generations() for engine in here.engines] == [[], []]
    for headers in (bearer("sk-a"), bearer("sk-b"), {"x-api-key": "sk-a"}, {"Authorization": "bearer sk-a"}):
        assert (await here.client.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
        assert (await here.client.get("/v1/models", headers=headers)).status_code == 200
    assert await here.metric("requests_total", model="other", code="401") == 16


async def test_a_credential_goes_no_further(site: MakeSite, tmp_path: Path) -> None:
    """Engines see neither header of a key, unless the configuration says so."""
    (tmp_path / "keys").write_text("sk-a")
    auth = {"apiKeysFile": str(tmp_path / "keys")}
    here = await site(auth=auth)
    both = {**bearer("sk-a"), "x-api-key": "sk-a"}
    assert (await here.client.post("/v1/completions", json=BODY, headers=both)).status_code == 200
    assert [one.header("authorization") or one.header("x-api-key") for one in here.d.generations()] == [None]
    told = await site(auth=auth, forwardHeaders=["Authorization"])
    assert (await told.client.post("/v1/completions", json=BODY, headers=both)).status_code == 200
    for engine in told.engines:
        (seen,) = engine.generations()
        assert (seen.header("authorization"), seen.header("x-api-key")) == ("Bearer sk-a", None)


async def test_a_long_body_without_a_key_is_not_read(site: MakeSite, tmp_path: Path) -> None:
    """Who has no key cannot make the router hold a body: it answers after the head."""
    (tmp_path / "keys").write_text("sk-a")
    here = await site(auth={"apiKeysFile": str(tmp_path / "keys")})
    client = await RawClient.connect(here.router.port)
    client.send(raw_post("/v1/completions", b"x" * 10_000_000)[:1000])
    head, _ = await client.answer()
    assert head.startswith(b"HTTP/1.1 401 ")


async def test_each_key_sees_its_own_models(site: MakeSite, tmp_path: Path) -> None:
    """A model or adapter that a key may not ask for does not exist for it: lists, single cards and requests agree."""
    (tmp_path / "keys").write_text("all=sk-all\none=sk-one\nlora=sk-lora\nstranger=sk-x\n")
    here = await site(
        model={"servedNames": ["tiny", "alias"], "adapters": ["sql", "law"]},
        auth={"apiKeysFile": str(tmp_path / "keys")},
        tenants=[{"key": "one", "models": ["alias"]}, {"key": "lora", "models": ["tiny"], "adapters": ["sql"]}],
    )
    may = {
        "sk-all": ["tiny", "alias", "sql", "law"],
        "sk-one": ["alias", "sql", "law"],
        "sk-lora": ["tiny", "sql"],
        "sk-x": ["tiny", "alias", "sql", "law"],
    }
    for key, names in may.items():
        listed = (await here.client.get("/v1/models", headers=bearer(key))).json()["data"]
        assert [card["id"] for card in listed] == names
        for name in ("tiny", "alias", "sql", "law"):
            card = await here.client.get(f"/v1/models/{name}", headers=bearer(key))
            assert card.status_code == (200 if name in names else 404)
    for model, status in (("tiny", 404), ("alias", 200), (None, 404)):
        body = {**BODY, "model": model} if model else {k: v for k, v in BODY.items() if k != "model"}
        answer = await here.client.post("/v1/completions", json=body, headers=bearer("sk-one"))
        if status == 404:
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "model_not_found"
        else:
            assert here.p.generations()[-1].json()["model"] == "alias"
    assert len(here.p.generations()) == 1


async def test_the_salt_is_on_both_legs(site: MakeSite, tmp_path: Path) -> None:
    """Both legs carry the tenant's salt; a client's own is hashed with it, so it names nobody else's KV."""
    (tmp_path / "keys").write_text("a=sk-a\nb=sk-b\n")
    (tmp_path / "salt").write_bytes(b"pepper")
    here = await site(auth={"apiKeysFile": str(tmp_path / "keys"), "saltFile": str(tmp_path / "salt")})
    a = hmac.new(b"pepper", b"a", hashlib.sha256).hexdigest()
    b = hmac.new(b"pepper", b"b", hashlib.sha256).hexdigest()
    for key, own, want in (
        ("sk-a", None, a),
        ("sk-b", None, b),
        ("sk-b", a, own_salt(b, a)),
        ("sk-a", "x", own_salt(a, "x")),
    ):
        body = BODY if own is None else {"cache_salt": own, **BODY}
        answer = await here.client.post("/v1/completions", json=body, headers=bearer(key))
        assert answer.status_code == 200
        for engine in here.engines:
            sent = engine.generations()[-1].json()
            assert sent.pop("cache_salt") == want
            sent.pop("kv_transfer_params")
            if engine is here.d:
                assert sent == BODY
    for odd in ("", 7, ["x"]):
        answer = await here.client.post("/v1/completions", json={**BODY, "cache_salt": odd}, headers=bearer("sk-a"))
        assert answer.status_code == 400
    assert len(here.p.generations()) == 4


async def test_without_a_salt_file_a_clients_salt_is_its_own(site: MakeSite) -> None:
    """What the client sends arrives, where the router has no salts."""
    here = await site()
    assert (await here.client.post("/v1/completions", json={**BODY, "cache_salt": "s"})).status_code == 200
    assert {engine.generations()[0].json()["cache_salt"] for engine in here.engines} == {"s"}


async def test_a_tenant_has_its_own_limits(site: MakeSite, tmp_path: Path) -> None:
    """What a tenant may have at once bounds its keys only; others go on."""
    (tmp_path / "keys").write_text("a=sk-a\na=sk-a2\nb=sk-b\n")
    here = await site(
        auth={"apiKeysFile": str(tmp_path / "keys")}, tenants=[{"key": "a", "concurrent": 1, "weight": 2}]
    )
    here.d.add_rule(leg="decode", delay_headers_s=0.4)
    first = asyncio.create_task(here.client.post("/v1/completions", json=BODY, headers=bearer("sk-a")))
    await eventually(lambda: bool(here.router.endpoints.inflight.requests))
    refused = await here.client.post("/v1/completions", json=BODY, headers=bearer("sk-a2"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(refused.headers["retry-after"]) >= 1
    assert (await here.client.post("/v1/completions", json=BODY, headers=bearer("sk-b"))).status_code == 200
    assert (await first).status_code == 200


async def test_keys_without_names_share_fairly(site: MakeSite, tmp_path: Path) -> None:
    """What waits of one such key does not stand before what another asks for: each has its turn."""
    (tmp_path / "keys").write_text("sk-many\nsk-one\n")
    here = await site(auth={"apiKeysFile": str(tmp_path / "keys")}, limits={"maxConcurrent": 1})
    here.p.add_rule(leg="prefill", delay_headers_s=0.2, times=1)

    async def ask(prompt: str, key: str, waiting: int) -> asyncio.Task[httpx.Response]:
        body = {**BODY, "prompt": prompt}
        asked = asyncio.create_task(here.client.post("/v1/completions", json=body, headers=bearer(key)))
        await eventually(lambda: here.router.telemetry.queued["tiny"] == waiting)
        return asked

    first = asyncio.create_task(here.client.post("/v1/completions", json=BODY, headers=bearer("sk-many")))
    await eventually(lambda: here.router.admission.admitted == 1)
    asked = [first, *[await ask(f"many {n}", "sk-many", n + 1) for n in range(3)], await ask("one", "sk-one", 4)]
    assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}
    order = [request.json()["prompt"] for request in here.p.generations()]
    assert order.index("one") < order.index("many 2")


# --- rotation --------------------------------------------------------------------------------------------------------
async def test_keys_are_rotated_without_a_restart(site: MakeSite, tmp_path: Path) -> None:
    """A new content counts, written in place or by Kubernetes' swap of links; a missing file leaves the old keys."""
    first, second = tmp_path / "..1", tmp_path / "..2"
    for folder, key in ((first, "sk-1"), (second, "sk-2")):
        folder.mkdir()
        (folder / "keys").write_text(key)
    (tmp_path / "..data").symlink_to(first.name)
    file = tmp_path / "keys"
    file.symlink_to("..data/keys")
    here = await site(auth={"apiKeysFile": str(file)})

    async def only(key: str) -> None:
        async with asyncio.timeout(30):
            while True:
                codes = [
                    (await here.client.get("/v1/models", headers=bearer(f"sk-{number}"))).status_code
                    for number in (1, 2, 3)
                ]
                if codes == [200 if f"sk-{number}" == key else 401 for number in (1, 2, 3)]:
                    return
                await asyncio.sleep(0.02)

    await only("sk-1")
    (tmp_path / "..new").symlink_to(second.name)
    os.replace(tmp_path / "..new", tmp_path / "..data")  # noqa: PTH105 - the very call of kubelet's writer
    await only("sk-2")
    (second / "keys").write_text("sk-3")
    await only("sk-3")
    file.unlink()
    await asyncio.sleep(0.2)
    await only("sk-3")
    file.write_text("sk-1")
    await only("sk-1")


async def test_running_streams_outlive_their_key(site: MakeSite, tmp_path: Path) -> None:
    """A key that is taken away ends no stream that began with it."""
    file = tmp_path / "keys"
    file.write_text("sk-1")
    here = await site(auth={"apiKeysFile": str(file)})
    here.d.set_pace(step_s=0.05)
    body = {**BODY, "max_tokens": 12, "stream": True}
    async with here.client.stream("POST", "/v1/completions", json=body, headers=bearer("sk-1")) as answer:
        file.write_text("sk-2")
        text = "".join([piece async for piece in answer.aiter_text()])
    assert text.endswith("data: [DONE]\n\n")
    async with asyncio.timeout(30):
        while (await here.client.get("/v1/models", headers=bearer("sk-1"))).status_code != 401:  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.02)


def test_secret_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    """A router whose keys are not there does not begin, and never lets everybody in instead."""
    (tmp_path / "keys").write_text("k")
    (tmp_path / "empty").write_text("")
    for auth, named in (
        ({"apiKeysFile": f"{tmp_path}/none"}, "auth.apiKeysFile: .*/none: No such file"),
        ({"apiKeysFile": str(tmp_path)}, "auth.apiKeysFile: .*: Is a directory"),
        ({"apiKeysFile": f"{tmp_path}/keys", "saltFile": f"{tmp_path}/empty"}, "auth.saltFile: .*/empty is empty"),
    ):
        with pytest.raises(ConfigError, match=named):
            Router(config(ENGINE, auth=auth))


async def test_a_configuration_whose_keys_are_missing_changes_nothing(site: MakeSite, tmp_path: Path) -> None:
    """A new configuration is taken over whole or not at all."""
    here = await site()
    static = [{"role": "prefill", "url": here.p.url}, {"role": "decode", "url": here.d.url}]
    with pytest.raises(ConfigError, match=r"auth\.apiKeysFile"):
        here.router.configure(
            config(static, model={"servedNames": ["new"]}, auth={"apiKeysFile": str(tmp_path / "later")})
        )
    assert (await here.complete()).status_code == 200


async def test_a_look_takes_no_half_written_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A change counts when two looks agree; what cannot be read is told once, without any content."""
    file = tmp_path / "keys"
    file.write_text("sk-secret-1")
    settings = config(ENGINE, auth={"apiKeysFile": str(file)})
    applied: list[bytes | None] = []
    files = secret_files.SecretFiles(lambda _, now: applied.append(now.api_keys))
    files.follow(settings, secret_files.read(settings))
    file.write_text("")
    files.look()
    file.write_text("sk-secret-2")
    files.look()
    assert applied == []
    files.look()
    files.look()
    assert applied == [b"sk-secret-2"]
    file.unlink()
    files.look()
    files.look()
    said = "".join(capfd.readouterr())
    assert said.count("refused") == 1
    assert "sk-secret" not in said
