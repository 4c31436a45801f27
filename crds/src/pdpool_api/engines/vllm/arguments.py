"""Arguments of `vllm serve` for one role: generated ones first, then the author's, verbatim.

Boundary: pure. "Given" means in any spelling that the engine takes (`flags.py`); what is given is not generated, apart
from `--kv-transfer-config`, whose fields are merged over the generated ones so that it stands once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from pdpool_api import hardware
from pdpool_api.engines.vllm import flags
from pdpool_api.engines.vllm.attention import pinned_backend
from pdpool_api.engines.vllm.environment import POD_NAME_VARIABLE
from pdpool_api.engines.vllm.lifecycle import shutdown_timeout_s
from pdpool_api.engines.vllm.parallelism import parallelism
from pdpool_api.engines.vllm.ports import DATA_PARALLEL_RPC_PORT, http_port, port_offset
from pdpool_api.engines.vllm.version import has_flag, version
from pdpool_api.names import KV_EVENTS_PORT, KV_REPLAY_PORT, Role
from pdpool_api.pool import RESERVED_FLAGS

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePoolSpec

CONNECTOR: Final = "NixlConnector"

_KV_ROLES: Final = {Role.PREFILL: "kv_producer", Role.DECODE: "kv_consumer"}
_MAX_LORAS: Final = 8
"""Adapters in one batch: each takes memory of the accelerator for its weights."""
_POLICIES: Final = {"Fail": "fail", "Recompute": "recompute"}


def arguments(spec: InferencePoolSpec, role: Role) -> list[str]:
    """Everything that follows `vllm serve` (or `engine.command`) in a pod of a role; the model comes first.

    Raises:
        ArgumentError: the author's `--kv-transfer-config` is no JSON object.
    """
    generated = _generated(spec, role)
    known = flags.KNOWN | generated.keys()
    found = flags.given_flags(spec, role, known)
    verbatim = role is Role.AGGREGATED
    if not verbatim:
        generated[flags.KV_TRANSFER] = [_compact(transfer_config(spec, role))]
    taken = {each.flag for each in found} - {flags.KV_TRANSFER}
    of_version = version(spec)
    return [
        spec.model.id,
        *(
            item
            for flag, values in generated.items()
            if flag not in taken and has_flag(flag, of_version)
            for item in (flag, *values)
        ),
        *(
            item
            for _, items in flags.lists(spec, role)
            for item in (items if verbatim else _without(items, flags.KV_TRANSFER, known))
        ),
    ]


def transfer_config(spec: InferencePoolSpec, role: Role) -> dict[str, Any]:
    """The value of `--kv-transfer-config`: the generated fields, the author's over them, any engine id made unique.

    Of prefill and decode only: an aggregated engine hands nothing over, and an author's flag is left as it is.

    Raises:
        ArgumentError: the author's is no JSON object.
    """
    ours = {
        "kv_connector": CONNECTOR,
        "kv_role": _KV_ROLES[role],
        "kv_load_failure_policy": _POLICIES[spec.transfer.on_failure],
        "kv_connector_extra_config": {"kv_lease_duration": spec.transfer.lease_seconds},
    }
    config = flags.merged(ours, flags.json_value(flags.given_flags(spec, role), flags.KV_TRANSFER))
    if "engine_id" in config:
        # Peers tell engines apart by it: one for all pods of a role would mix up their KV. The kubelet fills the name.
        config["engine_id"] = f"{config['engine_id']}-$({POD_NAME_VARIABLE})"
    return config


def reserved_arguments(spec: InferencePoolSpec) -> tuple[str, ...]:
    """What is wrong with each argument that only the operator may set, naming field and rule; empty: nothing.

    A condition and no rule of the schema: the parser also takes abbreviations (`--served-model x`).
    """
    found = {each.field: each for role in spec.roles for each in flags.given_flags(spec, role)}
    return tuple(
        f"{each.field}: {each.flag} is set by the operator and cannot be given in args"
        for each in found.values()
        if each.flag in RESERVED_FLAGS
    )


def _generated(spec: InferencePoolSpec, role: Role) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {
        "--served-model-name": list(spec.model.names),
        "--host": ["0.0.0.0"],  # noqa: S104 - a pod's own network: probes, Service and peers reach it by any address
        "--port": [str(http_port(spec, role))],
    }
    if spec.model.revision:
        result["--revision"] = [spec.model.revision]
    if spec.model.max_model_len is not None:
        result["--max-model-len"] = [str(spec.model.max_model_len)]
    sizes = parallelism(spec, role)
    for flag, size in (
        ("--tensor-parallel-size", sizes.tensor),
        ("--pipeline-parallel-size", sizes.pipeline),
        ("--data-parallel-size", sizes.data),
    ):
        if size > 1:
            result[flag] = [str(size)]
    offset = port_offset(spec, role)
    if offset and sizes.data > 1:
        result["--data-parallel-rpc-port"] = [str(DATA_PARALLEL_RPC_PORT + offset)]
    if role is not Role.AGGREGATED:
        result[flags.KV_TRANSFER] = []
    result["--kv-events-config"] = [
        _compact(
            {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{KV_EVENTS_PORT + offset}",
                "replay_endpoint": f"tcp://*:{KV_REPLAY_PORT + offset}",
            }
        )
    ]
    result["--enable-prompt-tokens-details"] = []
    result["--shutdown-timeout"] = [str(shutdown_timeout_s(spec, role))]
    result.update(_adapters(spec))
    backend = pinned_backend(spec)
    if backend is not None:
        result["--attention-backend"] = [backend]
    result.update(_of_profile(spec, role))
    return result


def _adapters(spec: InferencePoolSpec) -> dict[str, list[str]]:
    adapters = spec.model.adapters
    if not adapters:
        return {}
    return {
        "--enable-lora": [],
        # The engine's default of one would make requests for different adapters wait for each other.
        "--max-loras": [str(min(len(adapters), _MAX_LORAS))],
        "--lora-modules": [f"{each.name}={each.source}" for each in adapters],
    }


def _of_profile(spec: InferencePoolSpec, role: Role) -> dict[str, list[str]]:
    """What suits the role on its hardware, but for what another setting of the pool makes unsuitable."""
    args = hardware.profile(spec.role(role).hardware).settings(spec.engine.name, role).args
    unsuitable: set[str] = set()
    if spec.transfer.on_failure == "Recompute":
        unsuitable.add("--compilation-config")  # decode then computes prompts as well: graphs for those too
    if any(each.flag == "--enable-chunked-prefill" and each.negated for each in flags.given_flags(spec, role)):
        unsuitable.add("--max-num-batched-tokens")  # a whole prompt must then fit into one step
    return {flag: [] if value is None else [value] for flag, value in args.items() if flag not in unsuitable}


def _without(items: tuple[str, ...], flag: str, known: frozenset[str]) -> list[str]:
    """The arguments with one flag and its values taken out, the rest untouched and in order."""
    found = {each.field: each for each in flags.given(items, "", known) if each.flag == flag}
    rest: list[str] = []
    place = 0
    while place < len(items):
        taken = found.get(f"[{place}]")
        if taken is None:
            rest.append(items[place])
            place += 1
        else:
            place += len(taken.items)
    return rest


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
