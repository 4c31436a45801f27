"""The file that the operator writes and the router reads (`pdpool-router --config`).

Boundary: shape, defaults and limits of the configuration; nothing is opened here. The file is strict: an unknown field
is refused with its path, so that a misspelt setting never goes unnoticed. The router's flags are a short form of it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from pdpool_api.names import Role

Seconds = Annotated[float, Field(gt=0, le=86_400)]


def _engine_address(url: str) -> str:
    """The URL, if it names a host and, where it names a port, one that exists."""
    parts = urlsplit(url)  # raises ValueError for a broken IPv6 host
    if not parts.hostname or parts.port == 0 or parts.netloc.endswith(":"):  # so does `port`, where it is no port
        raise ValueError("must be http://host:port")
    return url


class ConfigError(ValueError):
    """A configuration that is refused; the message names each field and the rule it breaks."""


class Section(BaseModel):
    """One mapping of the file: camelCase keys, nothing unknown."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class Model(Section):
    """What the router serves."""

    served_names: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
    """Names that clients may ask for; the first is the primary."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that every engine has loaded; clients ask for them as for models."""


class StaticEndpoint(Section):
    """One engine at a fixed address."""

    role: Literal[Role.PREFILL, Role.DECODE, Role.AGGREGATED]
    url: Annotated[str, Field(pattern=r"^http://[^/\s@?#]+/?$"), AfterValidator(_engine_address)]
    """`http://host:port`, IPv6 hosts in brackets."""
    revision: str = ""
    """Only endpoints of one revision are paired; empty: one revision."""
    uid: str = ""
    """Identity of this life of the endpoint; empty: the address."""


class PodSource(Section):
    """Engines found by watching the pods of a pool."""

    namespace: Annotated[str, Field(min_length=1)]
    pool: Annotated[str, Field(min_length=1)]
    uid: Annotated[str, Field(min_length=1)]
    """The pool's uid: the owner chain of a pod must end there."""


class Endpoints(Section):
    """Where the engines are: a fixed list, or the pods of a pool."""

    static: tuple[StaticEndpoint, ...] = ()
    pods: PodSource | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.static) == (self.pods is not None):
            raise ValueError("exactly one of static and pods must be given")
        return self


class Routing(Section):
    """How a pair of engines is chosen."""

    policy: Literal["LeastLoaded", "RoundRobin"] = "LeastLoaded"
    on_prefill_unavailable: Literal["Local", "Fail"] = "Local"
    """No prefill can be had: decode computes the prompt itself, or 503."""


class Limits(Section):
    """Bounds that keep one client, or one engine, from taking the router down."""

    max_body_bytes: Annotated[int, Field(gt=0)] = 33_554_432
    max_concurrent: Annotated[int, Field(gt=0)] = 4096
    """Requests in hand at once; more wait in line."""
    max_queued: Annotated[int, Field(ge=0)] = 1024
    """Requests in line; more are refused with 503."""
    max_queued_bytes: Annotated[int, Field(ge=0)] = 268_435_456
    """Bytes of the bodies in line."""
    queue_seconds: Seconds = 60
    """Longest time in line."""
    wake_seconds: Annotated[float, Field(ge=0, le=86_400)] = 600
    """Longest time that a request is held while the pool wakes from zero; 0: none is held."""
    max_local_prefills: Annotated[int, Field(ge=0)] = 4
    """Prompts computed at once by one decode engine because no prefill could be had."""
    connect_seconds: Seconds = 5
    prefill_seconds: Seconds = 120
    idle_seconds: Seconds = 300


class RouterConfig(Section):
    """The whole file."""

    model: Model
    endpoints: Endpoints
    routing: Routing = Routing()
    limits: Limits = Limits()
    forward_headers: tuple[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", to_lower=True)], ...
    ] = ()
    """Client headers (in any case) that engines get besides content-type, accept, traceparent and tracestate."""


def parse(text: str) -> RouterConfig:
    """Reads the YAML text of a configuration file.

    Raises:
        ConfigError: the text is no YAML mapping, or a field breaks a rule; every fault is in the message.
    """
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as fault:
        raise ConfigError(f"not YAML: {fault}") from fault
    except RecursionError as fault:
        raise ConfigError("not YAML: nested too deeply") from fault
    return from_mapping(raw)


def from_mapping(raw: Any) -> RouterConfig:
    """Checks a mapping with the file's keys.

    Raises:
        ConfigError: see `parse`.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"the file must hold a mapping, not {type(raw).__name__}")
    try:
        return RouterConfig.model_validate(raw)
    except ValidationError as fault:
        raise ConfigError("; ".join(_line(error) for error in fault.errors())) from fault


def dump(config: RouterConfig) -> str:
    """The file's text for a configuration; `parse(dump(c)) == c`."""
    return yaml.safe_dump(config.model_dump(mode="json", by_alias=True, exclude_none=True), sort_keys=False)


def _line(error: Any) -> str:
    path = ".".join(str(part) for part in error["loc"])
    return f"{path or 'file'}: {error['msg']}"
