"""Ways to send calls that tidegate cannot govern, by module: one table for `tidegate doctor` and the end of a run.

Every Python process under `tidegate run` imports this module, so it imports nothing.
"""

from __future__ import annotations

UNGOVERNABLE = {
    "baml_py": "baml-py",
    "curl_cffi": "curl-cffi",
    "grpc": "grpcio",
    "niquests": "niquests",
    "oci": "oci",
    "pycurl": "pycurl",
    "tensorzero": "tensorzero",
    "tornado.httpclient": "tornado",
    "urllib.request": "urllib",
    "urllib3": "urllib3",
    "websocket": "websocket-client",
    "websockets": "websockets",
}
"""Modules that send in their own way, below no HTTP client that is patched, each with its distribution.

Read in baml-py 0.226.3 and tensorzero 2026.6.0 (Rust), curl_cffi 0.17.0 and pycurl 7.49.0 (libcurl), oci 2.189.0
(requests as a copy of its own), niquests 3.21.2 (urllib3-future), tornado 6.6.1, urllib3 2.8.0, websockets 17.4.
"""

SHARED = frozenset({"tornado.httpclient", "urllib.request", "urllib3", "websocket", "websockets"})
"""Modules with many other uses: they count only where a program has no other way to send calls."""

SOCKETS = frozenset({"grpc", "websocket", "websockets"})
"""Modules that do not speak HTTP/1.1, which no gateway governs either."""


def remedy(modules: frozenset[str], command: str) -> str:
    """Return what governs a program that sends by these modules and is started by `command`."""
    if modules and modules <= SOCKETS:
        return "only calls over HTTP can be governed; use the HTTP transport of the SDK"
    return f"`tidegate run --gateway {command}` governs it where it reads the server from a base-URL variable"
