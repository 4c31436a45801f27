"""`pdpool import`: what other systems' manifests become, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from pdpool_api import kubectl_yaml
from pdpool_api.pool import InferencePool
from pdpool_operator.cli.main import main

PRODUCTION_STACK = """
servingEngineSpec:
  runtimeClassName: nvidia
  tolerations: [{key: gpu, operator: Exists}]
  modelSpec:
    - name: llama-prefill
      repository: lmcache/vllm-openai
      tag: v0.3.1
      modelURL: meta-llama/Llama-3.1-8B-Instruct
      replicaCount: 2
      requestGPU: 1
      pvcStorage: 50Gi
      hf_token: {secretName: hf, secretKey: TOKEN}
      vllmConfig: {maxModelLen: 32000, extraArgs: ["--no-enable-prefix-caching", "--port=8100"]}
      lmcacheConfig: {enabled: true, nixlRole: sender, enableNixl: true}
    - name: llama-decode
      repository: lmcache/vllm-openai
      tag: v0.3.1
      modelURL: meta-llama/Llama-3.1-8B-Instruct
      replicaCount: 3
      vllmConfig: {maxModelLen: 32000, tensorParallelSize: 2, gpuMemoryUtilization: 0.9}
      lmcacheConfig: {enabled: true, nixlRole: receiver}
    - name: mistral
      repository: vllm/vllm-openai
      tag: v0.33.0
      modelURL: mistralai/Mistral-7B-Instruct-v0.2
      hf_token: hf_canaryCANARY
      keda: {enabled: true}
      requestGPU: 2
    - {name: off, modelURL: x/y, enabled: false}
"""
LLM_D = """
modelArtifacts: {uri: "hf://meta-llama/Llama-3.1-70B-Instruct", name: llama-70b, authSecretName: hf-token}
routing: {proxy: {connector: nixlv2}}
prefill:
  replicas: 4
  parallelism: {tensor: 1}
  containers:
    - name: vllm
      image: ghcr.io/llm-d/llm-d-cuda:v0.3.1
      modelCommand: vllmServe
      args: [--block-size=128, --kv-transfer-config, '{"kv_connector": "NixlConnector"}', --max-model-len, "32000"]
      env: [{name: UCX_TLS, value: "cuda_ipc,cuda_copy,tcp"}]
decode:
  parallelism: {tensor: 4}
  replicas: 1
  nodeSelector: {gpu: h100}
  containers:
    - name: vllm
      image: ghcr.io/llm-d/llm-d-cuda:v0.3.1
      modelCommand: vllmServe
      args: [--block-size=128, --max-model-len=32000]
"""
DYNAMO = """
apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
metadata: {name: vllm-disagg, namespace: serving}
spec:
  services:
    Frontend: {componentType: frontend, replicas: 1}
    VllmPrefillWorker:
      envFromSecret: hf-token-secret
      componentType: worker
      subComponentType: prefill
      replicas: 1
      resources: {limits: {gpu: "2"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.1
          command: [python3, -m, dynamo.vllm]
          args: [--model, Qwen/Qwen3-32B, --is-prefill-worker, -tp, "2"]
    VllmDecodeWorker:
      envFromSecret: hf-token-secret
      componentType: worker
      replicas: 2
      resources: {limits: {gpu: "4"}}
      extraPodSpec:
        mainContainer:
          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.7.1
          command: [/bin/sh, -c]
          args:
            - >-
              python3 -m dynamo.vllm --model Qwen/Qwen3-32B --disaggregation-mode decode --tensor-parallel-size=4
              --max-num-seqs 64
"""

DYNAMO_BETA = """
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: split}
spec:
  components:
    - {name: Frontend, type: frontend, replicas: 1, podTemplate: {spec: {containers: [{name: main}]}}}
    - name: Prefill
      type: prefill
      replicas: 2
      podTemplate:
        spec:
          nodeSelector: {gpu: h100}
          containers:
            - {name: sidecar, image: other}
            - name: main
              command: [python3, -m, dynamo.vllm]
              args: [--model, Qwen/Qwen3-32B, --tensor-parallel-size, "2"]
              env: [{name: VLLM_NIXL_SIDE_CHANNEL_PORT, value: "20097"}, {name: A, value: "1e3"}]
              envFrom: [{secretRef: {name: hf}}]
              resources: {limits: {nvidia.com/gpu: "2"}}
    - name: Decode
      type: worker
      podTemplate:
        spec:
          containers:
            - name: main
              command: [python3, -m, dynamo.vllm]
              args: [--model, Qwen/Qwen3-32B]
              resources: {limits: {nvidia.com/gpu: 1}}
"""


def call(text: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["import", "-f", "-", *arguments], input=text)


def pools(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    read = yaml.load_all(result.stdout, Loader=kubectl_yaml.Loader)
    return {each["metadata"]["name"]: each for each in read}


@pytest.mark.parametrize(
    "text",
    [PRODUCTION_STACK, LLM_D, DYNAMO, DYNAMO_BETA],
    ids=["production-stack", "llm-d", "dynamo", "dynamo-v1beta1"],
)
def test_what_comes_out_is_a_valid_pool(text: str) -> None:
    """Every pool is taken by the strict schema, and nothing is to be mended."""
    result = call(text)
    for each in pools(result).values():
        InferencePool.parse(each, strict=True)
    assert "to be mended" not in result.stdout


def test_a_pair_of_the_production_stack_becomes_one_pool() -> None:
    """Sender and receiver of one model are the roles of one pool; what is switched off is not carried over."""
    found = pools(call(PRODUCTION_STACK))
    assert sorted(found) == ["llama-decode", "mistral"]
    spec = found["llama-decode"]["spec"]
    assert spec["model"] == {
        "id": "meta-llama/Llama-3.1-8B-Instruct",
        "maxModelLen": 32000,
        "tokenSecretRef": {"name": "hf", "key": "TOKEN"},
    }
    assert (spec["prefill"]["replicas"], spec["decode"]["replicas"]) == (2, 3)
    assert spec["prefill"]["parallelism"] == {"tensor": 1}
    assert spec["decode"]["parallelism"] == {"tensor": 2}
    assert spec["prefill"]["args"] == ["--no-enable-prefix-caching"]
    assert spec["decode"]["args"] == ["--gpu-memory-utilization=0.9"]
    assert spec["decode"]["template"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert found["mistral"]["spec"]["mode"] == "Aggregated"
    assert found["mistral"]["spec"]["decode"]["parallelism"] == {"tensor": 2}


def test_what_cannot_be_carried_over_is_said_and_secrets_are_not() -> None:
    """A token in clear is named and never printed; autoscalers and volumes are named."""
    said = call(PRODUCTION_STACK).stdout
    assert "CANARY" not in said
    for words in ("mistral: hf_token stood", "mistral: keda was not carried over", "llama-prefill: pvcStorage"):
        assert f"# {words}" in said


def test_values_of_llm_d_become_one_pool() -> None:
    """Both roles with their sizes, arguments and places; the connector is the operator's to set."""
    result = call(LLM_D)
    spec = pools(result)["llama-70b"]["spec"]
    assert spec["model"] == {
        "id": "meta-llama/Llama-3.1-70B-Instruct",
        "servedNames": ["llama-70b"],
        "maxModelLen": 32000,
        "tokenSecretRef": {"name": "hf-token", "key": "HF_TOKEN"},
    }
    assert spec["prefill"]["args"] == ["--block-size=128"]
    assert spec["decode"]["parallelism"] == {"tensor": 4}
    assert spec["decode"]["template"] == {"nodeSelector": {"gpu": "h100"}}
    assert "# prefill: --kv-transfer-config was left out" in result.stdout


def test_a_graph_of_dynamo_becomes_one_pool() -> None:
    """Workers become roles, whichever way they are told apart; the frontend's place is the router's."""
    result = call(DYNAMO)
    found = pools(result)["vllm-disagg"]
    assert found["metadata"]["namespace"] == "serving"
    spec = found["spec"]
    assert spec["model"] == {"id": "Qwen/Qwen3-32B", "tokenSecretRef": {"name": "hf-token-secret", "key": "HF_TOKEN"}}
    assert (spec["prefill"]["replicas"], spec["decode"]["replicas"]) == (1, 2)
    assert (spec["prefill"]["parallelism"]["tensor"], spec["decode"]["parallelism"]["tensor"]) == (2, 4)
    assert spec["decode"]["args"] == ["--max-num-seqs", "64"]
    assert "# Frontend (frontend): the router, or autoscaling, takes its place" in result.stdout
    assert "engine" not in spec


def test_components_of_dynamos_newer_version_are_read_as_well() -> None:
    """v1beta1 holds pod templates; the engine is the container called main, and the side channel stays ours."""
    result = call(DYNAMO_BETA)
    spec = pools(result)["split"]["spec"]
    assert spec["model"] == {"id": "Qwen/Qwen3-32B", "tokenSecretRef": {"name": "hf", "key": "HF_TOKEN"}}
    assert spec["prefill"] == {
        "replicas": 2,
        "parallelism": {"tensor": 2},
        "env": [{"name": "A", "value": "1e3"}],
        "template": {"nodeSelector": {"gpu": "h100"}},
    }
    assert spec["decode"] == {"replicas": 1, "parallelism": {"tensor": 1}}
    assert "do not agree" not in result.stdout


def test_what_values_of_llm_d_take_from_one_another_is_filled_in() -> None:
    """The chart's own examples name the model once, and refer to it, in quotes or without; what is not there stays."""
    for uri in ("hf://{{ .Values.modelArtifacts.name }}", 'hf://"{{.Values.modelArtifacts.name}}"'):
        text = f"modelArtifacts: {{name: org/m, uri: '{uri}'}}\ndecode: {{replicas: 1}}"
        assert pools(call(text))["m"]["spec"]["model"] == {"id": "org/m"}
    unknown = "modelArtifacts: {uri: 'hf://{{ .Values.no.where }}'}\ndecode: {replicas: 1}"
    assert "to be mended" in call(unknown).stdout


def test_what_an_engine_of_the_production_stack_asks_for_is_kept() -> None:
    """CPU and memory become requests of the role."""
    text = "servingEngineSpec: {modelSpec: [{name: x, modelURL: o/m, requestCPU: 8, requestMemory: 30Gi}]}"
    assert pools(call(text))["x"]["spec"]["decode"]["resources"] == {"requests": {"cpu": "8", "memory": "30Gi"}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("servingEngineSpec: {modelSpec: [{name: x}]}", "servingEngineSpec.modelSpec[0].modelURL"),
        ("modelArtifacts: {uri: s3://x}\ndecode: {replicas: 1}", "modelArtifacts.uri"),
        ("modelArtifacts: {uri: hf://x}", "neither prefill nor decode"),
        ("modelArtifacts: {uri: hf://x}\nmultinode: true\ndecode: {replicas: 1}", "multinode"),
        ("kind: DynamoGraphDeployment\nspec: {services: {Frontend: {componentType: frontend}}}", "no vLLM worker"),
        (
            DYNAMO.replace("dynamo.vllm", "dynamo.sglang"),
            "only vLLM workers",
        ),
        ("a: [", "<stdin>"),
    ],
)
def test_what_no_pool_can_be_made_of_is_refused_by_name(text: str, words: str) -> None:
    """The message names the file and the field."""
    result = call(text)
    assert result.exit_code == 1
    assert words in result.output


def test_a_file_of_nothing_known_says_so() -> None:
    """No system is guessed: the exit status is 1, and the known ones are named."""
    result = call("kind: Deployment")
    assert result.exit_code == 1
    assert "dynamo, llm-d, production-stack" in result.output


def test_a_difference_that_a_pool_cannot_have_is_said() -> None:
    """Two lengths of one model: the first is taken, and both are named."""
    said = call(LLM_D.replace("--max-model-len=32000", "--max-model-len=16000")).stdout
    assert "# --max-model-len differs between the roles (32000, 16000)" in said
