"""Answers that refuse a body, with vLLM's status and error fields.

Boundary: pure values; what is refused is `schema`'s and `request`'s business.
"""

from __future__ import annotations

from typing import Any

Body = dict[str, Any]


class RefusedError(Exception):
    """An answer that is an error: HTTP status and vLLM's error fields."""

    def __init__(
        self, message: str, *, status: int = 400, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.param = status, kind, param

    def body(self) -> Body:
        """The error in vLLM's shape."""
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


def parameter(message: str, name: str, value: object = None) -> RefusedError:
    """A parameter whose value vLLM itself refuses."""
    shown = "" if value is None else f", value={value}"
    return RefusedError(f"{message} (parameter={name}{shown})", param=name)


def invalid(location: str, kind: str, message: str, given: object) -> RefusedError:
    """A body that does not fit the schema, as the validation library reports it."""
    text = f"1 validation error:\n  {{'type': '{kind}', 'loc': '{location}', 'msg': '{message}', 'input': '{given}'}}"
    return RefusedError(text, kind="Bad Request", param=location)
