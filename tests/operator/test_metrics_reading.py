"""One reading of a pool, over real sockets: engines and routers themselves, and a Prometheus (stand-ins)."""

from __future__ import annotations

import base64
import ssl
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web

from e2e.cluster.pki import Authority, Identity
from pdpool_api import names
from pdpool_api.names import Role
from pdpool_api.pool import InferencePool
from pdpool_operator import autoscale
from pdpool_operator.autoscale import Measure
from pdpool_operator.kube import ForbiddenError
from pdpool_operator.observe import metrics
from pdpool_operator.observe.metrics import Pages, PoolMetrics
from pdpool_operator.records import ChildKey, Observed, PoolRef
from tests.operator.metric_pages import Server, engine_page, query_of, router_page, serving, vector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PREFILL, DECODE, ROUTER = Role.PREFILL, Role.DECODE, Role.ROUTER
NAMESPACE = "serving"
SCALED: dict[str, Any] = {"autoscaling": {"minReplicas": 1}}


class Secrets:
    """A stand-in for the API server: Secrets by name, or what asking for one raises."""

    def __init__(self, **secrets: dict[str, str] | Exception) -> None:
        self.secrets = secrets
        self.asked = 0

    async def get(self, _resource: object, namespace: str, name: str) -> dict[str, Any] | None:
        assert namespace == NAMESPACE
        self.asked += 1
        found = self.secrets.get(name)
        if isinstance(found, Exception):
            raise found
        if found is None:
            return None
        return {"data": {key: base64.b64encode(value.encode()).decode() for key, value in found.items()}}


def pod(role: Role, name: str, ip: str | None, *, ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {names.LABEL_ROLE: role.value},
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "status": {
            **({"podIP": ip} if ip else {}),
            "phase": "Running",
            "conditions": [
                {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": "2026-01-01T00:00:40Z"}
            ],
        },
    }


def leaving(of: dict[str, Any]) -> dict[str, Any]:
    """The pod while it is being deleted: not ready any more, and still running."""
    ended = {**of["status"], "conditions": [], "containerStatuses": [{"state": {"running": {}}}]}
    return {**of, "metadata": {**of["metadata"], "deletionTimestamp": "2026-01-01T01:00:00Z"}, "status": ended}


def observed(*pods: dict[str, Any], replicas: int = 2) -> Observed:
    live = {"metadata": {"labels": {names.LABEL_ROLE: "decode"}}, "spec": {"replicas": replicas}}
    return Observed(
        PoolRef(NAMESPACE, "tiny"),
        {"metadata": {"name": "tiny", "uid": "u"}},
        {ChildKey("Deployment", "d"): live},
        pods,
    )


def spec_of(**spec: Any) -> Any:
    raw = {"metadata": {"name": "tiny", "namespace": NAMESPACE}, "spec": {"model": {"id": "m"}, **spec}}
    return InferencePool.parse(raw, strict=True).spec


class Reader:
    """Reads a pool again and again, at times of the test's own."""

    def __init__(self, pages: Pages, secrets: Secrets, **spec: Any) -> None:
        self.spec = spec_of(**{"prefill": SCALED, "decode": SCALED, **spec})
        self.limits = autoscale.limits(self.spec)
        self.metrics = PoolMetrics(pages, secrets)  # type: ignore[arg-type]

    async def read(self, *pods: dict[str, Any], now: float = 0.0) -> autoscale.Observation:
        return await self.metrics.read(observed(*pods), self.spec, self.limits, now)


@pytest.fixture
async def reader() -> Any:
    made: list[Reader] = []
    async with Pages() as pages:

        def make(secrets: Secrets | None = None, **spec: Any) -> Reader:
            made.append(Reader(pages, secrets or Secrets(), **spec))
            return made[-1]

        yield make
    for each in made:
        each.metrics.close()


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Role, str, bytes], Server]]:
    """Serves a page at an address of its own, at the port of the pods of a role (another one in this test)."""
    with ExitStack() as stack:
        chosen: dict[bool, int] = {}

        def serve(role: Role, ip: str, page: bytes) -> Server:
            is_router = role is ROUTER
            server = stack.enter_context(serving(lambda _path: (200, page), ip, chosen.get(is_router, 0)))
            chosen[is_router] = server.http.server_address[1]
            monkeypatch.setattr(names, "ROUTER_ADMIN_PORT", chosen.get(True, 1))
            monkeypatch.setattr(metrics.vllm, "http_port", lambda _spec, _role: chosen.get(False, 1))
            return server

        yield serve


async def test_engines_and_routers_are_asked_themselves(reader: Any, ports: Any) -> None:
    """Each pod's own gauges, and what the routers together know of each pod and of the pool."""
    ports(DECODE, "127.0.1.1", engine_page({"num_requests_waiting": 2.0, "kv_cache_usage_perc": 0.4}))
    ports(DECODE, "127.0.1.2", engine_page({"num_requests_waiting": 0.0, "kv_cache_usage_perc": None}))
    ports(ROUTER, "127.0.1.3", router_page(queued=3, unstarted={"d0": 5, "gone": 9}))
    ports(ROUTER, "127.0.1.4", router_page(queued=1, unstarted={"d0": 2, "127.0.1.2:1": 1}))
    seen = await reader().read(
        pod(DECODE, "d0", "127.0.1.1"),
        pod(DECODE, "d1", "127.0.1.2"),
        pod(DECODE, "d2", None, ready=False),
        pod(ROUTER, "r0", "127.0.1.3"),
        pod(ROUTER, "r1", "127.0.1.4"),
    )
    values = {each.name: dict(each.values) for each in seen.of(DECODE).pods}
    assert values == {
        "d0": {Measure.WAITING: 2.0, Measure.RUNNING: 0.0, Measure.KV_USAGE: 0.4, Measure.UNSTARTED: 7.0},
        "d1": {Measure.WAITING: 0.0, Measure.RUNNING: 0.0, Measure.UNSTARTED: 1.0},
        "d2": {},
    }
    assert seen.gateway == {Measure.QUEUED: 4.0}
    assert seen.of(DECODE).size == 2
    assert [each.start_s for each in seen.of(DECODE).pods] == [40.0, 40.0, None]
    assert not seen.of(DECODE).faults


async def test_a_connection_is_kept_until_the_engine_ends_it() -> None:
    """Half of what a reading costs is its connection; one that was ended meanwhile costs no reading."""
    peers: list[Any] = []
    transports: list[Any] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        transports.append(request.transport)
        peers.append(request.transport.get_extra_info("peername") if request.transport else None)
        return web.Response(body=b"# TYPE a gauge\na 1\n")

    engine = web.ServerRunner(web.Server(answer))
    await engine.setup()
    try:
        site = web.TCPSite(engine, "127.0.0.1", 0)
        await site.start()
        address = f"127.0.0.1:{engine.addresses[0][1]}"
        async with Pages() as pages:
            for _ in range(2):
                assert (await pages.page(address, ["a"])).total("a") == 1
            transports[-1].abort()
            assert (await pages.page(address, ["a"])).total("a") == 1
    finally:
        await engine.cleanup()
    assert peers[0] == peers[1] != peers[2]


async def test_a_router_that_is_not_heard_is_known_to_be_missing(reader: Any, ports: Any) -> None:
    """One of two that serve gives no page: what the other tells is the least; one that drains may be silent."""
    ports(ROUTER, "127.0.1.3", router_page(queued=3))
    silent = ports(ROUTER, "127.0.1.4", b"")
    silent.answer = lambda _path: (503, b"")
    ports(ROUTER, "127.0.1.5", router_page(queued=2))
    routers = [pod(ROUTER, "r0", "127.0.1.3"), pod(ROUTER, "r1", "127.0.1.4"), leaving(pod(ROUTER, "r2", "127.0.1.5"))]
    seen = await reader().read(*routers)
    assert (seen.gateway[Measure.QUEUED], seen.partial) == (5.0, True)
    seen = await reader().read(routers[0], leaving(routers[1]), routers[2])
    assert (seen.gateway[Measure.QUEUED], seen.partial) == (5.0, False)


async def test_a_source_that_tells_nothing_is_named(reader: Any, ports: Any) -> None:
    """Refused connections, answers that are no page and absent routers are faults with an address, and no zeros."""
    broken = ports(DECODE, "127.0.1.1", b"")
    broken.answer = lambda _path: (503, b"")
    seen = await reader().read(pod(DECODE, "d0", "127.0.1.1"), pod(DECODE, "d1", "127.0.1.2"))
    faults = seen.of(DECODE).faults
    assert faults[Measure.WAITING] == f"{broken.address} answered 503"
    assert faults[Measure.QUEUED] == "no router is ready"
    assert [each.values for each in seen.of(DECODE).pods] == [{}, {}]
    broken.answer = lambda _path: (200, b"vllm:num_requests_waiting{ 1\n")
    seen = await reader().read(pod(DECODE, "d0", "127.0.1.1"))
    assert seen.of(DECODE).faults[Measure.WAITING] == f"{broken.address} gave a page that cannot be read"


async def test_latency_comes_from_the_difference_of_two_readings(reader: Any, ports: Any) -> None:
    """The first reading knows no latency; the second that of the time between, at the percentile of the SLO."""
    server = ports(ROUTER, "127.0.1.3", router_page(ttft={"0.1": 100, "1.0": 100, "+Inf": 100}))
    signals = {"signals": [{"type": "Ttft", "target": 500}]}
    each = reader(prefill={"autoscaling": signals}, slo={"percentile": 50})
    router = pod(ROUTER, "r0", "127.0.1.3")
    assert Measure.TTFT_MS not in (await each.read(router)).gateway
    server.answer = lambda _path: (200, router_page(ttft={"0.1": 100, "1.0": 200, "+Inf": 200}))
    assert (await each.read(router, now=15)).gateway[Measure.TTFT_MS] == pytest.approx(550)


async def test_a_pool_that_may_go_to_zero_asks_its_routers_whatever_the_source_is(reader: Any, ports: Any) -> None:
    """Prometheus is too old to wake a pool."""
    ports(ROUTER, "127.0.1.3", router_page(queued=2, inflight={"d0": 1}, tokens=7))
    zero = {"autoscaling": {"minReplicas": 0}}
    source = {"source": "Prometheus", "prometheus": {"url": "http://127.0.0.1:1"}}
    seen = await reader(prefill=zero, decode=zero, autoscaling=source).read(pod(ROUTER, "r0", "127.0.1.3"))
    assert seen.gateway == {Measure.QUEUED: 2.0, Measure.INFLIGHT: 1.0, Measure.SERVED_TOKENS: 7.0}


# --- Prometheus -----------------------------------------------------------------------------------------------------


def of_prometheus(url: str, **more: Any) -> dict[str, Any]:
    return {"source": "Prometheus", "prometheus": {"url": url, **more}}


def series(pod_name: str, value: float | str, *, namespace: str = NAMESPACE, **labels: str) -> Any:
    return ({"pod": pod_name, "namespace": namespace, **labels}, value)


async def test_series_of_pods_that_are_gone_or_elsewhere_do_not_count(reader: Any) -> None:
    """A deleted pod's series, and one of a pod of the same name in another namespace, are ignored (Q37)."""
    told = vector(
        series("old-1", 100), series("d0", 100, namespace="other"), series("d0", 0), series("d1", 0), series("p0", 40)
    )
    with serving(lambda path: told if "num_requests_waiting" in query_of(path) else vector()) as server:
        each = reader(autoscaling=of_prometheus(f"http://{server.address}"))
        seen = await each.read(pod(DECODE, "d0", None), pod(DECODE, "d1", None), pod(PREFILL, "p0", None))
    waiting = {one.name: one.values[Measure.WAITING] for role in (PREFILL, DECODE) for one in seen.of(role).pods}
    assert waiting == {"d0": 0.0, "d1": 0.0, "p0": 40.0}


@pytest.mark.parametrize("scraped", [("r0",), ()])
async def test_routers_that_prometheus_does_not_know_are_asked_themselves(
    reader: Any, ports: Any, scraped: tuple[str, ...]
) -> None:
    """A queue stands in the routers: where only engines are scraped, or not all routers, their own word counts."""
    ports(ROUTER, "127.0.1.3", router_page(queued=3, unstarted={"p0": 5}))
    ports(ROUTER, "127.0.1.4", router_page(queued=4, unstarted={"p0": 1}))
    routers = [pod(ROUTER, "r0", "127.0.1.3"), pod(ROUTER, "r1", "127.0.1.4")]

    def answer(path: str) -> Any:
        query = query_of(path)
        if "pdpool_router_queued" in query:
            return vector(*(series(each, 9) for each in scraped))
        return vector(series("p0", 2)) if "num_requests" in query else vector()

    with serving(answer) as server:
        each = reader(autoscaling=of_prometheus(f"http://{server.address}"))
        seen = await each.read(pod(PREFILL, "p0", None), *routers)
        assert seen.gateway[Measure.QUEUED] == 7.0
        assert seen.of(PREFILL).pods[0].values[Measure.UNSTARTED] == 6.0
        assert seen.of(PREFILL).pods[0].values[Measure.WAITING] == 2.0
        assert not seen.partial
        seen = await each.read(pod(PREFILL, "p0", None), pod(ROUTER, "r9", None))
        assert (seen.partial, seen.blind) == (True, True)
        server.answer = lambda _path: (401, b"")
        seen = await each.read(pod(PREFILL, "p0", None), *routers)
        assert (seen.gateway, seen.of(PREFILL).pods[0].values) == ({}, {})


@pytest.mark.parametrize(("new", "old", "usage"), [(0.97, None, 0.97), (None, 0.97, 0.97), (0.97, 0.1, 0.97)])
async def test_prometheus_may_know_a_gauge_by_its_old_name(
    reader: Any, new: float | None, old: float | None, usage: float
) -> None:
    """The newest name that a pod has counts (Q25)."""

    def answer(path: str) -> Any:
        query = query_of(path)
        known = new if "vllm:kv_cache_usage_perc" in query else old if "gpu_cache" in query else None
        return vector() if known is None else vector(series("d0", known))

    with serving(answer) as server:
        seen = await reader(autoscaling=of_prometheus(f"http://{server.address}")).read(pod(DECODE, "d0", None))
    assert seen.of(DECODE).pods[0].values[Measure.KV_USAGE] == usage


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (vector(), "no series vllm:num_requests_waiting of this pool"),
        ((503, b"{}"), "answered 503"),
        ((401, b'{"error": "token CANARY"}'), "answered 401"),
        ((200, b"<html>"), "gave no result of a query"),
        ((200, b'{"data": {"result": [{}]}}'), "gave no result of a query"),
        (vector(series("d0", "NaN")), "no series vllm:num_requests_waiting of this pool"),
        (None, "cannot be reached"),
    ],
)
async def test_an_answer_without_a_value_is_unknown_and_says_why(reader: Any, reply: Any, words: str) -> None:
    """Empty, error, no answer, NaN: unknown, with the address and without anything that a server said (Q30, Q109)."""
    with serving(lambda _path: reply) as server:
        each = reader(autoscaling=of_prometheus(f"http://{server.address}"))
        seen = await each.read(pod(DECODE, "d0", None))
    assert seen.of(DECODE).pods[0].values == {}
    said = seen.of(DECODE).faults[Measure.WAITING]
    assert said == f"http://{server.address}: {words}"
    assert "CANARY" not in str(seen)


@pytest.mark.parametrize("first", [3, "NaN"])
async def test_a_pod_of_whose_ranks_one_is_unknown_is_unknown(reader: Any, first: Any) -> None:
    """Neither a sum nor a maximum is made of the others; the fellows of such a pod are read."""

    def answer(path: str) -> Any:
        if "num_requests_waiting" not in query_of(path):
            return vector()
        ranks = [("d0", "0", first), ("d0", "1", "NaN"), ("d0", "2", 4), ("d1", "0", 7)]
        return vector(*(({"namespace": NAMESPACE, "pod": name, "engine": rank}, value) for name, rank, value in ranks))

    with serving(answer) as server:
        each = reader(autoscaling=of_prometheus(f"http://{server.address}"))
        seen = await each.read(pod(DECODE, "d0", None), pod(DECODE, "d1", None))
    assert {one.name: dict(one.values) for one in seen.of(DECODE).pods} == {"d0": {}, "d1": {Measure.WAITING: 7.0}}


@pytest.mark.parametrize("page", [b"<html></html>", b"", router_page(queued=float("nan"))])
async def test_a_router_whose_page_does_not_tell_its_queue_is_not_heard(reader: Any, ports: Any, page: bytes) -> None:
    """What its fellow tells is the least that there is."""
    ports(ROUTER, "127.0.1.3", router_page(queued=3))
    ports(ROUTER, "127.0.1.4", page)
    seen = await reader().read(pod(ROUTER, "r0", "127.0.1.3"), pod(ROUTER, "r1", "127.0.1.4"))
    assert (seen.gateway[Measure.QUEUED], seen.partial) == (3.0, True)


async def test_a_prometheus_that_does_not_answer_is_given_up(reader: Any) -> None:
    """After its timeout; the reading ends, and the other sources are not lost."""
    release = threading.Event()

    def answer(_path: str) -> Any:
        release.wait(20)
        return vector()

    with serving(answer) as server:
        each = reader(autoscaling=of_prometheus(f"http://{server.address}", timeoutSeconds=1))
        seen = await each.read(pod(DECODE, "d0", None))
        release.set()
    assert seen.of(DECODE).faults[Measure.WAITING].endswith("no answer in 1 s")


GPU = {"signals": [{"type": "GpuTensorActive", "target": 0.5}, {"type": "GpuUtilization", "target": 0.8}]}


async def test_gpus_belong_to_the_pod_that_the_exporter_names(reader: Any) -> None:
    """DCGM's series are attributed by the exported names; utilization becomes a ratio; the busiest GPU counts."""
    exporter = {"pod": "dcgm-1", "namespace": "gpu", "exported_namespace": NAMESPACE}

    def answer(path: str) -> Any:
        whole = 100 if "GPU_UTIL" in query_of(path) else 1
        return vector(
            ({**exporter, "exported_pod": "d0", "gpu": "0"}, 0.2 * whole),
            ({**exporter, "exported_pod": "d0", "gpu": "1"}, 0.6 * whole),
            ({**exporter, "exported_pod": "elsewhere", "gpu": "2"}, 1.0 * whole),
        )

    with serving(answer) as server:
        of_direct = {"prometheus": {"url": f"http://{server.address}"}}
        seen = await reader(decode={"autoscaling": GPU}, autoscaling=of_direct).read(pod(DECODE, "d0", None))
    values = seen.of(DECODE).pods[0].values
    assert values[Measure.GPU_TENSOR] == pytest.approx(0.6)
    assert values[Measure.GPU_UTILIZATION] == pytest.approx(0.6)
    assert not seen.of(DECODE).unattributed


async def test_gpus_of_nobody_here_are_said_to_be_unattributed(reader: Any) -> None:
    """Series exist, and none names a pod of the role."""
    with serving(lambda _path: vector(({"pod": "dcgm-1", "namespace": "gpu", "gpu": "0"}, 0.5))) as server:
        of_direct = {"prometheus": {"url": f"http://{server.address}"}}
        seen = await reader(decode={"autoscaling": GPU}, autoscaling=of_direct).read(pod(DECODE, "d0", None))
    assert seen.of(DECODE).unattributed
    assert not seen.of(DECODE).pods[0].values


QUERY = {"signals": [{"type": "PrometheusQuery", "target": 2, "query": 'q{ns="{namespace}",p="{pool}",r="{role}"}'}]}


@pytest.mark.parametrize(
    ("reply", "value", "words"),
    [
        (vector(({}, 12)), 12.0, ""),
        ((200, b'{"data": {"resultType": "scalar", "result": [1.0, "3.5"]}}'), 3.5, ""),
        (vector(), None, "the query gives no number"),
        (vector(({}, "NaN")), None, "the query gives no number"),
        (vector(({"a": "1"}, 1), ({"a": "2"}, 2)), None, "the query gives 2 series instead of one"),
        ((500, b""), None, "answered 500"),
    ],
)
async def test_a_query_gives_one_number_or_nothing(reader: Any, reply: Any, value: float | None, words: str) -> None:
    """Its placeholders are filled in; more than one series is no total (Q30)."""
    with serving(lambda _path: reply) as server:
        of_direct = {"prometheus": {"url": f"http://{server.address}"}}
        seen = await reader(decode={"autoscaling": QUERY}, autoscaling=of_direct).read(pod(DECODE, "d0", None))
        asked = {query_of(path) for path, _ in server.seen}
    assert 'q{ns="serving",p="tiny",r="decode"}' in asked
    assert seen.of(DECODE).query == value
    assert seen.of(DECODE).faults.get(Measure.QUERY, "").endswith(words)


async def test_credentials_come_from_secrets_and_stay_out_of_sight(reader: Any) -> None:
    """A token, or a user and a password, are shown to Prometheus; Secrets are read once a minute at most."""
    secrets = Secrets(prom={"token": "CANARY-TOKEN"}, basic={"username": "me", "password": "CANARY-PASSWORD"})
    with serving(lambda _path: (401, b"")) as server:
        token = {"bearerTokenSecretRef": {"name": "prom", "key": "token"}}
        each = reader(secrets, autoscaling=of_prometheus(f"http://{server.address}", **token))
        seen = await each.read(pod(DECODE, "d0", None))
        await each.read(pod(DECODE, "d0", None), now=15)
        assert {headers.get("Authorization") for _, headers in server.seen} == {"Bearer CANARY-TOKEN"}
        assert secrets.asked == 1
        server.seen.clear()
        basic = {"basicAuthSecretRef": {"name": "basic"}}
        await reader(secrets, autoscaling=of_prometheus(f"http://{server.address}", **basic)).read()
        sent = base64.b64encode(b"me:CANARY-PASSWORD").decode()
        assert {headers.get("Authorization") for _, headers in server.seen} == {f"Basic {sent}"}
    assert "CANARY" not in str(seen)


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        (Secrets(), "Secret prom does not exist"),
        (Secrets(prom={"other": "x"}), "Secret prom has no key token"),
        (Secrets(prom=ForbiddenError("no")), "Secret prom may not be read: the operator was not given the right to"),
    ],
)
async def test_a_missing_credential_is_named(reader: Any, secrets: Secrets, words: str) -> None:
    """Nothing is asked without it."""
    with serving(lambda _path: vector()) as server:
        token = {"bearerTokenSecretRef": {"name": "prom", "key": "token"}}
        each = reader(secrets, autoscaling=of_prometheus(f"http://{server.address}", **token))
        seen = await each.read(pod(DECODE, "d0", None))
        assert not server.seen
    assert seen.of(DECODE).faults[Measure.WAITING] == f"http://{server.address}: {words}"


async def test_tls_trusts_the_given_authority_and_no_other(
    reader: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Prometheus behind TLS: trusted by the authority of a Secret, not by the public ones, or by nobody when told."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    authority = Authority(tmp_path / "pki")
    authority.found()
    certificate, key = authority.issue("prometheus", Identity("prometheus", serves=("IP:127.0.0.1",)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    secrets = Secrets(ca={"ca.crt": authority.certificate.read_text()}, bad={"ca.crt": "no certificate"})

    def tls(**settings: Any) -> dict[str, Any]:
        return of_prometheus(f"https://{server.address}", tls=settings)

    with serving(lambda _path: vector(series("d0", 3))) as server:
        server.http.socket = context.wrap_socket(server.http.socket, server_side=True, do_handshake_on_connect=False)
        by_secret = {"caSecretRef": {"name": "ca", "key": "ca.crt"}}
        for settings in (by_secret, {"insecureSkipVerify": True}):
            seen = await reader(secrets, autoscaling=tls(**settings)).read(pod(DECODE, "d0", None))
            assert seen.of(DECODE).pods[0].values[Measure.WAITING] == 3.0
        seen = await reader(secrets, autoscaling=tls()).read(pod(DECODE, "d0", None))
        assert seen.of(DECODE).faults[Measure.WAITING].endswith("its certificate is not trusted")
        unusable = {"caSecretRef": {"name": "bad", "key": "ca.crt"}}
        seen = await reader(secrets, autoscaling=tls(**unusable)).read(pod(DECODE, "d0", None))
        assert seen.of(DECODE).faults[Measure.WAITING].endswith("caSecretRef holds no certificates that can be used")
