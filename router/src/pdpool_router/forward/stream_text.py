"""What the text of a stream tells of its state: events, usage, whether it ended and how.

Boundary: pure; payload in, state out, whatever the reads it came in. Forwarding is `relay`'s business.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pdpool_api.engines.vllm import legs

if TYPE_CHECKING:
    from pdpool_api.engines.vllm.legs import Route, Usage

MAX_LINE_BYTES: Final = 65_536
FAILURE: Final = re.compile(rb'data: ?\{"error":[^\n]*"code": ?5\d\d[,}]')
"""An engine's own event of an error that is the engine's (5xx)."""
_BLANK_LINE: Final = (b"\n", b"\r\n")
_ERROR_EVENT: Final = b'\ndata: {"error"'
_EVENT: Final = re.compile(rb"^(?:event:|data: ?\{|data:(?! ?\[DONE\])[^\r\n]+\r?\n)", re.MULTILINE)
_COMMENTS: Final = re.compile(rb"(?::[^\n]*\n|\r?\n)*")


class StreamText:
    """Follows the text of one stream."""

    __slots__ = ("_carry", "_route", "at_event", "ended", "events", "spoke", "told_failure", "usage")

    def __init__(self, route: Route) -> None:
        self._route = route
        self._carry = b""
        """An unfinished line."""
        self.at_event = True
        """The text so far ends between two events."""
        self.ended = False
        """The engine has said that the stream is at its end."""
        self.spoke = False
        """There was an event: neither comments, which keep a connection alive, nor the end are one."""
        self.told_failure = False
        """The engine itself ended the stream with an error of its own (5xx)."""
        self.events = 0
        """Events that carry an object."""
        self.usage: Usage | None = None
        """Token counts that the stream told, if any."""

    def unfinished_with(self, payload: bytes) -> bool:
        """Whether this payload, added, tells that the engine gave the request up."""
        return legs.unfinished(self._carry + payload if self._carry else payload, self._route)

    def add(self, payload: bytes) -> None:
        """Notes what more of the text tells."""
        text = self._carry + payload if self._carry else payload
        self.events += text.count(b"data: {")
        if not self.spoke:
            self.spoke = _EVENT.search(text) is not None
        if b'"usage":{' in text or b'"usage": {' in text:
            self.usage = legs.streamed_usage(text) or self.usage
        if b"[DONE]" in text or b"event:" in text or b'"error"' in text:
            lines = b"\n" + text
            if legs.STREAM_END[self._route].search(lines) or _ERROR_EVENT in lines:
                self.ended = True
                self.told_failure = self.told_failure or FAILURE.search(lines) is not None
        if text.endswith(b"\n"):
            self.at_event = text.endswith((b"\n\n", b"\r\n\r\n")) or text in _BLANK_LINE
            self._carry = b""
        else:
            self.at_event = False
            self._carry = text[text.rfind(b"\n") + 1 :][-MAX_LINE_BYTES:]
            # An unfinished line is looked at again with what follows; its object counts once.
            self.events -= self._carry.count(b"data: {")


def after_comments(payload: bytes) -> bytes:
    """What a stream begins with but for comments, which keep a connection alive and say nothing."""
    found = _COMMENTS.match(payload)
    return payload[found.end() :] if found is not None else payload
