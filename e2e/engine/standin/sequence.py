"""One job in the engine: its blocks, what they hold, and what the answer will be.

Boundary: pure bookkeeping about a single sequence; taking blocks, time and numbers are `rank`'s business.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from e2e.engine.standin import kv, tokens

if TYPE_CHECKING:
    import asyncio

    from e2e.engine.standin.request import Job
    from e2e.engine.standin.script import Rule


class EngineDeadError(Exception):
    """The engine core has died: every request is answered 500 and the port closes."""


class GenerationError(Exception):
    """The engine ended a request with finish reason `error`."""


@dataclass(slots=True)
class Outcome:
    """What a generation says beside its tokens; complete when the iteration is over."""

    cached_tokens: int = 0
    answer: list[bytes] = field(default_factory=list)
    text_length: int | None = None  # characters of the answer, when a stop string cuts it short
    finish_reason: str | None = None
    stop_reason: str | None = None
    transfer: dict[str, Any] | None = None


@dataclass(slots=True)
class Sequence:
    """A job with its blocks. Offsets are bytes of `known`, two a token."""

    job: Job
    block_bytes: int
    blocks: list[kv.Block] = field(default_factory=list)
    hits: list[kv.Content] = field(default_factory=list)  # of the leading blocks that were not computed here
    keys: list[int] = field(default_factory=list)
    known: bytearray = field(default_factory=bytearray)  # all tokens, generated ones included
    model_state: int = 0  # after the prompt
    pulled: bool = False
    task: asyncio.Task[Any] | None = None
    aborted: bool = False

    @property
    def wants_lease(self) -> bool:
        """Whether this is a first leg, whose blocks another engine will read."""
        return bool(self.job.transfer and self.job.transfer.get("do_remote_decode"))

    @property
    def computed(self) -> int:
        """Bytes of the tokens whose KV exists: the newest token's is computed in the next step."""
        return len(self.known) - tokens.TOKEN_BYTES

    def compute(self, cached_tokens: int) -> None:
        """Bring the prompt's state about from the hits and the tokens after them."""
        self.model_state = zlib.crc32(self.job.prompt[cached_tokens * tokens.TOKEN_BYTES :], self._state_after_hits())

    def adopt(self, held: list[kv.Content]) -> None:
        """Take pulled contents as the prompt's KV; only the last token is computed here, as on a real engine."""
        self.pulled = True
        self.hits += held
        before_last = (len(self.job.prompt) - tokens.TOKEN_BYTES) % self.block_bytes
        last = held[-1] if held else kv.Content(0, b"")
        own = self.job.prompt[-tokens.TOKEN_BYTES :]
        self.model_state = zlib.crc32(last.tokens[:before_last] + own, last.before)

    def contents(self, start: int, end: int) -> list[kv.Content]:
        """What the blocks from byte `start` (a block's border) to `end` hold."""
        first, pulled = start // self.block_bytes, len(self.hits)
        if self.pulled and first < pulled and end <= pulled * self.block_bytes:
            return self.hits[first : -(-end // self.block_bytes)]
        block_tokens = self.block_bytes // tokens.TOKEN_BYTES
        return kv.contents(bytes(self.known[start:end]), block_tokens, self._state_at(start))

    def held(self) -> list[kv.Content]:
        """What all blocks hold, for a reader."""
        return self.hits + self.contents(len(self.hits) * self.block_bytes, self.computed)

    def _state_after_hits(self) -> int:
        """The state after the hits; an adapter is another model, so it starts from another one."""
        if self.hits:
            return self.hits[-1].after
        return zlib.crc32(self.job.adapter[1].encode()) if self.job.adapter else 0

    def _state_at(self, at: int) -> int:
        """The state of the tokens before byte `at`, a block's border."""
        prompt_bytes = len(self.job.prompt)
        if at >= prompt_bytes:
            return zlib.crc32(bytes(self.known[prompt_bytes:at]), self.model_state)
        held = len(self.hits) * self.block_bytes
        if at < held:
            return self.hits[at // self.block_bytes].before
        return zlib.crc32(bytes(self.known[held:at]), self._state_after_hits())

    def answer(self, outcome: Outcome, rule: Rule | None) -> tuple[list[bytes], bool]:
        """The answer's tokens, and whether it ends by itself."""
        job = self.job
        if rule is not None and rule.text is not None:
            return [text.encode() for text in rule.text], True
        most = job.most_tokens if rule is None or rule.tokens is None else rule.tokens
        answer, ended = tokens.continuation(
            self.model_state, most, ignore_eos=job.ignore_eos, salt=job.salt, least_tokens=job.least_tokens
        )
        return _stopped(answer, job, outcome, ended=ended) if job.stop else (answer, ended)


def _stopped(answer: list[bytes], job: Job, outcome: Outcome, *, ended: bool) -> tuple[list[bytes], bool]:
    """Cut an answer after the first stop string in it; the string itself is not shown."""
    text = b"".join(answer).decode("utf-8", "replace")
    found = [(text.index(stop) + len(stop), stop) for stop in job.stop if stop and stop in text]
    if not found:
        return answer, ended
    end, outcome.stop_reason = min(found)
    outcome.text_length = end - len(outcome.stop_reason)
    return answer[: -(-end // tokens.TOKEN_BYTES)], True
