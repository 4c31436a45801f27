"""A control plane of these tests' own: what they install and remove belongs to the whole cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from e2e.cluster.fixtures import of_session
from e2e.cluster.kinds import definitions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.cluster import Cluster


@pytest.fixture(scope="session")
def plane() -> Iterator[Cluster]:
    """An API server with controllers, and with the kinds of Prometheus' operator and of the Gateway API."""
    with of_session("-install") as cluster:
        foreign = definitions(["podmonitors", "prometheusrules", "httproutes"])
        cluster.apply(foreign)
        for each in foreign:
            cluster.wait_established(each["metadata"]["name"])
        yield cluster
