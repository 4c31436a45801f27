"""What any request to an engine has: its bytes, and what a status of 500 and above means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pdpool_api.names import HEADER_DATA_PARALLEL_RANK
from pdpool_router.faults import EngineStatus

if TYPE_CHECKING:
    from pdpool_router.records import Endpoint

OK: Final = 200
BAD_REQUEST: Final = 400
SERVER_ERROR: Final = 500
_BUSY: Final = 503
_RANK_HEADER: Final = HEADER_DATA_PARALLEL_RANK.encode()


def request_bytes(endpoint: Endpoint, path: bytes, head: bytes, body: bytes) -> bytes:
    """A POST to an endpoint; `head`: further header lines, each with its line end."""
    return b"POST %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n%b" % (
        path,
        endpoint.host_field,
        head,
        len(body),
        body,
    )


def rank_line(rank: int | None) -> bytes:
    """The header line that leads a request to one data-parallel rank of an endpoint; None: any, and no line."""
    return b"" if rank is None else b"%b: %d\r\n" % (_RANK_HEADER, rank)


def status_fault(status: int) -> EngineStatus:
    """The fault of an engine that answered 5xx."""
    return EngineStatus("The engine failed." if status != _BUSY else "The engine is overloaded.")
