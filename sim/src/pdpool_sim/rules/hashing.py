"""A static hash of a prompt's first blocks, as consistent hashing on a prefix does."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from pdpool_sim.rule import Chosen, Reports
from pdpool_sim.rules.simple import least_in_flight

if TYPE_CHECKING:
    from pdpool_sim.rule import Setting
    from pdpool_sim.workload import Call

FIRST_BLOCKS: Final = 4
"""More than a shared system prompt, less than a conversation."""


class StaticHash(Reports):
    """Prefill by the hash of the first blocks, whatever the load; decode by fewest in flight."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._uids = list(setting.prefill.by_uid)

    def plan(self, call: Call) -> Chosen:
        """See `Rule.plan`."""
        first = ",".join(map(str, call.blocks[:FIRST_BLOCKS])) or f"call {call.number}"
        digest = hashlib.blake2b(first.encode(), digest_size=8).digest()
        return Chosen(self._uids[int.from_bytes(digest, "big") % len(self._uids)])

    def place(self, call: Call, prefill_uid: str) -> str:
        """See `Rule.place`."""
        del call, prefill_uid
        return least_in_flight(self._setting.decode, self._setting.rng)
