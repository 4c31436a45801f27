"""What one stand-in engine is: the settings of vLLM's command line that change what it does, as plain values.

Boundary: no parsing (that is `cli`) and no behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from e2e.engine.standin.events import EventsConfig

KvRole = Literal["kv_producer", "kv_consumer", "kv_both"]
VERSION = "0.32.0"


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """One engine. The defaults are the tiny model's on the real engine, but longer contexts, so that bytes agree."""

    model: str = "tiny"
    served_names: tuple[str, ...] = ("tiny",)
    host: str = "127.0.0.1"
    port: int = 0  # 0: a free one
    kv_role: KvRole | None = None
    engine_id: str | None = None  # None: a fresh one
    lease_s: float = 30.0
    on_failure: Literal["fail", "recompute"] = "fail"
    side_channel_host: str = "127.0.0.1"
    side_channel_port: int = 0  # of rank 0; 0: a free one for each rank
    block_tokens: int = 32
    blocks: int = 16_384  # one of them is never used
    kv_bytes_per_token: int = 2048
    max_model_len: int = 131_072
    max_seqs: int = 256
    prefix_caching: bool = True
    prompt_tokens_details: bool = True
    events: EventsConfig = field(default_factory=EventsConfig)
    data_parallel: int = 1
    lora: bool = False
    lora_updating: bool = False
    adapters: tuple[tuple[str, str], ...] = ()  # (name, path)
    scale_out: bool = False
    shutdown_timeout_s: float = 0.0

    @property
    def pulls(self) -> bool:
        """Whether the engine has a connector at all: the role binds nothing."""
        return self.kv_role is not None

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint` of answers."""
        return f"vllm-{VERSION}-standin"
