"""Hardware profiles: every shipped file, and how roles get their settings."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pdpool_api import hardware
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
