"""The stand-in engine: speaks vLLM's protocols (HTTP, metrics, KV events) without a model.

Boundary: what a router, an operator or a client can see of vLLM 0.32 is imitated, and held to it by one table of
exchanges that drives both (`e2e.engine.exchanges`); what an answer means is not: text is a checksum of the prompt. KV
travels between stand-ins over a channel of their own. It can be told to misbehave (`Rule`), which the real engine
cannot.
"""

from e2e.engine.standin.clock import ManualClock, RealClock
from e2e.engine.standin.config import EngineConfig
from e2e.engine.standin.events import EventsConfig
from e2e.engine.standin.http import Recorded
from e2e.engine.standin.script import Pace, Rule, Settings, Startup
from e2e.engine.standin.standin import Standin

__all__ = [
    "EngineConfig",
    "EventsConfig",
    "ManualClock",
    "Pace",
    "RealClock",
    "Recorded",
    "Rule",
    "Settings",
    "Standin",
    "Startup",
]
