"""YAML scalars as `kubectl` takes them: `70.6e9` is a number, `12:30` and `2026-01-01` are words.

Boundary: which plain words are numbers, and how text is laid out; what else a loader is strict about is its own. PyYAML
follows YAML 1.1, in which an exponent needs a sign. All that is read from people is read alike, and what is written is
quoted wherever one of the two would take a word for something else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    _Dumper = yaml.SafeDumper
else:
    # libyaml's where PyYAML has it: by itself PyYAML takes a quarter of the time in which a pool is planned.
    _Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

_NUMBER_STARTS: Final = list("-+0123456789.")
_INTEGER: Final = re.compile(r"^[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0o?[0-7_]+|0|[1-9][0-9_]*)$")
_FLOAT: Final = re.compile(
    r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$"
)
_INTEGER_TAG: Final = "tag:yaml.org,2002:int"
_FLOAT_TAG: Final = "tag:yaml.org,2002:float"
_REPLACED: Final = (_INTEGER_TAG, _FLOAT_TAG, "tag:yaml.org,2002:timestamp")


class Loader(yaml.SafeLoader):
    """`yaml.SafeLoader` with `kubectl`'s numbers, and no times."""


Loader.yaml_implicit_resolvers = {
    first: [each for each in resolvers if each[0] not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class Dumper(_Dumper):
    """`yaml.SafeDumper` that also quotes the words that only `kubectl` takes for numbers."""


for _kind in (Loader, Dumper):
    _kind.add_implicit_resolver(_INTEGER_TAG, _INTEGER, _NUMBER_STARTS)
    _kind.add_implicit_resolver(_FLOAT_TAG, _FLOAT, _NUMBER_STARTS)


def for_people(value: Any) -> str:
    """The text of an object as the command line shows it: fields in their order, lines of up to 120 characters."""
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)
