"""How an engine pod starts and leaves: probes, preStop hook, grace; the scripts run as the kubelet would run them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from pdpool_api.engines import vllm
from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.conftest import MakeSpec


class Engine(ThreadingHTTPServer):
    """A stand-in for an engine's HTTP side that answers from a table of path to (status, body)."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, str]]] = {}
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    def next_answer(self, path: str) -> tuple[int, str]:
        """Answers in order; the last one stays."""
        self.asked.append(path)
        answers = self.answers.get(path, [(404, "")])
        return answers.pop(0) if len(answers) > 1 else answers[0]


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Engine)
        status, body = server.next_answer(self.path)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the overridden method's own name
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    server = Engine()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def _run(
    handler: dict[str, Any], *, port: int, replaced: dict[int, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs an exec handler with this interpreter; `replaced` changes arguments by place, counted from the port."""
    command = [sys.executable, *handler["exec"]["command"][1:]]
    first = command.index("8000")
    for place, value in {0: str(port), **(replaced or {})}.items():
        command[first + place] = value
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def _metrics(running: float = 0, waiting: float = 0, usage: float | None = 0) -> str:
    lines = [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        'vllm:num_requests_running{engine="0",model_name="m"} 0.0',
        f'vllm:num_requests_running{{engine="1",model_name="m"}} {running}',
        f'vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}',
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7.0',
    ]
    if usage is not None:
        lines.append(f'vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} {usage}')
    return "\n".join(lines) + "\n"


def _models(*names: str) -> str:
    return json.dumps({"object": "list", "data": [{"id": name} for name in names]})


def test_startup_ends_once_the_model_is_served(spec: MakeSpec, engine: Engine) -> None:
    """Health and the served name together make a started engine (Q97)."""
    engine.answers = {"/health": [(200, "")], "/v1/models": [(200, _models("a", "org/model"))]}
    done = _run(vllm.probes(spec(), Role.DECODE)["startupProbe"], port=engine.server_port)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"/health": [(503, "")]}, "/health answers 503"),
        ({"/health": [(200, "")], "/v1/models": [(200, "nonsense")]}, "not serving yet"),
        ({"/health": [(200, "")], "/v1/models": [(200, "[]")]}, "not serving yet"),
        ({"/health": [(200, "")], "/v1/models": [(200, _models("other"))]}, "serves ['other'], not org/model"),
    ],
)
def test_startup_fails_with_a_reason(
    spec: MakeSpec, engine: Engine, answers: dict[str, list[tuple[int, str]]], message: str
) -> None:
    """The probe's output, which events of the pod show, says what is missing."""
    engine.answers = answers
    done = _run(vllm.probes(spec(), Role.DECODE)["startupProbe"], port=engine.server_port)
    assert done.returncode == 1
    assert message in done.stderr


def test_startup_fails_while_nothing_listens(spec: MakeSpec) -> None:
    """A refused connection is a failed probe with one line, not a traceback."""
    done = _run(vllm.probes(spec(), Role.DECODE)["startupProbe"], port=1)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1


def test_probes_write_out_every_field(spec: MakeSpec) -> None:
    """What is not applied could be changed by others and would stay so."""
    probes = vllm.probes(spec(engine={"startupTimeoutSeconds": 601}), Role.PREFILL)
    timing = {"periodSeconds", "timeoutSeconds", "failureThreshold", "successThreshold"}
    assert all(timing < probe.keys() for probe in probes.values())
    assert probes["startupProbe"]["periodSeconds"] * probes["startupProbe"]["failureThreshold"] == 602
    assert probes["readinessProbe"]["periodSeconds"] == 2
    assert probes["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000, "scheme": "HTTP"}


def test_busy_is_not_dead(spec: MakeSpec) -> None:
    """Liveness waits at least 10 s for an answer and takes three misses (Q97)."""
    liveness = vllm.probes(spec(), Role.DECODE)["livenessProbe"]
    assert liveness["timeoutSeconds"] >= 10
    assert liveness["failureThreshold"] == 3


def test_a_leaving_pod_waits_until_it_is_idle(spec: MakeSpec, engine: Engine) -> None:
    """Running and waiting requests hold the pod; it leaves once there are none."""
    engine.answers = {"/metrics": [(200, _metrics(running=2)), (200, _metrics(waiting=1)), (200, _metrics())]}
    _run(vllm.pre_stop(spec(), Role.DECODE), port=engine.server_port, replaced={1: "0", 2: "20"})
    assert len(engine.asked) == 3


def test_prefill_waits_for_its_kv_and_decode_does_not(spec: MakeSpec, engine: Engine) -> None:
    """Unpulled KV shows as usage; decode's cache may hold what it likes."""
    engine.answers = {"/metrics": [(200, _metrics(usage=0.25)), (200, _metrics())]}
    _run(vllm.pre_stop(spec(), Role.DECODE), port=engine.server_port, replaced={1: "0", 2: "20"})
    assert len(engine.asked) == 1
    _run(vllm.pre_stop(spec(), Role.PREFILL), port=engine.server_port, replaced={1: "0", 2: "20"})
    assert len(engine.asked) == 2
    engine.answers = {"/metrics": [(200, _metrics(usage=0.25)), (200, _metrics())]}
    _run(vllm.pre_stop(spec(), Role.PREFILL), port=engine.server_port, replaced={1: "0", 2: "20"})
    assert len(engine.asked) == 4


@pytest.mark.parametrize(
    "answer", [(200, _metrics(usage=None)), (200, ""), (500, ""), (200, _metrics(running=float("nan")))]
)
def test_unknown_is_not_idle(spec: MakeSpec, engine: Engine, answer: tuple[int, str]) -> None:
    """An absent gauge, an error or NaN keeps the pod to the end of its time."""
    engine.answers = {"/metrics": [answer]}
    _run(vllm.pre_stop(spec(), Role.PREFILL), port=engine.server_port, replaced={1: "0", 2: "1"})
    assert len(engine.asked) >= 2


def test_a_dead_engine_has_nothing_to_finish(spec: MakeSpec) -> None:
    """A refused connection ends the wait (the test's time limit is far below the hook's)."""
    done = _run(vllm.pre_stop(spec(), Role.PREFILL), port=1, replaced={1: "0", 2: "300"})
    assert done.returncode == 0


def test_limits_of_the_wait(spec: MakeSpec) -> None:
    """At least 5 s, at most the drain time, also where that is shorter."""
    command = vllm.pre_stop(spec(decode={"drainSeconds": 15}), Role.DECODE)["exec"]["command"]
    assert command[-4:-2] == ["5", "15"]
    assert vllm.drain_s(spec(decode={"drainSeconds": 0}), Role.DECODE) == 5


@pytest.mark.parametrize(
    ("role", "fields", "shutdown_s"),
    [
        (Role.DECODE, {}, 10),
        (Role.PREFILL, {"transfer": {"leaseSeconds": 12}}, 17),
        (Role.PREFILL, {"engine": {"args": ["--shutdown-timeout=90"]}}, 90),
        (
            Role.DECODE,
            {"engine": {"args": ["--shutdown_timeout", "90"]}, "decode": {"args": ["--shutdown-timeout", "4"]}},
            4,
        ),
        (Role.DECODE, {"engine": {"args": ["--shutdown-timeout", "soon"]}}, 10),
    ],
)
def test_grace_is_longer_than_drain_and_shutdown(
    spec: MakeSpec, role: Role, fields: dict[str, Any], shutdown_s: int
) -> None:
    """The kubelet never kills an engine within its own times, those of the author included (Q80)."""
    pool = spec(**fields)
    assert vllm.shutdown_timeout_s(pool, role) == shutdown_s
    assert vllm.termination_grace_seconds(pool, role) > vllm.drain_s(pool, role) + shutdown_s
