"""Which series of Prometheus belong to which pod of a pool.

Boundary: no I/O. A target's own labels `pod` and `namespace` win over those that an exporter sets, which are then
called `exported_…`: where these exist they name the pod that is measured, and the plain ones name the exporter. Only
pods that exist now, in the pool's namespace, have series; whatever else a name says is ignored. A pod that two jobs
scrape is told of twice, and counts once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdpool_operator.observe.prometheus import Series
    from pdpool_operator.records import Json


_SCRAPER: Final = frozenset({"job", "container", "service", "endpoint", "prometheus", "prometheus_replica", "replica"})
"""Labels that tell who scraped, and through what; not what was measured."""


class Owners:
    """The pods that series can belong to."""

    def __init__(self, namespace: str, pods: Iterable[Json], *, by_address: bool = True) -> None:
        """`by_address`: a series that names no pod may be known by the address that was scraped."""
        self._namespace = namespace
        self._names: set[str] = set()
        self._by_ip: dict[str, str] = {}
        for pod in pods:
            name = str(pod["metadata"]["name"])
            self._names.add(name)
            status = pod.get("status", {})
            # Of a pod on the host's network the address is its node's, which is that of others too.
            if by_address and (ip := status.get("podIP")) and ip != status.get("hostIP"):
                self._by_ip[str(ip)] = name

    def of(self, labels: Mapping[str, str]) -> str | None:
        """The name of the pod that a series is of; None: of none of these."""
        pod = labels.get("exported_pod") or labels.get("pod")
        if pod:
            namespace = labels.get("exported_namespace") or labels.get("namespace")
            return pod if pod in self._names and namespace == self._namespace else None
        host = labels.get("instance", "").rpartition(":")[0].strip("[]")
        return self._by_ip.get(host)

    def endpoint(self, name: str) -> str | None:
        """The pod that a router means by an endpoint's name."""
        if name in self._names:
            return name
        return self._by_ip.get(name.rpartition(":")[0].strip("[]")) or self._by_ip.get(name)

    def largest(self, series: Iterable[Series]) -> dict[str, float]:
        """By pod the largest of a ratio: its GPUs, or its ranks; NaN: one of them is unknown."""
        found: dict[str, float] = {}
        for each in distinct(series):
            if (pod := self.of(each.labels)) is not None:
                told = (each.value, found.get(pod, each.value))
                found[pod] = math.nan if any(map(math.isnan, told)) else max(told)
        return found

    def total(self, series: Iterable[Series]) -> dict[str, float]:
        """By pod the sum of a count: its ranks; NaN: one of them is unknown."""
        found: dict[str, float] = {}
        for each in distinct(series):
            if (pod := self.of(each.labels)) is not None:
                found[pod] = found.get(pod, 0.0) + each.value
        return found


def distinct(series: Iterable[Series], own: str = "") -> list[Series]:
    """One of those that differ only by who scraped them: the largest.

    `own` is a label of the metric itself that a scraper may have too, and then calls `exported_…`.
    """
    found: dict[frozenset[tuple[str, str]], Series] = {}
    for each in series:
        measured = {name: value for name, value in each.labels.items() if name not in _SCRAPER}
        if own:
            measured[own] = measured.pop(f"exported_{own}", "") or each.labels.get(own, "")
        key = frozenset(measured.items())
        if key not in found or math.isnan(found[key].value) or found[key].value < each.value:
            found[key] = each
    return list(found.values())
