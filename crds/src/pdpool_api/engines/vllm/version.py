"""The engine's version: read from the spec or from the image's tag, and which flags are newer than others.

Boundary: pure. Unknown counts as the newest, so that a pool with an image of one's own works; a flag newer than a known
version is not generated, because an unknown flag ends the engine at its start.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pdpool_api.pool import InferencePoolSpec

Version = tuple[int, int]

OLDEST: Final[Version] = (0, 30)
"""Oldest supported version; 0.32 is the one that everything is tested with."""

_SINCE: Final[dict[str, Version]] = {
    "--device-memory-utilization": (0, 32),
    "--long-prefill-token-threshold-adaptive": (0, 32),
    "--max-num-active-seqs": (0, 32),
}
"""First version known to have a flag, for flags younger than `OLDEST` (the parsers of 0.30 and 0.32 compared)."""

_NUMBER = re.compile(r"v?(\d+)\.(\d+)")


def version(spec: InferencePoolSpec) -> Version | None:
    """Major and minor version of the pool's engine; None: unknown.

    `engine.version` is believed as it stands. A tag counts only from the oldest supported version upward: an image of
    one's own may well number itself otherwise.
    """
    given = _NUMBER.match(spec.engine.version)
    if given is not None:
        return _pair(given)
    tagged = _NUMBER.match(_tag(spec.engine.image))
    if tagged is not None and _pair(tagged) >= OLDEST:
        return _pair(tagged)
    return None


def unsupported_version(spec: InferencePoolSpec) -> str | None:
    """Why the engine cannot be run, naming field and rule; None: it can."""
    found = version(spec)
    if found is None or found >= OLDEST:
        return None
    return (
        f"spec.engine.version: vLLM {spec.engine.version} is older than {_text(OLDEST)}, the oldest supported version"
    )


def has_flag(flag: str, found: Version | None) -> bool:
    """Whether an engine of this version knows a flag that the operator would generate."""
    return found is None or found >= _SINCE.get(flag, OLDEST)


def _tag(image: str) -> str:
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def _pair(match: re.Match[str]) -> Version:
    return int(match[1]), int(match[2])


def _text(pair: Version) -> str:
    return ".".join(map(str, pair))
