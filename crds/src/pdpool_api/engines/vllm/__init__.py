"""vLLM: arguments, probes, ports, metric names, and the bodies of the two legs. Pure.

Every function takes a spec whose images are resolved (`InferencePoolSpec.with_images`) and a role.
"""

from pdpool_api.engines.vllm.arguments import arguments, reserved_arguments, transfer_config
from pdpool_api.engines.vllm.compatibility import Disagreement, disagreements, revision, settings, shared_settings
from pdpool_api.engines.vllm.environment import environment
from pdpool_api.engines.vllm.flags import ArgumentError
from pdpool_api.engines.vllm.lifecycle import drain_s, pre_stop, shutdown_timeout_s, termination_grace_seconds
from pdpool_api.engines.vllm.parallelism import parallelism
from pdpool_api.engines.vllm.ports import ports
from pdpool_api.engines.vllm.probes import probes
from pdpool_api.engines.vllm.version import unsupported_version, version

__all__ = [
    "ArgumentError",
    "Disagreement",
    "arguments",
    "disagreements",
    "drain_s",
    "environment",
    "parallelism",
    "ports",
    "pre_stop",
    "probes",
    "reserved_arguments",
    "revision",
    "settings",
    "shared_settings",
    "shutdown_timeout_s",
    "termination_grace_seconds",
    "transfer_config",
    "unsupported_version",
    "version",
]
