"""One reading of a pool out of a real Prometheus: its labels, its PromQL, its password, its TLS."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pytest

from e2e.cluster.pki import Authority, Identity
from e2e.engine.real import free_ports
from e2e.scenarios import gpu_exporter, host_page, prometheus
from pdpool_api.names import Role
from pdpool_operator.autoscale import Measure
from pdpool_operator.observe.metrics import Pages
from tests.operator.metric_pages import engine_page, router_page
from tests.operator.test_metrics_reading import NAMESPACE, Reader, Secrets, pod

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pdpool_operator.autoscale import Observation

# The program is fetched once for all tests that run it, on one worker.
pytestmark = pytest.mark.xdist_group("chart")

HOST: Final = "127.0.0.1"
TEXT: Final = "text/plain; version=0.0.4"
SCRAPED_S: Final = 90.0
VALUES: Final = 6
"""Of a decode pod: three of its engine, one of the router, two of its GPU."""
PASSWORD: Final = "open sesame"
# Of this password, by bcrypt, whose cost makes each request as slow as it says.
PASSWORD_HASH: Final = "$2b$04$uAJi0G/iwdrl6db.7LQhjeNK7x60B/DeXEu6BKyRHRFID8XN2/uPS"
OF_DECODE: Final = 'sum(vllm:num_requests_running{namespace="{namespace}",pdpool_io_role="{role}"})'
SIGNALS: Final = [
    {"type": "QueueDepth", "target": 4},
    {"type": "KvCacheUsage", "target": 0.8},
    {"type": "GpuTensorActive", "target": 0.5},
    {"type": "GpuUtilization", "target": 0.8},
    {"type": "PrometheusQuery", "target": 2, "query": OF_DECODE},
]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, Authority]]:
    """The URL of a Prometheus that scrapes a pool, and who signed its certificate."""
    authority = Authority(tmp_path / "pki")
    authority.found()
    certificate, key = authority.issue("prometheus", Identity("prometheus", serves=(f"IP:{HOST}",)))
    guard = prometheus.Guard(certificate, key, authority.certificate, "operator", PASSWORD, PASSWORD_HASH)
    answered = count(1)
    with ExitStack() as stack:

        def target(page: Callable[[], bytes], name: str, role: str) -> Any:
            return prometheus.target(
                stack.enter_context(host_page.serving(page, TEXT, HOST)), NAMESPACE, name, "tiny", role
            )

        busy = {(NAMESPACE, "d0"): 0.4, ("elsewhere", "d1"): 1.0}
        gpus = stack.enter_context(host_page.serving(lambda: gpu_exporter.page(busy), TEXT, HOST))
        ranks: list[dict[str, float | None]] = [
            {"num_requests_waiting": 2.0, "num_requests_running": 5.0, "kv_cache_usage_perc": 0.25},
            {"num_requests_waiting": 1.0, "num_requests_running": 3.0, "kv_cache_usage_perc": 0.5},
        ]
        targets = [
            target(lambda: engine_page(*ranks), "d0", "decode"),
            target(lambda: engine_page({"num_requests_waiting": 100.0}), "d-of-yesterday", "decode"),
            target(lambda: engine_page({"num_requests_running": 50.0}), "p0", "prefill"),
            # Half of its answers so far took at most 0.1 s, the others at most 1 s.
            target(lambda: _router(next(answered)), "r0", "router"),
        ]
        scraped = prometheus.configuration({"static_configs": targets}, gpus)
        yield stack.enter_context(prometheus.running(tmp_path, scraped, HOST, *free_ports(1), guard=guard)), authority


def _router(times: int) -> bytes:
    histogram = {"0.1": 10.0 * times, "1.0": 20.0 * times, "+Inf": 20.0 * times}
    return router_page(queued=3, unstarted={"d0": 1, "p0": 7}, ttft=histogram)


def _is_whole(seen: Observation) -> bool:
    """Every target was scraped, and the routers twice: a rate needs two samples."""
    decode = seen.of(Role.DECODE)
    return Measure.TTFT_MS in seen.gateway and decode.query is not None and len(decode.pods[0].values) == VALUES


async def test_a_real_prometheus_tells_what_the_pods_told(guarded: tuple[str, Authority]) -> None:
    """Ranks, pods that are gone, exported names of the GPU exporter, a query, a percentile (Q30, Q37, Q109).

    It is reached over TLS by the authority of one Secret and with the password of another; without either nothing is
    known, and the fault says why without saying who asked.
    """
    url, authority = guarded
    secrets = Secrets(
        prom={"username": "operator", "password": PASSWORD},
        other={"username": "operator", "password": "CANARY"},
        ca={"ca.crt": authority.certificate.read_text()},
    )
    trust = {"tls": {"caSecretRef": {"name": "ca", "key": "ca.crt"}}}
    pods = (pod(Role.DECODE, "d0", None), pod(Role.PREFILL, "p0", None), pod(Role.ROUTER, "r0", None))

    def reading(pages: Pages, **settings: Any) -> Reader:
        return Reader(
            pages,
            secrets,
            prefill={"autoscaling": {"signals": [{"type": "Ttft", "target": 500}]}},
            decode={"autoscaling": {"signals": SIGNALS}},
            slo={"percentile": 50},
            autoscaling={"source": "Prometheus", "prometheus": {"url": url, "timeoutSeconds": 30, **settings}},
        )

    async with Pages() as pages:
        right = reading(pages, **trust, basicAuthSecretRef={"name": "prom"})
        async with asyncio.timeout(SCRAPED_S):
            seen = await right.read(*pods)
            while not _is_whole(seen):
                await asyncio.sleep(0.25)
                seen = await right.read(*pods)
        right.metrics.close()
        decode = seen.of(Role.DECODE)
        assert dict(decode.pods[0].values) == {
            Measure.WAITING: 3.0,
            Measure.RUNNING: 8.0,
            Measure.KV_USAGE: 0.5,
            Measure.UNSTARTED: 1.0,
            Measure.GPU_TENSOR: pytest.approx(0.4),
            Measure.GPU_UTILIZATION: pytest.approx(0.4),
        }
        assert (decode.query, decode.unattributed, dict(decode.faults)) == (8.0, False, {})
        assert seen.gateway[Measure.QUEUED] == 3.0
        assert seen.gateway[Measure.TTFT_MS] == pytest.approx(100)
        for settings, words in (
            ({**trust, "basicAuthSecretRef": {"name": "other"}}, "answered 401"),
            (trust, "answered 401"),
            ({"basicAuthSecretRef": {"name": "prom"}}, "its certificate is not trusted"),
        ):
            wrong = reading(pages, **settings)
            seen = await wrong.read(*pods)
            wrong.metrics.close()
            assert seen.of(Role.DECODE).faults[Measure.WAITING] == f"{url}: {words}"
            assert not any(each.values for each in seen.of(Role.DECODE).pods)
            assert "CANARY" not in str(seen)
