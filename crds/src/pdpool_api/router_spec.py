"""The part of an InferencePool's spec that describes the router, and who may look at the pool's metrics.

Boundary: shape, limits and CEL rules; see `pool.py`. `Routing` and `Limits` hold fields of the router's own file
(`router_config.py`), with the same defaults; a test compares them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from pdpool_api.role_spec import DAY_S, VALID_KEYS, PodTemplate
from pdpool_api.scaling_spec import RouterAutoscaling
from pdpool_api.schema import MAX_ITEMS, ApiModel, Resources, rule, rules
from pdpool_api.served_model import ObjectName

_SALT_RULE: Final = "saltSecretRef needs apiKeysSecretRef: a salt belongs to a key's name"
_TENANTS_RULE: Final = "tenants need auth.apiKeysSecretRef: a tenant is known by its key"

_SIZE_RULE: Final = "replicas and an autoscaling with maxReplicas above 0 exclude one another"

Port = Annotated[int, Field(ge=1, le=65_535, json_schema_extra={"format": "int32"})]
Seconds = Annotated[float, Field(gt=0, le=DAY_S)]
Namespace = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Hostname = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=253,
        pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]


class RouterService(ApiModel):
    """The Service in front of the routers."""

    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service."""
    port: Port = 80
    """Port that clients call."""
    annotations: Annotated[
        dict[str, Annotated[str, StringConstraints(max_length=65_536)]],
        Field(
            max_length=64,
            json_schema_extra=rules(
                rule(
                    "self.all(k, !k.startsWith('pdpool.io/'))",
                    "annotations of pdpool.io/ are set by the operator",
                ),
                VALID_KEYS,
            ),
        ),
    ] = Field(default_factory=dict)
    """Annotations of the Service, as load balancers of clouds want them."""


class ParentRef(ApiModel):
    """A Gateway (or another parent) that the route is attached to."""

    group: Annotated[str, Field(max_length=253)] | None = None
    """API group of the parent. Default: gateway.networking.k8s.io."""
    kind: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Kind of the parent. Default: Gateway."""
    namespace: Namespace | None = None
    """Namespace of the parent. Default: the pool's."""
    name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the parent."""
    section_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Listener of the parent. Default: all that fit."""
    port: Port | None = None
    """Port of the parent. Default: all that fit."""


class RouterHttpRoute(ApiModel):
    """A route of the Gateway API to the pool, without a request timeout, as answers stream for minutes."""

    parent_refs: Annotated[tuple[ParentRef, ...], Field(max_length=32)] = ()
    """Gateways that the route is attached to. Default: none, as where others attach it."""
    hostnames: Annotated[tuple[Hostname, ...], Field(max_length=16)] = ()
    """Hosts that the route answers for. Default: those of the Gateway."""


class Index(ApiModel):
    """What a router knows of the engines' prefix caches."""

    source: Literal["Events", "Approximate"] = "Events"
    """From the engines' KV events, or guessed from what was sent where."""
    max_blocks: Annotated[int, Field(ge=1, le=1_000_000_000, json_schema_extra={"format": "int32"})] = 2_000_000
    """Most blocks that are remembered, over all engines together."""


class LocalPrefill(ApiModel):
    """When a prompt may be computed where it is decoded, without the hop to prefill."""

    max_uncached_tokens: Annotated[int, Field(ge=0, le=10_000_000, json_schema_extra={"format": "int32"})] = 512
    """At most so many of its tokens are not cached at the chosen decode engine. 0: always hop."""
    min_cached_ratio: Annotated[float, Field(ge=0, le=1)] = 0.8
    """Or so large a share of its tokens is."""


class Routing(ApiModel):
    """How a pair of engines is chosen."""

    policy: Literal["KvAware", "Prefix", "LeastLoaded", "RoundRobin"] = "KvAware"
    """How the best engine is found: by predicted time, by the longest cached prefix, by requests in flight, in turn."""
    index: Index = Index()
    """What is known of the engines' prefix caches."""
    local_prefill: LocalPrefill = LocalPrefill()
    """When the hop to prefill may be skipped."""
    session_header: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]*$", max_length=128)] = (
        "x-session-id"
    )
    """Client header that names a conversation. Requests of one stay together while loads are equal. Empty: none."""
    on_prefill_unavailable: Literal["Local", "Fail"] = "Local"
    """No prefill can be had: decode computes the prompt itself, or the answer is 503."""


class Limits(ApiModel):
    """Bounds that keep one client, or one engine, from taking a router down."""

    max_body_bytes: Annotated[int, Field(ge=1, le=2**32, json_schema_extra={"format": "int64"})] = 33_554_432
    """Longest request body; a longer one is answered with 413."""
    max_concurrent: Annotated[int, Field(ge=1, le=1_000_000, json_schema_extra={"format": "int32"})] = 4096
    """Requests that one router serves at once; more wait in line."""
    max_queued: Annotated[int, Field(ge=0, le=1_000_000, json_schema_extra={"format": "int32"})] = 1024
    """Requests that wait in line at one router; more are answered with 503."""
    max_queued_bytes: Annotated[int, Field(ge=0, le=2**40, json_schema_extra={"format": "int64"})] = 268_435_456
    """Bytes of the request bodies that wait in line at one router."""
    queue_seconds: Seconds = 60
    """Longest time that a request waits in line."""
    wake_seconds: Annotated[float, Field(ge=0, le=DAY_S)] = 600
    """Longest time that a request is held while the pool wakes from zero replicas; 0: none is held."""
    max_local_prefills: Annotated[int, Field(ge=0, le=100_000, json_schema_extra={"format": "int32"})] = 4
    """Prompts that one decode engine computes at once because no prefill could be had."""
    connect_seconds: Seconds = 5
    """How long a connection to an engine may take."""
    prefill_seconds: Seconds = 120
    """How long the prefill of one request may take."""
    idle_seconds: Seconds = 300
    """How long an engine may be silent in an answer."""


class SecretName(ApiModel):
    """A Secret in the pool's namespace."""

    name: ObjectName
    """Name of the Secret."""


class Auth(ApiModel):
    """Who may ask; absent: everybody who reaches the router."""

    model_config = ConfigDict(
        json_schema_extra=rules(rule("!has(self.saltSecretRef) || has(self.apiKeysSecretRef)", _SALT_RULE))
    )

    api_keys_secret_ref: SecretName | None = None
    """Secret whose entry `keys` holds one API key per line, or name=key. Without one of them a request is refused."""
    salt_secret_ref: SecretName | None = None
    """Secret whose entry `salt` keeps the KV of different keys apart; any random text that stays."""

    @model_validator(mode="after")
    def _salt_is_of_a_key(self) -> Self:
        if self.salt_secret_ref is not None and self.api_keys_secret_ref is None:
            raise ValueError(_SALT_RULE)
        return self


class Tenant(ApiModel):
    """What the holder of one API key may do."""

    key: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the key, as it stands before the = in the Secret."""
    models: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], Field(max_length=32)] = ()
    """Served names that it may ask for; empty: all."""
    adapters: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253)], ...], Field(max_length=MAX_ITEMS)
    ] = ()
    """Adapters that it may ask for; empty: all."""
    weight: Annotated[int, Field(ge=1, le=1000, json_schema_extra={"format": "int32"})] = 1
    """Its share of the work while requests wait, beside other tenants of its priority."""
    priority: Annotated[int, Field(ge=-1000, le=1000, json_schema_extra={"format": "int32"})] = 0
    """While requests wait, those of a higher priority go first."""
    requests_per_second: Annotated[float, Field(ge=0, le=1e6)] = 0
    """Requests that it may begin a second at one router; more are answered with 429. 0: no limit."""
    concurrent: Annotated[int, Field(ge=0, le=1_000_000, json_schema_extra={"format": "int32"})] = 0
    """Requests that it may have at once at one router; more are answered with 429. 0: no limit."""


class Router(ApiModel):
    """The router in front of the engines: one OpenAI-compatible URL for the pool."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            rule(
                "!has(self.replicas) || !has(self.autoscaling) || self.autoscaling.maxReplicas == 0",
                _SIZE_RULE,
                fieldPath=".autoscaling",
                reason="FieldValueForbidden",
            ),
            rule(
                "!has(self.tenants) || self.tenants.size() == 0 || (has(self.auth) && has(self.auth.apiKeysSecretRef))",
                _TENANTS_RULE,
                fieldPath=".tenants",
            ),
        )
    )

    replicas: Annotated[int, Field(ge=1, le=256, json_schema_extra={"format": "int32"})] | None = None
    """Number of replicas. Default: 1."""
    autoscaling: RouterAutoscaling | None = None
    """The number of routers follows the requests in flight instead of being fixed."""
    image: Annotated[str, Field(max_length=512, pattern=r"^\S*$")] = ""
    """Image of the router. Default: the operator's --router-image."""
    resources: Resources | None = None
    """Requests and limits of the router's container."""
    template: PodTemplate = PodTemplate()
    """What the router's pods carry besides what the operator generates."""
    drain_seconds: Annotated[int, Field(ge=0, le=DAY_S, json_schema_extra={"format": "int32"})] = 600
    """How long a leaving router may finish its requests."""
    service: RouterService = RouterService()
    """The Service in front of the routers."""
    http_route: RouterHttpRoute | None = None
    """A route of the Gateway API to the pool; made when given."""
    routing: Routing = Routing()
    """How a pair of engines is chosen."""
    limits: Limits = Limits()
    """Bounds that keep one client, or one engine, from taking a router down."""
    auth: Auth | None = None
    """Who may ask; absent: everybody who reaches the router."""
    tenants: Annotated[
        tuple[Tenant, ...],
        Field(
            max_length=MAX_ITEMS,
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"]},
        ),
    ] = ()
    """What single keys may do; a key that is not named here may ask for everything."""
    tls_secret_ref: SecretName | None = None
    """Secret of type kubernetes.io/tls with which the router's API speaks TLS. Absent: plain HTTP."""

    @model_validator(mode="after")
    def _tenants_have_keys(self) -> Self:
        """The rules of the schema again, for files."""
        if self.tenants and (self.auth is None or self.auth.api_keys_secret_ref is None):
            raise ValueError(_TENANTS_RULE)
        if len({tenant.key for tenant in self.tenants}) < len(self.tenants):
            raise ValueError("tenants name each key once")
        return self

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        """The rule of the schema again, for files."""
        if self.replicas is not None and self.scaled is not None:
            raise ValueError(_SIZE_RULE)
        return self

    @property
    def scaled(self) -> RouterAutoscaling | None:
        """How the number follows demand; None: it is fixed."""
        return self.autoscaling if self.autoscaling is not None and self.autoscaling.max_replicas else None

    @property
    def desired_replicas(self) -> int:
        """Replicas, the default applied; what demand asks for is put in with `InferencePoolSpec.with_sizes`."""
        if self.replicas is not None:
            return self.replicas
        return 1 if self.scaled is None else self.scaled.min_replicas


class Monitoring(ApiModel):
    """Who looks at the pool's metrics."""

    pod_monitor: bool = False
    """Makes PodMonitors for the Prometheus operator."""
    namespaces: Annotated[tuple[Namespace, ...], Field(max_length=32)] | None = None
    """Namespaces whose pods may read metrics (a NetworkPolicy keeps out all others). Default: monitoring."""

    @property
    def from_namespaces(self) -> tuple[str, ...]:
        """Namespaces that may read metrics, the default applied."""
        return ("monitoring",) if self.namespaces is None else self.namespaces
