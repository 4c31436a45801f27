"""Licences of what our images contain besides Debian: who says what, and whether we may ship it.

Boundary: reads the metadata of the packages in a layer, which is what is shipped.
"""

from __future__ import annotations

import re
import tarfile
from dataclasses import dataclass
from email.parser import Parser
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from email.message import Message
    from pathlib import Path

PERMISSIVE: Final = frozenset({
    "0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CNRI-Python", "ISC", "MIT", "PSF-2.0", "Unlicense",
    "ZPL-2.1",
})  # fmt: skip
WEAK_COPYLEFT: Final = frozenset({"MPL-2.0"})
"""Their files stay under their own terms, which shipping them unchanged meets."""
_SPOKEN: Final = (
    ("apache", "Apache-2.0"),
    ("mozilla public license 2", "MPL-2.0"),
    ("bsd", "BSD"),
    ("mit", "MIT"),
    ("isc", "ISC"),
    ("python software foundation", "PSF-2.0"),
)


@dataclass(frozen=True, slots=True)
class Licensed:
    """One package and its licence, as an SPDX expression where it gives one."""

    name: str
    version: str
    licence: str

    @property
    def allowed(self) -> bool:
        """Whether one side of each choice, and every part of each sum, is one that we may ship."""
        parts = re.sub(r"[()]", "", self.licence).split(" AND ")
        return bool(self.licence) and all(any(map(_known, part.split(" OR "))) for part in parts)


def _known(identifier: str) -> bool:
    return identifier.strip().partition(" WITH ")[0] in PERMISSIVE | WEAK_COPYLEFT


def of(layer: Path) -> Sequence[Licensed]:
    """The licences of the packages in a layer, by name."""
    with tarfile.open(layer) as archive:
        texts = [
            stream.read().decode()
            for member in archive
            if member.name.endswith(".dist-info/METADATA") and (stream := archive.extractfile(member)) is not None
        ]
    found = (licensed(Parser().parsestr(text, headersonly=True)) for text in texts)
    return sorted(found, key=lambda each: each.name.lower())


def licensed(told: Message) -> Licensed:
    """What a package's metadata say: an expression, else classifiers, else words."""
    classifiers = [each for each in told.get_all("Classifier") or () if each.startswith("License :: ")]
    spoken = " ".join(classifiers) or (told["License"] or "").partition("\n")[0]
    return Licensed(told["Name"], told["Version"], told["License-Expression"] or _spdx(spoken))


def _spdx(spoken: str) -> str:
    """The identifier of a licence that is named in words; empty: it is not known."""
    lower = spoken.lower()
    return next((identifier for word, identifier in _SPOKEN if re.search(rf"\b{word}\b", lower)), "")


def table(found: Iterable[Licensed]) -> str:
    """As a page."""
    rows = "".join(f"| {each.name} | {each.version} | {each.licence} |\n" for each in found)
    return f"# Licences of third-party packages\n\n| package | version | licence |\n| --- | --- | --- |\n{rows}"
