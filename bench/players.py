"""Players against the simulator's own books, which show what a client could reach that knows more than ours.

`knowing` plays the oracle's schedule. `phaseless` knows of a hidden fixed window its kind and size, and not its phase.
`insisting` plays the oracle's schedule among several backends, and repeats a refused call at once. `unrated` knows of
a hidden bucket its kind, and that hints mean nothing. `probing` knows that its rate may change.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from itertools import islice

from bench.answers import USUAL_OUTPUT
from bench.network import TRAVEL
from bench.scenarios import Row
from tidegate.testing import Call, Refusal
from tidegate.testing.accounts import Accounts, AdmittedCall
from tidegate.testing.admission import Ticket

SOONEST = 2 * TRAVEL
"""Seconds after which a player that is not refused knows that it was admitted."""

FIRST_PROBES = 8
"""Lone calls in the first window of a player that looks for its end."""


MOST_REPEATS = 20
"""Refusals a call after which a schedule is wrong. With one of four backends ready, a call is refused three times."""

FIRST_SPAN = 0.25
LONGER = 8.0
"""Seconds until a player that looks for a rate measures it first, and how many times longer each span is than the one
before. Measured over 20 seeds: 2 and 4 cost more refusals, and 16 takes up to 1.9 times the oracle's time."""


@dataclass(frozen=True, slots=True)
class Played:
    """Result of a player: seconds from the first admission to the last end, and the calls that were refused."""

    seconds: float
    refused: int


class Books:
    """A provider's books and their clock; calls are sent in the order of time and end by themselves."""

    def __init__(self, row: Row, seed: int) -> None:
        self.now = 0.0
        self.refused = 0
        self.last_end = self.newest_end = 0.0
        self.newest_output = 0
        self.first = -1.0
        self._accounts = Accounts(row.seeded(seed), lambda: self.now)
        self._ends: list[tuple[float, int, AdmittedCall, int]] = []
        self._sent = 0

    def send(self, call: Call, at: float) -> bool:
        """Send a call at `at`; return whether it was admitted."""
        self._land(at)
        self.now = at
        self._sent += 1
        outcome = self._accounts.admit("key", str(self._sent), call, stream=False).outcome
        if isinstance(outcome, Refusal):
            self.refused += 1
            return False
        natural = self._accounts.output_tokens(USUAL_OUTPUT)
        output = natural if call.max_tokens is None else min(natural, call.max_tokens)
        self.newest_output = output
        end = self.newest_end = at + outcome.latency + outcome.token_pace * output
        heapq.heappush(self._ends, (end, self._sent, outcome, output))
        self.last_end = max(self.last_end, end)
        self.first = at if self.first < 0 else self.first
        return True

    def _land(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            self.now, _, admission, output = heapq.heappop(self._ends)
            self._accounts.end(admission, "answered", output)

    def played(self) -> Played:
        """Return what came of it, with the way of the last answer."""
        return Played(self.last_end - self.first, self.refused)


def knowing(row: Row, seed: int) -> Played:
    """Play the oracle's schedule: a schedule that is right is played in its time without a refusal."""
    books = Books(row, seed)
    for call, at in zip(row.calls(seed), row.ideal(seed).admitted_at, strict=True):
        books.send(call, at)
    return books.played()


def insisting(row: Row, seed: int) -> Played:
    """Play the oracle's schedule where a load balancer draws the backend: a refused call is repeated at once.

    The backend with room is met in the end, at the price of refusals that no client is spared who uses all of them.
    """
    books = Books(row, seed)
    for call, at in zip(row.calls(seed), row.ideal(seed).admitted_at, strict=True):
        while not books.send(call, at):
            if books.refused > MOST_REPEATS * row.count:
                raise ValueError(f"{row.name}: the schedule is not right, no backend has room at {at:g} s")
    return books.played()


def phaseless(row: Row, seed: int) -> Played:
    """Play a hidden fixed window of requests whose size and length are known, and whose phase is not.

    The first window's end is found by lone calls at even intervals. From then on one lone call a window, in the middle
    of the interval in which its end lies, halves that interval; where it is refused, all go at the interval's end.
    """
    (limit,) = row.scenario.limiters
    size, seconds = round(limit.limit), limit.window
    books, calls = Books(row, seed), iter(row.calls(seed))
    for call in islice(calls, size):
        books.send(call, 0.0)
    low, high, parts = 0.0, seconds, FIRST_PROBES
    for call in calls:
        refused, later = low, 0.0
        for probe in (low + (high - low) * part / parts for part in range(1, parts)):
            if books.send(call, probe):
                high, later = probe, SOONEST
                break
            refused = probe
        else:
            books.send(call, high)
        for other in islice(calls, size - 1):
            books.send(other, high + later)
        low, high = refused + seconds, high + seconds
        parts = 2 if high - low > 2 * SOONEST else 1
    return books.played()


def unrated(row: Row, seed: int) -> Played:
    """Play a hidden limit of requests whose kind is known, and that its hints mean nothing.

    A window is played by `phaseless`, which knows its numbers. Nothing else is known of a bucket: calls go one after
    the other until one is refused. From then on they go at the rate that the admitted ones prove; each span ends with
    calls one after the other until one is refused, which measures the rate again.
    """
    (limit,) = row.scenario.limiters
    if limit.kind == "fixed":
        return phaseless(row, seed)
    books, left = Books(row, seed), deque(row.calls(seed))

    def drain(at: float) -> tuple[int, float]:
        """Send calls until one is refused or none is left; return the admitted ones and the last instant."""
        count = 0
        while left and books.send(left[0], at):
            left.popleft()
            count, at = count + 1, at + SOONEST
        return count, at

    _, empty = drain(0.0)
    admitted, rate, now, span = 0, 0.0, empty, FIRST_SPAN
    while left:
        ends = now + span
        while left and rate and now + 1.0 / rate < ends:
            now += 1.0 / rate
            if not books.send(left[0], now):
                continue
            left.popleft()
            admitted += 1
        count, now = drain(max(now, ends))
        admitted += count
        rate, span = admitted / (now - empty), span * LONGER
    return books.played()


def reckoning(row: Row, seed: int) -> Played:
    """Play announced limits whose kind and charges are known, and whose numbers the first word of the provider tells.

    It keeps the provider's own books, and learns of an end, and what it produced, by the answer. So an admission can
    make use of ends that were a round trip before it, at the latest. Until the first answer or refusal it sends one
    call a round trip, so that at most one is refused.
    """
    books, gate = Books(row, seed), row.seeded(seed).gate()
    running: list[tuple[float, int, Ticket, int]] = []
    now, told_at = 0.0, math.inf
    for number, call in enumerate(row.calls(seed)):
        while True:
            while running and running[0][0] <= now:
                known, _, ticket, output = heapq.heappop(running)
                gate.finish(ticket, output, known)
            heard = running[0][0] if running else math.inf
            told_at = min(told_at, heard)
            if len(running) >= row.callers:
                now = heard
                continue
            granted = gate.admit(call, now)
            if isinstance(granted, Refusal):
                if now < told_at:
                    books.send(call, now)
                    told_at = now
                now = min(gate.ready_at(call, now), heard)
            elif books.send(call, now):
                heapq.heappush(running, (books.newest_end + SOONEST, number, granted, books.newest_output))
                told_at = min(told_at, books.newest_end + SOONEST)
                break
            else:
                now += SOONEST
        if now < told_at:
            now += SOONEST
    return books.played()


TESTED = 0.6
"""Seconds between two tests of a rate that may change. Over 8 odd seeds of `flips`, 0.4 takes 1.038 of the ideal with
0.219 refusals a call, 0.6 1.090 with 0.167, 0.8 1.195 with 0.140, 1.6 1.812 with 0.099, and 2.5 2.329 with 0.085."""

HELD = 0.97
"""Share of a measured rate that such a player holds between two tests."""

SLOWEST = 0.2
FEWEST = 4
"""Least rate in calls a second that is held, and calls that measure one."""


def probing(row: Row, seed: int) -> Played:
    """Play a hidden bucket whose rate may change at any instant to any other, of which only this is known.

    Each test sends calls one after the other until one is refused: between two tests exactly the admitted calls came
    back. Between the tests calls go at that rate. One that is refused shows a fall, and is a measurement, too.
    """
    books, left = Books(row, seed), deque(row.calls(seed))
    now, count, empty, rate = 0.0, 0, math.inf, 0.0
    while left:
        while left and books.send(left[0], now):
            left.popleft()
            count, now = count + 1, now + SOONEST
        rate = max(SLOWEST, count / (now - empty)) if now > empty else 0.0
        empty, count, ends = now, 0, now + TESTED
        while left and rate and now + 1.0 / (HELD * rate) < ends:
            now += 1.0 / (HELD * rate)
            if books.send(left[0], now):
                left.popleft()
                count += 1
                continue
            seen = count / (now - empty)
            rate = min(rate / 2.0, seen or rate / 2.0) if count < FEWEST else min(rate, seen)
            empty, count, ends = now, 0, now + max(TESTED, 2.0 / rate)
        now = max(now, ends)
    return books.played()
