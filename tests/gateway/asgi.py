"""One request to a gateway's application with these very bytes as its path: clients change paths before they send."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from tidegate.server.gateway.proxy import GatewayProxy

HOST = "127.0.0.1:4790"
TOKEN = "the-token"


async def asked(
    proxy: GatewayProxy, target: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Status, headers and body of the answer to a POST below the token."""
    path, _, query = (b"/" + TOKEN.encode() + target).partition(b"?")
    scope = {
        "type": "http",
        "method": "POST",
        "path": "",
        "raw_path": path,
        "query_string": query,
        "headers": [(b"host", HOST.encode()), (b"content-length", b"2"), *headers],
    }
    messages = [{"type": "http.request", "body": b"{}", "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return await asyncio.Event().wait()  # the client stays until it has the answer

    async def send(message: Any) -> None:
        sent.append(message)

    await proxy(scope, receive, send)
    return sent[0]["status"], sent[0]["headers"], b"".join(each.get("body", b"") for each in sent[1:])
