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

_PUBLISHED: Final = re.compile(r"(?:.*/)?vllm/vllm-openai\Z")
"""The project's own images, from whatever registry: their tags number the engine."""
_NUMBER = re.compile(r"v?(\d+)\.(\d+)")


def version(spec: InferencePoolSpec) -> Version | None:
    """Major and minor version of the pool's engine; None: unknown.

    `engine.version` is believed as it stands, and so are tags of the project's own images. Any other tag counts only
    from the oldest supported version upward: an image of one's own may well number itself otherwise.
    """
    given = _NUMBER.match(spec.engine.version)
    if given is not None:
        return _pair(given)
    tagged = _tagged(spec)
    if tagged is not None and (tagged >= OLDEST or _PUBLISHED.match(_repository(spec.engine.image))):
        return tagged
    return None


def doubtful_tag(spec: InferencePoolSpec) -> str | None:
    """What to say of a tag that reads like a version older than the supported ones, and may be none; None: nothing."""
    tagged = _tagged(spec)
    if version(spec) is not None or tagged is None:
        return None
    return (
        f"the tag of {spec.engine.image} reads like {_text(tagged)}, older than vLLM {_text(OLDEST)}, the oldest"
        " supported version; it counts as the newest (spec.engine.version can tell which it is)"
    )


def unsupported_version(spec: InferencePoolSpec) -> str | None:
    """Why the engine cannot be run, naming field and rule; None: it can."""
    found = version(spec)
    if found is None or found >= OLDEST:
        return None
    said = f"spec.engine.version: vLLM {spec.engine.version}" if spec.engine.version else f"{spec.engine.image}: vLLM"
    return f"{said} is older than {_text(OLDEST)}, the oldest supported version"


def has_flag(flag: str, found: Version | None) -> bool:
    """Whether an engine of this version knows a flag that the operator would generate."""
    return found is None or found >= _SINCE.get(flag, OLDEST)


def _tagged(spec: InferencePoolSpec) -> Version | None:
    match = _NUMBER.match(_tag(spec.engine.image))
    return None if match is None else _pair(match)


def _tag(image: str) -> str:
    return image.partition("@")[0].rpartition("/")[2].partition(":")[2]


def _repository(image: str) -> str:
    """The image without tag and digest; a registry's port is no tag."""
    name = image.partition("@")[0]
    return name.removesuffix(f":{_tag(image)}")


def _pair(match: re.Match[str]) -> Version:
    return int(match[1]), int(match[2])


def _text(pair: Version) -> str:
    return ".".join(map(str, pair))
