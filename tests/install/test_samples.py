"""Each sample is carried out as it stands: built, and fitted to its hardware with the model's sizes known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pdpool_api import accelerators
from pdpool_api.pool import InferencePool
from pdpool_operator.reconcile import next_plan
from pdpool_operator.records import OPTIONAL_RESOURCES, Images, Observed, PoolRef

FOLDER = Path(__file__).parents[2] / "manifests" / "samples"
IMAGES = Images(engine="vllm/vllm-openai:v0.33.0", router="router:1")
ACCELERATORS = {
    "aggregated-l4.yaml": 2,
    "deepseek-h200.yaml": 8,
    "gateway-api.yaml": 3,
    "llama-70b-h100-l40s.yaml": 16,
    "llama-70b-h100.yaml": 4,
    "llama-70b.yaml": 8,
    "llama-8b-rtx-4090.yaml": 6,
    "lora.yaml": 3,
    "scale-to-zero.yaml": 0,
    "tenants.yaml": 3,
    "tiny-cpu.yaml": 0,
}
"""What each asks for; every sample stands here."""
WITHOUT_GPU = {"tiny-cpu.yaml"}
"""Samples on hardware without a memory to fit into, whose engines are told to save start-up instead of time."""


def pools(file: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == "InferencePool"]


def test_the_table_names_every_sample() -> None:
    """A new sample must say what it asks for, a removed one goes from the table."""
    assert sorted(ACCELERATORS) == sorted(file.name for file in FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("name", ACCELERATORS)
def test_a_sample_is_carried_out_as_it_stands(name: str) -> None:
    """No refusal, no advice, the model's fit was checked, and it takes the accelerators that its comment says."""
    total = 0
    for raw in pools(FOLDER / name):
        metadata = {"namespace": "serving", "uid": "u", "generation": 1, **raw["metadata"]}
        observed = Observed(
            PoolRef("serving", metadata["name"]), {**raw, "metadata": metadata}, {}, optional=OPTIONAL_RESOURCES
        )
        step = next_plan(observed, IMAGES, "pdpool-system")
        assert step.refusal is None
        assert step.desired is not None
        assert step.desired.remarks == () or name in WITHOUT_GPU
        assert step.desired.unchecked == "" or name in WITHOUT_GPU
        total += accelerators.of_pool(InferencePool.parse(raw, strict=True).spec)
    assert total == ACCELERATORS[name]


@pytest.mark.parametrize("name", ACCELERATORS)
def test_a_sample_begins_with_what_it_is_and_how_to_use_it(name: str) -> None:
    """The comment on top says what it is; where a Secret is named, it also says how to make it."""
    text = (FOLDER / name).read_text()
    assert text.startswith("# ")
    if "tokenSecretRef" in text or "apiKeysSecretRef" in text:
        assert "kubectl create secret" in text
