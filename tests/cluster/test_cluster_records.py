"""What the cluster tool writes down and reads back, without a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from e2e.cluster import AuditLog, ClusterError
from e2e.cluster.binaries import _kubernetes, _main_module
from e2e.cluster.ledger import Entry, Ledger
from e2e.cluster.lock import held
from e2e.cluster.processes import Daemon, alive, bearing, identify, start
from e2e.cluster.progress import last_lines
from e2e.cluster.undo import undo

if TYPE_CHECKING:
    from pathlib import Path


def _event(user: str, verb: str, uri: str = "/api/v1", *, code: int = 200, stage: str = "ResponseComplete") -> str:
    event = {
        "stage": stage,
        "verb": verb,
        "requestURI": uri,
        "user": {"username": user},
        "objectRef": {"resource": "pods", "subresource": "status", "namespace": "n", "name": "p"},
        "responseStatus": {"code": code},
        "stageTimestamp": "2026-01-01T00:00:00.000000Z",
    }
    return json.dumps(event) + "\n"


def test_an_entry_cut_off_by_a_crash_is_as_if_never_written(tmp_path: Path) -> None:
    """A ledger whose last line is incomplete still tells all the lines before it."""
    ledger = Ledger(tmp_path / "x" / "ledger.jsonl")
    ledger.record("link", "one")
    ledger.record("sysctl", "two", "1")
    with ledger.path.open("a") as stream:
        stream.write('{"kind": "link", "na')
    assert list(ledger.entries()) == [Entry("link", "one"), Entry("sysctl", "two", "1")]
    assert [entry.name for entry in ledger.entries("sysctl")] == ["two"]


def test_a_held_lock_is_refused_by_its_holder_s_name_and_free_once_that_was_killed(
    tmp_path: Path,
) -> None:
    """The refusal names the holder's pid; a holder ended by SIGKILL holds nothing, though its file stays."""
    lock = tmp_path / "lock"
    script = (
        "import sys, time; from pathlib import Path; from e2e.cluster.lock import held\n"
        f"with held(Path({str(lock)!r})): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ClusterError, match=f"pid {holder.pid}"), held(lock):
            pass
        holder.kill()
    assert lock.exists()
    with held(lock):
        pass
    assert not lock.exists()


def test_a_daemon_is_found_by_its_marker_and_ended_with_all_it_started(tmp_path: Path) -> None:
    """What a daemon starts carries its marker; a cluster of the same name with another ledger touches nothing of it."""
    ledger, other = Ledger(tmp_path / "ledger.jsonl"), Ledger(tmp_path / "other" / "ledger.jsonl")
    cluster = f"marker-{os.getpid()}"
    for one in (ledger, other):
        identify(cluster, one)
    log = tmp_path / "log" / "daemon.log"
    start(Daemon("parent", ["sh", "-c", "sleep 60 & sleep 60 & wait"], log), ledger)
    start(Daemon("short", ["true"], log), ledger)
    undo(cluster, other)
    assert alive(ledger)["parent"]
    undo(cluster, ledger)
    assert bearing(f"{cluster}.") == set()
    assert not ledger.exists()


def test_undoing_removes_recorded_folders_but_what_is_kept_and_shared_ones_only_where_empty(tmp_path: Path) -> None:
    """Logs stay when asked for; a folder that others put a file into stays with that file."""
    data, logs, shared = tmp_path / "data", tmp_path / "data" / "log", tmp_path / "shared"
    for folder in (logs, data / "etcd" / "deep", shared / "empty", shared / "used"):
        folder.mkdir(parents=True)
    (logs / "etcd.log").write_text("last words\n")
    (shared / "used" / "file").touch()
    ledger = Ledger(tmp_path / "run" / "ledger.jsonl")
    ledger.record("folder", str(data))
    ledger.record("folder", str(tmp_path / "never made"))
    ledger.record("shared-folder", str(shared))
    undo(f"nobody-{os.getpid()}", ledger, frozenset({logs}))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "data",
        "data/log",
        "data/log/etcd.log",
        "shared",
        "shared/used",
        "shared/used/file",
    ]


def test_audit_counts_granted_real_writes_once(tmp_path: Path) -> None:
    """Refusals, dry runs, reads, unfinished stages and a line still being written are no writes."""
    log = AuditLog(tmp_path / "audit.jsonl")
    assert log.now() == 0
    assert list(log.entries()) == []
    log.path.write_text(
        _event("a", "patch")
        + _event("a", "patch", code=409)
        + _event("a", "patch", "/api/v1?dryRun=All")
        + _event("a", "list")
        + _event("a", "patch", stage="ResponseStarted")
    )
    since = log.now()
    with log.path.open("a") as stream:
        stream.write(_event("b", "create", code=201) + _event("b", "create", code=201)[:40])
    assert dict(log.writes()) == {("a", "pods/status"): 1, ("b", "pods/status"): 1}
    assert dict(log.writes(since)) == {("b", "pods/status"): 1}
    assert dict(log.writes(user="a", ignored=frozenset({"pods/status"}))) == {}


def test_the_main_module_names_every_staging_module_by_its_published_version() -> None:
    """A module that replaces its staging modules by folders is built with each at the version of its release."""
    source = "module k8s.io/kubernetes\n\ngo 1.26.0\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
    text = _main_module(_kubernetes("kubelet"), source)
    minor_and_patch = _kubernetes("kubelet").version.partition(".")[2]
    assert f"replace k8s.io/api => k8s.io/api v0.{minor_and_patch}\n" in text
    assert "go 1.26.0\n" in text
    assert "godebug default=go1.26\n" in text


def test_a_failure_tells_the_end_of_its_log_and_where_it_is(tmp_path: Path) -> None:
    """The message holds the last lines, not the first, and the path; a missing log is no further failure."""
    log = tmp_path / "daemon.log"
    log.write_text("".join(f"line {number}\n" for number in range(500)))
    told = str(ClusterError("it ended", log))
    assert "line 499" in told
    assert "line 400" not in told
    assert str(log) in told
    assert last_lines(tmp_path / "missing.log") == []
