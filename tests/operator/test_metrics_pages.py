"""Reading pages: which lines count, what they mean for a pod, and latency from histograms."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from pdpool_api.engines.vllm.metrics import KV_USAGE, WAITING
from pdpool_operator.observe.attribution import Owners, distinct
from pdpool_operator.observe.exposition import Page
from pdpool_operator.observe.latency import Latency
from pdpool_operator.observe.prometheus import Series
from tests.operator.metric_pages import engine_page, router_page

KV, OLD_KV = KV_USAGE.names


def test_only_wanted_lines_reach_the_parser() -> None:
    """Of a page of a real engine's size exactly the lines of the wanted names are read; near names are others."""
    page = engine_page({"num_requests_waiting": 7.0}) + b'vllm:num_requests_waiting_total{x="1"} 5\nnot a line {{{\n'
    found = Page(page, WAITING.names)
    assert found.total(*WAITING.names) == 7.0
    assert len(found.samples(*WAITING.names)) == 1


@pytest.mark.parametrize(
    ("lines", "usage"),
    [
        (f'{KV}{{engine="0"}} 0.97', 0.97),
        (f'{OLD_KV}{{engine="0"}} 0.97', 0.97),
        (f'{OLD_KV}{{engine="0"}} 0.10\n{KV}{{engine="0"}} 0.97', 0.97),
        ("other 1", None),
        (f'{KV}{{engine="0"}} NaN', None),
        (f"{KV}_else 1", None),
    ],
)
@pytest.mark.parametrize("end", ["", "\n"])
def test_a_renamed_gauge_is_read_under_each_of_its_names(lines: str, usage: float | None, end: str) -> None:
    """New name, old name, both: the same reading; neither: unknown (Q25)."""
    assert Page((lines + end).encode(), KV_USAGE.names).largest(*KV_USAGE.names) == usage


def test_ranks_are_summed_where_they_count_and_the_fullest_counts_otherwise() -> None:
    """Two data-parallel ranks of one pod: requests add up, of ratios the largest counts."""
    first = {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.2}
    page = Page(
        engine_page(first, {"num_requests_waiting": 4.0, "kv_cache_usage_perc": 0.9}), (*WAITING.names, *KV_USAGE.names)
    )
    assert page.total(*WAITING.names) == 7.0
    assert page.largest(*KV_USAGE.names) == 0.9


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
@pytest.mark.parametrize("other", ["", 'vllm:num_requests_waiting{engine="1"} 3\n'])
def test_a_count_that_is_no_number_is_unknown_and_so_is_its_sum(value: str, other: str) -> None:
    """The header stands there all the same: it does not make nothing of what is not known; nor do other ranks."""
    page = f'# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{engine="0"}} {value}\n{other}'
    found = Page(page.encode(), WAITING.names)
    assert found.total(*WAITING.names) is None
    assert found.largest(*WAITING.names) is None


def test_a_family_without_a_line_is_told_and_is_nothing() -> None:
    """A router without endpoints has nothing in flight; a page without the family knows nothing of it."""
    page = router_page()
    assert Page(page, ["pdpool_router_inflight"]).total("pdpool_router_inflight") == 0.0
    assert Page(b"other 1\n", ["pdpool_router_inflight"]).total("pdpool_router_inflight") is None


@given(st.binary(max_size=300))
def test_whatever_stands_in_a_page_is_read_or_refused(page: bytes) -> None:
    """Hostile bytes are a ValueError at most."""
    try:
        found = Page(b"a" + page + b"\na 1", ["a"])
    except ValueError:
        return
    value = found.total("a")
    assert value is None or math.isfinite(value)


@given(
    labels=st.dictionaries(st.sampled_from(["engine", "model_name", "le"]), st.text(max_size=8), max_size=3),
    value=st.floats(allow_nan=False, allow_infinity=False),
    stamp=st.sampled_from(["", " 1700000000000", " "]),
    apart=st.sampled_from([" ", "\t", "  "]),
)
def test_lines_are_read_as_the_library_reads_them(labels: dict[str, str], value: float, stamp: str, apart: str) -> None:
    """Labels may hold braces, quotes, spaces and what is escaped; a time may follow the value."""
    escaped = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    inside = ",".join(f'{name}="{text.translate(escaped)}"' for name, text in labels.items())
    head = f"a{{{inside}}}" if labels else "a"
    (found,) = Page(f"{head}{apart}{value!r}{stamp}\n".encode("utf-8", "replace"), ["a"]).samples("a")
    (family,) = text_string_to_metric_families(f"{head} {value!r}\n".encode("utf-8", "replace").decode())
    (sample,) = family.samples
    assert (found.name, found.labels, found.value) == (sample.name, sample.labels, sample.value)


def buckets(**counts: float) -> dict[float, float]:
    return {float(bound.removeprefix("le").replace("_", ".")): count for bound, count in counts.items()} | {
        math.inf: max(counts.values())
    }


def test_latency_is_that_of_the_last_window() -> None:
    """What was observed before the window, or before a router was first seen, does not count."""
    latency = Latency(window_s=60)
    assert latency.percentile_ms(0, {"r": buckets(le0_1=1000, le1=1000)}, 95) is None
    slow = {"r": buckets(le0_1=1000, le1=1100)}
    found = latency.percentile_ms(15, slow, 50)
    assert found == pytest.approx(550)
    assert latency.percentile_ms(60, slow, 50) is not None
    assert latency.percentile_ms(90, slow, 50) is None


def test_a_router_that_began_anew_is_counted_from_its_beginning() -> None:
    """Counters that fall began anew; a router that appears is not charged with its past."""
    latency = Latency()
    latency.percentile_ms(0, {"r": buckets(le0_1=50, le1=100)}, 50)
    assert latency.percentile_ms(15, {"r": buckets(le0_1=10, le1=10)}, 50) == pytest.approx(50)
    assert latency.percentile_ms(30, {"r": buckets(le0_1=10, le1=10), "new": buckets(le1=5000)}, 50) == pytest.approx(
        50
    )


PODS = [
    {"metadata": {"name": "d0"}, "status": {"podIP": "10.0.0.1"}},
    {"metadata": {"name": "d1"}, "status": {"podIP": "fd00::1", "hostIP": "fd00::ff"}},
    {"metadata": {"name": "d2"}, "status": {"podIP": "10.1.0.1", "hostIP": "10.1.0.1"}},
]


@pytest.mark.parametrize(
    ("labels", "owner"),
    [
        ({"pod": "d0", "namespace": "ns"}, "d0"),
        ({"pod": "d0", "namespace": "other"}, None),
        ({"pod": "old-1", "namespace": "ns"}, None),
        ({"pod": "dcgm-x", "namespace": "gpu", "exported_pod": "d0", "exported_namespace": "ns"}, "d0"),
        ({"pod": "d0", "namespace": "ns", "exported_pod": "x", "exported_namespace": "ns"}, None),
        ({"pod": "d0", "namespace": "ns", "exported_pod": "d1", "exported_namespace": "other"}, None),
        ({"pod": "dcgm-x", "namespace": "gpu", "exported_pod": "", "exported_namespace": ""}, None),
        ({"instance": "10.0.0.1:8000"}, "d0"),
        ({"instance": "[fd00::1]:8000"}, "d1"),
        ({"instance": "10.0.0.9:8000"}, None),
        ({"instance": "10.1.0.1:8000"}, None),  # a node's address, of a pod on its network
        ({"pod": "dcgm-x", "namespace": "ns", "exported_pod": "d0"}, "d0"),
        ({"pod": "dcgm-x", "namespace": "gpu", "exported_pod": "d0"}, None),
        ({}, None),
    ],
)
def test_a_series_belongs_to_a_pod_that_exists_here(labels: dict[str, str], owner: str | None) -> None:
    """Exported names count before the exporter's own; other namespaces and pods that are gone own nothing (Q37)."""
    assert Owners("ns", PODS).of(labels) == owner


def test_a_pod_that_two_jobs_scrape_counts_once() -> None:
    """Ranks are summed, and so are endpoints of a router; what differs only by who scraped is the same thing."""
    pod = {"pod": "d0", "namespace": "ns"}
    monitor = {**pod, "job": "serving/tiny", "endpoint": "http", "container": "engine", "prometheus_replica": "0"}
    ranks = [
        Series({**scraper, "engine": rank}, value)
        for scraper in (monitor, {**monitor, "prometheus_replica": "1"}, {**pod, "job": "pods"})
        for rank, value in (("0", 3.0), ("1", 4.0))
    ]
    assert Owners("ns", PODS).total(ranks) == {"d0": 7.0}
    told = [
        Series({**pod, "job": "serving/tiny", "endpoint": "admin", "exported_endpoint": "p0"}, 1.0),
        Series({**pod, "job": "serving/tiny", "endpoint": "admin", "exported_endpoint": "p1"}, 2.0),
        Series({**pod, "job": "pods", "endpoint": "p0"}, 1.5),
        Series({**pod, "job": "pods", "endpoint": "p1"}, 2.0),
    ]
    assert sum(each.value for each in distinct(told, own="endpoint")) == 3.5


def test_series_of_one_pod_are_put_together() -> None:
    """Several GPUs, or ranks, of one pod."""
    series = [Series({"pod": "d0", "namespace": "ns", "gpu": str(gpu)}, value) for gpu, value in enumerate((0.2, 0.8))]
    owners = Owners("ns", PODS)
    assert owners.largest(series) == {"d0": 0.8}
    assert owners.total(series) == {"d0": 1.0}
