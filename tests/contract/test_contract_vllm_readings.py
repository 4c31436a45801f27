"""Figures out of a metrics page: aliases, ranks, and what is unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.engine.standin.metrics import Metrics, rendered
from pdpool_api.engines.vllm import metrics, readings

OLD = b'vllm:gpu_cache_usage_perc{model_name="m"} 0.10\n'
NEW = b'vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.97\n'


@pytest.mark.parametrize(
    ("page", "usage"),
    [(NEW, 0.97), (OLD.replace(b"0.10", b"0.97"), 0.97), (OLD + NEW, 0.97), (NEW + OLD, 0.97), (b"", None)],
)
def test_renamed_gauges_are_read_under_either_name(page: bytes, usage: float | None) -> None:
    """The newer name wins where both are there; neither is unknown, never zero (Q25)."""
    page = b"# HELP vllm:kv_cache_usage_perc text\n# TYPE vllm:kv_cache_usage_perc gauge\n" + page
    assert readings.highest(page, metrics.KV_USAGE) == usage


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-Inf", b"", b"x"])
def test_what_is_no_number_is_unknown(value: bytes) -> None:
    """Neither NaN nor rubbish becomes a load, nor does the rest of a sum that it is a part of."""
    line = b'vllm:num_requests_running{a="b"} '
    for page in (line + value + b"\n", line + b"3\n" + line + value + b"\n"):
        assert readings.total(page, metrics.RUNNING) is None


def test_a_page_of_an_engine_is_read() -> None:
    """Ranks are summed where they count, the highest share counts, and the block size is a label."""
    ranks = [Metrics(connector=True, consumer=True, lora=True) for _ in range(2)]
    for number, rank in enumerate(ranks):
        rank.set("num_requests_running", 3 + number)
        rank.set("num_requests_waiting", number)
        rank.set("kv_cache_usage_perc", 0.25 * (number + 1))
        rank.info["vllm:cache_config_info"] = {"block_size": "32", "num_gpu_blocks": "7"}
    page = rendered(ranks, "tiny")
    assert readings.total(page, metrics.RUNNING) == 7
    assert readings.total(page, metrics.WAITING) == 1
    assert readings.highest(page, metrics.KV_USAGE) == 0.5
    assert readings.block_tokens(page, metrics.CACHE_CONFIG) == 32


@given(st.binary(max_size=300))
def test_no_page_breaks_the_reading(page: bytes) -> None:
    """Whatever an engine answers."""
    for text in (page, b"vllm:num_requests_running{" + page, b"\nvllm:num_requests_running " + page):
        found = readings.total(text, metrics.RUNNING)
        assert found is None or isinstance(found, float)
        readings.block_tokens(text.replace(b"running", b"cache_config_info"), metrics.CACHE_CONFIG)
