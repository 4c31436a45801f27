"""Hardware profiles: what a kind of node offers, and the engine arguments that suit each role on it.

Boundary: the shape of a profile and its loader. Profiles are files of this package, one YAML each; a profile is a
default: whatever a pool's author sets wins. A figure that is absent is unknown, and every figure names its source.
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated, Any, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from pdpool_api.names import Role

Flag = Annotated[str, Field(pattern=r"^--[a-z0-9]+(-[a-z0-9]+)*$")]
Positive = Annotated[float, Field(gt=0)]

NOT_SOURCED: Final = frozenset({"name", "resource", "tolerations", "engines", "sources"})
"""What is a choice of ours and no figure of somebody else's."""


class Section(BaseModel):
    """One mapping of a profile: camelCase keys, nothing unknown."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class EngineSettings(Section):
    """Engine arguments and environment for a role."""

    args: dict[Flag, str | None] = Field(default_factory=dict)
    """Flag to value; a switch has no value (null)."""
    env: dict[str, str] = Field(default_factory=dict)


class AttentionBackends(Section):
    """Attention backends that run on the accelerator, in the order in which the engine would choose by itself."""

    standard: tuple[str, ...] = ()
    """For ordinary attention."""
    latent: tuple[str, ...] = ()
    """For multi-head latent attention (MLA)."""


class RoleSettings(Section):
    """Engine settings for all roles, and what each role adds or replaces."""

    both: EngineSettings = EngineSettings()
    prefill: EngineSettings = EngineSettings()
    decode: EngineSettings = EngineSettings()
    attention_backends: AttentionBackends = AttentionBackends()


_NOTHING: Final = RoleSettings()
"""Of an engine that a profile does not name; one for all, as pydantic copies the defaults of each new one deeply."""


class DenseTflops(Section):
    """Dense (not sparse) tensor-core speed, in 10^12 floating-point operations a second; fp8 absent: not supported."""

    bf16: Positive
    fp8: Positive | None = None


class Link(Section):
    """What joins the accelerators of a node."""

    kind: Annotated[str, Field(pattern=r"^(NVLink|PCIe)$")]
    gigabytes_per_second: Positive
    """Bandwidth of one accelerator, both directions together, in 10^9 bytes a second."""


class Toleration(Section):
    """One toleration of core/v1, as far as profiles need it."""

    key: str
    operator: Annotated[str, Field(pattern=r"^(Exists|Equal)$")] = "Exists"
    value: str | None = None
    effect: Annotated[str, Field(pattern=r"^(NoSchedule|PreferNoSchedule|NoExecute)$")] = "NoSchedule"


class Profile(Section):
    """One kind of node."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    resource: str | None = None
    """Extended resource of one accelerator; absent: the node has none, and pods ask for none."""
    product: str | None = None
    """Value of the node label `nvidia.com/gpu.product`, which NVIDIA's feature discovery sets."""
    memory_gigabytes: Positive | None = None
    """Memory of one accelerator, as its maker names it."""
    bandwidth_terabytes_per_second: Positive | None = None
    """Memory bandwidth of one accelerator, in 10^12 bytes a second."""
    dense_tflops: DenseTflops | None = None
    link: Link | None = None
    gpus_per_node: Annotated[int, Field(ge=1)] | None = None
    """Most accelerators that a node of this kind has."""
    price_per_hour_usd: Positive | None = None
    """Indicative price of one accelerator for one hour."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that nodes of this kind usually carry."""
    engines: dict[str, RoleSettings] = Field(default_factory=dict)
    """Settings by engine name, as in `spec.engine.name`."""
    sources: dict[str, Annotated[str, Field(min_length=1)]] = Field(default_factory=dict)
    """Where each figure comes from, by its name."""

    @model_validator(mode="after")
    def _every_figure_has_a_source(self) -> Self:
        given = {to_camel(name) for name in self.model_fields_set - NOT_SOURCED}
        if given != self.sources.keys():
            raise ValueError(f"sources must name exactly the figures given: {sorted(given ^ self.sources.keys())}")
        return self

    def settings(self, engine: str, role: Role) -> EngineSettings:
        """Engine settings for a role: what holds for all, the role's own over it; `aggregated` has only the former."""
        of_engine = self.engines.get(engine, _NOTHING)
        own = {Role.PREFILL: of_engine.prefill, Role.DECODE: of_engine.decode}.get(role, _NOTHING.both)
        if own == _NOTHING.both:
            return of_engine.both
        return EngineSettings(
            args={**of_engine.both.args, **own.args},
            env={**of_engine.both.env, **own.env},
        )

    def attention_backends(self, engine: str, *, latent: bool) -> tuple[str, ...]:
        """Backends that run here, the engine's own choice first; empty: unknown."""
        found = self.engines.get(engine, _NOTHING).attention_backends
        return found.latent if latent else found.standard


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


@cache
def accelerator_resources() -> frozenset[str]:
    """Extended resources that count as accelerators."""
    return frozenset(each.resource for each in (DEFAULT, *profiles().values()) if each.resource)
