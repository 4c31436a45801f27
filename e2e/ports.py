"""Ports for what tests and benchmarks start, in one place.

Boundary: asks the kernel what is free now; who gets a port has to listen on it soon.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from typing import Final

RANGE: Final = range(20000, 30000)
"""Below the ports of Services of type NodePort and below those that the kernel gives to outgoing connections."""


def free_ports(count: int) -> list[int]:
    """TCP ports that nothing listens on at any address, all different.

    Not the kernel's choice (port 0): those come from the range of outgoing connections, and until the program that
    was given one listens, another program's connection could have taken it.
    """
    found: set[int] = set()
    while len(found) < count:
        port = RANGE.start + secrets.randbelow(len(RANGE))
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind(("", port))
            found.add(port)
    return list(found)
