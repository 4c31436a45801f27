"""YAML of several documents as values, read by libyaml where PyYAML has it.

Boundary: text in, objects out; and what objects hold. Definitions of resources are long: read by Python itself, each
takes seconds.
"""

from __future__ import annotations

from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def documents(text: str) -> list[dict[str, Any]]:
    """The objects of a text; empty documents are left out."""
    return [each for each in yaml.load_all(text, Loader=_Loader) if each]


def contains(stored: Any, wanted: Any) -> bool:
    """Whether everything wanted is there; in objects more may stand beside it, as defaults do."""
    if isinstance(wanted, dict):
        return isinstance(stored, dict) and all(
            key in stored and contains(stored[key], each) for key, each in wanted.items()
        )
    return bool(stored == wanted)
