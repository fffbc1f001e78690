"""One governed HTTP call: its key, its cost, and the outcomes of its attempts. All HTTP stacks share it.

Theory of operation. A transport asks `governance.binding_of` and `provider_of` whether a request is governed. If so, it
makes an `HttpCall` and runs it through `tidegate.admission.drive`. The key of a request says whose quota the request
counts against. It consists of the provider, the address, the credential that pays, the model or other scope, and the
endpoint family.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from tidegate import providers
from tidegate.admission import audit, redaction
from tidegate.admission.call import GovernedCall
from tidegate.admission.handoff import current_handoff
from tidegate.admission.key_table import KeyTable
from tidegate.admission.wait_queue import Waker
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.exchange import AttemptResult, Ending, ExchangeResult, Flow, RetryTime, retry_time
from tidegate.core.limiter_state import Permit
from tidegate.core.safe_text import is_secret_segment, masked, printable
from tidegate.core.values import (
    CAPACITY,
    INFINITY,
    OK,
    Cause,
    Cost,
    Key,
    Kind,
    Outcome,
    ReplayableRefusal,
    RequestFacts,
    Usage,
)
from tidegate.errors import add_note
from tidegate.providers.classification import UNREADABLE, connection_failure, error_text
from tidegate.transports import bearer, stub_servers
from tidegate.transports.governance import Binding
from tidegate.transports.principals import EXPIRES_SOON, TOKEN_START, expiry, lasting_claims


class RequestRoute:
    """Destination of requests, without the query, and the provider's table for it; not unique per destination."""

    __slots__ = ("facts", "host", "names", "path", "place", "port", "provider", "scheme")

    def __init__(self, provider: providers.Provider, scheme: str, host: str, port: int | None, path: str) -> None:
        self.provider = provider
        self.scheme = scheme
        self.host = host
        self.port = port
        self.path = path
        self.place = provider.endpoint(path)
        self.names = _credential_names(provider)
        self.facts = (provider.name, scheme, host, port, path)


class OutgoingRequest(NamedTuple):
    """A request as its HTTP stack sees it, before it is queued.

    `headers` are the raw pairs, in any case; they are read once. `body` is None if it cannot be read twice. `query` is
    raw. `account` distinguishes credentials that the stack adds only when it sends (see `principals`).
    `adds_credential` says that an object adds them, so that they may change from one sending to the next.
    """

    route: RequestRoute
    headers: Iterable[tuple[bytes, bytes]]
    body: bytes | None
    replayable: bool
    model: str = ""
    query: bytes = b""
    account: str = ""
    adds_credential: bool = False


Secrets = tuple[tuple[bytes, bytes], ...]
"""The headers of a request that hold a credential, also where it is in the query."""


def key_of(registry: KeyTable, sending: OutgoingRequest, request_facts: RequestFacts) -> tuple[Key, Secrets]:
    """Return the key of a request, interned for speed, and its credentials as they are sent."""
    route = sending.route
    provider, names = route.provider, route.names
    headers = list(sending.headers)
    secrets = tuple([pair for pair in headers if pair[0] in names])
    if not secrets:
        headers = [(name.lower(), value) for name, value in headers]
        secrets = tuple([pair for pair in headers if pair[0] in names])
    if len(secrets) > 1:
        secrets = tuple(sorted(dict(secrets).items()))
    if sending.query and provider.query_credential:
        secrets += _query_credentials(provider, sending.query)
    if provider.credential_part is not None:
        secrets = tuple([(name, _payer(provider, value)) for name, value in secrets])
    sent = secrets
    for _, value in secrets:
        if value[7:10] == TOKEN_START:
            secrets = tuple([(name, lasting_claims(each)) for name, each in secrets])
            break
    account = sending.account if "authorization" in provider.credential else ""
    facts = (route.facts, hash((secrets, account)), request_facts.model)
    key = registry.interned.get(facts)
    if key is None:
        given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in secrets}
        credential = providers.credential_of(provider, given.get)
        address = base_url(route)
        # Only for a new key, so that a repeated request costs nothing.
        redaction.remember(_credentials(dict(headers), sending.query, address))
        key = Key(
            provider.name,
            masked(address, registry.digest, redaction.is_known),
            registry.digest(f"{credential}\naccount={account}" if account else credential),
            providers.scope(provider, request_facts, route.host, route.path, registry.settings.level_of(provider.name)),
            providers.family_of(provider, route.path),
        )
        registry.intern(facts, key, operation_of(route.path))
    return key, sent


def operation_of(path: str) -> str:
    """Return the operation of requests to `path`, by its name in the GenAI conventions; empty for others."""
    return next((name for name, pattern in _OPERATIONS if pattern.search(path)), "")


_OPERATIONS = (
    ("embeddings", re.compile(r"embed", re.IGNORECASE)),
    ("generate_content", re.compile(r":(?:stream)?generateContent$", re.IGNORECASE)),
    ("chat", re.compile(r"/(?:chat|messages|responses|converse|converse-stream|chat/completions)$", re.IGNORECASE)),
    ("text_completion", re.compile(r"/(?:completions|complete|api/generate)$", re.IGNORECASE)),
)
"""Operations with the paths of their endpoints. Source: the well-known values of `gen_ai.operation.name` in
semantic-conventions-genai, docs/registry/attributes/gen-ai.md; the first match counts."""


def _credentials(headers: dict[bytes, bytes], query: bytes, address: str) -> Iterator[str]:
    """Yield all credentials in a request, including those that the provider's table does not name."""
    yield from redaction.in_headers(
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in headers.items()
    )
    yield from redaction.in_query(query.decode("latin-1"))
    yield from filter(is_secret_segment, address.split("/")[3:])


@lru_cache(maxsize=256)
def _credential_names(provider: providers.Provider) -> frozenset[bytes]:
    # The spellings of the SDKs and HTTP libraries. `key_of` compares in lower case only if none of these is present.
    spelt = {name for plain in provider.credential for name in (plain, plain.title())}
    spelt |= {name.replace("Openai", "OpenAI").replace("Api-Key", "API-Key") for name in spelt}
    return frozenset(name.encode("ascii") for name in spelt)


def _query_credentials(provider: providers.Provider, query: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Return the credentials in the query as the headers that they stand for."""
    given = parse_qs(query[:4096].decode("latin-1"))
    pairs = [(header, given[name][0]) for name, header in provider.query_credential if name in given]
    return tuple((header.encode("ascii"), value.encode("latin-1", "replace")) for header, value in pairs)


def _payer(provider: providers.Provider, value: bytes) -> bytes:
    return providers.payer(provider, value.decode("latin-1")).encode("latin-1")


def base_url(route: RequestRoute) -> str:
    """Return scheme, host and port; if the provider's table has no hosts, also the path before the endpoint.

    That path may contain a credential, which `masked` removes.
    """
    port = f":{route.port}" if route.port is not None else ""
    host = f"[{route.host}]" if ":" in route.host else route.host
    origin = f"{route.scheme}://{host}{port}"
    if route.provider.hosts:
        return origin
    return origin + _ENDPOINT.sub("", route.path.removesuffix("/"), count=1)


_ENDPOINT = re.compile(
    r"/(?:chat/completions|v1(?:alpha|beta1?)?/(?:interactions|(?:models|tunedModels|publishers|projects)/.+)|[^/]*)$"
)
"""The end of a path that is not part of a base URL. Google's SDK adds the version itself."""


logger = logging.getLogger("tidegate")

NO_RETRY = "x-should-retry"
"""Header. `false` stops the retries of the openai and anthropic SDKs (openai 3.52 `_should_retry`)."""

REPLAYED = "x-tidegate-replayed"
"""Header. `1` means that no request was sent for this answer: it copies another call's answer for the same key."""

WAITED, GATE, REASON = "x-tidegate-waited", "x-tidegate-gate", "x-tidegate-reason"
"""Headers of the answer to a call that is given up: the seconds that it waited, the gate (limiter of a key) that was
closed, and a sentence with both and until when."""

ERROR_TYPE = "x-amzn-errortype"
"""Amazon's header with the error's name."""
TOO_MANY_REQUESTS = 429
BAD_REQUEST = 400
UNAUTHORIZED = 401

MAX_PLACES = 1024
"""Places in queues that are kept for calls repeated with a new token: above those whose tokens end at once."""

NO_PRICE = "price"
"""Gate of an exchange that sent nothing because the price of its model is unknown."""

MAX_RETRY_AFTER_SECONDS = 31_536_000.0
"""Most seconds of a `retry-after` that tidegate writes: a year, as of `Settings.max_wait`."""

USAGE_ALWAYS = 64
"""First attempts of a key whose usage is always learned. Chosen: it trains an estimate that a dozen answers settle."""


USAGE_EVERY = 32
"""Later attempts of which one trains the estimate: a changed workload is learned in some hundred answers."""

UNREAL = Outcome(Kind.ABANDONED, row="no network")
"""Outcome of a mock's refusal or failure. It comes from no provider, so there is no limit to wait for."""

MAX_CHECKED_BYTES = 4096
"""Upper bound, in bytes, of a complete body that is checked for an error under a 200, and of the end of a complete
stream. Chosen: ModelScope and OpenRouter send such errors (provider-facts.md rule 7), which are short."""

_ENDS = (b"}", b"]")
"""Last bytes of a complete JSON document from an inference endpoint."""

RETRYABLE = frozenset({408, 409, 429}) | frozenset(range(500, 600))
"""Statuses that the openai and anthropic SDKs retry by themselves (openai 3.52 `_should_retry`)."""


@lru_cache(maxsize=64)
def success_outcome(status: int) -> Outcome:
    return Outcome(Kind.OK, status=status)


class HttpCall(GovernedCall, ABC):
    """One SDK attempt that waits in the queue, and is repeated here while the provider lacks capacity.

    It holds the function that the SDK called, as `wrapped(*args, **kwargs)`, and whether the answer streams.
    """

    __slots__ = (
        "args",
        "kwargs",
        "mocks",
        "provider",
        "request_facts",
        "sdk_may_repeat",
        "secrets",
        "sending",
        "stream",
        "wrapped",
    )

    sdk_may_repeat: bool
    """Whether the SDK above may repeat the call after its wait here: a token or a stub server bounds that wait."""

    secrets: Secrets | None
    """The credentials that it carries, None where an object adds one only when it is sent."""

    def __init__(
        self,
        binding: Binding,
        sending: OutgoingRequest,
        wrapped: Callable[..., Any],
        args: Any,
        kwargs: Any,
        stream: bool,
    ) -> None:
        self.wrapped = wrapped
        self.args = args
        self.kwargs = kwargs
        self.stream = stream
        self.sending = sending
        registry, route = binding.registry, sending.route
        provider = route.provider
        # A wrapped client is governed even if a mock answers it. With a process-wide install, tests that use SDKs must
        # see the unchanged answers of their mocks.
        self.mocks = binding.any_host
        request_facts = providers.read_body(provider, route.place, sending.body)
        if sending.model and not request_facts.model:
            request_facts = request_facts._replace(model=sending.model)
        self.provider = provider
        self.request_facts = request_facts
        policy = binding.policy if sending.replayable else binding.policy._replace(replayable=False)
        key, secrets = key_of(registry, sending, request_facts)
        if sending.account:
            secrets += ((b"account", sending.account.encode()),)
        self.secrets = None if sending.adds_credential else secrets
        super().__init__(registry, key, policy, provider.default_window, binding.priority)

    @property
    def request(self) -> Any:
        return self.args[0] if self.args else self.kwargs["request"]

    def identity(self) -> Hashable | None:
        """Return the path, the query and the body of the request; None where the body cannot be read twice."""
        sending = self.sending
        return None if sending.body is None else (sending.route.path, sending.query, sending.body)

    def try_start(self) -> Permit | None:
        if audit.open_count and self._lacks_price():
            self.handoff = current_handoff()
            self.started_at = self.registry.clock()
            return None
        return super().try_start()

    def exchange(self, make_waker: Callable[[], Waker], permit: Permit | None, attempt: AttemptResult | None) -> Flow:
        """Return the exchange; one that sends nothing for a call that must have a price and has none."""
        if audit.open_count and permit is None and self._lacks_price():
            guard = audit.price_guard()
            assert guard is not None, "only a guard requires a price"
            guard(self.key, self.request_facts.model)
            return _unsent()
        self.sdk_may_repeat = self._bound_by_token()
        if not self.mocks and stub_servers.is_stub(self.key.base_url):
            self.sdk_may_repeat = True
            self.policy = self.policy._replace(max_wait=min(self.policy.max_wait, stub_servers.MAX_WAIT))
        flow = super().exchange(make_waker, permit, attempt)
        if permit is None and self.registry.places and self.sending.body is not None:
            self.place = self.registry.places.pop(self._fingerprint(), 0)
        return flow

    def _bound_by_token(self) -> bool:
        """Limit the wait to the life of a token that nothing renews."""
        ends = min(map(expiry, self._carried()), default=INFINITY)
        left = ends - time.time()
        # No wait cures a token that has ended, but the clock of this machine may be wrong.
        left = left if left > 0.0 else bearer.STALE_AFTER
        if left >= self.policy.max_wait or bearer.is_renewable(self.sent_headers()):
            return False
        self.policy = self.policy._replace(max_wait=left)
        return True

    def _may_have_aged(self, now: float) -> bool:
        """Return whether a token that could not be renewed may have ended while the call waited until `now`."""
        aged = now - self.started_at > bearer.STALE_AFTER and self.provider.credential_part is None
        return aged and not bearer.is_renewable(self.sent_headers())

    def _fingerprint(self) -> tuple[Key, int]:
        """Return what a call and its repetition by an SDK have in common."""
        return self.key, hash((self.request_facts, self.sending.body))

    def _leave_place(self) -> None:
        """Keep the place in the queue for the call by which the SDK repeats this one, with a new token."""
        if self.sending.body is None:
            return
        places = self.registry.places
        places[self._fingerprint()] = self.place
        if len(places) > MAX_PLACES:
            # Another thread may change the table; the next call cuts it then.
            with contextlib.suppress(RuntimeError, StopIteration):
                places.pop(next(iter(places)), None)

    def sent_headers(self) -> Mapping[str, Any]:
        headers: Mapping[str, Any] = self.request.headers
        return headers

    def write_header(self, name: str, value: str) -> None:
        self.request.headers[name] = value

    def take_token(self, renewal: bearer.Renewal, token: str) -> None:
        self.write_header(renewal.header, renewal.before + token)
        old, new = renewal.token.encode("latin-1", "replace"), token.encode("latin-1", "replace")
        if self.secrets is not None:
            self.secrets = tuple((name, value.replace(old, new)) for name, value in self.secrets)

    def _lacks_price(self) -> bool:
        if audit.price_guard() is None:
            return False
        return providers.price_of(self.key.provider, self.request_facts.model) is None

    def finish(self, ended: ExchangeResult) -> Any:
        """Return the last response, or raise the last exception; return a 429 of tidegate if nothing was received."""
        attempt = ended.attempt
        if attempt is None or attempt.outcome.kind is not OK:
            self._remember_credentials()
        if attempt is None and ended.gate == NO_PRICE:
            return self.refused(*self._without_price(), status=BAD_REQUEST)
        if attempt is None:
            headers, body = self.refusal(ended)
            if self.sdk_may_repeat:
                del headers[NO_RETRY]
                self._leave_place()
            return self.refused(headers, body)
        if ended.ending is Ending.REPLAYED:
            return self.replayed_response(attempt.outcome, ended.opens_in)
        reason = self.reason_of(ended)
        if attempt.error is not None:
            if reason:
                add_note(attempt.error, reason)
            raise attempt.error
        if ended.ending is Ending.GIVEN_UP:
            if self.sdk_may_repeat and attempt.outcome.kind in CAPACITY:
                self._leave_place()
            elif attempt.outcome.kind is not Kind.QUOTA_EXHAUSTED and (
                attempt.outcome.kind is not Kind.DAILY_LIMIT or ended.waited
            ):
                # The SDK's retries of a rejected key find out as well that it works again.
                self.stop_retries(attempt.response)
            if reason:
                self.add_headers(attempt.response, self.wait_headers(ended, reason))
        return attempt.response

    def credentials(self) -> Iterator[str]:
        headers = self.request.headers
        yield from redaction.in_headers((_text(name), _text(value)) for name, value in headers.items())
        yield from redaction.in_address(str(self.request.url))

    def _remember_credentials(self) -> None:
        # A text about the call may follow, so redaction must know its credentials first.
        try:
            redaction.remember(self.credentials())
        except Exception as error:
            text = "credentials of a call not read: %s was raised; they are redacted only by their form"
            logger.exception(text, type(error).__name__)

    def stop_retries(self, response: Any) -> None:
        """Mark a response so that the SDK above does not repeat the call; `sdks.sdk.is_given_up` reads the mark."""
        if response.status_code in RETRYABLE:
            response.headers[NO_RETRY] = "false"

    def wait_headers(self, ended: ExchangeResult, reason: str) -> dict[str, str]:
        """Return the headers that state how long the call waited, for what and why."""
        text = reason.replace(" · ", ", ").encode("ascii", "backslashreplace").decode()
        return {WAITED: f"{ended.waited:.1f}", GATE: ended.gate or self.gate or "none", REASON: text}

    def add_headers(self, response: Any, headers: dict[str, str]) -> None:
        response.headers.update(headers)

    def will_retry(self, permit: Permit, outcome: Outcome) -> bool:
        """Return whether the call waits and is sent again, in which case the rest of this answer's body is not read."""
        policy, now = self.policy, self.now()
        deadline = self.started_at + policy.max_wait
        # Count all transient attempts as used: a failure that is repeated later still shows its body.
        return retry_time(policy, permit, outcome, now, deadline, policy.attempts) is RetryTime.AT_ONCE

    @abstractmethod
    def refused(self, headers: dict[str, str], body: Any, status: int = TOO_MANY_REQUESTS) -> Any:
        """Return a refusal as the stack's own response, with these headers and this JSON body."""

    def replayed_response(self, outcome: Outcome, opens_in: float | None) -> Any:
        """Return the newest refusal of the key, for a call that does not wait, as the stack's own response."""
        answer = outcome.answer
        assert answer is not None, "only what was kept is repeated"
        headers = {NO_RETRY: "false", REPLAYED: "1"}
        if answer.code:
            headers[ERROR_TYPE] = answer.code
        if opens_in is not None and 0.0 < opens_in < MAX_RETRY_AFTER_SECONDS:
            headers["retry-after"] = str(ceil(opens_in))
        return self.refused(headers, json.loads(answer.body), answer.status)

    def is_from_provider(self, response: Any) -> bool:
        """Return whether a response came from a provider, and not from a test."""
        return True

    def is_mocked(self) -> bool:
        """Return whether a mock answers the request. Such a mock must see every request."""
        return False

    def receives(self, answer: ReplayableRefusal | None) -> bool:
        """Return whether the call may receive a copy of another call's answer."""
        try:
            return answer is not None and answer.credential in ("", self.credential()) and not self.is_mocked()
        except Exception:
            return False

    def credential(self) -> str | None:
        """Return a keyed digest of the credentials that the call carries; None where they are not known."""
        return None if self.secrets is None else self.registry.digest(repr(self._carried()))

    def _carried(self) -> list[bytes]:
        """Return the credentials that the call carries now, also those that do not decide its key."""
        known = [value for _, value in self.secrets or ()]
        if self.provider.credential_part is not None:
            return known  # the header changes with each signature
        headers = self.sent_headers()
        return known + [_raw(headers.get(name, "")) for name in bearer.HEADERS]

    def price(self, estimate: CostEstimator) -> Cost:
        """Return the expected charge of the call, from what its key has learned so far."""
        request_facts = self.request_facts
        mean = estimate.output_for(request_facts.max_output_tokens)
        per_token, fixed = estimate.chars_per_token, estimate.fixed_tokens
        return providers.estimate(self.provider, request_facts, per_token, mean, fixed)

    def outcome(self, permit: Permit, status: int, response: Any, body: bytes | None) -> Outcome:
        """Return the outcome of an answer; `body` is None while it streams. Log any failure to read it."""
        try:
            if permit.trace is not None and permit.trace.receivers:
                self._remember_credentials()
                permit.trace.request_id = redaction.clean_fact(providers.request_id_of(self.pairs(response)))
            if status >= 400:
                outcome = self.judge(status, self.pairs(response), body)
                if status == UNAUTHORIZED and self._may_have_aged(permit.sent_at):
                    # The SDK asks once more, with the token that it writes then.
                    self.add_headers(response, {NO_RETRY: "true"})
                    self._leave_place()
                return self.with_replayable_answer(outcome, response, body)
            # The stream itself reports failures to its reader, even if the whole stream has arrived already.
            if (
                body is not None
                and not self.stream
                and len(body) <= MAX_CHECKED_BYTES
                and (b'"error"' in body or b'"base_resp"' in body or b'"error_code"' in body)
            ):
                failure = providers.judge_event(self.provider, body)
                if failure is not None:
                    return failure._replace(status=status)
            outcome = self.judge(status, self.pairs(response), None) if permit.informs else success_outcome(status)
            if body is not None and not self.stream and body[-1:] not in _ENDS and self.unreadable(response, body):
                # It is handed back as it is, and is no answer in any count.
                return outcome._replace(kind=Kind.TRANSIENT, row=UNREADABLE)
            if body is not None:
                return self.answered(permit, outcome, body)
        except Exception as error:
            logger.exception("response not judged: %s was raised; it is handed back unchanged", type(error).__name__)
            # The stream holds the permit, which only the end of the stream may settle.
            streams = status < 400 and body is None
            return success_outcome(status) if streams else Outcome(Kind.ABANDONED, row="unjudged")
        return outcome

    def unreadable(self, response: Any, body: bytes) -> bool:
        """Return whether a good answer is unusable: truncated JSON, or the HTML page of a gateway."""
        kinds = [value.lower() for name, value in self.pairs(response) if name.lower() == b"content-type"]
        kind = kinds[0] if kinds else b""
        if b"json" in kind:
            return body.rstrip()[-1:] not in _ENDS or not body.strip()
        return b"text/html" in kind

    def with_replayable_answer(self, outcome: Outcome, response: Any, body: bytes | None) -> Outcome:
        """Return the outcome with the part of the answer that other calls of the key may receive.

        A refusal for lack of capacity may go to all of them, any other to those with the same credential. A token whose
        time is over excludes that: the next call carries another one.
        """
        answer = providers.answer_of(outcome, self.pairs(response), body) if self.is_from_provider(response) else None
        if answer is not None and outcome.kind not in CAPACITY:
            credential = None if self._has_expired() else self.credential()
            answer = None if credential is None else answer._replace(credential=credential)
        return outcome if answer is None else outcome._replace(answer=answer)

    def _has_expired(self) -> bool:
        """Return whether the call carries a token that has expired, or will very soon."""
        soon = time.time() + EXPIRES_SOON
        return any(expiry(value) < soon for value in self._carried())

    def error_outcome(self, permit: Permit, error: Exception) -> Outcome:
        """Return the outcome of an attempt that raised. If a hook raised for the status, judge the answer itself."""
        response: Any = getattr(error, "response", None)
        facts = getattr(response, "__dict__", {})
        request = facts.get("_request", facts.get("request"))
        if request is None or request is not self.request:
            return self.unanswered_outcome(error)
        body = getattr(response, "_content", None)
        return self.outcome(permit, response.status_code, response, body if isinstance(body, bytes) else b"")

    @abstractmethod
    def pairs(self, response: Any) -> Iterable[tuple[bytes, bytes]]:
        """Return the raw headers of a stack's response, in any case."""

    def judge(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes | None) -> Outcome:
        return providers.judge(self.provider, status, headers, body, datetime.now(UTC))

    def unanswered_outcome(self, error: Exception) -> Outcome:
        """Return the outcome of an attempt that got no response, with the text of a connection error."""
        outcome = self.judge_error(error)
        return outcome._replace(error=error_text(error)) if outcome.cause is Cause.OUTAGE else outcome

    def judge_error(self, error: Exception) -> Outcome:
        """Return the outcome of an exception of the HTTP stack, by class names that all stacks share."""
        found = connection_failure(error)
        if found is not None:
            return found
        if isinstance(error, OSError) or any(each.__name__ == "TransportError" for each in type(error).__mro__):
            return Outcome(Kind.TRANSIENT, Cause.OUTAGE, row="connection")
        return Outcome(Kind.ABANDONED, row="exception")

    def learns_usage(self, permit: Permit) -> bool:
        """Return whether the usage trains the key's estimate: always at first, or for a charge; later at intervals."""
        cost = permit.cost
        now_and_then = permit.order <= USAGE_ALWAYS or permit.order % USAGE_EVERY == 0
        return now_and_then or cost.produced > 0.0 or cost.held > 0.0

    def answered(self, permit: Permit, outcome: Outcome, body: bytes) -> Outcome:
        """Return the outcome of a complete answer with its usage, and train the key's estimate."""
        usage = providers.usage_of(self.provider, body)
        if permit.trace is not None and permit.trace.receivers:
            permit.trace.finish_reason = redaction.clean_fact(providers.finish_reason_of(body))
        if usage is None:
            return outcome
        if self.learns_usage(permit):
            charged = providers.charged(self.provider, usage) if usage.cached_tokens else usage
            self.registry.learn_usage(permit, self.request_facts, charged)
        # Written out, as `_replace` takes longer and every answer comes here.
        usage = Usage(*usage[:5], self.request_facts.model, usage.tier)
        return Outcome(*outcome[:4], usage, *outcome[5:9])

    def _without_price(self) -> tuple[dict[str, str], dict[str, Any]]:
        """Return headers and JSON body for a call that was not sent because its price is unknown."""
        text = printable(
            f"tidegate: no request was sent: {self.request_facts.model or 'the model'} at {self.key.provider} has no "
            "price, and the experiment has a budget in US dollars; tidegate.providers.register_price adds one."
        )
        error = {"message": text, "type": "tidegate_no_price", "param": None, "code": "no_price"}
        return {NO_RETRY: "false", "x-tidegate": "no-price"}, {"type": "error", "error": error}

    def refusal(self, ended: ExchangeResult) -> tuple[dict[str, str], dict[str, Any]]:
        """Return headers and JSON body of the 429 for a call that received nothing before its deadline."""
        reason = ": ".join(filter(None, (ended.gate or "queue", self.registry.closing(self).cause)))
        text = (
            f"tidegate: no request was sent: {self.key} ({reason}) did not admit the call in time; "
            f"it waited {ended.waited:.1f} s of max_wait = {self.policy.max_wait:g} s; a longer max_wait waits longer."
        )
        if ended.opens_in is not None and ended.opens_in < MAX_RETRY_AFTER_SECONDS:
            text = (
                f"tidegate: no request was sent: {self.key} ({reason}) opens in {ended.opens_in:.1f} s; "
                f"the call waited {ended.waited:.1f} s of max_wait = {self.policy.max_wait:g} s."
            )
        text = self.reason_of(ended) if self.is_exiting else text
        error = {"message": printable(text), "type": "tidegate_queue_deadline", "param": None, "code": "queue_deadline"}
        headers = {NO_RETRY: "false", "x-tidegate": "queue-deadline"}
        headers |= self.wait_headers(ended, self.reason_of(ended) or text)
        return headers, {"type": "error", "error": error}


def _unsent() -> Flow:
    yield from ()
    return ExchangeResult(Ending.EXPIRED, None, 0.0, NO_PRICE)


def _raw(given: object) -> bytes:
    return given if isinstance(given, bytes) else str(given).encode("latin-1", "replace")


def _text(given: object) -> str:
    return given.decode("latin-1") if isinstance(given, bytes) else str(given)
