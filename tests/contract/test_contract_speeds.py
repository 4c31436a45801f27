"""First guesses of speeds that the operator writes for the router."""

from __future__ import annotations

from typing import Any

import pytest

from pdpool_api.pool import InferencePoolSpec
from pdpool_api.speeds import first_guesses


def spec(**over: Any) -> InferencePoolSpec:
    role = {"hardware": "h100-sxm"}
    base = {
        "model": {"id": "meta-llama/Llama-3.1-8B-Instruct"},
        "engine": {"image": "vllm/vllm-openai:v0.32.0"},
        "prefill": role,
        "decode": role,
    }
    return InferencePoolSpec.model_validate({**base, **over})


def test_a_known_model_on_known_hardware_has_guesses() -> None:
    """8 B parameters on 989 TFLOPS at half of them; 16 GB of weights at 3.35 TB/s; 400 Gbit/s are 50 GB/s."""
    found = first_guesses(spec(transfer={"bandwidthGbps": 400}))
    assert found.prefill.tokens_per_second == pytest.approx(0.5 * 989e12 / (2 * 8.03e9), rel=0.01)
    assert found.decode.step_milliseconds == pytest.approx(16.06e9 / (0.7 * 3.35e12) * 1000, rel=0.01)
    assert found.transfer.bytes_per_second == 50e9


def test_two_accelerators_are_twice_as_fast() -> None:
    """Those that share one prompt count; data-parallel copies do not."""
    one = first_guesses(spec())
    two = first_guesses(
        spec(prefill={"hardware": "h100-sxm", "parallelism": {"tensor": 2}}, decode={"hardware": "h100-sxm"})
    )
    assert two.prefill.tokens_per_second == pytest.approx(2 * one.prefill.tokens_per_second, rel=0.01)
    assert two.decode == one.decode


@pytest.mark.parametrize(
    "over",
    [
        {"model": {"id": "nobody/knows"}},
        {"prefill": {}, "decode": {}},
        {"mode": "Aggregated", "prefill": None, "decode": {"hardware": "cpu"}},
    ],
)
def test_what_is_not_known_is_zero(over: dict[str, Any]) -> None:
    """Which the router takes for unknown."""
    found = first_guesses(spec(**over))
    assert (found.prefill.tokens_per_second, found.decode.step_milliseconds) == (0, 0)
