"""Transport for requests: a class patch on the public `Session.send`, which does redirects and digest authentication.

The `raw` of a streaming response is wrapped. The wrapper returns the permit at the end, at `close`, at an error, or
when the response is garbage-collected. The module is never imported here: it comes from `sys.modules`.
"""

from __future__ import annotations

import inspect
import io
import json
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from types import ModuleType
from typing import Any
from urllib.request import getproxies

from tidegate.admission.context import AttemptScope
from tidegate.admission.drive import drive
from tidegate.core.exchange import AttemptResult
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Kind, Outcome
from tidegate.providers.classification import connection_failure
from tidegate.transports import gateway_url, sigv4
from tidegate.transports.call import UNREAL, HttpCall, raw_pairs, success_outcome
from tidegate.transports.governance import binding_of, count_refusal, counts_refusals, provider_elsewhere, provider_of
from tidegate.transports.own_answers import TOO_MANY_REQUESTS_STATUS
from tidegate.transports.patches import Clients, made_up, unreadable
from tidegate.transports.request_key import OutgoingRequest, RequestRoute, accounts_of, split_url
from tidegate.transports.streams import BegunRaw, StreamWatch, WatchedRaw, is_unread


class RequestsCall(HttpCall):
    """One `send` of a session."""

    __slots__ = ("module", "signer")

    module: ModuleType
    signer: sigv4.BotocoreSigner | None

    def send(self, permit: Permit) -> AttemptResult:
        unread: BegunRaw | None = None
        body: bytes | None = None
        try:
            if self.signer is not None and permit.sent_at - self.started_at > sigv4.STALE_AFTER_SECONDS:
                self.signer.sign(self.request)
            with AttemptScope(permit):
                response = self.wrapped(*self.args, **self.kwargs)
                error, mocked = response.status_code >= 400, not self.mocks and made_up(response)
                if self.stream and error and not mocked and is_unread(response):
                    unread = BegunRaw(response.raw)
                    response.raw = unread.begin(self.now)
                    body = unread.decoded()
                elif not self.stream or (error and not mocked):
                    body = response.content
        except Exception as raised:
            return AttemptResult(self.error_outcome(permit, raised), error=raised)
        if mocked:
            return AttemptResult(
                UNREAL if response.status_code >= 400 else success_outcome(response.status_code), response=response
            )
        outcome = self.outcome(permit, response.status_code, response, body)
        if unread is not None and self.will_retry(permit, outcome):
            unread.cut()
        if body is not None:
            return AttemptResult(outcome, response=response)
        response.raw = WatchedRaw(response.raw, StreamWatch(self, permit, outcome))
        return AttemptResult(outcome, response=response, streaming=True)

    def judge_error(self, error: Exception) -> Outcome:
        """Return the outcome of an exception; even those for wrong URLs derive from OSError in requests."""
        # requests translates network errors where it catches them. A mock raises requests' own exceptions directly.
        if not self.mocks and error.__context__ is None:
            return UNREAL
        return connection_failure(error) or Outcome(Kind.ABANDONED, row="exception")

    def is_from_provider(self, response: Any) -> bool:
        return not made_up(response)

    def refused(self, headers: dict[str, str], body: Any, status: int = TOO_MANY_REQUESTS_STATUS) -> Any:
        response = self.module.Response()
        response.status_code, response.reason = status, HTTPStatus(status).phrase
        response.headers.update({**headers, "content-type": "application/json"})
        response.raw = io.BytesIO(json.dumps(body).encode())
        response.request = self.request
        response.url = response.request.url
        if not self.stream:
            # A response that does not stream is already read.
            _ = response.content
        return response


class RequestsModule:
    """The module, and the wrapper made for its session."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def put(self) -> None:
        TRANSPORT.patches.put(self.module.Session, "send", self.send)

    def send(self, wrapped: Callable[..., Any], session: Any, args: Any, kwargs: Any) -> Any:
        call = self._call(wrapped, session, args, kwargs)
        if call is not None:
            return drive(call)
        response = wrapped(*args, **kwargs)
        if counts_refusals():
            count_refusal(session, response.status_code, partial(_target, response))
        return response

    def _call(self, wrapped: Callable[..., Any], session: Any, args: Any, kwargs: Any) -> RequestsCall | None:
        try:
            binding = binding_of(session)
            request = args[0] if args else kwargs.get("request")
            # The proxies of this request were chosen for the gateway's address: where there are any, it stays.
            if gateway_url.GatewayRoot.value and gateway_url.leaves(binding is not None) and not getproxies():
                request.url = gateway_url.resolved(request.url)
            if binding is None:
                return None
            if request is None or request.method != "POST":
                return None
            url = split_url(request.url)
            host = url.hostname or ""
            provider = provider_of(binding, host, url.path) or provider_elsewhere(
                binding, host, url.path, lambda: _lower(request.headers), lambda: self._networked(session, request.url)
            )
            if provider is None:
                return None
            body = request.body
            body = body.encode() if isinstance(body, str) else body
            whole = body if isinstance(body, bytes) else None
            replayable = body is None or whole is not None
            headers, account = raw_pairs(request.headers), self._account(session, request)
            if getattr(session, "credentials", None) is not None:
                # A session of google-auth: its token changes every hour, its credentials stay.
                headers = [pair for pair in headers if pair[0].lower() != b"authorization"]
            call = RequestsCall(
                binding,
                OutgoingRequest(
                    RequestRoute(provider, url.scheme, host, url.port, url.path),
                    headers,
                    whole,
                    replayable,
                    query=url.query.encode(),
                    account=account,
                    adds_credential=account != "",
                ),
                wrapped,
                args,
                kwargs,
                bool(kwargs.get("stream", session.stream)),
            )
            call.signer = None
            if provider.credential_part is not None:
                call.signer = sigv4.signed_by(call, request.headers, whole)
        except Exception:
            unreadable()
            return None
        call.module = self.module
        return call

    def _networked(self, session: Any, url: str) -> bool:
        """Return whether the session sends over a network. Mocks replace its adapter or the methods around it."""
        if not _is_own(type(session).get_adapter):
            return False
        # Also for a derived adapter: one with its own `send` may lead to an application in this process.
        return _is_own(type(session.get_adapter(url)).send)

    def _account(self, session: Any, request: Any) -> str:
        """Return an identifier of an `auth=` object that adds its credential after the first answer, as digests do.

        Any other object has added it by now. Sessions of google-auth are identified by their credentials.
        """
        owners = (getattr(hook, "__self__", None) for hook in request.hooks.get("response", ()))
        auths = [owner for owner in owners if isinstance(owner, self.module.auth.AuthBase)]
        credentials = getattr(session, "credentials", None)
        return accounts_of(auths if credentials is None else [*auths, credentials])


def put(module: ModuleType) -> None:
    RequestsModule(module).put()
    sigv4.watch(TRANSPORT.patches)


TRANSPORT = Clients(("requests",), ("Session",), put)


def _is_own(method: Any) -> bool:
    module: str = inspect.unwrap(method).__module__
    return module.partition(".")[0] == "requests"


def _target(response: Any) -> tuple[str, str, list[tuple[bytes, bytes]]]:
    url = split_url(response.request.url)
    return url.hostname or "", url.path, _lower(response.request.headers)


def _lower(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in raw_pairs(headers)]
