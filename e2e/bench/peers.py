"""The peers that benchmarks run beside us: one entry each, installed in an environment of its own.

Boundary: what a peer is called, where it comes from and how it is started; measuring is `router`'s business.
Own environments, because some peers install scripts of one name; pinned, because a figure belongs to a version.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from e2e.bench import dynamo
from e2e.bench.answers import EXACT, Answers, ByForm
from e2e.cluster.paths import cache_root
from e2e.cluster.progress import Progress
from e2e.engine.install import uv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

INSTALL_TIMEOUT_S = 600
HEALTH: Mapping[str, Callable[[bytes], bool]] = {"/health": lambda _: True}
"""A router is ready once it answers there, whatever it says."""


class PeerError(Exception):
    """A peer could not be installed or is not installed; the message says which and why."""


@dataclass(frozen=True)
class Place:
    """Where a router finds its engines and where it has to listen, all on loopback."""

    prefill_urls: Sequence[str]
    decode_urls: Sequence[str]
    whole_urls: Sequence[str]
    """Engines that compute a prompt and answer it."""
    port: int
    admin_port: int
    folder: Path
    """Where files may be written that the program reads."""


@dataclass(frozen=True)
class Peer:
    """A router by somebody else: package, version, program and the arguments that make it do what ours does."""

    name: str
    version: str
    package: str
    program: str
    policy: str
    arguments: Callable[[Place], list[str]]
    legs: int = 2
    """Requests to engines that it makes of one of a client's."""
    installs: Sequence[Sequence[str]] = ()
    """What the installer is told, one time after the other; by default the package in its version."""
    model_maker: Path | None = None
    """A program for the peer's interpreter that writes the folder of a model which engines of its own need."""
    engines: Callable[[Path], Mapping[str, list[str]]] = lambda _: {}
    """Arguments of its program for each engine of its own, by name, where it cannot be offered ours."""
    variables: Callable[[Place], Mapping[str, str]] = lambda _: {}
    """The environment that it and its engines need."""
    pages: Mapping[str, Callable[[bytes], bool]] = field(default_factory=lambda: HEALTH)
    """Paths that answer 200, and with what, once it is ready."""
    answers: Answers = EXACT

    @property
    def title(self) -> str:
        """Name, version and policy, for a table."""
        return f"{self.name} {self.version}, {self.policy}"

    @property
    def environment(self) -> Path:
        """The peer's virtual environment."""
        return cache_root() / "peers" / f"{self.name}-{self.version}"

    @property
    def is_installed(self) -> bool:
        """Whether a whole environment is there."""
        return (self.environment / "complete").is_file()

    def command(self, place: Place) -> list[str]:
        """The command line of the peer at that place.

        Raises:
            PeerError: it is not installed.
        """
        if not self.is_installed:
            raise PeerError(f"{self.name} {self.version} is not installed: run `make peers`")
        return [str(self.environment / "bin" / self.program), *self.arguments(place)]

    def engine_commands(self) -> dict[str, list[str]]:
        """The command lines of its own engines, by name."""
        program = str(self.environment / "bin" / self.program)
        engines = self.engines(self.environment / "model")
        return {f"{self.name}-{name}": [program, *arguments] for name, arguments in engines.items()}


def _vllm_router(place: Place) -> list[str]:
    engines = [
        *(text for url in place.prefill_urls for text in ("--prefill", url)),
        *(text for url in place.decode_urls for text in ("--decode", url)),
    ]
    return [
        *("--vllm-pd-disaggregation", "--kv-connector", "nixl", *engines),
        *("--policy", "round_robin"),
        *("--host", "127.0.0.1", "--port", str(place.port)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(place.admin_port)),
        *("--worker-startup-check-interval", "1"),
    ]


def _smg(place: Place) -> list[str]:
    # Without a connector named for each prefill it would send decode no parameters.
    workers = [
        {"id": f"{kind}{number}", "url": url, "worker_type": kind, **more}
        for kind, urls, more in (
            ("prefill", place.prefill_urls, {"kv_connector": "NixlConnector"}),
            ("decode", place.decode_urls, {}),
        )
        for number, url in enumerate(urls)
    ]
    file = place.folder / "smg-workers.json"
    file.write_text(json.dumps({"version": 1, "workers": workers}))
    return [
        *("launch", "--pd-disaggregation", "--discovery-provider", "file", "--discovery-file", str(file)),
        *("--prefill-policy", "round_robin", "--decode-policy", "round_robin"),
        *_listening(place),
    ]


def _sglang_router(place: Place) -> list[str]:
    # Its two legs are SGLang's own protocol, which needs SGLang's engines: it is shown with one leg.
    return ["launch", "--worker-urls", *place.whole_urls, "--policy", "round_robin", *_listening(place)]


def _listening(place: Place) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", str(place.port)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(place.admin_port)),
        *("--worker-startup-check-interval", "1", "--log-level", "warn"),
    ]


VLLM_ROUTER = Peer("vllm-router", "0.1.17", "vllm-router", "vllm-router", "round robin", _vllm_router)
SMG = Peer("smg", "1.13.0", "smg", "smg", "round robin", _smg)
SGLANG_ROUTER = Peer("sglang-router", "0.3.2", "sglang-router", "smg", "round robin, one leg", _sglang_router, legs=1)
DYNAMO = Peer(
    "dynamo-frontend",
    dynamo.VERSION,
    "ai-dynamo",
    "python",
    "round robin, its own mockers",
    dynamo.arguments,
    installs=dynamo.INSTALLS,
    model_maker=dynamo.MODEL_MAKER,
    engines=dynamo.engines,
    variables=dynamo.variables,
    pages=dynamo.PAGES,
    answers=ByForm(dynamo.MODELS),
)
PEERS = {peer.name: peer for peer in (VLLM_ROUTER, SMG, SGLANG_ROUTER, DYNAMO)}


def install(peer: Peer, progress: Progress) -> None:
    """Make the peer's environment if it is not there.

    Raises:
        PeerError: the installer failed; nothing that could be taken for an environment is left.
    """
    final = peer.environment
    final.parent.mkdir(parents=True, exist_ok=True)
    with final.with_name(f"{final.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if peer.is_installed:
            progress.say(f"{peer.name} {peer.version} is there: {final}")
            return
        shutil.rmtree(final, ignore_errors=True)
        with progress.step(f"install {peer.name} {peer.version}"):
            # Scripts carry the environment's path, so it is made in place; the mark, written last, makes it whole.
            _run([str(uv()), "venv", "--quiet", "--python", sys.executable, str(final)])
            for command in install_commands(peer):
                _run([str(uv()), "pip", "install", "--quiet", "--python", str(final / "bin/python"), *command])
            if peer.model_maker is not None:
                # Isolated, or modules beside the program would stand for the standard library's.
                _run([str(final / "bin/python"), "-I", str(peer.model_maker), str(final / "model")])
            (final / "complete").touch()


def install_commands(peer: Peer) -> list[list[str]]:
    """What the installer is told, one time after the other."""
    return [list(one) for one in peer.installs] or [[f"{peer.package}=={peer.version}"]]


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise PeerError(f"`{' '.join(command)}` ended with {done.returncode}: {done.stderr.strip()[-800:]}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Install the named peers, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m e2e.bench.peers", description=main.__doc__)
    parser.add_argument("names", nargs="*", choices=[*PEERS, []], help="peers; all by default")
    chosen = parser.parse_args(arguments).names or list(PEERS)
    progress = Progress("peers")
    try:
        for name in chosen:
            install(PEERS[name], progress)
    except (PeerError, subprocess.TimeoutExpired) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
