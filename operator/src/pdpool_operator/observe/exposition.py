"""Prometheus text: the lines of the metrics that are wanted, and nothing else, as samples.

Boundary: no I/O. A page of an engine has thousands of lines, of which a tick needs a handful: only these reach a
parser. A value that is no finite number is unknown, and so is all that it is a part of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MAX_LINES: Final = 20_000
"""Wanted lines of one page; what is beyond is not read."""
_AFTER_NAME: Final = frozenset(b"{ \t")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line."""

    name: str
    labels: Mapping[str, str]
    value: float
    """A finite number, or NaN: unknown."""


class Page:
    """The wanted lines of one page."""

    def __init__(self, page: bytes, names: Iterable[str]) -> None:
        """Reads the page.

        Raises:
            ValueError: a wanted line is no line of the format.
        """
        wanted = sorted(set(names))
        self._page = page
        lines = [line for name in wanted for line in _lines(page, name.encode())][:MAX_LINES]
        self._samples: dict[str, list[Sample]] = {}
        for line in lines:
            # Braces stand in values of labels too, but not after them.
            closed = line.rfind(b"}") + 1
            head, said = (line[:closed], line[closed:]) if closed else line.split(None, 1)
            value, *_ = said.split(None, 1)
            number = float(value)
            name, labels = _head(head)
            known = number if math.isfinite(number) else math.nan
            self._samples.setdefault(name, []).append(Sample(name, labels, known))

    def samples(self, *names: str) -> list[Sample]:
        """Those of the first name that has any."""
        return next((found for name in names if (found := self._samples.get(name))), [])

    def total(self, *names: str) -> float | None:
        """The sum of a count over its label sets; None: it is not told, or not all of it."""
        found = self.samples(*names)
        if found:
            return _known(math.fsum(each.value for each in found))
        # A gauge without label sets has no line, but a header: it is told, and it is nothing.
        return 0.0 if any(self._has_header(name) for name in names) else None

    def _has_header(self, name: str) -> bool:
        header = f"# TYPE {name} ".encode()
        return self._page.startswith(header) or b"\n" + header in self._page

    def largest(self, *names: str) -> float | None:
        """The largest of a ratio's label sets; None: it is not told, or not all of them."""
        found = [each.value for each in self.samples(*names)]
        return None if not found or any(map(math.isnan, found)) else max(found)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


@lru_cache(maxsize=MAX_LINES)
def _head(head: bytes) -> tuple[str, Mapping[str, str]]:
    """Name and labels of a line: what parsing takes long for, and what is the same at every tick."""
    (family,) = text_string_to_metric_families(head.decode("utf-8", "replace") + " 0\n")
    (sample,) = family.samples
    return sample.name, sample.labels


def _lines(page: bytes, name: bytes) -> Iterator[bytes]:
    start = 0 if page.startswith(name) else page.find(b"\n" + name) + 1
    while start or page.startswith(name):
        after = start + len(name)
        end = page.find(b"\n", after)
        if page[after : after + 1] and page[after] in _AFTER_NAME:
            yield page[start : end if end >= 0 else len(page)]
        found = page.find(b"\n" + name, after)
        if found < 0:
            return
        start = found + 1
