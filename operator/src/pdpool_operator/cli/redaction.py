"""Takes out of objects and texts what must not be handed on: credentials, and what users asked the model.

Boundary: pure. Values of environment variables are taken out unless the variable is known to be harmless; what was
taken out of an object is then looked for in every text, because logs repeat arguments and environments.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

REMOVED: Final = "<removed>"
_HARMLESS: Final = re.compile(
    r"(CUDA|HF_HUB|LD|NCCL|NVIDIA|OMP|PDPOOL|PYTHON|TORCH|UCX|VLLM)_|(HF_HOME|PATH|PYTHONPATH|POD_\w+)\Z"
)
"""Beginnings of names whose values tell how the engine runs."""
_WORDS: Final = (
    r"(?:api[_-]?keys?|(?:access|secret|private)[_-]?keys?|token|secret|passw(?:or)?d|credentials?|authorization|salt)"
)
_SENSITIVE_NAME: Final = re.compile(rf".*{_WORDS}\Z", re.IGNORECASE | re.DOTALL)
_MIN_LENGTH: Final = 6
"""Shorter values stand everywhere by chance."""
_DROPPED_ANNOTATION: Final = "kubectl.kubernetes.io/last-applied-configuration"

_VALUE: Final = r"(?!<removed>|(?:true|false|null)\b)[^\s\"',;&)\]}]+"
_PATTERNS: Final = (
    (re.compile(r"\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE), rf"\1 {REMOVED}"),
    (re.compile(r"\b(?:hf_|sk-|ghp_|glpat-|AKIA)[A-Za-z0-9_-]{8,}"), REMOVED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"), REMOVED),  # a JSON Web Token
    (re.compile(r"(?<=://)[^/\s@\"']+@"), f"{REMOVED}@"),
    # A field or a flag whose name says what it is, in JSON, YAML, a Python repr or a command line.
    (re.compile(rf"({_WORDS}[\"']?[ \t]*[:=][ \t]*[\[(]?+[\"']?+){_VALUE}", re.IGNORECASE), rf"\1{REMOVED}"),
    (re.compile(rf"(--[\w-]*{_WORDS}[ \t]+)(?!-){_VALUE}", re.IGNORECASE), rf"\1{REMOVED}"),
    # What an engine says of a request when it was told to log requests.
    (re.compile(r"(Received request )(?!<removed>).*"), rf"\1{REMOVED}"),
)


class Redaction:
    """What was found secret so far; objects first, then texts."""

    def __init__(self) -> None:
        self._found: set[str] = set()

    def of_object(self, value: Any) -> Any:
        """The object without secrets, `managedFields` and what `kubectl apply` remembers."""
        return self._of(value)

    def of_text(self, text: str) -> str:
        """The text without what was found in objects, nor what looks like a credential."""
        for each in sorted(self._found, key=len, reverse=True):
            text = text.replace(each, REMOVED)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text

    def _of(self, value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {
                key: self._of(each, key)
                for key, each in value.items()
                if key not in ("managedFields", _DROPPED_ANNOTATION)
            }
        if isinstance(value, list):
            if name == "env":
                return [self._variable(each) for each in value]
            if name in ("args", "command"):
                return list(self._arguments(value))
            return [self._of(each) for each in value]
        if isinstance(value, str) and _SENSITIVE_NAME.match(name):
            return self._taken_out(value)
        return value

    def _variable(self, variable: Any) -> Any:
        if not isinstance(variable, dict) or not isinstance(variable.get("value"), str):
            return variable
        name = str(variable.get("name", ""))
        is_harmless = _HARMLESS.match(name) and not _SENSITIVE_NAME.match(name)
        return variable if is_harmless else {**variable, "value": self._taken_out(variable["value"])}

    def _arguments(self, arguments: Iterable[Any]) -> Iterable[Any]:
        """Values of flags whose name says that they are secret: after `=`, and every word up to the next flag."""
        is_secret = False
        for each in arguments:
            word = str(each)
            if not word.startswith("-"):
                yield self._taken_out(word) if is_secret else each
                continue
            flag, equals, value = word.partition("=")
            is_secret = bool(_SENSITIVE_NAME.match(flag))
            yield f"{flag}={self._taken_out(value)}" if is_secret and equals else each

    def _taken_out(self, value: str) -> str:
        if len(value) >= _MIN_LENGTH:
            self._found.add(value)
        return REMOVED if value else value
