"""The stand-in's `/metrics`: the families of vLLM 0.32 (`metrics.json`, from a real one), counting what was served.

Boundary: counting and rendering; one instance per rank. Families that need a connector or LoRA appear only with it,
as on a real server.
"""

from __future__ import annotations

import bisect
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFIX = "vllm:"


class Family(msgspec.Struct):
    """One family: its label sets without model and engine, and the upper bounds of a histogram."""

    name: str
    type: str
    engine: bool = True
    labels: list[dict[str, str]] = []
    buckets: list[float] = []


FAMILIES = msgspec.json.decode(Path(__file__).with_name("metrics.json").read_bytes(), type=list[Family])
_BY_NAME = {family.name: family for family in FAMILIES}
# Metric values that a rank shows whatever was served.
_CONSTANT = {("vllm:engine_sleep_state", "awake"): 1.0}


def _number(value: float) -> str:
    return repr(float(value))


def _labels(pairs: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{key}="{pairs[key]}"' for key in sorted(pairs)) + "}"


@lru_cache(4096)
def _buckets(name: str, own: tuple[tuple[str, str], ...]) -> list[str]:
    """The lines of a histogram's buckets, but for their values; a page has hundreds, and never changes them."""
    bounds = [*map(_number, _BY_NAME[name].buckets), "+Inf"]
    return [f"{name}_bucket{_labels({**dict(own), 'le': bound})}" for bound in bounds]


class Histogram:
    """Counts per bucket, sum and count."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: list[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """The values of one rank. A name is given without `vllm:`; a label's value stands for its label set."""

    def __init__(self, *, connector: bool, consumer: bool, lora: bool) -> None:
        hidden = ("vllm:nixl_",) if not connector else ()
        self._families = [
            family
            for family in FAMILIES
            if not family.name.startswith(hidden or "\0")
            and (consumer or family.name != "vllm:num_requests_kv_fetch_by_stage")
            and (lora or family.name != "vllm:lora_requests_info")
        ]
        self._values: dict[tuple[str, str], float] = dict(_CONSTANT)
        self._histograms = {family.name: Histogram(family.buckets) for family in FAMILIES if family.type == "histogram"}
        self.info: dict[str, dict[str, str]] = {}
        # By name without `vllm:`: a value shown instead of the true one, or None to leave the family out.
        self.forced: dict[str, float | None] = {}

    def add(self, name: str, value: float = 1, label: str = "") -> None:
        """Add to a counter or gauge."""
        key = (PREFIX + name, label)
        self._values[key] = self._values.get(key, 0.0) + value

    def set(self, name: str, value: float, label: str = "") -> None:
        """Set a gauge."""
        self._values[PREFIX + name, label] = value

    def get(self, name: str, label: str = "") -> float:
        """A counter's or gauge's value; 0 when it was never touched."""
        return self._values.get((PREFIX + name, label), 0.0)

    def observe(self, name: str, value: float) -> None:
        """Count a value in a histogram."""
        self._histograms[PREFIX + name].observe(value)

    def samples(self, model: str, rank: int) -> dict[str, list[str]]:
        """Lines by family name."""
        own = {"model_name": model}
        return {
            family.name: list(self._lines(family, own | {"engine": str(rank)} if family.engine else own))
            for family in self._families
            if self.forced.get(family.name.removeprefix(PREFIX), 0.0) is not None
        }

    def _lines(self, family: Family, own: dict[str, str]) -> Iterable[str]:
        if family.type == "histogram":
            yield from self._histogram_lines(family, own)
            return
        for labels in family.labels or [{}]:
            if family.name in self.info:
                yield f"{family.name}{_labels(own | labels | self.info[family.name])} 1.0"
                continue
            value = self._values.get((family.name, next(iter(labels.values()), "")), 0.0)
            forced = self.forced.get(family.name.removeprefix(PREFIX))
            value = value if forced is None else forced
            yield f"{family.name}{_labels(own | labels)} {_number(value)}"

    def _histogram_lines(self, family: Family, own: dict[str, str]) -> Iterable[str]:
        histogram = self._histograms[family.name]
        running = 0
        for head, count in zip(_buckets(family.name, tuple(own.items())), histogram.counts, strict=True):
            running += count
            yield f"{head} {_number(running)}"
        yield f"{family.name}_count{_labels(own)} {_number(running)}"
        yield f"{family.name}_sum{_labels(own)} {_number(histogram.total)}"


def rendered(ranks: list[Metrics], model: str) -> bytes:
    """The exposition of all ranks."""
    per_rank = [metrics.samples(model, rank) for rank, metrics in enumerate(ranks)]
    lines = []
    for name in per_rank[0]:
        family = _BY_NAME[name]
        lines += [f"# HELP {name} As vLLM's, served by a stand-in.", f"# TYPE {name} {family.type}"]
        for rank_samples in per_rank if family.engine else per_rank[:1]:
            lines += rank_samples[name]
    return ("\n".join(lines) + "\n").encode()
