"""Routers in pods: replaced under load, and let in by keys from a Secret (stand-in engines in pods)."""

from __future__ import annotations

import base64
import socket
import ssl
from typing import TYPE_CHECKING

import httpx
import pytest

from e2e.cluster.pki import Authority, Identity
from e2e.scenarios import standin_pool
from e2e.scenarios.pools import wait_for
from e2e.scenarios.traffic import Trickle
from pdpool_api.names import Role, child_name

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Say

    from e2e.scenarios.pools import Pool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

READY_S = 60.0
KEYS, CERTIFICATE = "router-keys", "router-certificate"


def _change_router(pool: Pool, **router: object) -> None:
    pool.api.patch("inferencepools", pool.name, pool.namespace, {"spec": {"router": router}})


def test_two_routers_are_replaced_under_kept_connections(pool: Pool, say: Say) -> None:
    """Clients that keep their connections, as most do, lose no request while both routers are replaced in turn.

    A router whose pod terminates ends each connection with its next answer, before it stops serving.
    """
    _change_router(pool, replicas=2)
    wait_for(lambda: len(pool.ready_pods(Role.ROUTER)) == 2, READY_S, "two router pods Ready", pool.summary)
    pool.wait_ready(READY_S)
    before = {pod.name for pod in pool.pods(Role.ROUTER)}
    with Trickle(pool.service_url(), standin_pool.MODEL, every_s=0.1) as trickle:
        where = ["--namespace", pool.namespace, f"deployment/{child_name(pool.name, Role.ROUTER)}"]
        pool.api.kubectl(["rollout", "restart", *where])
        pool.api.kubectl(["rollout", "status", *where, f"--timeout={READY_S:.0f}s"])
        wait_for(
            lambda: not before & {pod.name for pod in pool.pods(Role.ROUTER)}, READY_S, "old routers gone", pool.summary
        )
    assert trickle.failures() == []
    say(f"{len(trickle.outcomes)} requests, none failed")
    _change_router(pool, replicas=1)
    pool.wait_ready(READY_S)


def _put(pool: Pool, name: str, kind: str, entries: dict[str, bytes]) -> None:
    """Creates a Secret, or gives it another content."""
    data = {key: base64.b64encode(value).decode() for key, value in entries.items()}
    if pool.api.get("secrets", name, pool.namespace) is None:
        metadata = {"name": name}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": data}
        pool.api.create("secrets", pool.namespace, body)
    else:
        pool.api.patch("secrets", name, pool.namespace, {"data": data})


def test_a_routers_secrets_are_waited_for_and_read_again(pool: Pool, say: Say, tmp_path: Path) -> None:
    """What is missing is named, and the router from before goes on; what changes counts in the pods that run.

    API keys and the certificate, both from Secrets, are mounted by the kubelet.
    """
    _change_router(pool, auth={"apiKeysSecretRef": {"name": KEYS}}, tlsSecretRef={"name": CERTIFICATE})

    def is_named() -> bool:
        message = pool.condition("Ready").get("message", "")
        return KEYS in message or CERTIFICATE in message

    wait_for(is_named, READY_S, "a missing Secret is named", pool.summary)
    assert pool.condition("Ready")["reason"] == "MissingReference"
    body = {"model": standin_pool.MODEL, "prompt": "hello", "max_tokens": 2}
    plain = pool.service_url()
    assert httpx.post(f"{plain}/v1/completions", json=body, timeout=30).status_code == 200

    authority = Authority(tmp_path / "ca")
    authority.found()
    address = plain.removeprefix("http://")

    def give(name: str) -> None:
        certificate, key = authority.issue(name, Identity(name, serves=(f"IP:{address}",)))
        files = {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes()}
        _put(pool, CERTIFICATE, "kubernetes.io/tls", files)
        _put(pool, KEYS, "Opaque", {"keys": f"team=key-of-{name}\n".encode()})

    trust = ssl.create_default_context(cafile=str(authority.certificate))

    def served(name: str) -> tuple[int, str]:
        """The status of a request with somebody's key, and whom the certificate names."""
        try:
            with (
                socket.create_connection((address, 80), 10) as raw,
                trust.wrap_socket(raw, server_hostname=address) as tls,
            ):
                (((_, subject),),) = tls.getpeercert()["subject"]  # type: ignore[index, misc]
            key = {"authorization": f"Bearer key-of-{name}"}
            answer = httpx.post(
                f"https://{address}:80/v1/completions", json=body, headers=key, verify=trust, timeout=30
            )
        except (OSError, httpx.TransportError):
            return 0, ""
        return answer.status_code, str(subject)

    def routers() -> set[str]:
        return {pod.name for pod in pool.pods(Role.ROUTER)}

    give("first")
    pool.wait_ready(2 * READY_S)
    wait_for(lambda: len(routers()) == 1, READY_S, "the router from before is gone", pool.summary)
    wait_for(lambda: served("first") == (200, "first"), READY_S, "the first key over TLS", pool.summary)
    assert served("second") == (401, "first")

    before = routers()
    give("second")
    took_s = wait_for(lambda: served("second") == (200, "second"), 2 * READY_S, "the second key and certificate")
    assert served("first") == (401, "second")
    assert routers() == before
    say(f"new Secrets count after {took_s:.0f} s, in the same pods")
    _change_router(pool, auth=None, tlsSecretRef=None)
    for name in (KEYS, CERTIFICATE):
        pool.api.delete("secrets", name, pool.namespace)
    pool.wait_ready(READY_S)
