"""Access policy of the page: the requests that a local server answers, and the headers of its answers.

Theory of operation. Any web page that the user visits can send requests to a local port, and a host name of an attacker
can be made to point to it. So each request must name this server in `Host`, must not come from another origin, and must
carry the token of this start wherever it reads or changes data. The token is in the fragment of the printed URL, which
a browser never sends. There is no cookie: browsers share cookies between all ports of a host.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Mapping, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = "/api/"
"""Path below which a request needs the token."""

TOKEN_BYTES = 32

SAFE_METHODS = ("GET", "HEAD")
"""Methods that change nothing; all others need a JSON body, which no form of another page can send."""

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)

ANSWER_HEADERS: Mapping[str, str] = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def forgery_of(
    headers: Headers, hosts: Collection[str], origins: Collection[str] = frozenset()
) -> tuple[int, str] | None:
    """Return status and reason of the refusal of a request that another page or host name has caused, else None.

    `hosts` are the values of `Host` that name the server. `origins` are those of its own pages.
    """
    named = headers.getlist("host")
    if len(named) != 1 or named[0].lower() not in hosts:
        return 421, "request refused: its Host does not name this server"
    sent_by = headers.getlist("origin")
    if len(sent_by) > 1 or (sent_by and sent_by[0].lower() not in origins):
        return 403, "request refused: it comes from another origin"
    # `same-site` ignores ports: another local server is of the same site.
    if any(site not in ("none", "same-origin") for site in headers.getlist("sec-fetch-site")):
        return 403, "request refused: it comes from another site"
    return None


class AccessPolicy:
    """ASGI middleware that refuses forged requests on every path and with every method.

    `hosts` are the exact values of `Host` that name this server, each with its port.
    """

    def __init__(self, app: ASGIApp, *, hosts: Sequence[str], token: str) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._origins = frozenset(f"http://{host}" for host in hosts)
        self._authorization = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it; connections that are no HTTP requests are closed."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        began = False

        async def send_guarded(message: Message) -> None:
            nonlocal began
            if message["type"] == "http.response.start":
                began = True
                headers = MutableHeaders(scope=message)
                for name, value in ANSWER_HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self.refusal_of(scope["method"], scope["path"], Headers(scope=scope))
        if refusal is None:
            try:
                await self._app(scope, receive, send_guarded)
            except Exception:
                # The answer to an error of the code would be made outside of this middleware, without the headers.
                if not began:
                    await PlainTextResponse("request failed: the server logs why", 500)(scope, receive, send_guarded)
                raise
        else:
            status, reason = refusal
            await PlainTextResponse(reason, status)(scope, receive, send_guarded)

    def refusal_of(self, method: str, path: str, headers: Headers) -> tuple[int, str] | None:
        """Return status and reason of the refusal of a request; None for one that is answered."""
        forged = forgery_of(headers, self._hosts, self._origins)
        if forged is not None:
            return forged
        if path.startswith(API) or method not in SAFE_METHODS:
            given = headers.getlist("authorization")
            if len(given) != 1 or not hmac.compare_digest(given[0].encode(), self._authorization):
                return 401, "request refused: its token is not that of this server; open the printed URL again"
        if method not in SAFE_METHODS and headers.get("content-type", "") != "application/json":
            return 415, "request refused: its content is not JSON"
        return None
