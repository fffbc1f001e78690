"""Ports of servers that tests start themselves, and may stop and start again."""

from __future__ import annotations

import secrets
import socket

FIRST, END = 15_000, 32_000
"""Below the ports that Linux gives to connections: those could take the port of a server that is stopped for a while,
and a connection to a server that is not there could even be made with itself."""


def free_port(end: int = END) -> int:
    """Return a port of this machine, less than `end`, on which nothing listens."""
    while True:
        port = FIRST + secrets.randbelow(end - FIRST)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
