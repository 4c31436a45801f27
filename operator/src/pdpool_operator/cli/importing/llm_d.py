"""Values of llm-d's model service chart: `modelArtifacts`, `prefill`, `decode`.

Boundary: reads what that chart documents; gateways, endpoint pickers and sidecars have no counterpart and need none.
"""

from __future__ import annotations

import re
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

_NOT_CARRIED: Final = ("autoscaling", "initContainers", "hostIPC")
_REFERENCE: Final = re.compile(r"{{-?\s*\.Values\.([\w.]+)\s*-?}}")


def pools(values: Json) -> list[Carried]:
    """The one pool of the values."""
    values = _resolved(values, values)
    artifacts = values.get("modelArtifacts") or {}
    remarks: list[str] = []
    model, cache = _model(str(artifacts.get("uri") or ""), remarks)
    served = artifacts.get("name") or (values.get("routing") or {}).get("modelName")
    given = {
        role: values[role] for role in ("prefill", "decode") if (values.get(role) or {}).get("create", role in values)
    }
    if not given:
        raise CarryError("neither prefill nor decode is there")
    if values.get("multinode"):
        raise CarryError("multinode: a replica over several nodes is not in this version")
    read = {role: _role(role, each, remarks) for role, each in given.items()}
    lengths = [found.number("--max-model-len") for _, found, _ in read.values()]
    token = artifacts.get("authSecretName")
    spec = {
        "model": {
            "id": model,
            "servedNames": [served] if served and served != model else [],
            "maxModelLen": agreed("--max-model-len", lengths, remarks),
            "tokenSecretRef": {"name": token, "key": "HF_TOKEN"} if token else None,
            "cache": cache,
        },
        "engine": {"image": agreed("image", [image for _, _, image in read.values()], remarks)},
        **roles(*(read[role][0] if role in read else None for role in ("prefill", "decode"))),
    }
    name = values.get("fullnameOverride") or values.get("nameOverride") or str(served or model).rsplit("/", 1)[-1]
    return [Carried(pool(_label(str(name)), None, spec), remarks)]


def _resolved(value: Any, values: Json) -> Any:
    """With what it takes from elsewhere in the values (`{{ .Values.a.b }}`) filled in, as the chart does."""
    if isinstance(value, dict):
        return {key: _resolved(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [_resolved(each, values) for each in value]
    return _REFERENCE.sub(lambda found: _at(values, found), value) if isinstance(value, str) else value


def _at(values: Json, found: re.Match[str]) -> str:
    held: Any = values
    for key in found.group(1).split("."):
        held = held.get(key) if isinstance(held, dict) else None
    return found.group() if held is None or isinstance(held, (dict, list)) else str(held)


def _model(uri: str, remarks: list[str]) -> tuple[str, Any]:
    kind, _, rest = uri.replace('"', "").partition("://")
    if kind == "hf" and rest:
        return rest, None
    if kind.startswith("pvc") and rest:
        claim, _, path = rest.partition("/")
        remarks.append(f"{uri}: the claim is mounted where pdpool caches models; check the path of model.id")
        return f"/var/cache/pdpool/{path}", {"persistentVolumeClaim": {"claimName": claim}}
    raise CarryError(f"modelArtifacts.uri: {uri or 'nothing'} is neither hf:// nor pvc://")


def _role(role: str, given: Json, remarks: list[str]) -> tuple[Json, Any, str]:
    containers = given.get("containers") or [{}]
    engine = next(
        (each for each in containers if each.get("modelCommand") or "vllm" in str(each.get("name"))), containers[0]
    )
    if engine.get("modelCommand") == "custom":
        remarks.append(f"{role}: modelCommand custom: its command was not carried over; give engine.args")
    found = arguments(engine.get("args") or () if engine.get("modelCommand") != "custom" else ())
    remarks += [f"{role}: {each}" for each in told(found)]
    remarks += [f"{role}: {key} was not carried over" for key in _NOT_CARRIED if given.get(key)]
    sizes = given.get("parallelism") or {}
    if sizes.get("workers", 1) not in (0, 1):
        raise CarryError(f"{role}.parallelism.workers: a replica over several nodes is not in this version")
    return (
        {
            "replicas": given.get("replicas", 1),
            "parallelism": {
                "tensor": sizes.get("tensor") or found.number("--tensor-parallel-size", "-tp"),
                "data": sizes.get("dataLocal") or sizes.get("data"),
            },
            "args": found.kept,
            "env": without_set_here(engine.get("env") or ()),
            "resources": engine.get("resources") or {},
            "template": {
                "tolerations": given.get("tolerations"),
                "nodeSelector": given.get("nodeSelector"),
                "affinity": given.get("affinity"),
                "volumes": given.get("volumes"),
                "volumeMounts": engine.get("volumeMounts"),
            },
        },
        found,
        str(engine.get("image") or ""),
    )


def _label(name: str) -> str:
    return "".join(each if each.isalnum() or each in "-." else "-" for each in name.lower()).strip("-.")[:63]
