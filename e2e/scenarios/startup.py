"""How long a pool takes from apply to the first token, and how much of that is pdpool's doing.

Boundary: measures, judges nothing. overhead = first token - apply - (first 200 of the engine's `/v1/models` - its
container's start), of the engine that answered last: what is left when the engine's own start is taken out.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

import httpx

from e2e.scenarios.api import ApiError
from pdpool_api.names import Role

if TYPE_CHECKING:
    from types import TracebackType

    from e2e.scenarios.pools import PodView, Pool

POLL_S = 0.2
PROBE_TIMEOUT_S = 1.0


@dataclass(frozen=True)
class EngineStart:
    """The start of one engine; times are seconds of the Unix epoch."""

    pod: PodView
    container_started_s: float | None = None
    """Whole seconds: the API server keeps no fraction."""
    first_answer_s: float | None = None

    @property
    def own_s(self) -> float | None:
        """What the engine itself took, from its container's start to its first answer."""
        if self.container_started_s is None or self.first_answer_s is None:
            return None
        return self.first_answer_s - self.container_started_s


class StartupWatch:
    """Asks every engine pod of a pool for `/v1/models` until it answers, in a thread; use as a context manager."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.starts: dict[str, EngineStart] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="startup-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def engines(self) -> list[EngineStart]:
        """What is known so far, by pod."""
        return list(self.starts.values())

    def overhead_s(self, applied_s: float, first_token_s: float) -> float | None:
        """The seconds that pdpool and Kubernetes added; None while an engine's start is not known."""
        # One that answered later had no part in it: its pod was added since.
        answered = [start for start in self.starts.values() if (start.first_answer_s or first_token_s) < first_token_s]
        last = max(answered, key=lambda start: start.first_answer_s or 0.0, default=None)
        if last is None or last.own_s is None:
            return None
        return first_token_s - applied_s - last.own_s

    def _watch(self) -> None:
        with httpx.Client(timeout=PROBE_TIMEOUT_S) as client:
            while not self._ended.wait(POLL_S):
                try:
                    pods = [pod for pod in self._pool.pods() if pod.role != Role.ROUTER]
                except (ApiError, OSError):
                    continue
                for pod in pods:
                    self._look(client, pod)

    def _look(self, client: httpx.Client, pod: PodView) -> None:
        start = self.starts.get(pod.name, EngineStart(pod))
        if start.first_answer_s is None and pod.ip and _answers(client, pod.url):
            start = replace(start, first_answer_s=time.time())
        # A pod that ends does not tell it any more.
        started_s = pod.started_at.timestamp() if pod.started_at else start.container_started_s
        self.starts[pod.name] = replace(start, pod=pod, container_started_s=started_s)


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(f"{url}/v1/models").status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
