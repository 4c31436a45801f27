"""One long answer through a pool's router, read by a thread of its own: the witness that a change cuts no stream.

Boundary: one request to the one address it is given; it judges nothing.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import httpx

TIMEOUT_S = 120.0
"""Of one read, not of the whole."""


@dataclass
class Stream:
    """Starts at once."""

    url: str
    model: str
    prompt: str
    max_tokens: int
    text: str = ""
    """What has come so far."""
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    @property
    def is_running(self) -> bool:
        """Whether more may come."""
        return self.thread.is_alive()

    @property
    def is_whole(self) -> bool:
        """Whether the engine has said that it is the end."""
        return self.text.rstrip().endswith("data: [DONE]")

    def _read(self) -> None:
        body = {"model": self.model, "prompt": self.prompt, "max_tokens": self.max_tokens, "stream": True}
        body["ignore_eos"] = True  # as long as was asked for, whatever the engine makes of the prompt
        with httpx.stream("POST", f"{self.url}/v1/completions", json=body, timeout=TIMEOUT_S) as answer:
            for part in answer.iter_text():
                self.text += part
