"""Values of the Helm chart of vLLM's production stack: `servingEngineSpec.modelSpec`.

Boundary: reads what its values.yaml documents. Engines that hand KV on by LMCache with NIXL become the roles of one
pool; every other model is a pool whose engines do both phases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pdpool_operator.cli.importing.carried import (
    Carried,
    CarryError,
    agreed,
    arguments,
    pool,
    roles,
    told,
    without_set_here,
)

if TYPE_CHECKING:
    from pdpool_operator.records import Json

_PREFILL: Final = frozenset({"sender", "kv_producer"})
_DECODE: Final = frozenset({"receiver", "kv_consumer"})
_FLAGS: Final = {
    "dtype": "--dtype",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
}
_NOT_CARRIED: Final = (
    "keda",
    "raySpec",
    "initContainer",
    "nodeName",
    "nodeSelectorTerms",
    "envFromSecret",
    "chatTemplate",
)


def pools(values: Json) -> list[Carried]:
    """One pool for each model, both roles of a pair in one."""
    engines = values.get("servingEngineSpec") or {}
    models = [each for each in engines.get("modelSpec") or () if each.get("enabled", True)]
    found: list[Carried] = []
    paired: dict[str, dict[str, Json]] = {}
    for number, model in enumerate(models):
        where = f"servingEngineSpec.modelSpec[{number}]"
        if not model.get("modelURL"):
            raise CarryError(f"{where}.modelURL is missing")
        role = _role(model)
        if role:
            paired.setdefault(str(model["modelURL"]), {})[role] = model
        else:
            found.append(_pool(None, model, engines))
    return [*(_pool(each.get("prefill"), each.get("decode"), engines) for each in paired.values()), *found]


def _role(model: Json) -> str:
    told_by = model.get("lmcacheConfig") or {}
    words = {str(told_by.get("nixlRole", "")), str(told_by.get("kvRole", ""))}
    return "prefill" if words & _PREFILL else "decode" if words & _DECODE else ""


def _pool(prefill: Json | None, decode: Json | None, engines: Json) -> Carried:
    both = [each for each in (decode, prefill) if each is not None]
    remarks: list[str] = []
    first = both[0]
    spec = {
        "model": {
            "id": first["modelURL"],
            "maxModelLen": agreed("maxModelLen", [_config(each).get("maxModelLen") for each in both], remarks),
            "tokenSecretRef": agreed("hf_token", [_token(each, remarks) for each in both], remarks),
        },
        "engine": {
            "image": agreed("image", [_image(each) for each in both], remarks),
            "shmSize": agreed("shmSize", [each.get("shmSize") for each in both], remarks),
            "imagePullSecrets": [{"name": first["imagePullSecret"]}] if first.get("imagePullSecret") else [],
        },
        **roles(
            _one(prefill, engines, remarks) if prefill is not None else None,
            _one(decode, engines, remarks) if decode is not None else None,
        ),
    }
    return Carried(pool(str(first["name"]), None, spec), remarks)


def _one(model: Json, engines: Json, remarks: list[str]) -> Json:
    config = _config(model)
    found = arguments(config.get("extraArgs") or ())
    args = [f"{flag}={config[key]}" for key, flag in _FLAGS.items() if config.get(key) is not None]
    remarks += [f"{model['name']}: {each}" for each in told(found)]
    remarks += [f"{model['name']}: {key} was not carried over" for key in _NOT_CARRIED if model.get(key)]
    if (model.get("lmcacheConfig") or {}).get("enabled") and not _role(model):
        remarks.append(f"{model['name']}: KV tiers of LMCache have no counterpart")
    if model.get("pvcStorage"):
        remarks.append(f"{model['name']}: pvcStorage was not carried over: name a claim in model.cache")
    return {
        "replicas": model.get("replicaCount", 1),
        "parallelism": {"tensor": config.get("tensorParallelSize") or _gpus(model, remarks)},
        "args": [*args, *found.kept],
        "env": without_set_here(model.get("env") or ()),
        "resources": model.get("resources") or {"requests": _requests(model)},
        "template": {
            "tolerations": [*(engines.get("tolerations") or ()), *(model.get("tolerations") or ())],
            "affinity": model.get("affinity"),
            "runtimeClassName": model.get("runtimeClassName") or engines.get("runtimeClassName"),
            "priorityClassName": model.get("priorityClassName"),
            "serviceAccountName": model.get("serviceAccountName"),
            "volumes": model.get("extraVolumes"),
            "volumeMounts": model.get("extraVolumeMounts"),
        },
    }


def _requests(model: Json) -> Json:
    asked = {"cpu": model.get("requestCPU"), "memory": model.get("requestMemory")}
    return {name: str(amount) for name, amount in asked.items() if amount}


def _config(model: Json) -> Json:
    config: Json = model.get("vllmConfig") or {}
    return config


def _image(model: Json) -> str:
    tag = model.get("tag")
    return f"{model['repository']}:{tag}" if model.get("repository") and tag else str(model.get("repository") or "")


def _gpus(model: Json, remarks: list[str]) -> int:
    asked = str(model.get("requestGPU") or 1)
    if model.get("requestGPUType", "nvidia.com/gpu") != "nvidia.com/gpu":
        remarks.append(
            f"{model['name']}: requestGPUType {model['requestGPUType']}: set resources or a hardware profile"
        )
    return int(asked) if asked.isdecimal() and int(asked) else 1


def _token(model: Json, remarks: list[str]) -> Any:
    token = model.get("hf_token")
    if isinstance(token, dict) and token.get("secretName"):
        return {"name": token["secretName"], "key": token.get("secretKey")}
    if isinstance(token, str) and token:
        remarks.append(
            f"{model['name']}: hf_token stood there in clear; make a Secret, and name it in model.tokenSecretRef"
        )
    return None
