"""The part of an InferencePool's spec that describes the router, and who may look at the pool's metrics.

Boundary: shape, limits and CEL rules; see `pool.py`. `Routing` and `Limits` hold fields of the router's own file
(`router_config.py`), with the same defaults; a test compares them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from pdpool_api.role_spec import DAY_S, VALID_KEYS, PodTemplate
from pdpool_api.schema import ApiModel, Resources, rule, rules

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


class Routing(ApiModel):
    """How a pair of engines is chosen."""

    policy: Literal["LeastLoaded", "RoundRobin"] = "LeastLoaded"
    """How the best engine is found: by the router's own requests in flight, or each in turn."""
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


class Router(ApiModel):
    """The router in front of the engines: one OpenAI-compatible URL for the pool."""

    replicas: Annotated[int, Field(ge=1, le=256, json_schema_extra={"format": "int32"})] | None = None
    """Number of replicas. Default: 1."""
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

    @property
    def desired_replicas(self) -> int:
        """Replicas, the default applied."""
        return 1 if self.replicas is None else self.replicas


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
