"""What the simulated provider writes in virtual time: the same headers and bodies as over HTTP, without a socket."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate
from typing import NamedTuple

from bench.scenarios import MODELS, Row, Sdk
from tidegate.testing import Call, Refusal, Scenario
from tidegate.testing.accounts import AdmissionRecord
from tidegate.testing.dialects import DIALECT_TABLE, Headers, RefusalFacts, told
from tidegate.testing.formats.anthropic import MESSAGES
from tidegate.testing.formats.base import SimulatedEndpoint, SimulatedReply, dumps, error_body
from tidegate.testing.formats.openai import CHAT


class Asking(NamedTuple):
    """How an SDK asks: the endpoint's shape, its path, and the family by which the SDK is known."""

    endpoint: SimulatedEndpoint
    path: str
    family: str


ASKING: dict[Sdk, Asking] = {
    "openai": Asking(CHAT, "/v1/chat/completions", "openai"),
    "anthropic": Asking(MESSAGES, "/v1/messages", "anthropic"),
    "bedrock": Asking(MESSAGES, f"/model/{MODELS['bedrock']}/invoke", "anthropic"),
}

USUAL_OUTPUT = 10
"""Tokens of an answer where the scenario does not say."""


class Answer(NamedTuple):
    """An answer as it leaves the provider; `body` is None for the head of a stream."""

    status: int
    headers: Headers
    body: bytes | None


class Answers:
    """The answers of one row's provider; `wall` gives seconds since 1970."""

    def __init__(self, row: Row, scenario: Scenario, wall: Callable[[], float]) -> None:
        self._scenario = scenario
        self._dialect = DIALECT_TABLE[row.sdk if scenario.dialect == "auto" else scenario.dialect]
        self._endpoint = ASKING[row.sdk].endpoint
        self._wall = wall

    def headers(self, verdict: AdmissionRecord) -> Headers:
        """The headers of an answer, read off the limiters as the call was judged."""
        wall = self._wall()
        headers: Headers = [("date", formatdate(wall, usegmt=True))]
        if self._scenario.headers:
            headers += self._dialect.headers(verdict.announced, wall, self._scenario.resets)
        return headers

    def refusal(self, refusal: Refusal, headers: Headers) -> Answer | None:
        """The answer to a call that is not let in; None where the connection is cut instead."""
        if refusal.drops:
            return None
        telling = RefusalFacts("model", told(self._scenario.retry_after, refusal.retry_after), self._scenario.prose)
        own = self._scenario.refusals
        said = (DIALECT_TABLE[own] if own else self._dialect).refuse(refusal, telling)
        rows = [*headers[:1], *said.headers] if own or said.status >= 500 else headers + said.headers
        return Answer(said.status, rows, said.body.encode() if isinstance(said.body, str) else dumps(said.body))

    def broken(self, status: int, headers: Headers) -> Answer:
        """The answer that an injected fault leaves."""
        return Answer(status, headers, dumps(error_body("Injected error", "server_error")))

    def whole(self, call: Call, output: int, headers: Headers) -> Answer:
        """A complete answer of so many tokens."""
        return Answer(200, headers, dumps(self._endpoint.whole({}, self._reply(call, output))))

    def events(self, call: Call, output: int) -> bytes:
        """Everything that a streamed answer consists of, its usage included."""
        stream = self._endpoint.stream
        assert stream is not None, "the endpoint streams"
        made = stream({"stream_options": {"include_usage": True}}, self._reply(call, output))
        return made.head + b"".join(made.pieces) + made.tail

    def _reply(self, call: Call, output: int) -> SimulatedReply:
        cached = min(self._scenario.cached_tokens, call.input_tokens)
        bounded = output == call.max_tokens
        return SimulatedReply("id", "model", "Yes.", call.input_tokens, output, bounded, 0, cached_tokens=cached)
