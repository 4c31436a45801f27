"""Ports of an engine pod.

Boundary: pure. Each data-parallel rank has its own side channel and event ports, counted up from the base; the limit of
`parallelism.data` keeps the ranges apart. On the node's own network the ports of decode are moved, so that one node can
hold a pod of each role; that every port is declared keeps two pods of one role apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdpool_api.engines.vllm.parallelism import parallelism
from pdpool_api.names import (
    ENGINE_HTTP_PORT,
    KV_EVENTS_PORT,
    KV_EVENTS_PORT_NAME,
    KV_REPLAY_PORT,
    KV_REPLAY_PORT_NAME,
    NIXL_SIDE_CHANNEL_PORT,
    Role,
    rank_port_name,
)

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePoolSpec

HOST_NETWORK_OFFSET: Final = 1000
DATA_PARALLEL_RPC_PORT: Final = 29_550
"""The engine's default for its ranks' own talk (vllm/engine/arg_utils.py, 0.32)."""


def port_offset(spec: InferencePoolSpec, role: Role) -> int:
    """What is added to every port of the role."""
    return HOST_NETWORK_OFFSET if role is Role.DECODE and spec.role(role).template.host_network else 0


def http_port(spec: InferencePoolSpec, role: Role) -> int:
    """Where the engine of the role answers HTTP."""
    return ENGINE_HTTP_PORT + port_offset(spec, role)


def ports(spec: InferencePoolSpec, role: Role) -> list[dict[str, Any]]:
    """ContainerPort objects of core/v1: HTTP, and per rank the side channel, KV events and their replay.

    Raises:
        ArgumentError: see `parallelism`.
    """
    offset = port_offset(spec, role)
    on_host = spec.role(role).template.host_network
    side_channel = () if role is Role.AGGREGATED else (("nixl", NIXL_SIDE_CHANNEL_PORT),)
    events = ((KV_EVENTS_PORT_NAME, KV_EVENTS_PORT), (KV_REPLAY_PORT_NAME, KV_REPLAY_PORT))
    return [
        _port("http", ENGINE_HTTP_PORT + offset, on_host=on_host),
        *(
            _port(rank_port_name(name, rank), base + offset + rank, on_host=on_host)
            for name, base in (*side_channel, *events)
            for rank in range(parallelism(spec, role).data)
        ),
    ]


def event_ports(spec: InferencePoolSpec, role: Role) -> list[tuple[int, int]]:
    """First and last port of KV events, and of their replay: what the router reads besides HTTP."""
    last = port_offset(spec, role) + parallelism(spec, role).data - 1
    first = port_offset(spec, role)
    return [(base + first, base + last) for base in (KV_EVENTS_PORT, KV_REPLAY_PORT)]


def _port(name: str, number: int, *, on_host: bool) -> dict[str, Any]:
    return {"name": name, "containerPort": number, **({"hostPort": number} if on_host else {}), "protocol": "TCP"}
