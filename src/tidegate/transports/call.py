"""One governed HTTP call: its key, its cost, and the outcomes of its attempts. All HTTP stacks share it.

Theory of operation. A transport asks `governance.binding_of` and `provider_of` whether a request is governed. If so, it
makes an `HttpCall` and runs it through `tidegate.admission.drive`. `request_key` has the key, which says whose quota
the request counts against.
"""

from __future__ import annotations

import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from tidegate import providers
from tidegate.admission import audit, redaction
from tidegate.admission.call import GovernedCall
from tidegate.admission.drive import ThreadWaker
from tidegate.admission.handoff import current_handoff
from tidegate.admission.wait_queue import Waker
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.exchange import AttemptResult, Ending, ExchangeResult, Flow, RetryTime, retry_time
from tidegate.core.limiter_state import Permit
from tidegate.core.values import (
    CAPACITY,
    INFINITY,
    OK,
    Cause,
    Cost,
    Key,
    Kind,
    Outcome,
    new,
)
from tidegate.errors import add_note
from tidegate.providers.classification import UNREADABLE, connection_failure, error_text
from tidegate.transports import bearer, stub_servers
from tidegate.transports.governance import Binding
from tidegate.transports.own_answers import (
    NO_RETRY,
    RETRY_AFTER,
    RETRYABLE,
    TOO_MANY_REQUESTS_STATUS,
    deadline_refusal,
    wait_headers,
    without_price,
)
from tidegate.transports.request_key import EXPIRES_SOON_SECONDS, OutgoingRequest, Secrets, expiry, key_of

logger = logging.getLogger("tidegate")

NO_CONTENT_STATUS = 204
BAD_REQUEST_STATUS = 400
UNAUTHORIZED_STATUS = 401

MAX_QUEUE_PLACES = 1024
"""Places in queues that are kept for calls repeated with a new token: above those whose tokens end at once."""

NO_PRICE = "price"
"""Gate of an exchange that sent nothing because the price of its model is unknown."""

ALWAYS_LEARNED_ATTEMPTS = 64
"""First attempts of a key whose usage is always learned. Chosen: it trains an estimate that a dozen answers settle."""


LEARNED_ATTEMPT_INTERVAL = 32
"""Later attempts of which one trains the estimate: a changed workload is learned in some hundred answers."""

UNREAL = Outcome(Kind.ABANDONED, row="no network")
"""Outcome of a mock's refusal or failure. It comes from no provider, so there is no limit to wait for."""

MAX_CHECKED_BYTES = 4096
"""Upper bound, in bytes, of a complete body that is checked for an error under a 200, and of the end of a complete
stream. Chosen: ModelScope and OpenRouter send such errors (provider-facts.md rule 7), which are short."""

_EVENTS = (b"event-stream", b"eventstream", b"ndjson")
"""Parts of the content types of streams. Any other good answer is one document."""

_ENDS = (b"}", b"]")
"""Last bytes of a complete JSON document from an inference endpoint."""

_handed_back: ContextVar[int | None] = ContextVar("tidegate_handed_back", default=None)
"""Hash of the last call of this context with its token, if a rejection of it went back as a 429."""


@lru_cache(maxsize=64)
def success_outcome(status: int) -> Outcome:
    return Outcome(Kind.OK, status=status)


class HttpCall(GovernedCall, ABC):
    """One SDK attempt that waits in the queue, and is repeated here while the provider lacks capacity.

    It holds the function that the SDK called, as `wrapped(*args, **kwargs)`, and whether the answer streams.
    """

    __slots__ = (
        "args",
        "failed_streams",
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

    failed_streams: int
    """Streams of the call that began with a failure of the provider's own; it is set at the first one."""

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
        # `exchange` sets the attributes that only a queued call needs.
        self.wrapped = wrapped
        self.args = args
        self.kwargs = kwargs
        self.stream = stream
        self.sending = sending
        registry = self.registry = binding.registry
        route, headers, body, replayable, model, _, account, adds_credential = sending
        provider = self.provider = route.provider
        # A wrapped client is governed even if a mock answers it. With a process-wide install, tests that use SDKs must
        # see the unchanged answers of their mocks.
        self.mocks = binding.any_host
        request_facts = providers.read_body(provider, route.place, body)
        if model and not request_facts.model:
            request_facts = request_facts._replace(model=model)
        self.request_facts = request_facts
        self.policy = binding.policy if replayable else binding.policy._replace(replayable=False)
        self.window = provider.default_window
        self.priority = binding.priority
        pairs = dict(headers)
        found = route.names.intersection(pairs)
        key: Key | None = None
        secrets: Secrets = ()
        if len(found) == 1 and route.is_plain and not account:
            # Nearly every request: only a new credential needs more than a look at what is interned.
            (name,) = found
            secrets = ((name, pairs[name]),)
            key = registry.interned.get((route.facts, hash((secrets, account)), request_facts[0]))
        if key is None:
            key, secrets = key_of(registry, sending, request_facts, pairs)
        if account:
            secrets += ((b"account", account.encode()),)
        self.key = key
        self.secrets = None if adds_credential else secrets

    @property
    def request(self) -> Any:
        return self.args[0] if self.args else self.kwargs["request"]

    def identity(self) -> Hashable | None:
        """Return the path, the query and the body of the request; None where the body cannot be read twice."""
        sending = self.sending
        return None if sending.body is None else (sending.route.path, sending.query, sending.body)

    def try_start(self) -> Permit | None:
        if audit.open_blocks and _lacks_price(self):
            self.handoff = current_handoff()
            self.started_at = self.registry.clock()
            return None
        return super().try_start()

    def exchange(self, make_waker: Callable[[], Waker], permit: Permit | None, attempt: AttemptResult | None) -> Flow:
        """Return the exchange; one that sends nothing for a call that must have a price and has none."""
        if audit.open_blocks and permit is None and _lacks_price(self):
            guard = audit.price_guard()
            assert guard is not None, "only a guard requires a price"
            guard(self.key, self.request_facts.model)
            return _unsent()
        self.make_waker = make_waker
        self.sdk_may_repeat = _bound_by_token(self)
        if not self.mocks and stub_servers.is_stub(self.key.base_url):
            self.sdk_may_repeat = True
            self.policy = self.policy._replace(max_wait=min(self.policy.max_wait, stub_servers.MAX_STUB_WAIT_SECONDS))
        flow = super().exchange(make_waker, permit, attempt)
        if permit is None and self.registry.places and self.sending.body is not None:
            self.place = self.registry.places.pop(_fingerprint(self), 0)
        return flow

    def sent_headers(self) -> Mapping[str, Any]:
        headers: Mapping[str, Any] = self.request.headers
        return headers

    def write_header(self, name: str, value: str) -> None:
        self.request.headers[name] = value

    def finish(self, ended: ExchangeResult) -> Any:
        """Return the last response, or raise the last exception; return a 429 of tidegate if nothing was received."""
        attempt = ended.attempt
        if attempt is None or attempt.outcome.kind is not OK:
            _remember_credentials(self)
        if attempt is None and ended.gate == NO_PRICE:
            return self.refused(*without_price(self.key, self.request_facts.model), status=BAD_REQUEST_STATUS)
        aged = attempt is not None and _may_have_aged(self, attempt.outcome, ended.waited)
        _handed_back.set(_with_token(self) if aged else None)
        if attempt is None or aged:
            headers, body = deadline_refusal(self, ended)
            if aged or self.sdk_may_repeat:
                # The SDK comes back at once, and waits here at its place.
                del headers[NO_RETRY]
                headers.pop(RETRY_AFTER, None)
                _leave_place(self)
            return self.refused(headers, body)
        reason = self.reason_of(ended)
        if attempt.error is not None:
            if reason:
                add_note(attempt.error, reason)
            raise attempt.error
        if ended.ending is Ending.GIVEN_UP:
            if self.sdk_may_repeat and attempt.outcome.kind in CAPACITY:
                _leave_place(self)
            elif attempt.outcome.kind is not Kind.QUOTA_EXHAUSTED and (
                attempt.outcome.kind is not Kind.DAILY_LIMIT or ended.waited
            ):
                # The SDK's retries of a rejected key find out as well that it works again.
                self.stop_retries(attempt.response)
            if reason:
                self.add_headers(attempt.response, wait_headers(self, ended, reason))
        return attempt.response

    def credentials(self) -> Iterator[str]:
        headers = self.request.headers
        yield from redaction.in_headers((_text(name), _text(value)) for name, value in headers.items())
        yield from redaction.in_address(str(self.request.url))

    def stop_retries(self, response: Any) -> None:
        """Mark a response so that the SDK above does not repeat the call; `sdk_hooks.is_given_up` reads the mark."""
        if response.status_code in RETRYABLE:
            response.headers[NO_RETRY] = "false"

    def add_headers(self, response: Any, headers: dict[str, str]) -> None:
        response.headers.update(headers)

    def will_retry(self, permit: Permit, outcome: Outcome) -> bool:
        """Return whether the call is sent again, here or by its caller: the rest of this answer's body is not read."""
        policy, now = self.policy, self.now()
        deadline = self.started_at + policy.max_wait
        # Count all transient attempts as used: a failure that is repeated later still shows its body.
        if retry_time(policy, permit, outcome, now, deadline, policy.attempts) is RetryTime.AT_ONCE:
            return True
        return _may_have_aged(self, outcome, permit.sent_at - self.started_at)

    @abstractmethod
    def refused(self, headers: dict[str, str], body: Any, status: int = TOO_MANY_REQUESTS_STATUS) -> Any:
        """Return a refusal as the stack's own response, with these headers and this JSON body."""

    def is_from_provider(self, response: Any) -> bool:
        """Return whether a response came from a provider, and not from a test."""
        return True

    def price(self, estimate: CostEstimator) -> Cost:
        """Return the expected charge of the call, from what its key has learned so far."""
        return providers.estimate(self.provider, self.request_facts, estimate)

    def outcome(self, permit: Permit, status: int, response: Any, body: bytes | None) -> Outcome:
        """Return the outcome of an answer; `body` is None while it streams. Log any failure to read it."""
        try:
            if permit.trace is not None and permit.trace.receivers:
                _remember_credentials(self)
                permit.trace.request_id = redaction.clean_fact(providers.request_id_of(self.pairs(response)))
            if status >= 400:
                outcome = self.judge(status, self.pairs(response), body)
                return outcome._replace(of_key=True) if _is_of_key(self, outcome, response, body) else outcome
            outcome = self.judge(status, self.pairs(response), None) if permit.informs else success_outcome(status)
            if body is not None and body[-1:] not in _ENDS and _is_unreadable(self, response, status, body):
                # The program gets it as it is; no count has it as an answer.
                return outcome._replace(kind=Kind.TRANSIENT, row=UNREADABLE)
            if body is not None:
                return self.answered(permit, outcome, body, response)
        except Exception as error:
            logger.exception("response not judged: %s was raised; it is returned unchanged", type(error).__name__)
            # The stream holds the permit, which only the end of the stream may settle.
            streams = status < 400 and body is None
            return success_outcome(status) if streams else Outcome(Kind.ABANDONED, row="unjudged")
        return outcome

    def error_outcome(self, permit: Permit, error: Exception) -> Outcome:
        """Return the outcome of an attempt that raised. If a hook raised for the status, judge the answer itself."""
        response: Any = getattr(error, "response", None)
        facts = getattr(response, "__dict__", {})
        request = facts.get("_request", facts.get("request"))
        if request is None or request is not self.request:
            return self.unanswered_outcome(error)
        body = getattr(response, "_content", None)
        return self.outcome(permit, response.status_code, response, body if isinstance(body, bytes) else b"")

    def pairs(self, response: Any) -> Iterable[tuple[bytes, bytes]]:
        """Return the raw headers of a stack's response, in any case."""
        return raw_pairs(response.headers)

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

    def answered(self, permit: Permit, outcome: Outcome, body: bytes, response: Any = None) -> Outcome:
        """Return the outcome of a complete answer with its usage, and train the key's estimate.

        Without a `response`, the watch of a stream has judged the body.
        """
        usage = providers.usage_of(self.provider, body, self.request_facts[0])
        # An answer that charged for its input is no refusal, unless it has an `error`. By `find`: in Python 3.11 `in`
        # raises inside first. A stream reports failures to its reader, even if it has arrived already.
        if response is not None and (usage is None or not usage[0] or body.find(b'"error"') >= 0) and not self.stream:
            short = len(body) <= MAX_CHECKED_BYTES
            failure = providers.judge_event(self.provider, body, not is_stream(self, response)) if short else None
            if failure is not None:
                return failure._replace(status=outcome.status)
        if permit.trace is not None and permit.trace.receivers:
            permit.trace.finish_reason = redaction.clean_fact(providers.finish_reason_of(body))
        if usage is None:
            return outcome
        order, cost = permit.order, permit.cost
        # Always at first, or for a charge; later at intervals.
        if order <= ALWAYS_LEARNED_ATTEMPTS or order % LEARNED_ATTEMPT_INTERVAL == 0 or cost.produced or cost.held:
            charged = providers.charged(self.provider, usage) if usage.cached_tokens else usage
            self.registry.learn_usage(permit, self.request_facts, charged)
        # Written out, as `_replace` takes longer and every answer comes here.
        return new(Outcome, (*outcome[:4], usage, *outcome[5:]))


def _bound_by_token(call: HttpCall) -> bool:
    """Limit the wait to the life of a token that nothing renews."""
    ends = min(map(expiry, _carried(call)), default=INFINITY)
    left = ends - time.time()
    # No wait cures a token that has ended, but the clock of this machine may be wrong.
    left = left if left > 0.0 else bearer.STALE_AFTER_SECONDS
    if left >= call.policy.max_wait or _is_renewable(call):
        return False
    call.policy = call.policy._replace(max_wait=left)
    return True


def _may_have_aged(call: HttpCall, outcome: Outcome, waited: float) -> bool:
    """Return whether a rejected token that nothing renews may have ended in the seconds that its call waited.

    The caller repeats such a call in the same context, where a rejection of the same token is final.
    """
    if outcome.status != UNAUTHORIZED_STATUS or waited <= bearer.STALE_AFTER_SECONDS:
        return False
    if call.provider.credential_part is not None or _is_renewable(call):
        return False
    return _handed_back.get() != _with_token(call)


def _with_token(call: HttpCall) -> int:
    """Return a hash of a call and of the credentials that it carries."""
    return hash((call.request_facts, call.sending.body, *_carried(call)))


def _is_renewable(call: HttpCall) -> bool:
    return bearer.is_renewable(call.sent_headers(), call.make_waker is not ThreadWaker)


def _fingerprint(call: HttpCall) -> tuple[Key, int]:
    """Return what a call and its repetition by its caller have in common."""
    return call.key, hash((call.request_facts, call.sending.body))


def _leave_place(call: HttpCall) -> None:
    """Keep the place in the queue for the call by which the SDK repeats this one, with a new token."""
    if call.sending.body is None:
        return
    places = call.registry.places
    places[_fingerprint(call)] = call.place
    if len(places) > MAX_QUEUE_PLACES:
        # Another thread may change the table; the next call cuts it then.
        with contextlib.suppress(RuntimeError, StopIteration):
            places.pop(next(iter(places)), None)


def take_token(call: HttpCall, renewal: bearer.Renewal, token: str) -> None:
    call.write_header(renewal.header, renewal.before + token)
    old, new = renewal.token.encode("latin-1", "replace"), token.encode("latin-1", "replace")
    if call.secrets is not None:
        call.secrets = tuple((name, value.replace(old, new)) for name, value in call.secrets)


def _lacks_price(call: HttpCall) -> bool:
    if audit.price_guard() is None:
        return False
    return providers.price_of(call.key.provider, call.request_facts.model) is None


def _remember_credentials(call: HttpCall) -> None:
    # A text about the call may follow, so redaction must know its credentials first.
    try:
        redaction.remember(call.credentials())
    except Exception as error:
        text = "credentials of a call not read: %s was raised; they are redacted only by their form"
        logger.exception(text, type(error).__name__)


def _content_type(call: HttpCall, response: Any) -> bytes:
    return next((value.lower() for name, value in call.pairs(response) if name.lower() == b"content-type"), b"")


def is_stream(call: HttpCall, response: Any) -> bool:
    """Return whether an answer is a stream by its content type, however it is read."""
    kind = _content_type(call, response)
    return any(part in kind for part in _EVENTS)


def _is_unreadable(call: HttpCall, response: Any, status: int, body: bytes) -> bool:
    """Return whether a good answer is unusable: empty, truncated JSON, or the HTML page of a gateway."""
    if call.stream or status == NO_CONTENT_STATUS:
        return False
    kind = _content_type(call, response)
    if b"json" in kind:
        return body.rstrip()[-1:] not in _ENDS
    return not body or b"text/html" in kind


def _is_of_key(call: HttpCall, outcome: Outcome, response: Any, body: bytes | None) -> bool:
    """Return whether a rejection holds for the key: a provider made it, of a known credential that has not expired."""
    rejects = providers.concerns_key(outcome, body) and call.is_from_provider(response)
    return rejects and call.secrets is not None and not _has_expired(call)


def _has_expired(call: HttpCall) -> bool:
    """Return whether the call carries a token that has expired, or will very soon."""
    soon = time.time() + EXPIRES_SOON_SECONDS
    return any(expiry(value) < soon for value in _carried(call))


def _carried(call: HttpCall) -> list[bytes]:
    """Return the credentials that the call carries now, also those that do not decide its key."""
    known = [value for _, value in call.secrets or ()]
    if call.provider.credential_part is not None:
        return known  # the header changes with each signature
    headers = call.sent_headers()
    return known + [_raw(headers.get(name, "")) for name in bearer.HEADERS]


def _unsent() -> Flow:
    yield from ()
    return ExchangeResult(Ending.EXPIRED, None, 0.0, NO_PRICE)


def _raw(given: object) -> bytes:
    return given if isinstance(given, bytes) else str(given).encode("latin-1", "replace")


def raw_pairs(headers: Any) -> list[tuple[bytes, bytes]]:
    return [(_raw(name), _raw(value)) for name, value in headers.items()]


def _text(given: object) -> str:
    return given.decode("latin-1") if isinstance(given, bytes) else str(given)
