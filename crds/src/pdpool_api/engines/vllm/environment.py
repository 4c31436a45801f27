"""Environment variables of the engine's container.

Boundary: pure. Generated ones come first and the author's last, so that `$(NAME)` in the latter can refer to the
former; a name stands once: the role's wins over the engine's, the author's over the generated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdpool_api import hardware
from pdpool_api.engines.vllm.ports import port_offset
from pdpool_api.names import MODEL_CACHE_PATH, NIXL_SIDE_CHANNEL_PORT, Role

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePoolSpec


KEEP_ALIVE_S: Final = 75
"""How long the engine keeps an idle HTTP connection. By itself it closes one after 5 s, so that each reading of its
metrics, and each request after a pause, costs both sides a new connection."""
POD_NAME_VARIABLE: Final = "PDPOOL_POD_NAME"
"""Holds the pod's own name, for what must differ from pod to pod."""


def environment(spec: InferencePoolSpec, role: Role) -> list[dict[str, Any]]:
    """EnvVar objects of core/v1 for a role."""
    of_role = spec.role(role)
    generated = [
        *(_of_transfer(spec, role) if role is not Role.AGGREGATED else ()),
        # Else the engine guesses by opening a socket to a public address, which a closed network may drop.
        _from_pod("VLLM_HOST_IP", "status.podIP"),
        _from_pod(POD_NAME_VARIABLE, "metadata.name"),
        {"name": "VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "value": str(KEEP_ALIVE_S)},
        *_of_model(spec),
        *(
            {"name": name, "value": value}
            for name, value in hardware.profile(of_role.hardware).settings(spec.engine.name, role).env.items()
        ),
    ]
    by_name: dict[str, dict[str, Any]] = {}
    for variable in (*generated, *spec.engine.env, *of_role.env):
        by_name.pop(variable["name"], None)
        by_name[variable["name"]] = variable
    return list(by_name.values())


def _of_transfer(spec: InferencePoolSpec, role: Role) -> list[dict[str, Any]]:
    network = spec.transfer.network
    return [
        # Peers pull KV from the address that the engine itself announces; its default is localhost.
        _from_pod("VLLM_NIXL_SIDE_CHANNEL_HOST", "status.podIP"),
        {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(NIXL_SIDE_CHANNEL_PORT + port_offset(spec, role))},
        *([{"name": "UCX_TLS", "value": network.tls}] if network.tls else []),
        *([{"name": "UCX_NET_DEVICES", "value": ",".join(network.devices)}] if network.devices else []),
    ]


def _of_model(spec: InferencePoolSpec) -> list[dict[str, Any]]:
    token = spec.model.token_secret_ref
    return [
        *([{"name": "HF_HOME", "value": MODEL_CACHE_PATH}] if spec.model.has_cache else []),
        *(
            [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": token.name, "key": token.key}}}]
            if token
            else []
        ),
    ]


def _from_pod(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
