"""Workloads made by chance from a seed: what users of an LLM do, in the shapes that matter to a router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_sim.generators.conversations import agents, chat
from pdpool_sim.generators.single import bursts, rag, shared_prompt, tenants
from pdpool_sim.generators.tracelike import trace_like

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from pdpool_sim.workload import Workload

GENERATORS: Final[Mapping[str, Callable[[Random, int], Workload]]] = {
    "chat": chat,
    "agents": agents,
    "rag": rag,
    "shared-prompt": shared_prompt,
    "bursts": bursts,
    "tenants": tenants,
    "trace-like": trace_like,
}
"""By name: from a source of chance and a number of requests to a workload of about one request a second."""
