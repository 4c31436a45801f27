"""Ports of an engine pod.

Boundary: pure. Each data-parallel rank has its own side channel and event ports, counted up from the base; the limit of
`parallelism.data` keeps the ranges apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pdpool_api.engines.vllm.parallelism import parallelism
from pdpool_api.names import ENGINE_HTTP_PORT, KV_EVENTS_PORT, KV_REPLAY_PORT, NIXL_SIDE_CHANNEL_PORT

if TYPE_CHECKING:
    from pdpool_api.names import Role
    from pdpool_api.pool import InferencePoolSpec


def ports(spec: InferencePoolSpec, role: Role) -> list[dict[str, Any]]:
    """ContainerPort objects of core/v1: HTTP, and per rank the side channel, KV events and their replay.

    Raises:
        ArgumentError: see `parallelism`.
    """
    return [
        _port("http", ENGINE_HTTP_PORT),
        *(
            _port(name if rank == 0 else f"{name}-{rank}", base + rank)
            for name, base in (
                ("nixl", NIXL_SIDE_CHANNEL_PORT),
                ("kv-events", KV_EVENTS_PORT),
                ("kv-replay", KV_REPLAY_PORT),
            )
            for rank in range(parallelism(spec, role).data)
        ),
    ]


def _port(name: str, number: int) -> dict[str, Any]:
    return {"name": name, "containerPort": number, "protocol": "TCP"}
