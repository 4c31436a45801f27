"""`python -m e2e.observability.demo RECORD`: the dashboard's panels of the real engines of `make demo`.

Boundary: the demo's own cluster and pool, which must be there. Sizes of decode follow its queue for as long as this
runs, and are then as before. There are no GPUs, so that their row is left out.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from e2e.cluster import DEFAULT_NODE_NAME, load
from e2e.cluster.binaries import cached_path
from e2e.observability import dashboard
from e2e.observability.answers import Board
from e2e.scenarios import host_page, product, prometheus
from e2e.scenarios.api import ClusterApi
from e2e.scenarios.crowd import Crowd
from e2e.scenarios.pools import LateError, Pool, wait_for
from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROWS: Final = tuple(row.title for row in dashboard.ROWS if not row.title.startswith("GPU"))
MODEL: Final = "tiny"
QUIET, BUSY = 2, 24
PART_S: Final = 30.0
TURNS: Final = 6
QUESTION: Final = " ".join(["tell a long story about blocks of KV"] * 12)
"""As long as some blocks, so that a conversation's next turn finds what the one before left."""
CHANGED_S: Final = 300.0
"""For a second replica to come, or to go again; on a machine that takes longer the picture shows that."""
AUTOSCALED: Final[dict[str, Any]] = {
    "minReplicas": 1,
    "maxReplicas": 2,
    "signals": [{"type": "QueueDepth", "target": 4}],
    "scaleDown": {"stabilizationSeconds": 20},
}


@contextmanager
def _autoscaled(pool: Pool) -> Iterator[None]:
    def change(decode: dict[str, Any], of_pool: dict[str, Any] | None) -> None:
        spec = {"decode": decode, "autoscaling": of_pool}
        pool.api.patch("inferencepools", pool.name, pool.namespace, {"spec": spec})

    change({"replicas": None, "autoscaling": AUTOSCALED}, {"intervalSeconds": 5})
    try:
        yield
    finally:
        change({"replicas": 1, "autoscaling": None}, None)


def _day(pool: Pool) -> None:
    """Quiet, busy until a second decode replica serves and for a while longer, quiet until it has gone."""
    crowd = partial(Crowd, pool.service_url(), MODEL, turns=TURNS, question=QUESTION)
    with crowd(QUIET):
        time.sleep(PART_S)
    with crowd(BUSY), suppress(LateError):
        wait_for(lambda: len(pool.ready_pods(Role.DECODE)) > 1, CHANGED_S, "a second replica", pool.summary, print)
        time.sleep(PART_S)
    with crowd(QUIET), suppress(LateError):
        wait_for(lambda: len(pool.pods(Role.DECODE)) == 1, CHANGED_S, "one replica left", pool.summary, print)
        time.sleep(PART_S)


def main(arguments: Sequence[str] | None = None) -> None:
    """Record the panels through a busy time in which decode grows and shrinks."""
    parser = argparse.ArgumentParser(prog="python -m e2e.observability.demo", description=main.__doc__)
    parser.add_argument("record", type=Path, help="the file to write, for `drawing`")
    given = parser.parse_args(arguments)
    layout = load(DEFAULT_NODE_NAME)
    if layout is None:
        raise SystemExit("the demo is not there: `make demo`")
    api = ClusterApi(layout.kubeconfig, str(cached_path("kubectl")))
    pool, operator = Pool(api, MODEL), product.operator(api)
    with (
        tempfile.TemporaryDirectory(prefix="pdpool-picture-") as folder,
        host_page.serving(lambda: prometheus.targets(pool), "application/json") as discovery,
        prometheus.running(
            Path(folder), prometheus.configuration(prometheus.found_at(discovery), None, operator.metrics_addresses())
        ) as url,
        _autoscaled(pool),
    ):
        start_s, board = time.time(), Board(url, pool.namespace, pool.name)
        _day(pool)
        missing = [query for query in board.unanswered() if "DCGM" not in query]
        board.recorded(ROWS, start_s, time.time()).write(given.record)
    api.close()
    if missing:
        raise SystemExit("without a series: " + "; ".join(missing))


if __name__ == "__main__":
    main()
