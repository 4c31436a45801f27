"""Reads a few figures out of an engine's metrics page, without parsing the rest of it.

Boundary: pure, from bytes to numbers. A page is a hundred kilobytes and a choice needs five lines of it: they are
found by searching, and only they are taken apart. Several series (data-parallel ranks, stages) are summed where they
count and give their maximum where they are shares. What is absent, NaN or infinite is unknown, never zero.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pdpool_api.engines.vllm.metrics import Metric

_BLOCK_SIZE = re.compile(rb'[{,]block_size="(\d{1,9})"')


def total(page: bytes, metric: Metric) -> float | None:
    """The sum over all series; None: unknown, or one of them is."""
    return _combined(page, metric, sum)


def highest(page: bytes, metric: Metric) -> float | None:
    """The maximum over all series; None: unknown, or one of them is."""
    return _combined(page, metric, max)


def block_tokens(page: bytes, metric: Metric) -> int | None:
    """The block size that an information metric carries as a label; None: unknown."""
    for name in metric.names:
        for line in _lines(page, name.encode()):
            found = _BLOCK_SIZE.search(line)
            if found is not None:
                return int(found[1]) or None
    return None


def _combined(page: bytes, metric: Metric, combine: Callable[[Iterable[float]], float]) -> float | None:
    for name in metric.names:
        values = [_value(line) for line in _lines(page, name.encode())]
        if values:
            known = [each for each in values if each is not None]
            return combine(known) if len(known) == len(values) else None
    return None


def _lines(page: bytes, name: bytes) -> list[bytes]:
    """The lines of one metric."""
    found: list[bytes] = []
    at = -1
    while (at := page.find(name, at + 1)) >= 0:
        after = page[at + len(name) : at + len(name) + 1]
        if (at and page[at - 1 : at] != b"\n") or after not in {b"{", b" "}:
            continue
        end = page.find(b"\n", at)
        found.append(page[at : end if end >= 0 else len(page)])
    return found


def _value(line: bytes) -> float | None:
    """The number of a sample line; a time stamp may follow it, and label values may hold anything but a bare quote."""
    end = line.rfind(b"}")
    parts = line[end + 1 :].split() if end >= 0 else line.split()[1:]
    try:
        value = float(parts[0])
    except (IndexError, ValueError):
        return None
    return value if math.isfinite(value) else None
