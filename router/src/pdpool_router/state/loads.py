"""What each endpoint has to do and how fast it is: the figures that a choice adds up.

Boundary: counting and learning per incarnation; time is told, not read. The only ways to count are a `Work`, which is
ended once, and an engine's own report. Why figures are kept ready (`wait_ms`, `running_ms`): a choice among a thousand
endpoints reads them, and far fewer requests begin and end than are compared.

Unknown is not idle: an endpoint that reports nothing is taken to have what its peers have and a little more, so that
one that really reports nothing to do is preferred.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import msgspec

from pdpool_router.records import Endpoint, Load
from pdpool_router.state.speeds import Level, Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pdpool_api.names import Role

    _Note = tuple[Callable[[Endpoint, int, float, int], None], Endpoint, int, float, int]
    """Who learns from it; endpoint, tokens, milliseconds, and the tokens that stood before them."""

REPORT_KEPT_S: Final = 30.0
"""An engine's figures older than this, or than three intervals, are unknown."""
_UNKNOWN_MORE: Final = 0.5
_TYPICAL_MEMORY: Final = 0.95
_TYPICAL_TOKENS: Final = 500
_SAME_WITHIN: Final = 1.4
_ENOUGH: Final = 16
"""Observations until an endpoint is told apart from its role."""
_UNSURE: Final = 0.2
"""So that it takes some answers, and not one odd one, until an endpoint is told apart from its role."""
_DUE_AFTER_S: Final = 1.0
_RECENT_HALF_S: Final = 60.0
_MOST_NOTES: Final = 256
"""Observations that one call of `settle` learns from, the newest: a speed remembers about fifty."""


class Guess(msgspec.Struct, frozen=True):
    """Speeds before anything was seen."""

    fixed_ms: float = 5.0
    token_ms: float = 0.1
    """10,000 tokens a second: an 8 B model on one large accelerator."""
    pull_ms: float = 0.005
    """128 KiB a token at 25 GB/s."""
    step_ms: float = 20.0


class Report(msgspec.Struct, frozen=True):
    """What an engine says of itself; None: it does not say."""

    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None
    """Share of KV blocks in use, 0 to 1."""

    @property
    def requests(self) -> float | None:
        """Requests there; None where that cannot be told."""
        if self.running is None and self.waiting is None:
            return None
        return (self.running or 0.0) + (self.waiting or 0.0)


class _Speeds:
    """What is learned of a role: times by size, and the time of one step."""

    __slots__ = ("compute", "pull", "step")

    def __init__(self, guess: Guess) -> None:
        self.compute = Line(guess.fixed_ms, guess.token_ms)
        self.pull = Line(guess.fixed_ms, guess.pull_ms)
        self.step = Level(guess.step_ms)


class _Factors:
    """How much slower than its role an endpoint is found to be."""

    __slots__ = ("compute", "pull", "step")

    def __init__(self, guess: float) -> None:
        self.compute = Level(guess, error=_UNSURE)
        self.pull = Level(1.0, error=_UNSURE)
        self.step = Level(guess, error=_UNSURE)


class _Kept(msgspec.Struct):
    endpoint: Endpoint
    load: Load
    role: _Speeds
    factors: _Factors
    typical_ms: float
    """What one request here takes to be computed."""
    report: Report | None = None
    reported_s: float = float("-inf")
    seen_others: float = 0.0
    """The same from the report before: one alone may have missed an end."""


class Work:
    """One leg at an endpoint; `end` any number of times counts once."""

    __slots__ = ("_kept", "_state", "ahead_tokens", "due_s", "tokens")

    def __init__(self, kept: _Kept, tokens: int) -> None:
        load = kept.load
        self.ahead_tokens: Final = load.unstarted_tokens
        """Tokens that had to be computed before this leg's when it was sent."""
        load.requests += 1
        load.unstarted += 1
        load.unstarted_tokens += tokens
        if tokens:
            load.recent_ms += load.fixed_ms + tokens * load.token_ms
        self._kept = kept
        self._state = 2
        self.tokens: Final = tokens
        self.due_s = float("inf")
        """When its prompt must be computed, though no answer has said so."""
        _figure(kept)

    def started(self) -> None:
        """The engine has answered: what it had to compute for it is computed."""
        if self._state == 2:  # noqa: PLR2004 - 2: waits, 1: answered, 0: over
            self._state = 1
            load = self._kept.load
            load.unstarted -= 1
            load.unstarted_tokens -= self.tokens
            _figure(self._kept)

    def end(self) -> None:
        """The leg is over, however it ended."""
        if self._state:
            load = self._kept.load
            if self._state == 2:  # noqa: PLR2004 - see `started`
                load.unstarted -= 1
                load.unstarted_tokens -= self.tokens
            self._state = 0
            load.requests -= 1
            _figure(self._kept)

    @property
    def over(self) -> bool:
        """It has ended."""
        return not self._state


class Loads:
    """The figures of every endpoint, by uid."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._roles: dict[Role, _Speeds] = {}
        self._guesses: Mapping[Role, Guess] = {}
        self._slower: Mapping[str, float] = {}
        self._overdue: dict[Work, float] = {}
        self._settled_s = 0.0
        self._notes: deque[_Note] = deque(maxlen=_MOST_NOTES)
        self.loads: dict[str, Load] = {}
        """What a snapshot shows; read only."""

    # --- membership ------------------------------------------------------------------------------------------------
    def configure(self, guesses: Mapping[Role, Guess], slower: Mapping[str, float] | None = None) -> None:
        """Sets the first guesses, and how much slower than its role hardware of a name is; what was learned stays."""
        self._guesses = guesses
        self._slower = slower or {}

    def keep(self, endpoints: Iterable[Endpoint]) -> None:
        """Sets the membership; a new endpoint begins as its role was found to be, or its hardware lets guess."""
        new = {endpoint.uid: endpoint for endpoint in endpoints}
        for uid in [uid for uid in self._kept if uid not in new]:
            del self._kept[uid]
            del self.loads[uid]
        count = len(self._kept)
        for uid, endpoint in new.items():
            known = self._kept.get(uid)
            if known is not None:
                known.endpoint = endpoint
                continue
            role = self._role(endpoint.role)
            factors = _Factors(self._slower.get(endpoint.hardware, 1.0))
            kept = _Kept(endpoint, Load(uid), role, factors, _typical_ms(role))
            self._kept[uid] = kept
            self.loads[uid] = kept.load
            _publish(kept)
        if len(self._kept) > count:
            self._assume(0.0)

    # --- what the router does --------------------------------------------------------------------------------------
    def begin(self, endpoint: Endpoint, tokens: int) -> Work:
        """A leg is sent that makes an endpoint compute (or pull) so many tokens."""
        kept = self._kept.get(endpoint.uid)
        if kept is None:  # it went away between choice and leg: counted, and forgotten with the leg
            kept = _Kept(endpoint, Load(endpoint.uid), self._role(endpoint.role), _Factors(1.0), 0.0)
        return Work(kept, tokens)

    def begin_whole(self, endpoint: Endpoint, tokens: int, now_s: float) -> Work:
        """The same at an engine that says nothing before its answer is whole: it must have begun after a while."""
        work = self.begin(endpoint, tokens)
        load = self.loads.get(endpoint.uid)
        if load is not None:
            work.due_s = now_s + _DUE_AFTER_S + 2 * load.wait_ms / 1000
            self._overdue[work] = work.due_s
        return work

    def computed(self, endpoint: Endpoint, work: Work, tokens: int, took_ms: float) -> None:
        """A leg whose prompt the endpoint computed (so many tokens of it) took so long to its answer.

        This and the next two only note it: `settle` learns from many at once, while what it takes to learn is at hand.
        """
        self._notes.append((self._learn_computed, endpoint, tokens, took_ms, work.ahead_tokens))

    def pulled(self, endpoint: Endpoint, tokens: int, took_ms: float) -> None:
        """A decode leg, which pulled so many tokens' KV, took so long to its first byte."""
        self._notes.append((self._learn_pulled, endpoint, tokens, took_ms, 0))

    def stepped(self, endpoint: Endpoint, step_ms: float) -> None:
        """A stream's tokens came so far apart on the average."""
        self._notes.append((self._learn_stepped, endpoint, 0, step_ms, 0))

    def _learn_computed(self, endpoint: Endpoint, tokens: int, took_ms: float, ahead_tokens: int) -> None:
        role = self._role(endpoint.role)
        kept = self._kept.get(endpoint.uid)
        stood = ahead_tokens + tokens
        if kept is not None:
            kept.factors.compute.observe(_ratio(took_ms, role.compute.predict_ms(stood)))
            own_ms = role.compute.predict_ms(tokens) * _clear(kept.factors.compute)
            kept.typical_ms = _TYPICAL_MEMORY * kept.typical_ms + (1 - _TYPICAL_MEMORY) * own_ms
        role.compute.observe(stood, took_ms)

    def _learn_pulled(self, endpoint: Endpoint, tokens: int, took_ms: float, _: int) -> None:
        role = self._role(endpoint.role)
        kept = self._kept.get(endpoint.uid)
        if kept is not None:
            kept.factors.pull.observe(_ratio(took_ms, role.pull.predict_ms(tokens)))
        role.pull.observe(tokens, took_ms)

    def _learn_stepped(self, endpoint: Endpoint, _: int, step_ms: float, __: int) -> None:
        role = self._role(endpoint.role)
        kept = self._kept.get(endpoint.uid)
        if kept is not None:
            kept.factors.step.observe(_ratio(step_ms, role.step.value))
        role.step.observe(step_ms)

    # --- what engines say --------------------------------------------------------------------------------------------
    def report(self, uid: str, report: Report, now_s: float, most_own: int) -> None:
        """An engine's figures; `most_own` is the most legs of ours that were there while it was asked."""
        kept = self._kept.get(uid)
        if kept is None:
            return
        requests = report.requests
        kept.report = report
        if requests is None:
            return
        kept.reported_s = now_s
        others = max(0.0, requests - most_own)
        # The smaller of two in a row: a single one may have counted a request of ours that just ended.
        first = not kept.load.reported
        kept.load.others = others if first else min(others, kept.seen_others)
        kept.seen_others = others
        kept.load.reported = True
        _figure(kept)
        if first:
            self._assume(0.0)  # who was not asked yet must not look idle beside it, nor worse than it

    def settle(self, now_s: float, interval_s: float) -> None:
        """Learns from what was noted and publishes it, for all at once; makes stale reports unknown.

        Call it once a second or so. For all at once, since endpoints that are equal must stay equal between two calls.
        """
        while self._notes:
            learn, endpoint, tokens, took_ms, ahead_tokens = self._notes.popleft()
            learn(endpoint, tokens, took_ms, ahead_tokens)
        for work in [work for work, due_s in self._overdue.items() if due_s <= now_s or work.over]:
            del self._overdue[work]
            work.started()
        oldest_s = now_s - max(REPORT_KEPT_S, 3 * interval_s)
        kept_share = 0.5 ** (max(0.0, now_s - self._settled_s) / _RECENT_HALF_S)
        self._settled_s = now_s
        for kept in self._kept.values():
            if kept.reported_s < oldest_s:
                kept.load.reported = False
            _publish(kept)
            kept.load.recent_ms *= kept_share
        self._assume(_UNKNOWN_MORE)

    def kv_usage(self, uid: str) -> float | None:
        """Share of an engine's KV blocks in use; None: unknown."""
        kept = self._kept.get(uid)
        return kept.report.kv_usage if kept is not None and kept.report is not None else None

    # --- inside ------------------------------------------------------------------------------------------------------
    def _assume(self, more: float) -> None:
        """Whoever does not report has what its peers have, and so many requests more."""
        known: dict[Role, list[float]] = {}
        unknown: list[_Kept] = []
        for kept in self._kept.values():
            if kept.load.reported:
                known.setdefault(kept.endpoint.role, []).append(kept.load.others)
            else:
                unknown.append(kept)
        for kept in unknown:
            peers = known.get(kept.endpoint.role)
            kept.load.others = sum(peers) / len(peers) + more if peers else 0.0
            _figure(kept)

    def _role(self, role: Role) -> _Speeds:
        found = self._roles.get(role)
        if found is None:
            found = self._roles[role] = _Speeds(self._guesses.get(role, Guess()))
        return found


def _publish(kept: _Kept) -> None:
    """Takes what was learned into the figures."""
    load, role, factors = kept.load, kept.role, kept.factors
    compute = _clear(factors.compute)
    load.fixed_ms = role.compute.fixed_ms * compute
    load.token_ms = role.compute.token_ms * compute
    load.pull_ms = role.pull.token_ms * _clear(factors.pull)
    load.step_ms = role.step.value * _clear(factors.step)
    _figure(kept)


def _clear(factor: Level) -> float:
    """A factor, unless it is about one or rests on little: noise must not make equals unequal."""
    if factor.seen < _ENOUGH:
        return factor.guess
    return 1.0 if 1 / _SAME_WITHIN <= factor.value <= _SAME_WITHIN else factor.value


def _ratio(took_ms: float, expected_ms: float) -> float:
    return took_ms / max(expected_ms, 1e-3)


def _typical_ms(role: _Speeds) -> float:
    return role.compute.predict_ms(_TYPICAL_TOKENS)


def _figure(kept: _Kept) -> None:
    load = kept.load
    load.wait_ms = (
        (load.unstarted + 1) * load.fixed_ms + load.unstarted_tokens * load.token_ms + load.others * kept.typical_ms
    )
    load.running_ms = (load.requests + load.others) * load.step_ms
