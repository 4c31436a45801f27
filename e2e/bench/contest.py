"""Who is measured: engines, our router in two settings, and the peers, each running on its core.

Boundary: starts them and says how each is asked and what it used; what is offered to them is `measures`' business.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple

from e2e.bench import cpu
from e2e.bench.answers import EXACT, Answers
from e2e.bench.load import KEY
from e2e.bench.peers import HEALTH, PEERS, Peer, Place
from e2e.bench.processes import running, wait_for, wait_for_line
from e2e.bench.replies import MODEL
from e2e.bench.report import OURS, OURS_ALL_ON
from e2e.bench.workloads import W4
from e2e.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

READY_DEADLINE_S: Final = 120
DIRECT: Final = "engine"
"""No router at all: the client asks an engine that computes and answers."""


@dataclass(frozen=True)
class Contestant:
    """One running router."""

    name: str
    title: str
    port: int
    pid: int
    answers: Answers = EXACT

    def used_ns(self) -> int:
        """CPU nanoseconds of its whole process tree so far."""
        return cpu.tree_ns(self.pid)

    def rss_bytes(self) -> int:
        """Resident memory of its whole process tree."""
        return cpu.tree_rss_bytes(self.pid)


class Engine(NamedTuple):
    """Where one of the engines answers, and where it tells its KV events."""

    role: str
    port: int
    events_port: int

    @property
    def url(self) -> str:
        """As routers are told."""
        return f"http://127.0.0.1:{self.port}"


def start_engines(stack: ExitStack, core: int, logs: Path) -> list[Engine]:
    """Two of each role, in one process."""
    log = logs / "engines.log"
    command = [sys.executable, "-m", "e2e.bench.responder", "--wholes", "2", "--known", str(W4.body_bytes)]
    child = stack.enter_context(running(command, core=core, log=log))
    told = [line.split() for line in wait_for_line(child, log, READY_DEADLINE_S, "ready")]
    return [Engine(role, int(port), int(events_port)) for role, port, events_port in told]


def our_settings(engines: Sequence[Engine], *, all_on: bool, keys_file: Path) -> dict[str, object]:
    """The configuration of our router, with keys.

    Either a policy without state, as the peers have, and all else what the router does by itself; or `all_on`: chosen
    by what engines hold. Every request then takes the hop too, so that both do the same work.
    """
    static = [
        {"role": one.role, "url": one.url, "kvEvents": f"tcp://127.0.0.1:{one.events_port}"}
        for one in engines
        if one.role != "whole"
    ]
    settings: dict[str, object] = {
        "model": {"servedNames": [MODEL]},
        "endpoints": {"static": static},
        "routing": {"policy": "LeastLoaded"},
        "auth": {"apiKeysFile": str(keys_file)},
    }
    if all_on:
        settings["routing"] = {"policy": "KvAware", "localPrefill": {"maxUncachedTokens": 0}}
    return settings


def our_command(program: Path, engines: Sequence[Engine], place: Place, *, all_on: bool) -> list[str]:
    """The command line of our router at that place, access log on; its files are written to the place's folder."""
    keys_file = place.folder / "keys"
    keys_file.write_text(f"bench={KEY}\n")
    file = place.folder / ("ours-all-on.json" if all_on else "ours.json")  # JSON is YAML
    file.write_text(json.dumps(our_settings(engines, all_on=all_on, keys_file=keys_file)))
    return [
        str(program),
        *("--config", str(file)),
        *("--host", "127.0.0.1", "--port", str(place.port), "--admin-port", str(place.admin_port)),
        *("--log-level", "warning", "--access-log"),
    ]


class _Start(NamedTuple):
    """How a router is started."""

    name: str
    title: str
    place: Place
    command: list[str]
    peer: Peer | None = None


def _starts(program: Path, engines: Sequence[Engine], folder: Path, peers: Sequence[str]) -> Iterator[_Start]:
    """Of each: ours twice, then the peers."""
    ports = iter(free_ports(2 * (2 + len(peers))))
    urls = {role: [one.url for one in engines if one.role == role] for role in ("prefill", "decode", "whole")}

    def place() -> Place:
        return Place(
            urls["prefill"], urls["decode"], urls["whole"], port=next(ports), admin_port=next(ports), folder=folder
        )

    title = f"pdpool-router {version('pdpool-router')}"
    for name, more, all_on in ((OURS, "", False), (OURS_ALL_ON, ", all on", True)):
        here = place()
        yield _Start(name, title + more, here, our_command(program, engines, here, all_on=all_on))
    for peer in (PEERS[name] for name in peers):
        here = place()
        yield _Start(peer.name, peer.title, here, peer.command(here), peer)


def start_routers(  # noqa: PLR0917 - what a run has
    stack: ExitStack,
    cores: tuple[int, int],
    folder: Path,
    engines: Sequence[Engine],
    program: Path,
    peers: Sequence[str],
) -> list[Contestant]:
    """Ours twice, then the named peers, once they answer; `cores`: that of the routers, that of engines."""
    router_core, engine_core = cores
    started = []
    for one in _starts(program, engines, folder, peers):
        variables = one.peer.variables(one.place) if one.peer else {}
        for name, command in one.peer.engine_commands().items() if one.peer else ():
            log = folder / f"{name}.log"
            stack.enter_context(running(command, core=engine_core, log=log, environment=variables))
        log = folder / f"{one.name}.log"
        child = stack.enter_context(running(one.command, core=router_core, log=log, environment=variables))
        answers = one.peer.answers if one.peer else EXACT
        pages = one.peer.pages if one.peer else HEALTH
        started.append((Contestant(one.name, one.title, one.place.port, child.pid, answers), pages, child, log))
    for contestant, pages, child, log in started:
        for path, fits in pages.items():
            wait_for(child, log, READY_DEADLINE_S, f"http://127.0.0.1:{contestant.port}{path}", fits)
    return [contestant for contestant, *_ in started]


def titles(contestants: Sequence[Contestant]) -> Mapping[str, str]:
    """By name, in order."""
    return {one.name: one.title for one in contestants}
