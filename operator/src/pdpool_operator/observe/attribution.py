"""Which series of Prometheus belong to which pod of a pool.

Boundary: no I/O. A target's own labels `pod` and `namespace` win over those that an exporter sets, which are then
called `exported_…`: where these exist they name the pod that is measured, and the plain ones name the exporter. Only
pods that exist now, in the pool's namespace, have series; whatever else a name says is ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pdpool_operator.observe.prometheus import Series
    from pdpool_operator.records import Json


class Owners:
    """The pods that series can belong to."""

    def __init__(self, namespace: str, pods: Iterable[Json]) -> None:
        self._namespace = namespace
        self._names: set[str] = set()
        self._by_ip: dict[str, str] = {}
        for pod in pods:
            name = str(pod["metadata"]["name"])
            self._names.add(name)
            if ip := pod.get("status", {}).get("podIP"):
                self._by_ip[str(ip)] = name

    def of(self, labels: Mapping[str, str]) -> str | None:
        """The name of the pod that a series is of; None: of none of these."""
        prefix = "exported_" if labels.get("exported_pod") else ""
        pod = labels.get(f"{prefix}pod")
        if pod:
            is_ours = pod in self._names and labels.get(f"{prefix}namespace") == self._namespace
            return pod if is_ours else None
        host = labels.get("instance", "").rpartition(":")[0].strip("[]")
        return self._by_ip.get(host)

    def endpoint(self, name: str) -> str | None:
        """The pod that a router means by an endpoint's name."""
        if name in self._names:
            return name
        return self._by_ip.get(name.rpartition(":")[0].strip("[]")) or self._by_ip.get(name)

    def largest(self, series: Iterable[Series]) -> dict[str, float]:
        """By pod the largest of a ratio: its GPUs, or its ranks."""
        found: dict[str, float] = {}
        for each in series:
            if (pod := self.of(each.labels)) is not None:
                found[pod] = max(each.value, found.get(pod, each.value))
        return found

    def total(self, series: Iterable[Series]) -> dict[str, float]:
        """By pod the sum of a count: its ranks."""
        found: dict[str, float] = {}
        for each in series:
            if (pod := self.of(each.labels)) is not None:
                found[pod] = found.get(pod, 0.0) + each.value
        return found
