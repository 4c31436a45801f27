"""Hardware profiles: what a kind of node offers, and the engine arguments that suit each role on it.

Boundary: the shape of a profile and its loader. Profiles are files of this package, one YAML each; a profile is a
default: whatever a pool's author sets wins. A figure that is absent is unknown.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pdpool_api.names import Role

Flag = Annotated[str, Field(pattern=r"^--[a-z0-9]+(-[a-z0-9]+)*$")]
Positive = Annotated[float, Field(gt=0)]


class Section(BaseModel):
    """One mapping of a profile: camelCase keys, nothing unknown."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class EngineSettings(Section):
    """Engine arguments and environment for a role."""

    args: dict[Flag, str | None] = Field(default_factory=dict)
    """Flag to value; a switch has no value (null)."""
    env: dict[str, str] = Field(default_factory=dict)


class RoleSettings(Section):
    """Engine settings for both roles, and what each role adds or replaces."""

    both: EngineSettings = EngineSettings()
    prefill: EngineSettings = EngineSettings()
    decode: EngineSettings = EngineSettings()


class Profile(Section):
    """One kind of node."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    resource: str | None = None
    """Extended resource of one accelerator; absent: the node has none, and pods ask for none."""
    product: str | None = None
    """Value of the node label `nvidia.com/gpu.product`."""
    memory_gigabytes: Positive | None = None
    """Memory of one accelerator."""
    bandwidth_terabytes_per_second: Positive | None = None
    """Memory bandwidth of one accelerator."""
    engines: dict[str, RoleSettings] = Field(default_factory=dict)
    """Settings by engine name, as in `spec.engine.name`."""

    def settings(self, engine: str, role: Role) -> EngineSettings:
        """Engine settings for a role: what holds for both, the role's own over it; `aggregated` has only the former."""
        of_engine = self.engines.get(engine, RoleSettings())
        own = {Role.PREFILL: of_engine.prefill, Role.DECODE: of_engine.decode}.get(role, EngineSettings())
        return EngineSettings(
            args={**of_engine.both.args, **own.args},
            env={**of_engine.both.env, **own.env},
        )


DEFAULT: Final = Profile(name="default", resource="nvidia.com/gpu")
"""A role that names no profile: accelerators of NVIDIA's resource, nothing else assumed."""


@cache
def profiles() -> dict[str, Profile]:
    """Every shipped profile by name.

    Raises:
        ValueError: a file breaks a rule of `Profile`, or is not named after its profile.
    """
    found: dict[str, Profile] = {}
    for file in sorted(resources.files(__package__).iterdir(), key=lambda each: each.name):
        if file.name.endswith(".yaml"):
            raw: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
            profile = Profile.model_validate(raw)
            if f"{profile.name}.yaml" != file.name:
                raise ValueError(f"{file.name}: the profile in it is called {profile.name}")
            found[profile.name] = profile
    return found


def profile(name: str | None) -> Profile:
    """The profile of `spec.<role>.hardware`; the default one where none is named.

    Raises:
        KeyError: no such profile is shipped.
    """
    return DEFAULT if name is None else profiles()[name]
