"""What every HTTP stack shares: is this request governed, by whom, under which key, at which cost.

A transport asks `marked` and `provider_of` before it sends; None from either means: pass through untouched. Otherwise
it makes a `GovernedCall`, runs it through `tidegate.drive` and tells it what came back.
"""

from __future__ import annotations

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from tidegate import providers
from tidegate.core.admission import Permit
from tidegate.core.estimate import Estimate
from tidegate.core.exchange import Ended, Ending, Policy
from tidegate.core.vocabulary import Cause, Cost, Inquiry, Key, Kind, Outcome
from tidegate.nesting import passes
from tidegate.registries import RateLimitRegistry
from tidegate.transports.carrying import carried
from tidegate.turn import Turn

logger = logging.getLogger("tidegate")

MARK = "_tidegate_mark"
"""The attribute that `wrap` leaves on an HTTP client, or on an SDK's object that sends through clients of its own."""

GAVE_UP = "_tidegate_gave_up"
"""The attribute, True, of a response that is not to be asked for again, where its headers cannot be changed to say so.

aiohttp's responses carry it; whoever stops the retries of an SDK above aiohttp reads it.
"""

NO_RETRY = "x-should-retry"
"""The header that, being `false`, tells the openai and anthropic SDKs not to repeat (openai 3.52 `_should_retry`)."""

USAGE_ALWAYS = 64
USAGE_EVERY = 32
"""Answers whose usage is read: the first ones, then one in so many; it teaches an estimate that a dozen settle."""

UNREAL = Outcome(Kind.ABANDONED, row="no network")
"""What a mock's refusal or failure comes to: there is no provider behind it, whose limit could be waited for."""

SHORT = 4096
"""Bytes of a complete body, at most, that may be an error under a 200 (ModelScope, OpenRouter; PROVIDERS.md rule 7)."""

RETRYABLE = frozenset({408, 409, 429}) | frozenset(range(500, 600))
"""Statuses that the openai and anthropic SDKs repeat by themselves (openai 3.52 `_should_retry`)."""


def nobody(host: str) -> str | None:
    """No host is governed by its name."""
    return None


class Mark(NamedTuple):
    """How a client is governed; `family` is its SDK's (see `providers.adopt`), None for a bare HTTP client.

    With `any_host` every inference path is governed, else those of known providers, of local servers, and of the hosts
    that `named` knows, with the family of what they speak.
    """

    registry: RateLimitRegistry
    policy: Policy
    priority: int = 0
    family: str | None = None
    any_host: bool = False
    named: Callable[[str], str | None] = nobody

    def __deepcopy__(self, memo: object) -> Mark:
        """The same: the copy of a client counts at the registry of the first."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """None: a registry stays in its process, and elsewhere the client is as if it had never been wrapped."""
        return type(None), ()


@lru_cache(maxsize=64)
def good(status: int) -> Outcome:
    """A good answer that teaches nothing else."""
    return Outcome(Kind.OK, status=status)


def policy_of(registry: RateLimitRegistry, max_wait: float | None = None) -> Policy:
    """What a client's calls may do by themselves: transient failures are its SDK's to repeat."""
    return Policy(registry.settings.max_wait if max_wait is None else max_wait, 1)


class Installation:
    """The process-wide mark, while tidegate is installed."""

    mark: Mark | None = None


class Sending(NamedTuple):
    """A request as its HTTP stack sees it, before it is queued.

    `headers` are its raw pairs, in any case; `body` is None where it cannot be read twice. `query` is the raw one.
    """

    scheme: str
    host: str
    port: int | None
    path: str
    headers: list[tuple[bytes, bytes]]
    body: bytes | None
    replayable: bool
    model: str = ""
    query: bytes = b""


def marked(client: Any) -> Mark | None:
    """The mark that decides over a client's requests: its own, else the carrier's, else that of the installation.

    None: nobody's.
    """
    mark = getattr(client, MARK, None)
    if mark is None:
        mark = carried() or Installation.mark
    if mark is None or mark.registry.disabled or passes():
        return None
    return mark


def provider_of(mark: Mark, host: str, path: str) -> providers.Provider | None:
    """Whose inference endpoint `path` on `host` is, as far as `mark` governs it; None: pass through."""
    if mark.any_host:
        return providers.adopt(host, path, mark.family)
    provider = providers.recognise(host, path)
    if provider is not None:
        return provider
    family = mark.named(host)
    return providers.adopt(host, path, family or "openai") if family is not None or is_local(host) else None


@lru_cache(maxsize=1024)
def is_local(host: str) -> bool:
    """Whether `host` is this machine or an address of a private network: self-hosted servers live there."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback or address.is_private


class GovernedCall(Turn, ABC):
    """One SDK attempt on its way through the queue, repeated here while the provider lacks capacity.

    It carries what the SDK called: `wrapped(*args, **kwargs)`, whose answer is to be streamed or not.
    """

    __slots__ = ("args", "inquiry", "kwargs", "mocks", "provider", "stream", "wrapped")

    def __init__(self, mark: Mark, provider: providers.Provider, sending: Sending) -> None:
        registry = mark.registry
        # A client that was wrapped is governed whatever answers it. In a process that merely has tidegate installed,
        # the tests of the SDKs, and of those who use them, must see what their mocks say.
        self.mocks = mark.any_host
        inquiry = providers.read_inquiry(provider, sending.path, sending.body)
        if sending.model and not inquiry.model:
            inquiry = inquiry._replace(model=sending.model)
        self.provider = provider
        self.inquiry = inquiry
        policy = mark.policy if sending.replayable else mark.policy._replace(replayable=False)
        key = key_of(registry, provider, sending, inquiry)
        super().__init__(registry, key, policy, provider.default_window, mark.priority)

    def carry(self, wrapped: Callable[..., Any], args: Any, kwargs: Any, stream: bool) -> None:
        """Takes up what the SDK called."""
        self.wrapped = wrapped
        self.args = args
        self.kwargs = kwargs
        self.stream = stream

    @property
    def request(self) -> Any:
        """The stack's request."""
        return self.args[0] if self.args else self.kwargs["request"]

    def finish(self, ended: Ended) -> Any:
        """The response or the exception that was received last; a 429 of our own where there is none."""
        sent = ended.sent
        if sent is None:
            return self.refused(*self.refusal(ended))
        if sent.error is not None:
            raise sent.error
        if ended.ending is Ending.GIVEN_UP:
            self.stop_retries(sent.response)
        return sent.response

    def stop_retries(self, response: Any) -> None:
        """Tells the SDK above not to repeat a call that has been given up; `sdks.given_up` reads it."""
        if response.status_code in RETRYABLE:
            response.headers[NO_RETRY] = "false"

    @abstractmethod
    def refused(self, headers: dict[str, str], body: dict[str, Any]) -> Any:
        """A 429 of the stack's own kind with these headers and this JSON body."""

    def price(self, estimate: Estimate) -> Cost:
        """What the call is expected to be charged, by what its key has learned so far."""
        return providers.estimate(self.provider, self.inquiry, estimate.chars_per_token, estimate.mean_output)

    def outcome(self, permit: Permit, status: int, response: Any, body: bytes | None) -> Outcome:
        """What an answer comes to; `body` is None while it streams. One that cannot be judged teaches nothing."""
        try:
            if status >= 400:
                return self.judge(status, self.pairs(response), body)
            # A stream's reader is told of its failures by the stream, also where the whole of it is there already.
            if body is not None and not self.stream and len(body) <= SHORT and b'"error"' in body:
                failure = providers.judge_event(self.provider, body)
                if failure is not None:
                    return failure._replace(status=status)
            outcome = self.judge(status, self.pairs(response), None) if permit.informs else good(status)
            if body is not None and self.reads_usage(permit):
                return self.answered(permit, outcome, body)
        except Exception:
            logger.exception("a response could not be judged; it is handed back")
            # The permit of what streams goes with the stream: only an end settles it.
            streams = status < 400 and body is None
            return good(status) if streams else Outcome(Kind.ABANDONED, row="unjudged")
        return outcome

    def raised(self, permit: Permit, error: Exception) -> Outcome:
        """What an attempt that raised comes to; a hook that raises for the status does not hide the answer from us."""
        response: Any = getattr(error, "response", None)
        facts = getattr(response, "__dict__", {})
        request = facts.get("_request", facts.get("request"))
        if request is None or request is not self.request:
            return self.judge_error(error)
        body = getattr(response, "_content", None)
        return self.outcome(permit, response.status_code, response, body if isinstance(body, bytes) else b"")

    @abstractmethod
    def pairs(self, response: Any) -> Iterable[tuple[bytes, bytes]]:
        """The headers of a stack's response, raw, in any case."""

    def judge(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes | None) -> Outcome:
        """What a response means."""
        return providers.judge(self.provider, status, headers, body, datetime.now(UTC))

    def judge_error(self, error: Exception) -> Outcome:
        """What an exception of the HTTP stack means, by the names that all of them use."""
        names = {each.__name__ for each in type(error).__mro__}
        if "TimeoutException" in names and "ConnectTimeout" not in names:
            return Outcome(Kind.TRANSIENT, Cause.NONE, row="timeout")
        if "TransportError" in names or isinstance(error, OSError):
            return Outcome(Kind.TRANSIENT, Cause.OUTAGE, row="connection")
        return Outcome(Kind.ABANDONED, row="exception")

    def reads_usage(self, permit: Permit) -> bool:
        """Whether to look for the usage in the answer: always while it is new or charged by, then now and then."""
        return permit.order <= USAGE_ALWAYS or permit.order % USAGE_EVERY == 0 or permit.cost.produced > 0.0

    def answered(self, permit: Permit, outcome: Outcome, body: bytes) -> Outcome:
        """The outcome of a complete answer, with its usage; the key's estimate learns from it."""
        usage = providers.usage_of(self.provider, body)
        if usage is None:
            return outcome
        self.registry.learn_usage(permit, self.inquiry, usage)
        return outcome._replace(usage=usage)

    def refusal(self, ended: Ended) -> tuple[dict[str, str], dict[str, Any]]:
        """Headers and JSON body of the 429 that stands for "nothing was received before the deadline"."""
        text = (
            f"tidegate: no answer was received: the call waited {ended.waited:.1f} s for {self.key} "
            f"({ended.gate or 'queue'}), longer than max_wait = {self.policy.max_wait:g} s."
        )
        error = {"message": text, "type": "tidegate_queue_deadline", "param": None, "code": "queue_deadline"}
        headers = {NO_RETRY: "false", "x-tidegate": "queue-deadline"}
        return headers, {"type": "error", "error": error}


def key_of(registry: RateLimitRegistry, provider: providers.Provider, sending: Sending, inquiry: Inquiry) -> Key:
    """Whose quota the request counts against; keys are interned, so that a client's next request finds its own."""
    names = _credential_names(provider)
    secrets = tuple([pair for pair in sending.headers if pair[0] in names])
    if not secrets:
        secrets = tuple([(name.lower(), value) for name, value in sending.headers if name.lower() in names])
    if provider.query_credential and sending.query:
        secrets += _asked(provider, sending.query)
    if provider.credential_part is not None:
        secrets = tuple([(name, _payer(provider, value)) for name, value in secrets])
    facts = (provider.name, sending.scheme, sending.host, sending.port, sending.path, hash(secrets), inquiry.model)
    key = registry.interned.get(facts)
    if key is None:
        given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in secrets}
        key = Key(
            provider.name,
            base_url(provider, sending),
            registry.digest(providers.credential_of(provider, given.get)),
            providers.scope(provider, inquiry, sending.host, sending.path),
            providers.family_of(provider, sending.path),
        )
        registry.intern(facts, key)
    return key


@lru_cache(maxsize=256)
def _credential_names(provider: providers.Provider) -> frozenset[bytes]:
    # As the SDKs and the HTTP libraries spell them; another spelling is looked for only where none of these is there.
    spelt = {name for plain in provider.credential for name in (plain, plain.title())}
    spelt |= {name.replace("Openai", "OpenAI").replace("Api-Key", "API-Key") for name in spelt}
    return frozenset(name.encode("ascii") for name in spelt)


def _asked(provider: providers.Provider, query: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """The credentials in the query, as the headers that they stand for."""
    given = parse_qs(query[:4096].decode("latin-1"))
    pairs = [(header, given[name][0]) for name, header in provider.query_credential if name in given]
    return tuple((header.encode("ascii"), value.encode("latin-1", "replace")) for header, value in pairs)


def _payer(provider: providers.Provider, value: bytes) -> bytes:
    return providers.payer(provider, value.decode("latin-1")).encode("latin-1")


def base_url(provider: providers.Provider, sending: Sending) -> str:
    """Scheme, host and port; for a server known by its base URL alone also the path before the endpoint."""
    port = f":{sending.port}" if sending.port is not None else ""
    host = f"[{sending.host}]" if ":" in sending.host else sending.host
    origin = f"{sending.scheme}://{host}{port}"
    if provider.hosts:
        return origin
    return origin + _ENDPOINT.sub("", sending.path.removesuffix("/"), count=1)


_ENDPOINT = re.compile(
    r"/(?:chat/completions|v1(?:alpha|beta1?)?/(?:interactions|(?:models|tunedModels|publishers|projects)/.+)|[^/]*)$"
)
"""The end of a path that no base URL has: Google's SDK adds the version itself."""
