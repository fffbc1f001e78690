"""Accounts of a simulated provider: limiters and counts of each key, due faults, and the ground truth.

They are thread-safe: the server's loop admits and ends calls, and any thread may read the truth, reset, or change the
scenario. A gate is the set of all limiters of one key.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from tidegate.testing.admission import Call, Gate, Refusal, Ticket
from tidegate.testing.limiters import Level, Limiter
from tidegate.testing.scenario import Scenario
from tidegate.testing.specs import Fault


@dataclass(frozen=True, slots=True)
class Counts:
    """Calls of one key or of all keys.

    `received` = `admitted` + all of `refused` (by the limiter's name, `too_large`, `outage`). An admitted call is in
    flight until it is `answered` in full, `broken` by a fault, or `abandoned` by its client.
    """

    received: int = 0
    admitted: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    answered: int = 0
    broken: int = 0
    abandoned: int = 0
    in_flight: int = 0
    peak_in_flight: int = 0
    levels: tuple[Level, ...] = ()

    @property
    def refusals(self) -> int:
        """Return the number of refused calls."""
        return sum(self.refused.values())


@dataclass(frozen=True, slots=True)
class Truth:
    """Ground truth at one instant: the calls that the provider received, admitted and refused.

    Instants are seconds since the start or the last reset. `keys` is by `model` and the first digits of a digest of the
    credential, or by the parts in the scenario's `scope`. `order` lists the rows by first admission. A row is the
    request's `x-row` header, `user`, `metadata.row` or `metadata.user_id`, else its number `#n`. `admitted_at` has
    every admission. `held` has the seconds from admission to end of each answered call, in the order of their ends.
    """

    elapsed: float
    total: Counts
    keys: Mapping[str, Counts]
    order: tuple[str, ...]
    admitted_at: tuple[float, ...]
    held: tuple[float, ...] = ()

    def to_json(self) -> bytes:
        """Return the snapshot as JSON; an unlimited value is null."""
        return _TRUTH.dump_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Truth:
        """Return the snapshot that `to_json` wrote."""
        return _TRUTH.validate_json(text)


_TRUTH = TypeAdapter(Truth)


class Account:
    """Gate and counts of one key; `owner` names the keys that it shares limiters with."""

    __slots__ = ("gate", "numbers", "owner", "refused")

    def __init__(self, gate: Gate, owner: str) -> None:
        self.gate = gate
        self.owner = owner
        self.numbers: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def admit(self) -> None:
        self.numbers["admitted"] += 1
        self.numbers["in_flight"] += 1
        self.numbers["peak_in_flight"] = max(self.numbers["peak_in_flight"], self.numbers["in_flight"])

    def end(self, how: str) -> None:
        self.numbers["in_flight"] -= 1
        self.numbers[how] += 1

    def counts(self, now: float) -> Counts:
        return Counts(**self.numbers, refused=dict(self.refused), levels=self.gate.levels(now))


@dataclass(frozen=True, slots=True)
class AdmittedCall:
    """Call that was admitted at `at`: its account, charges and fault, and its latency and pace in seconds."""

    at: float
    account: Account
    total: Account
    ticket: Ticket
    fault: Fault | None
    latency: float
    token_pace: float


@dataclass(frozen=True, slots=True)
class AdmissionRecord:
    """Outcome of an admission, with the levels that headers announce, read just after the charge.

    A refusal is answered after `delay` seconds.
    """

    outcome: AdmittedCall | Refusal
    announced: tuple[Level, ...]
    delay: float = 0.0


class Accounts:
    """Accounts of one simulated provider; `clock` returns seconds from any origin."""

    def __init__(self, scenario: Scenario, clock: Callable[[], float]) -> None:
        self.scenario = scenario
        self._clock = clock
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._started_at = self._clock()
        self._random = random.Random(self.scenario.seed)
        # Refusals must not change what is drawn for admitted calls, which the oracle draws as well.
        self._refusal_random = random.Random(f"refusals {self.scenario.seed}")
        self._accounts: dict[str, Account] = {}
        self._shared: dict[str, dict[str, Limiter]] = {}
        self._total = Account(Gate((), self.scenario), "")
        self._order: dict[str, None] = {}
        self._admitted_at: list[float] = []
        self._held: list[float] = []
        self._streams = 0

    @property
    def now(self) -> float:
        """Return the seconds since the start or the last reset."""
        return self._clock() - self._started_at

    def output_tokens(self, default: int) -> int:
        with self._lock:
            drawn = self.scenario.output_tokens
            return default if drawn is None else max(1, round(drawn.draw(self._random)))

    def admit(self, key: str, row: str, call: Call, *, stream: bool, owner: str = "") -> AdmissionRecord:
        """Charge the call to its key, or refuse it; keys of one `owner` share the `shared` limiters."""
        with self._lock:
            now = self.now
            account = self._accounts.get(key)
            if account is None:
                account = self._accounts[key] = Account(self.scenario.gate(self._shared.setdefault(owner, {})), owner)
            counted = (account, self._total)
            for each in counted:
                each.numbers["received"] += 1
            outcome = account.gate.admit(call, now)
            if isinstance(outcome, Refusal):
                for each in counted:
                    each.refused[outcome.name] += 1
                delay = self.scenario.refusal_latency.draw(self._refusal_random)
                return AdmissionRecord(outcome, self._announced(account.gate, now), delay)
            for each in counted:
                each.admit()
            self._order.setdefault(row or f"#{self._total.numbers['received']}")
            self._admitted_at.append(now)
            admission = self._admission(now, account, outcome, stream)
            return AdmissionRecord(admission, self._announced(account.gate, now))

    def _admission(self, now: float, account: Account, ticket: Ticket, stream: bool) -> AdmittedCall:
        scenario = self.scenario
        latency = scenario.latency.draw(self._random)
        if scenario.knee is not None:
            latency *= max(1.0, self._total.numbers["in_flight"] / scenario.knee)
        self._streams += stream
        fault = next((fault for fault in scenario.faults if self._is_due(fault, stream)), None)
        return AdmittedCall(now, account, self._total, ticket, fault, latency, scenario.token_pace)

    def _is_due(self, fault: Fault, stream: bool) -> bool:
        in_stream = fault.kind.startswith("stream")
        if in_stream and not stream:
            return False
        number = self._streams if in_stream else self._total.numbers["admitted"]
        return number in fault.nth or (fault.probability > 0 and self._random.random() < fault.probability)

    def _announced(self, gate: Gate, now: float) -> tuple[Level, ...]:
        scenario = self.scenario
        if not scenario.headers:
            return ()
        limiters = gate.limiters[len(scenario.outages) :]
        return tuple(limiter.level(now) for limiter, told in zip(limiters, scenario.announced, strict=True) if told)

    def end(self, admission: AdmittedCall, how: str, produced: int) -> None:
        with self._lock:
            now = self.now
            admission.account.gate.finish(admission.ticket, produced, now)
            admission.account.end(how)
            admission.total.end(how)
            if how == "answered":
                self._held.append(now - admission.at)

    def levels(self, key: str) -> tuple[Level, ...]:
        with self._lock:
            account = self._accounts.get(key)
            return account.gate.levels(self.now)[len(self.scenario.outages) :] if account is not None else ()

    def truth(self) -> Truth:
        with self._lock:
            now = self.now
            return Truth(
                elapsed=now,
                total=self._total.counts(now),
                keys={name: account.counts(now) for name, account in self._accounts.items()},
                order=tuple(self._order),
                admitted_at=tuple(self._admitted_at),
                held=tuple(self._held),
            )

    def reset(self) -> None:
        """Restart at 0 with full limiters; calls in flight end in the old accounts."""
        with self._lock:
            self._start()

    def configure(self, changes: Mapping[str, Any], *, outage: float | None, status: int | str) -> None:
        """Change fields of the scenario during the run, and begin an outage of `outage` seconds now (None: no outage).

        Limiters of the same name and kind keep their content.
        """
        with self._lock:
            now = self.now
            scenario = self.scenario.replace(**changes)
            if outage is not None:
                span = {"start": now, "end": now + outage, "status": status}
                scenario = scenario.replace(outages=(*scenario.outages, span))
            self.scenario = scenario
            self._shared = {}
            for account in self._accounts.values():
                made = scenario.gate(self._shared.setdefault(account.owner, {}))
                account.gate.replace(made.limiters, scenario, now)
