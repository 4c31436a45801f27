"""TLS on the API port: everything that plain connections do, and certificates that change."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import httpx
import pytest

from e2e.cluster.pki import Authority, Identity
from pdpool_api.router_config import ConfigError
from pdpool_router.feeds import secret_files
from tests.router.conftest import PROMPT, config, eventually, raw_post

if TYPE_CHECKING:
    from pathlib import Path

    from tests.router.conftest import MakeSite, Site

STREAM = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "stream": True}
WHOLE = {"model": "tiny", "prompt": PROMPT, "max_tokens": 2}


class Pki:
    """An authority, and a certificate that is written over."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.authority = Authority(folder / "ca")
        self.authority.found()
        self.files = {"certFile": str(folder / "tls.crt"), "keyFile": str(folder / "tls.key")}
        self._folder = folder
        self.renew("first")

    def renew(self, user: str) -> None:
        certificate, key = self.authority.issue(user, Identity(user, serves=("IP:127.0.0.1",)))
        (self._folder / "tls.crt").write_bytes(certificate.read_bytes())
        (self._folder / "tls.key").write_bytes(key.read_bytes())

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.certificate))

    def client(self, here: Site) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"https://127.0.0.1:{here.router.port}", verify=self.trust(), timeout=20)


@pytest.fixture
def pki(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pki:
    monkeypatch.setattr(secret_files, "POLL_S", 0.02)
    return Pki(tmp_path / "pki")


async def shown(port: int, trust: ssl.SSLContext) -> str:
    """Whom the certificate of a new connection names."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
    (((_, name),),) = writer.get_extra_info("peercert")["subject"]
    writer.close()
    await writer.wait_closed()
    return str(name)


async def test_tls_serves_what_plain_connections_do(site: MakeSite, pki: Pki) -> None:
    """Answers whole and streamed, kept connections, large bodies, errors; plain HTTP gets nothing."""
    here = await site(tls=pki.files)
    async with pki.client(here) as client:
        for _ in range(3):
            assert (await client.post("/v1/completions", json=WHOLE)).status_code == 200
        streamed = await client.post("/v1/completions", json=STREAM)
        assert streamed.text.endswith("data: [DONE]\n\n")
        assert (await client.post("/v1/completions", json={**WHOLE, "prompt": "x" * 3_000_000})).status_code < 500
        assert (await client.post("/v1/completions", json={**WHOLE, "model": "none"})).status_code == 404
        assert (await client.get("/health", headers={"connection": "close"})).status_code == 200
    with pytest.raises(httpx.TransportError):
        await here.client.get("/health")
    await here.idle()


async def test_a_tls_client_that_leaves_cancels_both_legs(site: MakeSite, pki: Pki) -> None:
    """Closing properly and resetting are both leaving: there is no half-open connection with TLS."""
    here = await site(tls=pki.files)
    here.p.add_rule(leg="prefill", never_answer=True)
    for properly in (True, False):
        _, writer = await asyncio.open_connection("127.0.0.1", here.router.port, ssl=pki.trust())
        writer.write(raw_post("/v1/completions", b'{"model":"tiny","prompt":"x"}'))
        await eventually(lambda: bool(here.router.endpoints.inflight.requests))
        if properly:
            writer.close()
        else:
            writer.transport.abort()
        await eventually(lambda: not here.router.endpoints.inflight.requests)
        await eventually(lambda: not here.router.server.connections)
    assert here.d.generations() == []


async def test_a_broken_stream_is_no_whole_one_over_tls(site: MakeSite, pki: Pki) -> None:
    """An engine that breaks in the middle leaves the client with an error event or a cut transfer."""
    here = await site(tls=pki.files)
    here.d.add_rule(leg="decode", reset_after_bytes=900)
    text = ""
    broken = False
    async with pki.client(here) as client:
        try:
            async with client.stream("POST", "/v1/completions", json=STREAM) as answer:
                async for piece in answer.aiter_text():
                    text += piece
        except httpx.TransportError:
            broken = True
    assert "[DONE]" not in text
    assert broken or '"error"' in text


async def test_a_certificate_is_renewed_under_open_connections(site: MakeSite, pki: Pki) -> None:
    """New connections see the new certificate; a stream that runs, and its connection, go on.

    A certificate that does not fit its key changes nothing.
    """
    here = await site(tls=pki.files)
    assert await shown(here.router.port, pki.trust()) == "first"
    here.d.set_pace(step_s=0.05)
    async with (
        pki.client(here) as client,
        client.stream("POST", "/v1/completions", json={**STREAM, "max_tokens": 12}) as answer,
    ):
        (tls_key := pki._folder / "tls.key").write_text("no key")
        await asyncio.sleep(0.2)
        assert await shown(here.router.port, pki.trust()) == "first"
        pki.renew("second")
        async with asyncio.timeout(30):
            while await shown(here.router.port, pki.trust()) != "second":  # noqa: ASYNC110 - asked over TLS
                await asyncio.sleep(0.02)
        assert (await answer.aread()).endswith(b"data: [DONE]\n\n")
        here.d.set_pace(step_s=0)
        assert (await client.post("/v1/completions", json=WHOLE)).status_code == 200
    assert tls_key.exists()


async def test_tls_is_turned_on_and_off_without_a_restart(site: MakeSite, pki: Pki) -> None:
    """The port stays the same and never refuses; whoever is connected goes on as before."""
    here = await site()
    static = [{"role": "prefill", "url": here.p.url}, {"role": "decode", "url": here.d.url}]
    assert (await here.complete()).status_code == 200
    here.router.configure(config(static, tls=pki.files))
    async with pki.client(here) as client, asyncio.timeout(30):
        while True:
            try:
                assert (await client.get("/health")).status_code == 200
                break
            except httpx.ConnectError:  # told by the old listener, in plain HTTP
                await asyncio.sleep(0.01)
    assert (await here.complete()).status_code == 200  # on the connection from before
    here.router.configure(config(static))
    async with httpx.AsyncClient(base_url=here.client.base_url) as fresh, asyncio.timeout(30):
        while True:
            try:
                assert (await fresh.get("/health")).status_code == 200
                break
            except httpx.TransportError:
                await asyncio.sleep(0.01)


async def test_a_router_without_its_certificate_does_not_begin(pki: Pki, tmp_path: Path) -> None:
    """Files that are no certificate and its key are refused by name, whatever is wrong with them."""
    from pdpool_router.assembly import Router  # noqa: PLC0415

    engine = [{"role": "decode", "url": "http://h:1"}]
    (tmp_path / "other").write_text("x")
    other = str(tmp_path / "other")
    for files, named in (
        ({**pki.files, "keyFile": other}, "tls: .* are no certificate and its key"),
        ({**pki.files, "certFile": other}, "tls: .* are no certificate and its key"),
        ({**pki.files, "certFile": f"{tmp_path}/none"}, r"tls\.certFile: .*/none: No such file"),
    ):
        with pytest.raises(ConfigError, match=named):
            Router(config(engine, tls=files))
    with pytest.raises(ConfigError, match="certFile and keyFile are given together"):
        config(engine, tls={"certFile": other})
