"""One request to a server of the cluster, for those that ask until something is there.

Boundary: status 200 or nothing; what an answer means is the caller's. Why not kubectl: a process of it costs a hundred
times as much as a request.
"""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

TIMEOUT_S = 2.0
_OK = 200


def answer(url: str, authority: Path | None = None, client: tuple[Path, Path] | None = None) -> bytes | None:
    """What the server answers with status 200, through no proxy; None if it refuses, or does not answer in time.

    Args:
        url: where.
        authority: the certificate that the server's has to be issued by, for HTTPS.
        client: certificate and key to show, for HTTPS.
    """
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    try:
        if authority is not None:
            context = ssl.create_default_context(cafile=str(authority))
            if client is not None:
                context.load_cert_chain(*map(str, client))
            handlers.append(urllib.request.HTTPSHandler(context=context))
        with urllib.request.build_opener(*handlers).open(url, timeout=TIMEOUT_S) as answered:
            told: bytes = answered.read()
            return told if answered.status == _OK else None
    except urllib.error.HTTPError as refusal:
        refusal.close()
        return None
    except (OSError, HTTPException):
        return None
