"""A pool on its way from another system, and engine arguments taken apart.

Boundary: what the readers of the single systems share.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pdpool_api import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pdpool_operator.records import Json

_SET_HERE: Final = frozenset({
    "--model", "--host", "--port", "--served-model-name", "--kv-transfer-config", "--kv-events-config",
    "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp",
    "--max-model-len", "--revision", "--disaggregation-mode", "--is-prefill-worker", "--is-decode-worker",
})  # fmt: skip
"""Flags that become fields of a pool, or that the operator sets itself."""
_SWITCHES: Final = frozenset({"--is-prefill-worker", "--is-decode-worker"})
_SIDE_CHANNEL: Final = "VLLM_NIXL_SIDE_CHANNEL_"
"""Variables of it are the operator's: another port or host than the declared ones would cut the roles off."""
_TOLD: Final = frozenset({"--kv-transfer-config", "--kv-events-config"})


class CarryError(Exception):
    """What a pool cannot do without is missing; the message names the field."""


@dataclass(slots=True)
class Carried:
    """One pool, and what could not be carried over into it."""

    pool: Json
    remarks: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Arguments:
    """An engine's command line, taken apart."""

    kept: list[str] = field(default_factory=list)
    """Flags that a pool takes as they are, in their order."""
    known: dict[str, str] = field(default_factory=dict)
    """Those that become fields, by their name; a switch is `true`."""

    def number(self, *flags: str) -> int | None:
        """The whole number of the first of these flags that is given."""
        text = next((self.known[flag] for flag in flags if flag in self.known), "")
        return int(text) if text.isdecimal() else None


def arguments(given: Iterable[Any]) -> Arguments:
    """Engine arguments, each as `--flag value`, `--flag=value` or alone."""
    found = Arguments()
    words = iter([str(each) for each in given])
    for word in words:
        flag, equals, value = word.partition("=")
        if flag not in _SET_HERE:
            found.kept.append(word)
        elif flag in _SWITCHES:
            found.known[flag] = "true"
        else:
            found.known[flag] = value if equals else next(words, "")
    return found


def told(found: Arguments) -> Iterator[str]:
    """Remarks on flags that the operator sets itself and that are therefore left out."""
    for flag in sorted(_TOLD & found.known.keys()):
        yield f"{flag} was left out: the operator sets it for each role"


def without_set_here(env: Iterable[Json]) -> list[Json]:
    """Variables without those that the operator sets itself."""
    return [each for each in env if not str(each.get("name")).startswith(_SIDE_CHANNEL)]


def pool(name: str, namespace: str | None, spec: Json) -> Json:
    """The object, without fields that hold nothing."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": dense(spec)}


def dense(value: Any) -> Any:
    """The value without members that are None or empty; zero and false stay."""
    if isinstance(value, dict):
        return {key: held for key, each in value.items() if (held := dense(each)) not in (None, {}, [], "")}
    return [dense(each) for each in value] if isinstance(value, list) else value


def roles(prefill: Json | None, decode: Json | None) -> Json:
    """Both roles; where one alone is given it does both phases."""
    if prefill is not None and decode is not None:
        return {"prefill": prefill, "decode": decode}
    return {"mode": "Aggregated", "decode": decode if decode is not None else prefill}


def agreed(what: str, values: Sequence[Any], remarks: list[str]) -> Any:
    """The one value that both roles have; where they differ the first, with a remark."""
    differing = [each for each in values if each]
    if any(each != differing[0] for each in differing):
        remarks.append(f"{what} differs between the roles ({', '.join(map(str, differing))}): a pool has one; check it")
    return differing[0] if differing else None
