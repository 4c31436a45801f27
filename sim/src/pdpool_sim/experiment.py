"""One cell of a comparison as a value that another process can run; and many of them over the machine's cores.

Boundary: what is run is told by names and numbers, never by functions, so that it can be sent to a process.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from pdpool_sim.contestants import CONTESTANTS
from pdpool_sim.generators import GENERATORS
from pdpool_sim.hardware import LLAMA_8B, shapes
from pdpool_sim.oracle import lone_ttfts, pooled_hit_rate
from pdpool_sim.pool import PoolShape
from pdpool_sim.run import Slo, quantile, simulate
from pdpool_sim.saturation import PRECISION, saturation
from pdpool_sim.workload import read_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pdpool_sim.run import Figures
    from pdpool_sim.workload import Workload

MOST_PROCESSES: Final = 8


@dataclass(frozen=True, slots=True)
class Scene:
    """A workload and a pool."""

    workload: str
    """Name of a generator, or path of a trace."""
    requests: int
    """How many of its requests; 0: all of a trace."""
    slo: Slo
    model: str = LLAMA_8B
    prefill_hardware: str = "h100-sxm"
    decode_hardware: str = "h100-sxm"
    tensor: int = 1
    prefills: int = 8
    decodes: int = 8
    cache_share: float = 0.0
    """KV of each prefill engine as a share of the workload's distinct blocks; 0: what its memory gives."""
    seed: int = 0

    @property
    def shape(self) -> PoolShape:
        """The pool."""
        prefill, decode = shapes(self.model, self.prefill_hardware, self.decode_hardware, tensor=self.tensor)
        blocks = round(self.loaded().distinct_blocks * self.cache_share)
        return PoolShape(prefill, decode, self.prefills, self.decodes, blocks)

    def loaded(self) -> Workload:
        """The workload at its own rate."""
        return _workload(self.workload, self.requests, self.seed)

    def oracle_hit_rate(self) -> float:
        """Of one cache of the prefill engines' total size."""
        return pooled_hit_rate(self.loaded(), self._total_blocks())

    def lone_ttft_p99_s(self) -> float:
        """TTFT p99 without any waiting, with the oracle's hits: no rule can be below it."""
        return quantile(lone_ttfts(self.loaded(), self._total_blocks(), self.shape.prefill), 0.99)

    def _total_blocks(self) -> int:
        shape = self.shape
        return (shape.prefill_blocks or shape.prefill.kv_tokens // self.loaded().block_tokens) * self.prefills


@lru_cache(maxsize=4)
def _workload(name: str, requests: int, seed: int) -> Workload:
    rng = Random(seed)  # noqa: S311 - reproducible by its seed
    if name in GENERATORS:
        return GENERATORS[name](rng, requests)
    return read_trace(Path(name), rng, limit=requests or None)


def figures_at(scene: Scene, rule: str, scale: float) -> Figures:
    """One run."""
    return simulate(scene.loaded().scaled(scale), scene.shape, CONTESTANTS[rule], scene.slo, seed=scene.seed)


def limit(scene: Scene, rule: str, precision: float = PRECISION) -> float:
    """The largest arrival scale that a rule keeps inside the SLO (see `saturation`)."""
    return saturation(
        scene.loaded(),
        scene.shape,
        CONTESTANTS[rule],
        scene.slo,
        start=_guess(scene),
        seed=scene.seed,
        precision=precision,
    )


def _guess(scene: Scene) -> float:
    """The scale at which prefill engines would be busy if nothing were cached."""
    workload, costs = scene.loaded(), scene.shape.prefill.costs
    work_s = sum(costs.prefill_s(call.prompt_tokens, 0) for call in workload.calls)
    return 0.8 * workload.span_s * scene.prefills / work_s


@dataclass(frozen=True, slots=True)
class Task:
    """A function of this module and its arguments."""

    function: Callable[..., object]
    arguments: tuple[object, ...]

    def run(self) -> object:
        """Calls it."""
        return self.function(*self.arguments)


def run_all(tasks: Sequence[Task]) -> list[object]:
    """Results in the order of the tasks, on as many processes as there are cores."""
    processes = min(MOST_PROCESSES, _cores())
    if processes < 2 or len(tasks) < 2:  # noqa: PLR2004 - one of either needs no processes
        return [task.run() for task in tasks]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as executor:
        return list(executor.map(Task.run, tasks))


def _cores() -> int:
    return len(os.sched_getaffinity(0))
