"""No path leads the gateway to a server that is neither a known provider's nor one that the user named."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from tests.gateway.asgi import HOST, TOKEN, asked
from tidegate.server.gateway.proxy import GatewayProxy, Upstreams

URLS = 10_000
NAMED = ["http://127.0.0.1:8000/v1", "https://Named.example:8443", "http://[::1]:11434", "http://my_host"]
PLAIN = ("127.0.0.1:8000", "[::1]:11434", "my_host")
HOSTS = ["of-hosts.example"]
ALLOWED = {
    ("127.0.0.1", 8000),
    ("named.example", 8443),
    ("::1", 11434),
    ("my_host", 80),
    ("of-hosts.example", 443),
    ("api.openai.com", 443),
    ("api.anthropic.com", 443),
}
AZURE = re.compile(r"[a-z0-9_.-]+\.openai\.azure\.com")

GOOD = ["127.0.0.1:8000", "named.example:8443", "[::1]:11434", "my_host", "of-hosts.example", "api.openai.com",
        "api.anthropic.com", "me.openai.azure.com", ".openai.azure.com"]  # fmt: skip
BAD = ["evil.example", "127.0.0.1", "127.0.0.1:22", "127.1", "2130706433", "0x7f000001", "0", "localhost", "[::1]",
       "[::ffff:127.0.0.1]", "[fe80::1%25eth0]", "169.254.169.254", "[fd00:ec2::254]", "metadata.google.internal",
       "10.0.0.1", "xn--a", "e\xe9il.example", "\uff45vil.example", "\u2488.example"]  # fmt: skip
BETWEEN = ["", ".", "..", "@", ":", ":@", "u:p@", "#", "%23", "\\", "%5c", "/", "//", "%2f", "?", "%3f", ";", ",", "|",
           "%00", "%0d%0a", "%40", "\x7f", "\xad", "\t", "\u3002", "\uff0f", "[", "]", ":443", ":80", ":0443", ":",
           ":99999", ":+443", ":-1", " ", "*", "$"]  # fmt: skip
BEFORE = [
    "/",
    "/",
    "/",
    "/",
    "/http/",
    "/http/",
    "//",
    "/http//",
    "/https/",
    "/HTTP/",
    "/http:",
    "/http://",
    "",
    "@",
    ":80@",
]


class Backend(httpcore.AsyncNetworkBackend):
    """A network on which nobody answers; it records whom a client would connect to."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.AsyncNetworkStream:
        self.asked.append((host, port))
        raise httpcore.ConnectError("nobody answers")

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Any = None
    ) -> httpcore.AsyncNetworkStream:
        """Fail the test: a URL names no socket of a file."""
        raise AssertionError(path)

    async def sleep(self, seconds: float) -> None:
        """Fail the test: no connection is tried again."""
        raise AssertionError(seconds)


def drawn(random: random.Random) -> str:
    """A path below the token: hosts that are allowed and others, with characters between them that divide a URL."""
    pieces = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        before, after = (random.choice(BETWEEN) if random.random() < 0.4 else "" for _ in range(2))
        pieces += [before, random.choice(GOOD if random.random() < 0.7 else BAD), after]
    text = "".join(pieces)
    if random.random() < 0.2:
        at = random.randrange(len(text) + 1)
        text = text[:at] + chr(random.choice([random.randrange(256), random.randrange(0x3000)])) + text[at:]
    if random.random() < 0.2:
        text = text.upper()
    if random.random() < 0.1:
        text = "".join(f"%{ord(each):02x}" if ord(each) < 256 and random.random() < 0.3 else each for each in text)
    end = random.choice(["/v1/chat/completions", "", "/", "/v1#x", "/v1?a=b", "/../v1", "//evil.example/"])
    before = "/http/" if text.startswith(PLAIN) else "/"
    return (before if random.random() < 0.7 else random.choice(BEFORE)) + text + end


async def connections(paths: Iterable[str]) -> list[tuple[str, tuple[str, int]]]:
    """The servers to which a gateway would connect, each with the path that led there."""
    backend = Backend()
    transport = httpx.AsyncHTTPTransport()
    transport._pool = httpcore.AsyncConnectionPool(network_backend=backend)
    found = []
    async with httpx.AsyncClient(transport=transport) as client:
        proxy = GatewayProxy(hosts=(HOST,), token=TOKEN, upstreams=Upstreams(NAMED, HOSTS), client=client)
        for path in paths:
            status, _, _ = await asked(proxy, path.encode("utf-8"))
            assert status >= 400
            assert status < 500 or backend.asked, path
            found += [(path, server) for server in backend.asked]
            backend.asked.clear()
    return found


def test_drawn_paths_lead_to_allowed_servers_alone() -> None:
    choices = random.Random(20261127)
    found = asyncio.run(connections(drawn(choices) for _ in range(URLS)))
    others = [
        (path, server)
        for path, server in found
        if server not in ALLOWED and not (server[1] == 443 and AZURE.fullmatch(server[0]))
    ]
    assert others == []
    # The test proves something only if many of the paths get through.
    assert {server for _, server in found} >= ALLOWED
    assert len(found) > URLS / 20


def test_the_forms_of_one_address_are_the_same_server() -> None:
    forms = {
        "/http/127.0.0.1:08000/v1": ("127.0.0.1", 8000),
        "/NAMED.example.:8443/v1": ("named.example", 8443),
        "/http/[0:0::0:1]:11434/v1": ("::1", 11434),
        "/http/my_host:80": ("my_host", 80),
        "/api.openai.com:443/v1": ("api.openai.com", 443),
        "/api.openai.com./v1": ("api.openai.com", 443),
    }
    assert asyncio.run(connections(forms)) == list(forms.items())
