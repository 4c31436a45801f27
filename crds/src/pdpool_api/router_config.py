"""The file that the operator writes and the router reads (`pdpool-router --config`).

Boundary: shape, defaults and limits of the configuration; nothing is opened here. The file is strict: an unknown field,
a key given twice or a number written as text is refused with its line, its path and the rule, so that a misspelt
setting never goes unnoticed. The router's flags are a short form of it. Its JSON schema is published beside the CRD
(`python -m pdpool_api.router_config_schema`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from pdpool_api import kubectl_yaml
from pdpool_api.hardware import profiles
from pdpool_api.located_yaml import Located, LocatedError
from pdpool_api.names import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Seconds = Annotated[float, Field(gt=0, le=86_400)]


def _engine_address(url: str) -> str:
    """The URL, if it names a host and, where it names a port, one that exists."""
    parts = urlsplit(url)  # raises ValueError for a broken IPv6 host
    if not parts.hostname or parts.port == 0 or parts.netloc.endswith(":"):  # so does `port`, where it is no port
        raise ValueError("must be http://host:port")
    return url


def _profile_name(name: str) -> str:
    """The name, if a profile is shipped under it."""
    if name and name not in profiles():
        raise ValueError(f"no such hardware profile; there are {', '.join(sorted(profiles()))}")
    return name


def _zmq_address(address: str) -> str:
    """The address, if it names a host and a port that exists."""
    if address:
        parts = urlsplit(address)
        if parts.scheme != "tcp" or not parts.hostname or not parts.port or parts.path or "@" in parts.netloc:
            raise ValueError("must be tcp://host:port")
    return address


ZmqAddress = Annotated[str, AfterValidator(_zmq_address)]


class ConfigError(ValueError):
    """A configuration that is refused; the message names each field and the rule it breaks."""


class Section(BaseModel):
    """One mapping of the file: camelCase keys, nothing unknown."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


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
    hardware: Annotated[str, AfterValidator(_profile_name)] = ""
    """Its hardware profile, for a first guess of its speed beside others; empty: like the others."""
    kv_events: ZmqAddress = ""
    """Where it publishes KV events, `tcp://host:port`; empty: it is asked, else the usual port of its host."""
    kv_replay: ZmqAddress = ""
    """Where it sends them again; empty: with `kvEvents` given, nowhere."""

    @model_validator(mode="after")
    def _replay_of_events(self) -> Self:
        if self.kv_replay and not self.kv_events:
            raise ValueError("kvReplay needs kvEvents")
        return self


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

    @model_validator(mode="after")
    def _one_of_each_uid(self) -> Self:
        uids = [each.uid for each in self.static if each.uid]
        if len(set(uids)) < len(uids):
            raise ValueError("static: each uid is given once, as endpoints are told apart by it")
        return self


class Index(Section):
    """What the router knows of the engines' prefix caches."""

    source: Literal["Events", "Approximate"] = "Events"
    """From the engines' KV events, or guessed from what was sent where."""
    max_blocks: Annotated[int, Field(ge=1, le=1_000_000_000)] = 2_000_000
    """Most blocks that are remembered, over all endpoints together."""


class LocalPrefill(Section):
    """When a prompt may be computed where it is decoded, without the hop to prefill."""

    max_uncached_tokens: Annotated[int, Field(ge=0, le=10_000_000)] = 512
    """At most so many of its tokens are not cached at the chosen decode engine; 0: always hop."""
    min_cached_ratio: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Or so large a share of its tokens is."""


class Routing(Section):
    """How a pair of engines is chosen."""

    policy: Literal["KvAware", "Prefix", "LeastLoaded", "RoundRobin"] = "KvAware"
    index: Index = Index()
    local_prefill: LocalPrefill = LocalPrefill()
    session_header: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]*$", max_length=128, to_lower=True)
    ] = "x-session-id"
    """Client header that names a conversation; requests of one stay together while loads are equal. Empty: none."""
    on_prefill_unavailable: Literal["Local", "Fail"] = "Local"
    """No prefill can be had: decode computes the prompt itself, or 503."""


class PrefillSpeed(Section):
    """Of one prefill engine."""

    tokens_per_second: Annotated[float, Field(ge=0, le=1e9)] = 0


class DecodeSpeed(Section):
    """Of one decode engine."""

    step_milliseconds: Annotated[float, Field(ge=0, le=1e6)] = 0


class TransferSpeed(Section):
    """From one prefill engine to one decode engine."""

    bytes_per_second: Annotated[float, Field(ge=0, le=1e15)] = 0


class Speeds(Section):
    """First guesses until the router has seen how fast its engines are; 0: unknown."""

    prefill: PrefillSpeed = PrefillSpeed()
    decode: DecodeSpeed = DecodeSpeed()
    transfer: TransferSpeed = TransferSpeed()


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


class Auth(Section):
    """Who may ask. Absent files: everybody may, and nobody has a salt."""

    api_keys_file: str = ""
    """One key per line, or `name=key`; read again when it changes. A request without one of them is answered 401."""
    salt_file: str = ""
    """What salts of tenants are made from: HMAC-SHA256 of it and a key's name keeps tenants' KV apart."""

    @model_validator(mode="after")
    def _salt_is_of_a_key(self) -> Self:
        if self.salt_file and not self.api_keys_file:
            raise ValueError("saltFile needs apiKeysFile: a salt belongs to a key's name")
        return self


class Tenant(Section):
    """What one key may ask for."""

    key: Annotated[str, Field(min_length=1)]
    """Name of the key in `auth.apiKeysFile`."""
    models: tuple[str, ...] = ()
    """Served names that it may ask for; empty: all."""
    adapters: tuple[str, ...] = ()
    """Adapters that it may ask for; empty: all."""
    weight: Annotated[int, Field(ge=1, le=1000)] = 1
    """Its share of the work while requests wait, beside other tenants of its priority."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    """While requests wait, those of a higher priority go first."""
    requests_per_second: Annotated[float, Field(ge=0, le=1e6)] = 0
    """Requests that it may begin a second; more are answered 429. 0: no limit."""
    concurrent: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Requests that it may have at once, waiting ones included; more are answered 429. 0: no limit."""


class Tls(Section):
    """TLS on the API port; both files or neither. Read again when they change."""

    cert_file: str = ""
    """The certificate and its chain, PEM."""
    key_file: str = ""
    """The private key, PEM, without a passphrase."""

    @model_validator(mode="after")
    def _both(self) -> Self:
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("certFile and keyFile are given together")
        return self


class RouterConfig(Section):
    """The whole file."""

    model: Model
    endpoints: Endpoints
    speeds: Speeds = Speeds()
    routing: Routing = Routing()
    limits: Limits = Limits()
    auth: Auth = Auth()
    tenants: tuple[Tenant, ...] = ()
    """What single keys may ask for; a key that is not named here may ask for everything."""
    tls: Tls = Tls()
    forward_headers: tuple[
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", to_lower=True)], ...
    ] = ()
    """Client headers (in any case) that engines get besides content-type, accept, traceparent and tracestate."""

    @model_validator(mode="after")
    def _tenants_have_keys(self) -> Self:
        names = [tenant.key for tenant in self.tenants]
        if names and not self.auth.api_keys_file:
            raise ValueError("tenants need auth.apiKeysFile: a tenant is known by its key")
        if len(set(names)) < len(names):
            raise ValueError("tenants: each key is named once")
        return self


def parse(text: str) -> RouterConfig:
    """Reads the YAML text of a configuration file.

    Raises:
        ConfigError: the text is no YAML mapping, or a field breaks a rule; every fault is in the message.
    """
    try:
        located = Located(text)
    except LocatedError as fault:
        raise ConfigError(str(fault)) from fault
    return _checked(located.value, located.line)


def from_mapping(raw: Any) -> RouterConfig:
    """Checks a mapping with the file's keys.

    Raises:
        ConfigError: see `parse`.
    """
    return _checked(raw, lambda _: None)


def dump(config: RouterConfig) -> str:
    """The file's text for a configuration; `parse(dump(c)) == c`."""
    said = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    return yaml.dump(said, Dumper=kubectl_yaml.Dumper, sort_keys=False)


def _checked(raw: Any, line_of: Callable[[Sequence[str | int]], int | None]) -> RouterConfig:
    if not isinstance(raw, dict):
        raise ConfigError(f"the file must hold a mapping, not {type(raw).__name__}")
    try:
        # As JSON, where strict means what a file's author means: a list is a tuple, but no text is a number.
        text = json.dumps(raw, default=str)
    except ValueError as fault:
        raise ConfigError("not YAML: a value contains itself") from fault
    try:
        return RouterConfig.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as fault:
        raise ConfigError("; ".join(_words(error, line_of(error["loc"])) for error in fault.errors())) from fault


def _words(error: Any, line: int | None) -> str:
    where = f"line {line}: " if line is not None else ""
    path = ".".join(str(part) for part in error["loc"])
    return f"{where}{path or 'file'}: {error['msg']}"
