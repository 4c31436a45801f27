"""Stand-ins of what an operator reads: pages of engines and routers, and a Prometheus that answers from a script.

The engine's page has the families of a real vLLM (the stand-in engine's own); the router's families are those of the
contract.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import msgspec

from e2e.engine.standin.metrics import Metrics, rendered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Reply = tuple[int, bytes]


def engine_page(*ranks: dict[str, float | None]) -> bytes:
    """A vLLM's page; per rank the gauges that are shown (name without `vllm:`), None leaves a family out."""
    each_rank = []
    for shown in ranks or ({},):
        metrics = Metrics(connector=True, consumer=True, lora=False)
        metrics.forced.update(shown)
        each_rank.append(metrics)
    return rendered(each_rank, "tiny")


def router_page(
    *,
    queued: float = 0,
    inflight: dict[str, float] | None = None,
    unstarted: dict[str, float] | None = None,
    prompt_tokens: dict[str, float] | None = None,
    tokens: float = 0,
    ttft: dict[str, float] | None = None,
) -> bytes:
    """A router's page; per endpoint where a mapping is given, for the histogram per upper bound."""
    lines = ["# TYPE pdpool_router_queued gauge", f'pdpool_router_queued{{model="m"}} {queued}']
    for name, given in (("inflight", inflight), ("unstarted", unstarted), ("unstarted_prompt_tokens", prompt_tokens)):
        lines.append(f"# TYPE pdpool_router_{name} gauge")
        lines += [
            f'pdpool_router_{name}{{endpoint="{each}",role="x"}} {value}' for each, value in (given or {}).items()
        ]
    lines += ["# TYPE pdpool_router_tokens_total counter", f'pdpool_router_tokens_total{{kind="prompt"}} {tokens}']
    lines += [f'pdpool_router_ttft_seconds_bucket{{le="{bound}"}} {count}' for bound, count in (ttft or {}).items()]
    return ("\n".join(lines) + "\n").encode()


class _Handler(BaseHTTPRequestHandler):
    answer: ClassVar[Callable[[str], Reply | None]]
    seen: ClassVar[list[tuple[str, dict[str, str]]]]

    def do_GET(self) -> None:
        self.seen.append((self.path, dict(self.headers)))
        reply = type(self).answer(self.path)
        if reply is None:
            self.close_connection = True
            return
        status, body = reply
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


class Server:
    """An HTTP server in a thread; `answer` gets a path and may be replaced at any time."""

    def __init__(self, host: str, port: int, answer: Callable[[str], Reply | None]) -> None:
        self.answer = answer
        self.seen: list[tuple[str, dict[str, str]]] = []
        kind = type("Handler", (_Handler,), {"answer": staticmethod(self._answer), "seen": self.seen})
        self.http = ThreadingHTTPServer((host, port), kind)
        self.http.daemon_threads = True
        self._thread = threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def _answer(self, path: str) -> Reply | None:
        return self.answer(path)

    @property
    def address(self) -> str:
        host, port = self.http.server_address[:2]
        return f"{host!s}:{port}"

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self._thread.join()


@contextmanager
def serving(answer: Callable[[str], Reply | None], host: str = "127.0.0.1", port: int = 0) -> Iterator[Server]:
    server = Server(host, port, answer)
    try:
        yield server
    finally:
        server.close()


def vector(*series: tuple[dict[str, str], float | str]) -> Reply:
    """An instant vector as Prometheus answers it."""
    result = [{"metric": labels, "value": [1.0, str(value)]} for labels, value in series]
    return 200, msgspec.json.encode({"status": "success", "data": {"resultType": "vector", "result": result}})


def query_of(path: str) -> str:
    """What was asked of a Prometheus."""
    return parse_qs(urlsplit(path).query).get("query", [""])[0]
