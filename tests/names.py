"""Host names that lead to the simulator on the loopback: no name is ever asked of a server."""

from __future__ import annotations

import socket
from typing import Any
from urllib.parse import urlsplit

import pytest


def resolve_to_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every host name of this process be 127.0.0.1."""
    original = socket.getaddrinfo

    def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        return original("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def named(url: str, host: str) -> str:
    return f"http://{host}:{urlsplit(url).port}"
