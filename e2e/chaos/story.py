"""The story of a seed: what is done to which pool, and what breaks meanwhile; pure.

Boundary: values and chance only. A story depends on nothing but its seed and its cast, so the same seed tells the same
story again; what a kill hits is said as a share of what is there then.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Mapping, Sequence

Json = dict[str, Any]
MAX_REPLICAS: Final = 3
"""Of one role; a pool's cap holds both roles of so many, and one more."""


class Kind(StrEnum):
    """What an act does."""

    EDIT = "edit"
    """Another valid spec: sizes, arguments, annotations of pods, the model's revision, the router."""
    REVERT = "revert"
    """An earlier valid spec of this pool."""
    MODE = "mode"
    """From two roles to one, or back."""
    INVALID = "invalid edit"
    """A spec that is refused: what was accepted before has to go on."""
    DELETE = "delete pool"
    """The pool goes, and another of its name comes."""
    DRIFT = "drift"
    """A child is deleted, or written to, by somebody else."""
    KILL = "kill pod"
    """An engine's pod is gone at once, without a grace period."""
    EVICT = "delete pod"
    """An engine's pod is asked to go, as a drain of its node does."""
    NODE = "node not ready"
    """A node falls silent for a while."""
    API = "API server restart"
    """kill -9, and again a little later."""
    KILL_LEADER = "kill -9 of the leader"
    KILL_OTHER = "kill -9 of the other replica"
    STOP_LEADER = "leader stopped"
    """As by a frozen machine: it wakes up in the middle of its work after another has taken over."""


@dataclass(frozen=True)
class Act:
    """One thing that is done; then the story waits."""

    kind: Kind
    wait_s: float
    pool: str = ""
    spec: Json | None = None
    """The pool's whole new spec."""
    pick: float = 0.0
    """Which of what is there then: a share from 0 to 1."""
    seconds: float = 0.0
    """How long it lasts."""
    words: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (str(self.kind), self.pool, self.words)))


@dataclass
class _Draft:
    """A pool as the story has written it."""

    base: Json
    spec: Json
    valid: Json
    """The spec that was valid last."""
    past: list[Json] = field(default_factory=list)
    count: int = 0


@dataclass(frozen=True)
class Weights:
    """How often what happens, against one another; 0: never."""

    of: Mapping[Kind, float]
    wait_s: tuple[float, float] = (0.2, 3.0)


OFTEN: Final = Weights(
    {
        Kind.EDIT: 8,
        Kind.REVERT: 3,
        Kind.MODE: 1.5,
        Kind.INVALID: 2,
        Kind.DELETE: 0.7,
        Kind.DRIFT: 2,
        Kind.KILL: 2,
        Kind.EVICT: 1.5,
        Kind.NODE: 0.5,
        Kind.API: 0.3,
        Kind.KILL_LEADER: 0.5,
        Kind.KILL_OTHER: 0.3,
        Kind.STOP_LEADER: 0.2,
    }
)


def rounds(
    chance: random.Random,
    cast: Mapping[str, Json],
    acts: int,
    *,
    weights: Weights = OFTEN,
    node_s: float = 10.0,
    always: Sequence[Sequence[Kind]] = ((),),
) -> Iterator[tuple[Act, ...]]:
    """Rounds of so many acts without end; between two of them is calm.

    Args:
        chance: the seed's.
        cast: the specs that pools begin with, by name.
        acts: of one round.
        weights: how often what happens.
        node_s: how long a node stays silent.
        always: what the first round has among its acts whatever the seed says, the second, and so on, over and over.
    """
    drafts = {
        name: _Draft(copy.deepcopy(spec), copy.deepcopy(spec), copy.deepcopy(spec)) for name, spec in cast.items()
    }
    kinds, shares = list(weights.of), list(weights.of.values())
    for sure in itertools.cycle(always):
        chosen = [*sure, *chance.choices(kinds, weights=shares, k=max(acts - len(sure), 0))]
        chance.shuffle(chosen)
        found = [_act(kind, chance, drafts, weights.wait_s, node_s) for kind in chosen]
        # No spec stays refused through the calm.
        for name, draft in drafts.items():
            if draft.spec is not draft.valid:
                draft.spec = draft.valid
                found.append(Act(Kind.REVERT, 0.5, name, copy.deepcopy(draft.valid), words="to what is valid"))
        yield tuple(found)


def _act(
    kind: Kind, chance: random.Random, drafts: dict[str, _Draft], wait_s: tuple[float, float], node_s: float
) -> Act:
    wait = chance.uniform(*wait_s)
    name = chance.choice(sorted(drafts))
    draft, pick = drafts[name], chance.random()
    if kind in _WRITTEN:
        words, spec = _WRITTEN[kind](chance, draft)
        draft.spec = spec
        if kind is not Kind.INVALID:
            draft.past.append(draft.valid)
            draft.valid = spec
        return Act(kind, wait, name, copy.deepcopy(spec), words=words)
    if kind is Kind.DELETE:
        draft.spec = draft.valid
        return Act(kind, wait, name, copy.deepcopy(draft.valid), pick)
    if kind in (Kind.DRIFT, Kind.KILL, Kind.EVICT):
        return Act(kind, wait, name, pick=pick)
    seconds = {Kind.NODE: node_s, Kind.API: chance.uniform(0.5, 4), Kind.STOP_LEADER: 45.0}
    return Act(kind, wait, pick=pick, seconds=seconds.get(kind, chance.uniform(0.5, 5)))


def _edit(chance: random.Random, draft: _Draft) -> tuple[str, Json]:
    spec = copy.deepcopy(draft.valid)
    draft.count += 1
    roles = [each for each in ("prefill", "decode") if each in spec]
    role: str = chance.choice(roles)
    what = chance.choice(("size", "size", "argument", "both roles", "annotation", "revision", "router"))
    if what == "size":
        spec[role]["replicas"] = chance.randint(1, MAX_REPLICAS)
        return f"{role} to {spec[role]['replicas']}", spec
    if what == "argument":
        spec[role]["args"] = [f"--max-num-seqs={8 + draft.count}"]
    elif what == "both roles":
        spec.setdefault("engine", {})["args"] = [f"--seed={draft.count}"]
        role = ""
    elif what == "annotation":
        template = spec[role].setdefault("template", {})
        template["metadata"] = {"annotations": {"chaos": str(draft.count)}}
    elif what == "revision":
        spec["model"]["revision"] = f"r{draft.count}"
        role = ""
    else:
        spec["router"]["drainSeconds"] = 5 + draft.count % 2
        role = ""
    return f"{what} {role}".strip(), spec


def _revert(chance: random.Random, draft: _Draft) -> tuple[str, Json]:
    if not draft.past:
        return "to the first", copy.deepcopy(draft.base)
    back = chance.randint(1, min(3, len(draft.past)))
    return f"by {back}", copy.deepcopy(draft.past[-back])


def _mode(_chance: random.Random, draft: _Draft) -> tuple[str, Json]:
    spec = copy.deepcopy(draft.valid)
    if "prefill" in spec:
        del spec["prefill"]
        return "Aggregated", {**spec, "mode": "Aggregated"}
    spec["prefill"] = copy.deepcopy(draft.base["prefill"])
    spec.pop("mode", None)
    return "Disaggregated", spec


def _invalid(chance: random.Random, draft: _Draft) -> tuple[str, Json]:
    spec = copy.deepcopy(draft.valid)
    what = chance.choice(("port", "dtype", "cap"))
    if what == "dtype" and "prefill" in spec:
        spec["decode"]["args"] = ["--dtype=float16"]
        return "roles disagree", spec
    if what == "cap":
        spec["decode"]["replicas"] = 50
        return "above the cap", spec
    spec["decode"]["args"] = ["--port=1"]
    return "reserved argument", spec


_WRITTEN: Final = {Kind.EDIT: _edit, Kind.REVERT: _revert, Kind.MODE: _mode, Kind.INVALID: _invalid}
