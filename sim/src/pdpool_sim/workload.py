"""Requests to replay: when they come, how long they are, and which blocks their prompts are made of.

Boundary: values. Block ids are chained by construction: two prompts share a prefix exactly as far as their ids agree.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from random import Random

TRACE_BLOCK_TOKENS = 512
TRACE_QUANTUM_S = 3.0
"""The published trace counts arrivals in steps of three seconds."""


class TraceError(ValueError):
    """A trace that cannot be read; the message names the line and the rule."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    number: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]
    """Ids of the prompt's full blocks."""
    answer_blocks: tuple[int, ...] = ()
    """Ids of further blocks that prompt and answer fill together; known where a later turn repeats the answer."""
    tenant: str = ""
    session: str = ""
    opening_tokens: int = 0
    """Tokens up to the end of the conversation's first message, which other conversations may share; 0: not known."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A named list of calls in order of arrival."""

    name: str
    block_tokens: int
    calls: tuple[Call, ...]

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.calls[-1].arrival_s - self.calls[0].arrival_s if self.calls else 0.0

    @property
    def distinct_blocks(self) -> int:
        """Different blocks in all prompts."""
        return len({block for call in self.calls for block in call.blocks})

    def scaled(self, factor: float) -> Workload:
        """The same calls, arriving `factor` times as fast."""
        return replace(self, calls=tuple(replace(call, arrival_s=call.arrival_s / factor) for call in self.calls))

    def head(self, count: int) -> Workload:
        """The first calls."""
        return replace(self, calls=self.calls[:count])


def in_order(name: str, block_tokens: int, calls: Iterable[Call]) -> Workload:
    """A workload from calls in any order; they are numbered by arrival."""
    ordered = sorted(calls, key=lambda call: (call.arrival_s, call.number))
    return Workload(name, block_tokens, tuple(replace(call, number=number) for number, call in enumerate(ordered)))


def read_trace(path: Path, rng: Random, *, limit: int | None = None) -> Workload:
    """A trace in the form of the Mooncake paper's: a JSON object a line with timestamp, lengths and `hash_ids`.

    Its clock has steps of three seconds; calls of one step are spread over it by chance, in their order, because ten
    arrivals in one instant are an artefact that no router meets.

    Raises:
        TraceError: a line is not such an object.
    """
    rows: list[tuple[float, int, int, list[int]]] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if limit is not None and len(rows) >= limit:
                break
            rows.append(_row(line, number))
    return in_order(path.stem, TRACE_BLOCK_TOKENS, _spread(rows, rng))


def _row(line: str, number: int) -> tuple[float, int, int, list[int]]:
    try:
        raw = json.loads(line)
        stamp_ms, prompt, output, ids = (raw[key] for key in ("timestamp", "input_length", "output_length", "hash_ids"))
    except (ValueError, KeyError, TypeError) as fault:
        raise TraceError(
            f"line {number}: not an object with timestamp, input_length, output_length, hash_ids"
        ) from fault
    if not all(isinstance(each, int) for each in (stamp_ms, prompt, output)) or not isinstance(ids, list):
        raise TraceError(f"line {number}: timestamp and lengths must be whole numbers, hash_ids a list")
    if stamp_ms < 0 or prompt < 1 or output < 0 or len(ids) < prompt // TRACE_BLOCK_TOKENS:
        raise TraceError(f"line {number}: lengths must be positive, with an id for each {TRACE_BLOCK_TOKENS} tokens")
    return stamp_ms / 1000, prompt, max(1, output), ids


def _spread(rows: Sequence[tuple[float, int, int, list[int]]], rng: Random) -> Iterable[Call]:
    at = 0
    while at < len(rows):
        end = at
        while end < len(rows) and rows[end][0] == rows[at][0]:
            end += 1
        offsets = sorted(rng.random() * TRACE_QUANTUM_S for _ in range(end - at))
        for index, offset in zip(range(at, end), offsets, strict=True):
            stamp_s, prompt, output, ids = rows[index]
            full = prompt // TRACE_BLOCK_TOKENS
            # All share the first block; who shares the second too is of one conversation.
            session, opening = (str(ids[1]), 2 * TRACE_BLOCK_TOKENS) if len(ids) > 1 else ("", 0)
            yield Call(
                index, stamp_s + offset, prompt, output, tuple(ids[:full]), session=session, opening_tokens=opening
            )
        at = end
