"""Hardware profiles: every shipped file, and how roles get their settings."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from pdpool_api import hardware, role_spec
from pdpool_api.hardware import Profile
from pdpool_api.names import Role


@pytest.mark.parametrize("name", hardware.profiles())
def test_a_shipped_profile_is_valid_and_named_after_its_file(name: str) -> None:
    """Each YAML is read strictly."""
    assert hardware.profile(name).name == name


def test_without_a_profile_a_role_asks_for_nvidia_gpus() -> None:
    """The contract's default: the resource and nothing else."""
    profile = hardware.profile(None)
    assert profile.resource == "nvidia.com/gpu"
    assert not profile.settings("VLLM", Role.DECODE).args


def test_the_cpu_profile_asks_for_no_extended_resource() -> None:
    """A node without accelerators offers none."""
    assert hardware.profile("cpu").resource is None


def test_an_unknown_profile_is_an_error() -> None:
    """No profile is made up."""
    with pytest.raises(KeyError):
        hardware.profile("abacus")


def test_a_role_adds_to_and_replaces_what_holds_for_both() -> None:
    """The role's own settings win by name."""
    profile = Profile.model_validate(
        {
            "name": "x",
            "engines": {
                "VLLM": {
                    "both": {"args": {"--block-size": "32", "--enforce-eager": None}, "env": {"A": "1"}},
                    "prefill": {"args": {"--block-size": "64"}, "env": {"B": "2"}},
                }
            },
        }
    )
    assert profile.settings("VLLM", Role.PREFILL).args == {"--block-size": "64", "--enforce-eager": None}
    assert profile.settings("VLLM", Role.PREFILL).env == {"A": "1", "B": "2"}
    assert profile.settings("VLLM", Role.DECODE).args == {"--block-size": "32", "--enforce-eager": None}
    assert not profile.settings("OTHER", Role.DECODE).args


@pytest.mark.parametrize(
    "raw",
    [
        {"name": "x", "memoryGigabytes": 0},
        {"name": "x", "memory": 80},
        {"name": "X"},
        {"name": "x", "engines": {"VLLM": {"both": {"args": {"block_size": "1"}}}}},
    ],
)
def test_a_wrong_profile_is_refused(raw: dict[str, object]) -> None:
    """Zero is not unknown, a field must be known, a flag is written in its long form."""
    with pytest.raises(ValidationError):
        Profile.model_validate(raw)


def test_the_schema_offers_exactly_the_shipped_profiles() -> None:
    """A profile is one file; the names in the schema follow."""
    assert set(get_args(role_spec.Hardware)) == set(hardware.profiles())


@pytest.mark.parametrize("name", sorted(set(hardware.profiles()) - {"cpu"}))
def test_a_gpu_profile_says_what_arithmetic_needs(name: str) -> None:
    """Label, memory, bandwidth, dense speed, link and node size, each with its source; FP8 where the chip has it."""
    found = hardware.profile(name)
    assert found.resource == "nvidia.com/gpu"
    assert found.product is not None
    assert found.product.startswith("NVIDIA-")
    for figure in (found.memory_gigabytes, found.bandwidth_terabytes_per_second, found.link, found.gpus_per_node):
        assert figure is not None
    assert found.dense_tflops is not None
    if found.dense_tflops.fp8 is not None:
        assert found.dense_tflops.fp8 / found.dense_tflops.bf16 == pytest.approx(2, rel=0.05)
    assert set(found.sources) >= {"product", "memoryGigabytes", "bandwidthTerabytesPerSecond", "denseTflops", "link"}


def test_a_figure_without_a_source_is_refused() -> None:
    """And so is a source for a figure that is not there."""
    with pytest.raises(ValidationError, match="sources must name exactly the figures given"):
        Profile.model_validate({"name": "x", "memoryGigabytes": 80})
    with pytest.raises(ValidationError, match="sources must name exactly the figures given"):
        Profile.model_validate({"name": "x", "sources": {"memoryGigabytes": "a data sheet"}})


def test_only_one_generation_chooses_another_backend() -> None:
    """The choice that makes pools of two generations fail is data of the profiles."""
    own = {name: hardware.profile(name).attention_backends("VLLM", latent=False) for name in hardware.profiles()}
    assert {name for name, order in own.items() if order[0] == "FLASHINFER"} == {"b200"}
    assert own["cpu"] == ("CPU_ATTN",)
