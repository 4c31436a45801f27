"""One story played on one ground: acts, calms, judgement.

Boundary: the straight line. What acts mean on a ground is the ground's, what must hold is the judge's.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from e2e.chaos import judge as rules
from e2e.chaos.history import REFUSED
from e2e.chaos.judge import Finding, Judge, Tally, wants, writers
from e2e.chaos.operators import Operators
from e2e.chaos.recorder import Recorder
from e2e.chaos.story import Act, Kind, rounds
from e2e.scenarios.api import ApiError
from pdpool_api import names

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from e2e.chaos.ground import Ground

Json = dict[str, Any]
NAMESPACE: Final = "chaos"
_MANAGER: Final = "chaos"
_POLL_S: Final = 0.3
_APPLY_S: Final = 60.0
_STILL_WITHIN_S: Final = 90.0
_UNPROCESSABLE: Final = (400, 422)
_NOT_FOUND: Final = 404
_DRIFTING: Final = {
    "services": "/api/v1",
    "configmaps": "/api/v1",
    "serviceaccounts": "/api/v1",
    "poddisruptionbudgets": "/apis/policy/v1",
    "networkpolicies": "/apis/networking.k8s.io/v1",
}


@dataclass(frozen=True)
class Plan:
    """How long, and how hard."""

    seed: int
    minutes: float
    """Rounds begin until so much time has passed; the last one is played to its end."""
    acts: int = 12
    still_s: float = 4.0
    """Pools are at rest once nothing was written for so long; then nothing may be written."""
    quiet_s: float = 20.0
    calm_s: float = 240.0
    """How long pools may take to be Ready after a round."""
    node_s: float = 10.0
    always: Sequence[Sequence[Kind]] = ((),)
    most_rounds: int = 10_000


@dataclass
class Report:
    """What was played and found."""

    seed: int
    tally: Tally = field(default_factory=Tally)
    acts: Counter[str] = field(default_factory=Counter)
    ready_s: list[float] = field(default_factory=list)
    """From the end of each round until every pool was Ready."""
    takeover_s: list[float] = field(default_factory=list)
    """From each loss of the leader until another acted."""
    rss_bytes: int = 0
    writes: int = 0
    """Of the operators, to pools and children."""

    @property
    def findings(self) -> list[Finding]:
        """What did not hold."""
        return self.tally.findings


class Play:
    """A story on a ground."""

    def __init__(self, ground: Ground, operators: Operators, recorder: Recorder, say: Callable[[str], None]) -> None:
        self._ground = ground
        self._api = ground.api
        self._operators = operators
        self._recorder = recorder
        self._say = say
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._lost_leader: tuple[float, str] | None = None

    def run(self, plan: Plan) -> Report:
        """Plays until the time is over, and judges."""
        report = Report(plan.seed)
        judge = Judge(report.tally)
        since, until_s = self._ground.cluster.audit.now(), time.monotonic() + plan.minutes * 60
        self._api.request("POST", "/api/v1/namespaces", body={"metadata": {"name": NAMESPACE}})
        cast = self._ground.cast()
        for name, spec in cast.items():
            self._apply(name, spec)
        self._calm(plan, report, judge)
        chance = random.Random(plan.seed)  # noqa: S311 - a story, not a secret
        story = rounds(chance, cast, plan.acts, node_s=plan.node_s, always=plan.always)
        for number, acts in enumerate(story):
            if time.monotonic() > until_s or number >= plan.most_rounds:
                break
            for act in acts:
                self._say(f"round {number + 1}: {act}")
                report.acts[act.kind] += 1
                self._do(act, judge)
                self._wait(act.wait_s, report)
            self._calm(plan, report, judge)
            self._say(f"round {number + 1}: {report.ready_s[-1]:.0f} s to Ready, {len(report.findings)} found")
        entries = list(self._ground.cluster.audit.entries(since))
        writers(entries, self._operators.users, report.tally)
        report.writes = sum(self._counts(each) for each in entries)
        return report

    # --- acts ------------------------------------------------------------------------------------------------------

    def _do(self, act: Act, judge: Judge) -> None:
        if act.kind is Kind.DELETE:
            assert act.spec is not None
            self._patiently(lambda: self._api.delete("inferencepools", act.pool, NAMESPACE))
            # Pods of the pool before are told from those of this one by the second in which they were made.
            time.sleep(1.2 + act.pick)
            self._apply(act.pool, act.spec)
        elif act.spec is not None:
            self._apply(act.pool, act.spec, refused=act.kind is Kind.INVALID)
        elif act.kind is Kind.DRIFT:
            self._drift(act)
        elif act.kind in (Kind.KILL, Kind.EVICT):
            self._take_pod(act, judge)
        elif act.kind is Kind.NODE:
            name = self._ground.lose_node(act.pick)
            self._due.append((time.monotonic() + act.seconds, lambda: self._ground.heal_nodes(name)))
        elif act.kind is Kind.API:
            self._ground.restart_api(act.seconds)
        else:
            self._take_operator(act)

    def _apply(self, name: str, spec: Json, *, refused: bool = False) -> None:
        path = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}/{name}"
        annotations = {REFUSED: "true"} if refused else {}
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": name, "namespace": NAMESPACE, "annotations": annotations},
            "spec": spec,
        }
        query = {"fieldManager": _MANAGER, "force": "true"}

        def once() -> None:
            try:
                self._api.request("PATCH", path, query=query, body=body, content_type="application/apply-patch+yaml")
            except ApiError as refusal:
                # What the schema refuses by itself never reaches the operator.
                if not refused or refusal.status not in _UNPROCESSABLE:
                    raise

        self._patiently(once)

    def _drift(self, act: Act) -> None:
        kind = sorted(_DRIFTING)[int(act.pick * len(_DRIFTING))]
        folder = f"{_DRIFTING[kind]}/namespaces/{NAMESPACE}/{kind}"
        query = {"labelSelector": f"{names.LABEL_POOL}={act.pool}"}
        items = self._patiently(lambda: self._api.request("GET", folder, query=query)["items"])
        if not items:
            return
        path = f"{folder}/{sorted(each['metadata']['name'] for each in items)[int(act.pick * 1000) % len(items)]}"
        if int(act.pick * 1000) % 2:
            self._patiently(lambda: self._api.request("DELETE", path))
        else:
            labels = {names.LABEL_APP_PART_OF: "somebody-else"}
            patch, kind_of = {"metadata": {"labels": labels}}, "application/merge-patch+json"
            self._patiently(lambda: self._api.request("PATCH", path, body=patch, content_type=kind_of))

    def _take_pod(self, act: Act, judge: Judge) -> None:
        pods = [each for each in self._engine_pods(act.pool) if "deletionTimestamp" not in each["metadata"]]
        if not pods:
            return
        chosen = sorted(pods, key=lambda each: str(each["metadata"]["name"]))[int(act.pick * len(pods))]
        judge.hit([chosen["metadata"]["uid"]])
        grace_s = 0 if act.kind is Kind.KILL else None
        name = chosen["metadata"]["name"]
        self._patiently(lambda: self._api.delete("pods", name, NAMESPACE, grace_s=grace_s))

    def _take_operator(self, act: Act) -> None:
        leader = self._operators.leader()
        others = [name for name in self._operators.running if name != leader]
        if leader is None or (act.kind is Kind.KILL_OTHER and not others):
            return  # one was taken a moment ago
        if act.kind is Kind.KILL_OTHER:
            self._operators.kill(others[0], act.seconds)
            return
        if act.kind is Kind.STOP_LEADER:
            self._operators.freeze(leader, act.seconds)
        else:
            self._operators.kill(leader, act.seconds)
        self._lost_leader = (time.monotonic(), leader)

    def _patiently(self, do: Callable[[], Any]) -> Any:
        """Again and again while the API server is away."""
        until_s = time.monotonic() + _APPLY_S
        while True:
            try:
                return do()
            except ApiError as fault:
                if fault.status == _NOT_FOUND:
                    return []
                if 400 <= fault.status < 500 or time.monotonic() > until_s:  # noqa: PLR2004 - the request's own fault
                    raise
                time.sleep(_POLL_S)

    def _wait(self, seconds: float, report: Report) -> None:
        until_s = time.monotonic() + seconds
        while True:
            self._tend(report)
            if time.monotonic() >= until_s:
                return
            time.sleep(_POLL_S)

    def _tend(self, report: Report) -> None:
        for words in self._operators.tend():
            report.tally.findings.append(Finding("the operator does not end", words))
        now_s = time.monotonic()
        for _, do in [each for each in self._due if each[0] <= now_s]:
            do()
        self._due = [each for each in self._due if each[0] > now_s]
        if self._lost_leader is not None:
            since_s, who = self._lost_leader
            leader = self._operators.leader()
            if leader is not None and (leader != who or now_s - since_s > 1):
                report.takeover_s.append(time.monotonic() - since_s)
                self._lost_leader = None

    # --- calm ------------------------------------------------------------------------------------------------------

    def _calm(self, plan: Plan, report: Report, judge: Judge) -> None:
        """Everything is healed; pools have to be Ready, then nothing may be written; all that was seen is judged."""
        began_s = time.monotonic()
        while self._due or self._operators.busy or self._lost_leader is not None:
            self._wait(_POLL_S, report)
            if time.monotonic() - began_s > plan.calm_s:
                break
        self._ground.heal_nodes()
        wrong = self._wrong()
        until_s = time.monotonic() + plan.calm_s
        while wrong and time.monotonic() < until_s:
            self._wait(_POLL_S, report)
            with contextlib.suppress(ApiError):
                wrong = self._wrong()
        for pool in self._ground.cast():
            report.tally.check(rules.CALM_READY, pool not in wrong, f"{pool}: {wrong.get(pool)}")
        report.ready_s.append(time.monotonic() - began_s)
        self._quiet(plan, report)
        report.rss_bytes = max(report.rss_bytes, self._operators.rss_bytes())
        judge.go_on(self._recorder.taken())

    def _wrong(self) -> dict[str, str]:
        """What is not as it should be at rest, by pool."""
        found = {name: self._wrong_of(name) for name in self._ground.cast()}
        return {name: words for name, words in found.items() if words}

    def _wrong_of(self, name: str) -> str:
        pool = self._api.get("inferencepools", name, NAMESPACE)
        if pool is None:
            return "is not there"
        status = pool.get("status", {})
        ready = {each["type"]: each for each in status.get("conditions", ())}.get("Ready", {})
        if status.get("observedGeneration") != pool["metadata"]["generation"]:
            return "its status speaks of an earlier generation"
        if ready.get("status") != "True":
            return f"Ready is {ready.get('status')}: {ready.get('reason')}: {ready.get('message')}"
        pods = [each["metadata"] for each in self._engine_pods(name)]
        # What leaves holds its accelerators until it is gone, and the status says so.
        if leaving := [each["name"] for each in pods if "deletionTimestamp" in each]:
            return f"pods are leaving: {leaving}"
        there = Counter((each["labels"][names.LABEL_ROLE], each["labels"][names.LABEL_REVISION]) for each in pods)
        asked = {(role, status["revision"]): want.replicas for role, want in wants(pool["spec"]).items()}
        marked = [each["name"] for each in pods if names.ANNOTATION_DRAINING in (each.get("annotations") or {})]
        return "" if there == asked and not marked else f"has {dict(there)} for {asked}; marked: {marked}"

    def _quiet(self, plan: Plan, report: Report) -> None:
        """Controllers of Kubernetes may still move, and statuses follow them; from then on nothing is written."""
        until_s = time.monotonic() + _STILL_WITHIN_S
        while self._writes_in(plan.still_s, report) and time.monotonic() < until_s:
            pass
        written = self._writes_in(plan.quiet_s, report)
        report.tally.check(rules.CALM_QUIET, not written, f"{len(written)} writes: {', '.join(written[:5])}")

    def _writes_in(self, seconds: float, report: Report) -> list[str]:
        since = self._ground.cluster.audit.now()
        self._wait(seconds, report)
        return [
            f"{each.verb} {each.resource} {each.namespace}/{each.name}"
            for each in self._ground.cluster.audit.entries(since)
            if self._counts(each)
        ]

    def _counts(self, entry: Any) -> bool:
        is_ours = entry.user in self._operators.users and entry.resource not in ("leases", "events")
        return bool(is_ours and entry.is_write and entry.succeeded)

    def _engine_pods(self, pool: str) -> list[Json]:
        query = {"labelSelector": f"{names.LABEL_POOL}={pool},{names.LABEL_ROLE}!=router"}
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        found: list[Json] = self._patiently(lambda: self._api.request("GET", path, query=query)["items"])
        return found


def play(ground: Ground, plan: Plan, logs: Path, say: Callable[[str], None], arguments: Sequence[str] = ()) -> Report:
    """Plays a story on a ground that is up; operators are started and ended here."""
    with Operators(ground.cluster, logs, arguments) as operators, Recorder(ground.api) as recorder:
        return Play(ground, operators, recorder, say).run(plan)


def table(report: Report, minutes: float) -> str:
    """What was played, and what held."""
    lines = [f"seed {report.seed}, {minutes:.1f} minutes, {sum(report.acts.values())} acts, {report.writes} writes"]
    lines += [f"  {count:5}  {kind}" for kind, count in report.acts.most_common()]
    lines += ["", f"  {'looked at':>10}  {'broken':>6}  what must hold"]
    broken = Counter(each.invariant for each in report.findings)
    for name in dict.fromkeys((*rules.INVARIANTS, *broken)):
        lines.append(f"  {report.tally.checked[name]:10}  {broken[name]:6}  {name}")
    if report.ready_s:
        lines.append(f"\nReady after calm began: {_spread(report.ready_s)}")
    if report.takeover_s:
        lines.append(f"takeover after a leader was lost: {_spread(report.takeover_s)}")
    lines.append(f"largest operator: {report.rss_bytes / 1e6:.0f} MB")
    lines += [f"\nNOT HELD: {each}" for each in report.findings[:20]]
    return "\n".join(lines)


def _spread(seconds: Sequence[float]) -> str:
    return f"{min(seconds):.0f} to {max(seconds):.0f} s in {len(seconds)}"
