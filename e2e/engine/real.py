"""Real vLLM servers as plain processes on loopback: prefill and decode joined by NIXL, for tests and by hand.

Boundary: command lines, environment, waiting and ending; what is asked of the engines is the caller's business. Every
engine ends with its owner: by the context manager, by the kernel when the owner is killed, and by the next start from
the record of process ids.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import httpx

from e2e.cluster.progress import Progress, last_lines
from e2e.engine import install, model
from e2e.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

Role = Literal["prefill", "decode", "aggregated"]
HOST = "127.0.0.1"
START_TIMEOUT_S = 600.0
END_TIMEOUT_S = 30.0
KV_ROLES: Mapping[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Ports:
    """The ports of one engine."""

    http: int
    side_channel: int
    events: int
    replay: int

    @classmethod
    def free(cls) -> Self:
        """Four free ports."""
        return cls(*free_ports(4))


def serve_arguments(
    role: Role, ports: Ports, *, lease_s: int = 12, on_failure: str = "fail", max_seqs: int = 8
) -> list[str]:
    """The arguments of `vllm serve` (without the model) for one engine of a set."""
    arguments = [
        *("--served-model-name", "tiny", "--host", HOST, "--port", str(ports.http)),
        *("--dtype", "float32", "--max-model-len", "2048", "--enforce-eager", "--max-num-seqs", str(max_seqs)),
        *("--block-size", str(model.BLOCK_TOKENS), "--kv-cache-memory-bytes", str(128 << 20)),
        *("--enable-prefix-caching", "--enable-prompt-tokens-details"),
        "--kv-events-config",
        json.dumps(
            {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{ports.events}",
                "replay_endpoint": f"tcp://*:{ports.replay}",
                "topic": "kv",
            }
        ),
    ]
    if role in KV_ROLES:
        transfer = {
            "kv_connector": "NixlConnector",
            "kv_role": KV_ROLES[role],
            "kv_load_failure_policy": on_failure,
            "kv_connector_extra_config": {"kv_lease_duration": lease_s},
        }
        arguments += ["--kv-transfer-config", json.dumps(transfer)]
    return arguments


def environment(ports: Ports) -> dict[str, str]:
    """The environment variables of one engine on loopback; nothing of the caller's Python leaks in."""
    kept = {
        key: value for key, value in os.environ.items() if key not in {"PYTHONPATH", "VIRTUAL_ENV", "PYTHONHASHSEED"}
    }
    return kept | {
        "PATH": f"{install.venv() / 'bin'}:{os.environ['PATH']}",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "UCX_TLS": "tcp",
        "VLLM_HOST_IP": HOST,
        "VLLM_NIXL_SIDE_CHANNEL_HOST": HOST,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(ports.side_channel),
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    }


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; tells a process from a later one of the same id."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None


def _records() -> Path:
    return install.engine_root() / "running"


def _end_group(pid: int, timeout_s: float) -> None:
    """End a process group: politely, then by force, and wait until none of it is left."""
    deadline_s = time.monotonic() + timeout_s
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGTERM)
        while time.monotonic() < deadline_s:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            os.killpg(pid, 0)
            time.sleep(0.05)
        os.killpg(pid, signal.SIGKILL)


def end_leftovers(progress: Progress) -> None:
    """End engines whose owner is gone, as a kill -9 of the owner leaves them in the worst case."""
    for record in _records().glob("*.json"):
        try:
            kept = json.loads(record.read_text())
        except (FileNotFoundError, ValueError):  # its owner ends it just now, or has only begun to write
            continue
        if _start_ticks(kept["owner"]) == kept["owner_start"]:
            continue
        if _start_ticks(kept["pid"]) == kept["start"]:
            progress.say(f"ending left-over engine {kept['pid']}")
            _end_group(kept["pid"], END_TIMEOUT_S)
        record.unlink(missing_ok=True)


def _die_with_owner() -> None:
    # Runs in the child: SIGTERM when the thread that started it ends, so that even a killed owner leaves no engine.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class RealEngine:
    """One vLLM server.

    `extra` are further arguments of `vllm serve`, which win over the generated ones because they come last; `env`
    likewise.
    """

    role: Role
    ports: Ports = field(default_factory=Ports.free)
    lease_s: int = 12
    on_failure: str = "fail"
    extra: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    needs_install: ClassVar[bool] = True

    @property
    def url(self) -> str:
        """Base URL of the API."""
        return f"http://{HOST}:{self.ports.http}"

    @property
    def is_running(self) -> bool:
        """Whether the server's process is there."""
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> Path:
        """The log of this engine."""
        return install.engine_root() / "logs" / f"{self.role}-{self.ports.http}.log"

    def command(self) -> list[str]:
        """The whole command line."""
        arguments = serve_arguments(self.role, self.ports, lease_s=self.lease_s, on_failure=self.on_failure)
        return [*self.program(), "serve", str(model.folder()), *arguments, *self.extra]

    def program(self) -> list[str]:
        """What runs."""
        return [str(install.venv() / "bin" / "vllm")]

    def variables(self) -> dict[str, str]:
        """The environment."""
        return environment(self.ports) | dict(self.env)

    def start(self) -> None:
        """Start the process; call it in a thread that outlives the engine (the engine ends with that thread)."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                self.command(),
                stdout=stream,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=self.variables(),
                start_new_session=True,
                preexec_fn=_die_with_owner,  # noqa: PLW1509 - one prctl is all that runs there
            )
        _records().mkdir(parents=True, exist_ok=True)
        pid, owner = self.process.pid, os.getpid()
        kept = {"pid": pid, "start": _start_ticks(pid), "owner": owner, "owner_start": _start_ticks(owner)}
        (_records() / f"{pid}.json").write_text(json.dumps(kept))

    def wait_healthy(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until `/health` is 200.

        Raises:
            install.InstallError: the process ended or the time is over; holds the log's last lines.
        """
        assert self.process is not None
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and self.process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=2.0).status_code == httpx.codes.OK:
                    return
            time.sleep(0.5)
        state = (
            f"ended with {self.process.poll()}"
            if self.process.poll() is not None
            else f"not healthy after {timeout_s:.0f} s"
        )
        raise install.InstallError(
            f"engine {self.role} {state}; last lines of {self.log}:\n  " + "\n  ".join(last_lines(self.log))
        )

    def lost_a_port(self) -> bool:
        """Whether the process ended because somebody else had taken one of its ports."""
        return not self.is_running and "address already in use" in self.log.read_text(errors="replace").lower()

    def terminate(self) -> None:
        """Send SIGTERM to the server alone, as a kubelet does."""
        assert self.process is not None
        self.process.terminate()

    def stop(self) -> None:
        """End the process and all its children; without effect when it has not been started."""
        if self.process is None:
            return
        _end_group(self.process.pid, END_TIMEOUT_S)
        self.process.wait()
        (_records() / f"{self.process.pid}.json").unlink(missing_ok=True)
        self.process = None


class EngineSet:
    """Some engines, started together: imports are all of a start, so two take little longer than one.

    Use as a context manager; `prefill`, `decode` and `aggregated` are lists in the order of creation.
    """

    def __init__(self, engines: Sequence[RealEngine], progress: Progress | None = None) -> None:
        self.engines = list(engines)
        self._progress = progress or Progress("engine")

    @classmethod
    def pairs(cls, count: int = 1, *, aggregated: int = 0, lease_s: int = 12, progress: Progress | None = None) -> Self:
        """`count` prefill and `count` decode engines, with `aggregated` ones beside them."""
        roles: list[Role] = [*["prefill"] * count, *["decode"] * count, *["aggregated"] * aggregated]  # type: ignore[list-item]
        return cls([RealEngine(role, lease_s=lease_s) for role in roles], progress)

    def of(self, role: Role) -> list[RealEngine]:
        """The engines of one role."""
        return [engine for engine in self.engines if engine.role == role]

    def start(self) -> None:
        """Install what is missing, start all, wait until all are healthy; on failure all are ended."""
        if any(engine.needs_install for engine in self.engines):
            install.install(self._progress)
            model.make(self._progress)
        end_leftovers(self._progress)
        try:
            with self._progress.step(f"{len(self.engines)} engines"):
                for engine in self.engines:
                    engine.start()
                with ThreadPoolExecutor(len(self.engines)) as pool:
                    faults = list(pool.map(_fault_of_start, self.engines))
                for engine, fault in zip(self.engines, faults, strict=True):
                    if fault is not None:
                        self._start_again(engine, fault)
                    self._progress.say(f"{engine.role} {engine.url} is healthy")
        except BaseException:
            self.stop()
            raise

    def _start_again(self, engine: RealEngine, fault: install.InstallError) -> None:
        """Between the moment a port was found free and the engine's own bind another program may have taken it."""
        if not engine.lost_a_port():
            raise fault
        self._progress.say(f"{engine.role} lost a port to another program; once more with others")
        engine.stop()
        engine.ports = Ports.free()
        engine.start()
        engine.wait_healthy()

    def stop(self) -> None:
        """End all, side by side."""
        with ThreadPoolExecutor(len(self.engines)) as pool:
            list(pool.map(RealEngine.stop, self.engines))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _fault_of_start(engine: RealEngine) -> install.InstallError | None:
    try:
        engine.wait_healthy()
    except install.InstallError as fault:
        return fault
    return None


@contextlib.contextmanager
def running(pairs: int = 1, *, lease_s: int = 12) -> Iterator[EngineSet]:
    """`EngineSet.pairs` as a context, with SIGTERM turned into an ordinary exit so that the engines end first."""
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with EngineSet.pairs(pairs, lease_s=lease_s) as engines:
            yield engines
    finally:
        signal.signal(signal.SIGTERM, previous)
