"""vLLM: arguments, probes, ports, metric names, and the bodies of the two legs. Pure.

Every function takes a spec whose images are resolved (`InferencePoolSpec.with_images`) and a role.
"""

from pdpool_api.engines.vllm.advice import advice
from pdpool_api.engines.vllm.arguments import arguments, reserved_arguments, transfer_config
from pdpool_api.engines.vllm.compatibility import Disagreement, disagreements, revision, settings, shared_settings
from pdpool_api.engines.vllm.environment import KEEP_ALIVE_S, environment
from pdpool_api.engines.vllm.flags import ArgumentError
from pdpool_api.engines.vllm.lifecycle import drain_s, pre_stop, shutdown_timeout_s, termination_grace_seconds
from pdpool_api.engines.vllm.parallelism import parallelism
from pdpool_api.engines.vllm.ports import event_ports, http_port, ports
from pdpool_api.engines.vllm.probes import probes
from pdpool_api.engines.vllm.sizes import (
    is_on,
    kv_value_bytes,
    max_model_len,
    memory_utilization,
    number,
    setting,
    weights_are_as_published,
)
from pdpool_api.engines.vllm.version import unsupported_version, version

__all__ = [
    "KEEP_ALIVE_S",
    "ArgumentError",
    "Disagreement",
    "advice",
    "arguments",
    "disagreements",
    "drain_s",
    "environment",
    "event_ports",
    "http_port",
    "is_on",
    "kv_value_bytes",
    "max_model_len",
    "memory_utilization",
    "number",
    "parallelism",
    "ports",
    "pre_stop",
    "probes",
    "reserved_arguments",
    "revision",
    "setting",
    "settings",
    "shared_settings",
    "shutdown_timeout_s",
    "termination_grace_seconds",
    "transfer_config",
    "unsupported_version",
    "version",
    "weights_are_as_published",
]
