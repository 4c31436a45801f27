"""Ports for what tests and benchmarks start, in one place.

Boundary: asks the kernel what is free now; who gets a port has to listen on it soon.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import socket
import tempfile
from pathlib import Path
from typing import Final

RANGE: Final = range(20000, 30000)
"""Below the ports of Services of type NodePort and below those that the kernel gives to outgoing connections."""
_STRIDE: Final = 7919
"""Without a common divisor with the range's length. Ports given one after the other are far apart, since a
data-parallel engine takes those behind its own too."""


def free_ports(count: int, *, in_a_row: int = 1) -> list[int]:
    """TCP ports that nothing listens on at any address, all different; each the first of so many free ones in a row.

    Not the kernel's choice (port 0): those come from the range of outgoing connections, and until the program that
    was given one listens, another program's connection could have taken it. Nor by chance: tests that run beside one
    another take thousands, and seconds pass until an engine listens. So all processes take them in turn.
    """
    found: list[int] = []
    with (Path(tempfile.gettempdir()) / f"pdpool-ports-{os.getuid()}").open("a+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        turn = int(file.read() or secrets.randbelow(len(RANGE)))
        while len(found) < count:
            turn = (turn + 1) % len(RANGE)
            port = RANGE.start + turn * _STRIDE % len(RANGE)
            with contextlib.ExitStack() as row, contextlib.suppress(OSError):
                for each in range(port, port + in_a_row):
                    row.enter_context(socket.socket()).bind(("", each))
                found.append(port)
        file.truncate(0)
        file.write(str(turn))
    return found
