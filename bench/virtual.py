"""A scenario in virtual time: the real registry, exchange and provider tables against the simulator's own books.

Answers are bytes here too: the simulator's dialects write headers and bodies, `tidegate.providers` reads them, so that
rounding is what it is over HTTP. Deterministic by seed.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any, NamedTuple

from bench.measures import Run, measured
from bench.scenarios import MODELS, Row, Sdk
from bench.world import VirtualCall, World
from tidegate import providers
from tidegate.core.admission import Permit
from tidegate.core.exchange import Policy, Sent
from tidegate.core.vocabulary import Inquiry, Key, Kind, Outcome
from tidegate.providers import Provider
from tidegate.settings import Settings
from tidegate.testing import Call, Reason, Refusal
from tidegate.testing.accounts import Accounts, Admission, Verdict
from tidegate.testing.anthropic_shapes import MESSAGES
from tidegate.testing.dialects import DIALECT_TABLE, Headers, Telling, told
from tidegate.testing.live import error_body
from tidegate.testing.openai_shapes import CHAT
from tidegate.testing.replies import Endpoint, Reply, dumps
from tidegate.transports.govern import GovernedCall
from tidegate.transports.streams import StreamWatch
from tidegate.turn import Turn

NETWORK = 0.005
"""Seconds each way."""

SETUP = 0.003
"""Seconds for each new connection, after those that are being set up already; who finds an idle one overtakes them.

So that calls are overtaken by as many places as over HTTP (openai 3.52, request-bound and token-bound: 4 to 8).
"""

MOST_IDLE = 100
"""Connections that are kept (openai 3.52: DEFAULT_CONNECTION_LIMITS)."""

EPOCH = 1_800_000_000.0
"""The wall time at which every world begins, or up to a second later: many headers are cut to whole seconds."""

SDK_RETRIES = 2
"""How often the openai and anthropic SDKs repeat a transient failure (openai 3.52 and anthropic 2.11)."""

MOST_STEPS = 5_000_000


class Asking(NamedTuple):
    """How an SDK asks: the endpoint's shape, its path, and the body that says whether to stream."""

    endpoint: Endpoint
    path: str
    family: str


ASKING: dict[Sdk, Asking] = {
    "openai": Asking(CHAT, "/v1/chat/completions", "openai"),
    "anthropic": Asking(MESSAGES, "/v1/messages", "anthropic"),
    "bedrock": Asking(MESSAGES, f"/model/{MODELS['bedrock']}/invoke", "anthropic"),
}


class LabTurn(GovernedCall):
    """A governed call without an HTTP library: its answers are header pairs, its wall clock the world's."""

    __slots__ = ("call", "wall")

    def __init__(self, laboratory: Laboratory, call: Call) -> None:
        registry, provider, row = laboratory.registry, laboratory.provider, laboratory.row
        policy = Policy(registry.settings.max_wait, 1)
        Turn.__init__(self, registry, laboratory.key, policy, provider.default_window, 0)
        self.mocks = True
        self.provider = provider
        self.call = call
        self.inquiry = Inquiry(MODELS[row.sdk], row.chars(call), call.max_tokens, row.stream)
        self.stream = row.stream
        self.wall = laboratory.wall

    def pairs(self, response: Headers) -> Iterable[tuple[bytes, bytes]]:
        """The answer's headers."""
        return [(name.encode(), value.encode()) for name, value in response]

    def judge(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes | None) -> Outcome:
        """What a response means, read at the world's time."""
        return providers.judge(self.provider, status, headers, body, datetime.fromtimestamp(self.wall(), UTC))

    def refused(self, headers: dict[str, str], body: dict[str, Any]) -> Any:
        """Nothing is asked for it: a call that expires is seen as lost."""
        raise NotImplementedError


class Laboratory(World):
    """One row at one seed: its provider, its network, and its callers, who take the calls in order."""

    def __init__(self, row: Row, seed: int, settings: Settings | None = None, sample: float | None = None) -> None:
        super().__init__(settings or Settings(), seed, repeats=SDK_RETRIES, most_steps=MOST_STEPS)
        self.row = row
        self.scenario = row.seeded(seed)
        self.asking = ASKING[row.sdk]
        self.dialect = row.sdk if self.scenario.dialect == "auto" else self.scenario.dialect
        provider = providers.adopt("provider.test", self.asking.path, self.asking.family)
        assert provider is not None, f"{self.asking.path} generates nothing"
        self.provider: Provider = provider
        self.key = Key(provider.name, "https://provider.test", "0123456789abcdef", MODELS[row.sdk])
        self.accounts = Accounts(self.scenario, lambda: self.timeline.now)
        self._idle = self._opening = 0
        self._began_at = EPOCH + random.Random(seed).random()
        self.left: Iterator[tuple[int, Call]] = iter(enumerate(row.calls(seed)))
        self.losses: dict[str, int] = {}
        self.unfinished = row.count
        self.refused_at: list[float] = []
        self.met_outage_at: list[float] = []
        for _ in range(min(row.callers, row.count)):
            self._next()

    def wall(self) -> float:
        """Seconds since 1970."""
        return self._began_at + self.now

    def _next(self) -> None:
        """A caller that is free takes the next call, if one is left."""
        for number, call in self.left:
            self.join(VirtualCall(self, number, LabTurn(self, call)), self.now)
            return

    def concluded(self, call: VirtualCall) -> None:
        """The caller goes on; one that reads a stream is busy until its end."""
        sent = self.ended[call.row].sent
        if sent is not None and sent.streaming:
            return
        self._over(sent.outcome if sent is not None else None)

    def _over(self, outcome: Outcome | None) -> None:
        if outcome is None or outcome.kind is not Kind.OK:
            name = "expired" if outcome is None else f"{outcome.kind} {outcome.status}"
            self.losses[name] = self.losses.get(name, 0) + 1
        self.makespan = self.now
        self.unfinished -= 1
        self._next()

    def serve(self, call: VirtualCall, permit: Permit, reply: Callable[[Sent], None]) -> None:
        """The request travels on a connection, is let in or refused, and is answered."""
        self.after(NETWORK + self._connected(), lambda: self._arrive(call, permit, reply))

    def _connected(self) -> float:
        """Seconds until there is a connection for a request that leaves now."""
        if self._idle:
            self._idle -= 1
            return 0.0
        self._opening += 1
        delay = SETUP * self._opening
        self.after(delay, self._opened)
        return delay

    def _opened(self) -> None:
        self._opening -= 1

    def _travel(self, action: Callable[[], object]) -> None:
        """An answer goes home, and leaves its connection idle."""
        self.after(NETWORK, lambda: self._arrived(action))

    def _arrived(self, action: Callable[[], object]) -> None:
        self._idle = min(MOST_IDLE, self._idle + 1)
        action()

    def _arrive(self, call: VirtualCall, permit: Permit, reply: Callable[[Sent], None]) -> None:
        turn = call.turn
        verdict = self.accounts.admit("key", str(call.row), turn.call, stream=turn.stream)
        headers = self._headers(verdict)
        if isinstance(verdict.outcome, Refusal):
            outage = verdict.outcome.reason is Reason.OUTAGE
            (self.met_outage_at if outage else self.refused_at).append(self.now)
            self._refuse(verdict.outcome, headers, turn, permit, reply)
            return
        admission, output = verdict.outcome, self._output(turn.call)
        pace = admission.token_pace * output

        def answer() -> None:
            self.accounts.end(admission, "answered", output)
            body = self._body(turn, output)
            self._travel(lambda: reply(Sent(turn.outcome(permit, 200, headers, body))))

        def begin() -> None:
            self.after(NETWORK, lambda: self._stream(turn, permit, headers, reply, pace, finish))

        def finish(watch: StreamWatch) -> None:
            self.accounts.end(admission, "answered", output)
            self._idle = min(MOST_IDLE, self._idle + 1)
            watch.saw(self._events(turn, output))
            watch.finish()
            self._over(Outcome(Kind.OK))

        if admission.fault is not None:
            self.after(admission.latency, lambda: self._break(admission, headers, turn, permit, reply))
        elif turn.stream:
            self.after(admission.latency, begin)
        else:
            self.after(admission.latency + pace, answer)

    def _stream(
        self,
        turn: LabTurn,
        permit: Permit,
        headers: Headers,
        reply: Callable[[Sent], None],
        pace: float,
        finish: Callable[[StreamWatch], None],
    ) -> None:
        outcome = turn.outcome(permit, 200, headers, None)
        watch = StreamWatch(turn, permit, outcome)
        reply(Sent(outcome, streaming=True))
        self.after(pace, lambda: finish(watch))

    def _output(self, call: Call) -> int:
        natural = self.accounts.output_tokens(10)
        return natural if call.max_tokens is None else min(natural, call.max_tokens)

    def _headers(self, verdict: Verdict) -> Headers:
        wall = self.wall()
        headers: Headers = [("date", formatdate(wall, usegmt=True))]
        if self.scenario.headers:
            headers += DIALECT_TABLE[self.dialect].headers(verdict.announced, wall)
        return headers

    def _refuse(
        self, refusal: Refusal, headers: Headers, turn: LabTurn, permit: Permit, reply: Callable[[Sent], None]
    ) -> None:
        if refusal.drops:
            self._cut(turn, reply)
            return
        telling = Telling("model", told(self.scenario.retry_after, refusal.retry_after), self.scenario.prose)
        answer = DIALECT_TABLE[self.dialect].refuse(refusal, telling)
        rows = [*headers[:1], *answer.headers] if answer.status >= 500 else headers + answer.headers
        body = answer.body.encode() if isinstance(answer.body, str) else dumps(answer.body)
        self._travel(lambda: reply(Sent(turn.outcome(permit, answer.status, rows, body))))

    def _break(
        self, admission: Admission, headers: Headers, turn: LabTurn, permit: Permit, reply: Callable[[Sent], None]
    ) -> None:
        fault = admission.fault
        assert fault is not None
        assert not fault.kind.startswith("stream"), "streams break over HTTP only"
        self.accounts.end(admission, "broken", 0)
        if fault.kind == "drop":
            self._cut(turn, reply)
            return
        body = dumps(error_body("Injected error", "server_error"))
        self._travel(lambda: reply(Sent(turn.outcome(permit, fault.status, headers, body))))

    def _cut(self, turn: LabTurn, reply: Callable[[Sent], None]) -> None:
        error = ConnectionError("cut")
        self._travel(lambda: reply(Sent(turn.judge_error(error), error=error)))

    def _reply(self, turn: LabTurn, output: int) -> Reply:
        bound = turn.call.max_tokens
        return Reply("id", "model", "Yes.", turn.call.input_tokens, output, output == bound, 0)

    def _body(self, turn: LabTurn, output: int) -> bytes:
        return dumps(self.asking.endpoint.whole({}, self._reply(turn, output)))

    def _events(self, turn: LabTurn, output: int) -> bytes:
        stream = self.asking.endpoint.stream
        assert stream is not None, "the endpoint streams"
        made = stream({"stream_options": {"include_usage": True}}, self._reply(turn, output))
        return made.head + b"".join(made.pieces) + made.tail


def bare(row: Row, seed: int) -> float:
    """Seconds that the plain SDK takes from its first admission on where nothing is limited."""
    scenario = row.seeded(seed)
    drawn = random.Random(seed)
    arriving = [SETUP * (caller + 1) + NETWORK for caller in range(row.callers)]
    last = 0.0
    for _ in range(row.count):
        answered = heapq.heappop(arriving) + scenario.latency.draw(drawn)
        heapq.heappush(arriving, answered + 2 * NETWORK)
        last = max(last, answered + NETWORK)
    return last - SETUP - NETWORK


def run(row: Row, seed: int, settings: Settings | None = None) -> Run:
    """One row at one seed, to its end."""
    began = time.process_time()
    laboratory = Laboratory(row, seed, settings)
    laboratory.run()
    losses = dict(laboratory.losses)
    if laboratory.unfinished:
        losses["never ended"] = laboratory.unfinished
    return measured(
        row,
        seed,
        laboratory.accounts.truth(),
        [sending.row for sending in laboratory.sends],
        makespan=laboratory.makespan,
        cpu=time.process_time() - began,
        losses=losses,
        bare=bare(row, seed) if row.against_plain else None,
    )
