"""One page over HTTP on the node's own address, for programs of the host and for pods, or on another address.

Boundary: made anew for each request, for the length of a block.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from e2e.cluster.network import NODE_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def serving(page: Callable[[], bytes], kind: str, host: str = NODE_ADDRESS) -> Iterator[str]:
    """Serves what `page` gives at the time, as content of a kind; the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page()
            with suppress(ConnectionError):  # who asked has gone meanwhile, as a scraper does on a busy machine
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer((host, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield f"{host}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
