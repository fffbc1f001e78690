"""A scenario in virtual time: the real registry, exchange and provider tables against the simulator's own books.

Answers are bytes here too: the simulator's dialects write headers and bodies, `tidegate.providers` reads them, so that
rounding is what it is over HTTP. Deterministic by seed.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from bench.answers import ASKING, USUAL_OUTPUT, Answer, Answers
from bench.measures import Run, measured
from bench.network import SETUP, TRAVEL, Network
from bench.scenarios import Row
from bench.world import PUNCTUAL, LateLoop, VirtualCall, World
from tidegate import providers
from tidegate.admission.call import GovernedCall
from tidegate.core.exchange import AttemptResult, CallPolicy
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Key, Kind, Outcome, RequestFacts
from tidegate.providers import Provider
from tidegate.settings import Settings
from tidegate.testing import Call, Reason, Refusal
from tidegate.testing.accounts import Accounts, AdmittedCall
from tidegate.testing.dialects import Headers
from tidegate.transports.call import HttpCall
from tidegate.transports.streams import StreamWatch

EPOCH = 1_800_000_000.0
"""The wall time at which every world begins, or up to a second later: many headers are cut to whole seconds."""

SDK_RETRIES = 2
"""How often the openai and anthropic SDKs repeat a transient failure (openai 3.52 and anthropic 2.11)."""

MOST_STEPS = 5_000_000

HOST = "provider.test"


class LabCall(HttpCall):
    """A governed call without an HTTP library: its answers are header pairs, its wall clock the world's."""

    __slots__ = ("call", "wall")

    def __init__(self, laboratory: Laboratory, call: Call, model: str) -> None:
        registry, provider, row = laboratory.registry, laboratory.provider, laboratory.row
        policy = CallPolicy(registry.settings.max_wait, 1)
        # What an HTTP request would be read for is known here.
        GovernedCall.__init__(self, registry, laboratory.key_of(model), policy, provider.default_window, 0)
        self.mocks = True
        self.secrets = ()
        self.provider = provider
        self.call = call
        self.request_facts = RequestFacts(model, row.chars(call), call.max_tokens, row.stream)
        self.stream = row.stream
        self.wall = laboratory.wall

    def identity(self) -> None:
        """None: no program of the laboratory abandons a call and asks it again."""

    def pairs(self, response: Headers) -> Iterable[tuple[bytes, bytes]]:
        """The answer's headers."""
        return [(name.encode(), value.encode()) for name, value in response]

    def sent_headers(self) -> Mapping[str, str]:
        """No credential: no call of the laboratory carries one."""
        return {}

    def judge(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes | None) -> Outcome:
        """What a response means, read at the world's time."""
        return providers.judge(self.provider, status, headers, body, datetime.fromtimestamp(self.wall(), UTC))

    def refused(self, headers: dict[str, str], body: Any, status: int = 429) -> Any:
        """Nothing is asked for it: a call that expires is seen as lost."""
        raise NotImplementedError


class Laboratory(World):
    """One row at one seed: its provider, its network, and its callers, who take the calls in order."""

    def __init__(self, row: Row, seed: int, settings: Settings | None = None, loop: LateLoop = PUNCTUAL) -> None:
        given = settings or Settings(scopes=row.scopes)
        super().__init__(given, seed, repeats=SDK_RETRIES, most_steps=MOST_STEPS, loop=loop)
        self.row = row
        self.scenario = row.seeded(seed)
        asking = ASKING[row.sdk]
        provider = providers.adopt(HOST, asking.path, asking.family)
        assert provider is not None, f"{asking.path} generates nothing"
        self.provider: Provider = provider
        self.accounts = Accounts(self.scenario, lambda: self.timeline.now)
        self.answers = Answers(row, self.scenario, self.wall)
        self.network = Network(self.timeline, loop, row.client_work)
        self.losses: dict[str, int] = {}
        self.unfinished = row.count
        self.refused_at: list[float] = []
        self.met_outage_at: list[float] = []
        self._began_at = EPOCH + random.Random(seed).random()
        self._models = row.asked(seed)
        self.ended_at: dict[int, float] = {}
        self._left: Iterator[tuple[int, Call]] = iter(enumerate(row.calls(seed)))
        for at in row.arrivals:
            self.after(at, self._next)
        for _ in range(0 if row.arrivals else min(row.callers, row.count)):
            self._next()

    def wall(self) -> float:
        """Seconds since 1970."""
        return self._began_at + self.now

    def key_of(self, model: str) -> Key:
        """The key of a model."""
        return Key(self.provider.name, f"https://{HOST}", "0123456789abcdef", model)

    def _next(self) -> None:
        """A caller that is free takes the next call, if one is left."""
        for number, call in self._left:
            self.join(VirtualCall(self, number, LabCall(self, call, self._models[number])), self.now)
            return

    def finish_fast(self, call: VirtualCall) -> None:
        """The caller goes on; one that reads a stream is busy until its end."""
        self.ended_at[call.row] = self.now
        sent = self.ended[call.row].attempt
        if sent is None or not sent.streaming:
            self.over(sent.outcome if sent is not None else None)

    def over(self, outcome: Outcome | None) -> None:
        """A call came to this, and its caller takes another; None where nothing was ever received."""
        if outcome is None or outcome.kind is not Kind.OK:
            name = "expired" if outcome is None else f"{outcome.kind} {outcome.status}"
            self.losses[name] = self.losses.get(name, 0) + 1
        self.makespan = self.now
        self.unfinished -= 1
        if not self.row.arrivals:
            self._next()

    def serve(self, call: VirtualCall, permit: Permit, reply: Callable[[AttemptResult], None]) -> None:
        """The request travels, is let in or refused, and is answered."""
        visit = Visit(self, call, permit, reply)
        self.network.carry(visit.arrive)


class Visit:
    """One request at the provider, from its arrival to the end of its answer."""

    def __init__(
        self, laboratory: Laboratory, call: VirtualCall, permit: Permit, reply: Callable[[AttemptResult], None]
    ) -> None:
        self.laboratory = laboratory
        self.row = call.row
        self.governed: LabCall = call.governed
        self.permit = permit
        self.reply = reply
        self.output = 0

    def arrive(self) -> None:
        """Is let in, or refused."""
        laboratory, governed = self.laboratory, self.governed
        verdict = laboratory.accounts.admit(governed.key.scope, str(self.row), governed.call, stream=governed.stream)
        self.headers = laboratory.answers.headers(verdict)
        if isinstance(verdict.outcome, Refusal):
            met_outage = verdict.outcome.reason is Reason.OUTAGE
            (laboratory.met_outage_at if met_outage else laboratory.refused_at).append(laboratory.now)
            refused = laboratory.answers.refusal(verdict.outcome, self.headers)
            if verdict.delay:
                laboratory.after(verdict.delay, lambda: self._answer(refused))
            else:
                self._answer(refused)
            return
        self.admission: AdmittedCall = verdict.outcome
        natural, bound = laboratory.accounts.output_tokens(USUAL_OUTPUT), governed.call.max_tokens
        self.output = natural if bound is None else min(natural, bound)
        pace = self.admission.token_pace * self.output
        if self.admission.fault is not None:
            laboratory.after(self.admission.latency, self._break)
        elif governed.stream:
            laboratory.after(self.admission.latency, lambda: laboratory.network.bring_back(self._begin))
            laboratory.after(self.admission.latency + pace, lambda: laboratory.network.bring_back(self._finish))
            laboratory.after(self.admission.latency + pace, self._end)
        else:
            laboratory.after(self.admission.latency + pace, self._whole)

    def _end(self) -> None:
        self.laboratory.accounts.end(self.admission, "answered", self.output)

    def _whole(self) -> None:
        self._end()
        self._answer(self.laboratory.answers.whole(self.governed.call, self.output, self.headers))

    def _break(self) -> None:
        fault = self.admission.fault
        assert fault is not None
        assert not fault.kind.startswith("stream"), "streams break over HTTP only"
        self.laboratory.accounts.end(self.admission, "broken", 0)
        cut = fault.kind == "drop"
        self._answer(None if cut else self.laboratory.answers.broken(fault.status, self.headers))

    def _answer(self, answer: Answer | None) -> None:
        """An answer goes home; None cuts the connection."""
        self.laboratory.network.bring_back(lambda: self._received(answer))

    def _received(self, answer: Answer | None) -> None:
        if answer is None:
            error = ConnectionError("cut")
            self.reply(AttemptResult(self.governed.judge_error(error), error=error))
            return
        self.laboratory.network.release()
        self.reply(AttemptResult(self.governed.outcome(self.permit, answer.status, answer.headers, answer.body)))

    def _begin(self) -> None:
        """The head of a stream is there: from now on the permit goes with it."""
        outcome = self.governed.outcome(self.permit, 200, self.headers, None)
        self.watch = StreamWatch(self.governed, self.permit, outcome)
        self.reply(AttemptResult(outcome, streaming=True))

    def _finish(self) -> None:
        """The stream has been read to its end."""
        self.laboratory.network.release()
        self.watch.feed(self.laboratory.answers.events(self.governed.call, self.output))
        self.watch.finish()
        self.laboratory.over(Outcome(Kind.OK))


def bare(row: Row, seed: int) -> float:
    """Seconds that the plain SDK takes from its first admission on where nothing is limited."""
    scenario = row.seeded(seed)
    drawn = random.Random(seed)
    arriving = [SETUP * (caller + 1) + TRAVEL for caller in range(row.callers)]
    last = 0.0
    for _ in range(row.count):
        answered = heapq.heappop(arriving) + scenario.latency.draw(drawn)
        heapq.heappush(arriving, answered + 2 * TRAVEL)
        last = max(last, answered + TRAVEL)
    return last - SETUP - TRAVEL


LATE = {"late": 0.02, "share": 0.05}
"""What a busy machine makes of an event loop: it handles everything 20 ms late, and stalls for 5 % of the time."""


def run_late(row: Row, seed: int) -> Run:
    """One row at one seed, whose callers share an event loop that is late."""
    return run(row, seed, loop=LateLoop(seed, **LATE))


def run(row: Row, seed: int, settings: Settings | None = None, loop: LateLoop = PUNCTUAL) -> Run:
    """One row at one seed, to its end."""
    began = time.process_time()
    laboratory = Laboratory(row, seed, settings, loop)
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
        ended_at=laboratory.ended_at,
    )
