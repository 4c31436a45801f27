"""NVIDIA Dynamo's `DynamoGraphDeployment` (v1alpha1, v1beta1) with vLLM workers.

Boundary: workers become roles; frontend and planner have their counterparts in router and autoscaling, and are only
named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from pdpool_operator.cli.importing.carried import Arguments
    from pdpool_operator.records import Json


def pools(document: Json) -> list[Carried]:
    """The one pool of a deployment."""
    metadata = document.get("metadata") or {}
    services = _services(document.get("spec") or {})
    remarks: list[str] = []
    workers: dict[str, tuple[Json, Arguments, Json]] = {}
    for name, service in services.items():
        container = ((service.get("extraPodSpec") or {}).get("mainContainer")) or {}
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        if "dynamo.vllm" not in " ".join(map(str, words)):
            if service.get("componentType") in ("worker", "prefill", "decode"):
                raise CarryError(f"spec.services.{name}: only vLLM workers (`-m dynamo.vllm`) can be carried over")
            remarks.append(
                f"{name} ({service.get('componentType', 'no type')}): the router, or autoscaling, takes its place"
            )
            continue
        found = arguments(_after(words, "dynamo.vllm"))
        workers[_role(service, found)] = (_worker(name, service, found, container, remarks), found, container)
    if not workers:
        raise CarryError("spec.services: there is no vLLM worker")
    flags = [found for _, found, _ in workers.values()]
    model = agreed("--model", [each.known.get("--model") for each in flags], remarks)
    if model is None:
        raise CarryError("spec.services: no worker names its --model")
    served = agreed("--served-model-name", [each.known.get("--served-model-name") for each in flags], remarks)
    secret = next((each["envFromSecret"] for each in services.values() if each.get("envFromSecret")), None)
    spec = {
        "model": {
            "id": model,
            "servedNames": [served] if served else [],
            "maxModelLen": agreed("--max-model-len", [each.number("--max-model-len") for each in flags], remarks),
            "tokenSecretRef": {"name": secret, "key": "HF_TOKEN"} if secret else None,
        },
        **roles(*(workers[role][0] if role in workers else None for role in ("prefill", "decode"))),
    }
    images = {str(container.get("image")) for _, _, container in workers.values() if container.get("image")}
    remarks += [f"image {each} holds Dynamo's runtime: set engine.image to one of vLLM" for each in sorted(images)]
    return [Carried(pool(str(metadata.get("name") or "imported"), metadata.get("namespace"), spec), remarks)]


def _services(spec: Json) -> Json:
    """The parts of a deployment by name, as its older version (v1alpha1) says them."""
    if "components" not in spec:
        return spec.get("services") or {}
    return {str(each.get("name")): _as_service(each) for each in spec["components"] or ()}


def _as_service(component: Json) -> Json:
    """A component of v1beta1, which holds a whole pod template, in the words of v1alpha1."""
    pod: Json = (component.get("podTemplate") or {}).get("spec") or {}
    containers = pod.get("containers") or [{}]
    container: Json = next((each for each in containers if each.get("name") == "main"), containers[0])
    secrets = [(each.get("secretRef") or {}).get("name") for each in container.get("envFrom") or ()]
    gpus = ((container.get("resources") or {}).get("limits") or {}).get("nvidia.com/gpu")
    return {
        "componentType": component.get("type"),
        "replicas": component.get("replicas", 1),
        "multinode": component.get("multinode"),
        "envFromSecret": next((each for each in secrets if each), None),
        "resources": {"limits": {"gpu": gpus}},
        "extraPodSpec": {**pod, "mainContainer": container},
    }


def _after(words: list[Any], module: str) -> list[str]:
    """What follows the module, also where all of it stands in one string for a shell."""
    flat = " ".join(map(str, words)).split()
    return flat[flat.index(module) + 1 :]


def _role(service: Json, found: Arguments) -> str:
    kinds = {service.get("componentType"), service.get("subComponentType"), found.known.get("--disaggregation-mode")}
    return "prefill" if "prefill" in kinds or "--is-prefill-worker" in found.known else "decode"


def _worker(name: str, service: Json, found: Arguments, container: Json, remarks: list[str]) -> Json:
    if (service.get("multinode") or {}).get("nodeCount", 1) > 1:
        raise CarryError(f"spec.services.{name}.multinode: a replica over several nodes is not in this version")
    gpus = str(((service.get("resources") or {}).get("limits") or {}).get("gpu") or 1)
    tensor = found.number("--tensor-parallel-size", "-tp") or 1
    pipeline, data = found.number("--pipeline-parallel-size", "-pp"), found.number("--data-parallel-size", "-dp")
    if gpus.isdecimal() and int(gpus) != tensor * (pipeline or 1) * (data or 1):
        remarks.append(
            f"{name}: {gpus} GPUs and tensor {tensor} do not agree: a replica gets as many as its sizes need"
        )
    remarks += [f"{name}: {each}" for each in told(found)]
    own = [word for word in found.kept if word.startswith("--dyn-") or word in ("--connector", "--migration-limit")]
    remarks += [f"{name}: {word} is Dynamo's own: take it out of args" for word in own]
    pod = service.get("extraPodSpec") or {}
    return {
        "replicas": service.get("replicas", 1),
        "parallelism": {"tensor": tensor, "pipeline": pipeline, "data": data},
        "args": found.kept,
        "env": without_set_here([*(service.get("envs") or ()), *(container.get("env") or ())]),
        "template": {key: pod.get(key) for key in ("tolerations", "nodeSelector", "affinity", "volumes")},
    }
