"""YAML of several documents as values, read by libyaml where PyYAML has it.

Boundary: text in, objects out. Definitions of resources are long: read by Python itself, each takes seconds.
"""

from __future__ import annotations

from typing import Any

import yaml

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def documents(text: str) -> list[dict[str, Any]]:
    """The objects of a text; empty documents are left out."""
    return [each for each in yaml.load_all(text, Loader=_Loader) if each]
