"""Counters of one key in its row of a counter file, and the other values of the row.

Theory of operation. Every key that a registry opens gets a row, and counts there from then on. A change of a key is
found by comparing its state with the last one that was noted, where the row is written anyway. So it costs a call
nothing more than a few comparisons, and no event has to be made.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.wait_queue import ExecutorGroup, Waiter, WaitQueue
from tidegate.core.backoff import Pause
from tidegate.core.circuit_breaker import CLOSED, BreakerState
from tidegate.core.held_time import BINDING, QUOTA, HeldTime
from tidegate.core.limiter_state import KeyCounts
from tidegate.core.provenance import Provenance
from tidegate.core.quota import KeyQuotas
from tidegate.core.rejection import KeyRejection
from tidegate.core.snapshot import day_reset, last_failure, latest_pause, paced_until, queue_forecast
from tidegate.core.token_totals import FIELDS, TokenCounter
from tidegate.core.values import REFUSED, Cause, Outcome, Source, Usage, failure_reason, refusal_counter
from tidegate.launch.counter_file import CounterPart
from tidegate.launch.counter_row import (
    BREAKER_STATES,
    CARRIERS,
    CAUSE_CODES,
    CONTINUOUS,
    DOUBLE_PLACES,
    GATES_PLACE,
    KEPT_QUOTAS,
    PLACES,
    QUOTA_PLACES,
    ROW_BYTES,
    SOURCE_CODES,
    TOKENS,
    ChangeRing,
    doubles,
    integers,
    name_key,
    name_quota,
    quota_at,
    ring,
    write_cause,
)

QUOTAS_SECONDS = 0.1
"""Seconds after which a key's ample quotas are written again. Chosen: less than between two status lines."""

OUTLOOK_SECONDS = 0.5
"""Seconds after which the forecast is written again: those of the status line (`cli.command_run.LOOK_SECONDS`)."""

NOTED_RISE_FACTOR = 1.25
"""Factor above the last noted concurrency limit or pace from which on a rise is noted. Chosen: slow start, which raises
the limit with each answer, fills some lines of the list and not all."""

NOTED_CUT_FACTOR = 0.9
"""Factor below it from which on a cut is noted: below the smallest cut
(`core.backoff.REFUSED_CUT_FACTOR`)."""

NOTED_LIMIT_SHARE = 0.01
"""Least relative change of a quota's limit that is noted. Chosen: less than a pixel of the page's chart."""

NOTED_COOLDOWN_SECONDS = 1.0
"""Seconds by which a cooldown must grow to be noted again. Chosen: the refusals of one wave move its end by less."""

EXPLAINED_SECONDS = 2.0
"""Seconds for which a refusal explains a cut. Chosen: the cut is found with the next ended attempt."""


_ATTEMPTS, _ANSWERED, _WAITING, _SLOTS, _MEMBERS, _MOST_MEMBERS, _BREAKER, _CARRIER, _REJECTED = (
    PLACES[name]
    for name in (
        "attempts", "answered", "waiting", "slots", "members", "most_members", "breaker", "carrier", "rejected",
    )
)  # fmt: skip
(
    CHANGED_AT, LOOKED_AT, PAUSED_UNTIL, BROKEN_UNTIL, LATENCY, PACE, STATED, STATED_UNTIL, DAY_UNTIL,
    LATENCY_P50, LATENCY_P99, SLOTS_ORIGIN, SLOTS_KNOWN_AT, PACE_ORIGIN, PACE_KNOWN_AT,
    PACED_UNTIL, BEGAN_AT,
) = DOUBLE_PLACES.values()  # fmt: skip
_TOKENS_AT = PLACES[TOKENS[0]]
"""Index of the first total of the tokens, which are the last integers of a row."""

_LEVEL, _ORIGIN, _MARGIN, _HELD = (QUOTA_PLACES[name] for name in ("level", "origin", "margin", "held"))

HELD_PLACES = {gate: place for place, gate in enumerate(BINDING, GATES_PLACE)}
"""Indexes of the seconds for which each gate other than a quota held calls."""


def _kept(name: str, looks: bool = False) -> Any:
    place = PLACES[name]

    def read(counts: SharedKeyCounts) -> int:
        return counts.integers[place]

    def write(counts: SharedKeyCounts, value: int) -> None:
        counts.integers[place] = value
        if looks:
            counts.refresh()
        else:
            counts.save()

    return property(read, write)


class SharedKeyCounts(KeyCounts):
    """Counters of one key in a row; a sent or ended attempt also writes the key's limits."""

    __slots__ = (
        "__weakref__",
        "_breaker",
        "_cause",
        "_cause_at",
        "_changes",
        "_count_failure",
        "_doubles",
        "_due",
        "_get_row",
        "_limits",
        "_named",
        "_numbers",
        "_outlook_at",
        "_pace",
        "_paused_until",
        "_queue",
        "_quotas_at",
        "_rejection",
        "_row",
        "_said",
        "_slots",
        "integers",
    )

    attempts = _kept("attempts")
    answered = _kept("answered", True)
    refused = _kept("refused", True)
    failed = _kept("failed", True)
    abandoned = _kept("abandoned", True)
    given_up = _kept("given_up", True)
    ignored = _kept("ignored")
    resent = _kept("resent")
    absorbed = _kept("absorbed")
    unsent = _kept("unsent")
    failed_calls = _kept("failed_calls")
    left = _kept("left")

    def __init__(
        self, queue: KeyQueue, get_row: Callable[[], CounterPart], count_failure: Callable[[str], None]
    ) -> None:
        self.latencies: deque[float] = deque(maxlen=100)
        self.retried_calls = 0
        self._queue = queue
        self._get_row = get_row
        self._count_failure = count_failure
        self._due = self._quotas_at = self._outlook_at = float("-inf")
        self._cause, self._cause_at = Cause.NONE, float("-inf")
        self.detach()

    def detach(self) -> None:
        """Restart the counts at zero; a new row is taken at the next count."""
        self._queue.tokens.clear()
        self._row: CounterPart | None = None
        self._take(memoryview(bytearray(ROW_BYTES)))

    def _begin_noting(self) -> None:
        self._limits = [0.0] * KEPT_QUOTAS
        self._slots = 0
        self._pace = 0.0
        self._paused_until = float("-inf")
        self._said = ""
        self._breaker: BreakerState = CLOSED
        self._rejection: KeyRejection | None = None

    def save(self) -> None:
        """Write the row to its file; each change of the row ends here, so the file is right after a kill."""
        row = self._row
        if row is not None:
            row.save()

    def note_sent(self, now: float) -> None:
        """Count an attempt; its end writes the other values of the row, so that most attempts write them once."""
        self.integers[_ATTEMPTS] += 1
        if now >= self._outlook_at:
            self.refresh()
        else:
            self.save()

    def note_answered(self, latency: float) -> None:
        self.latencies.append(latency)
        self.integers[_ANSWERED] += 1
        admission = self._queue.admission
        now = admission.used_at
        if admission.calm_slots and now < self._due:
            # Nothing else of a calm key changes until then.
            self._doubles[CHANGED_AT] = now
            self.save()
        else:
            self.refresh()

    def refresh(self) -> None:
        """Write the other values of the row: the concurrency limit, the quotas, the time."""
        if self._row is None:
            self._attach()
        admission = self._queue.admission
        now = admission.used_at
        slots = admission.concurrency.limit
        if slots != self.integers[_SLOTS]:
            self.integers[_SLOTS] = slots
            self._note_slots(slots, now)
        members = self._queue.sharing.members
        if members != self.integers[_MEMBERS]:
            self._note_members(members, now)
        self._doubles[CHANGED_AT] = now
        quotas = admission.quotas
        # A new quota is written at once: the program may make no call for a long time after this one.
        ample = quotas.ample and admission.ceiling is None
        if not ample or now >= self._quotas_at or len(quotas.counted) > len(self._numbers):
            self._quotas_at = now + QUOTAS_SECONDS
            for each in admission.shown_quotas:
                self._write_quotas(each)
        if now >= self._outlook_at:
            self._outlook_at = now + OUTLOOK_SECONDS
            self._look_ahead(now)
        elif admission.breaker.state is not CLOSED or self._breaker is not CLOSED:
            # Also without a waiting call: a runner asks before it gives a slot away, so that no call may wait here.
            self._write_closing()
        self._due = min(self._quotas_at, self._outlook_at)
        self.save()

    def _write_quotas(self, quotas: KeyQuotas) -> None:
        # A quota keeps its place when one before it is forgotten.
        provenance = quotas.provenance
        for name, mirror in quotas.counted.items():
            number = self._numbers.setdefault(name, len(self._numbers))
            if number >= KEPT_QUOTAS:
                continue
            facts = (mirror.limit, provenance[name].reported_window, mirror.used, mirror.since, mirror.stood)
            at = quota_at(number)
            self._doubles[at : at + len(facts)] = array("d", facts)
            known = self._limits[number]
            if abs(mirror.limit - known) > NOTED_LIMIT_SHARE * known:
                self._limits[number] = mirror.limit
                at_time, cause = self._queue.admission.used_at, self._recent_cause()
                self._changes.add(at_time, "limit", known, mirror.limit, cause, provenance[name].origin, number)
            if number == self._named and self._row is not None:
                name_quota(self._row.memory, number, name)
                self._named += 1
                self._due = self._outlook_at = float("-inf")

    def waited(self, count: int) -> None:
        """Write the number of waiting calls, and the instants until which the key is closed."""
        if count and not self.integers[_WAITING]:
            self._due = self._outlook_at = float("-inf")
        self.integers[_WAITING] = count
        self.note_closing()

    def note_held(self, gate: str, seconds: float) -> None:
        """Write the seconds for which a gate held the first waiting call so far."""
        place = HELD_PLACES.get(gate)
        if place is None:
            number = self._numbers.get(gate.removeprefix(QUOTA), KEPT_QUOTAS)
            if number >= KEPT_QUOTAS:
                return
            place = quota_at(number) + _HELD
        self._doubles[place] = seconds
        self.save()

    def note_closing(self) -> None:
        """Write the instants until which the key is closed."""
        self._write_closing()
        self.save()

    def _write_closing(self) -> None:
        admission = self._queue.admission
        pause, breaker, seconds = latest_pause(admission), admission.breaker, self._doubles
        seconds[PAUSED_UNTIL] = max(0.0, pause.until)
        seconds[BROKEN_UNTIL] = 0.0 if breaker.closed else max(0.0, breaker.ready_at)
        seconds[STATED], seconds[STATED_UNTIL] = pause.stated, max(0.0, pause.stated_until)
        seconds[DAY_UNTIL] = max(0.0, day_reset(admission))
        pacer = admission.pacer
        seconds[PACE] = pacer.sustained_rate if pacer.active else 0.0
        seconds[PACED_UNTIL] = paced_until(admission)
        cause = last_failure(admission, "" if breaker.closed else "breaker")
        if cause != self._said and self._row is not None:
            self._said = cause
            write_cause(self._row.memory, cause)
        now = admission.used_at
        if pause.until > self._paused_until:
            self._note_cooldown(pause, now)
        if breaker.state is not self._breaker:
            self._note_breaker(breaker.state, breaker.ready_at - now, now)
        if admission.rejection is not self._rejection:
            self._note_rejection(now)

    def note_refusal(self, outcome: Outcome) -> None:
        if self._row is None:
            self._attach()
        admission = self._queue.admission
        self._cause, self._cause_at = outcome.cause, admission.used_at
        before, slots = self.integers[_SLOTS], admission.concurrency.limit
        if slots < before:
            self.integers[_SLOTS] = self._slots = slots
            origin = admission.provenance.limit.origin
            self._changes.add(self._cause_at, "concurrency", before, slots, outcome.cause, origin)
        self.note_closing()

    def note_fate(self, fate: str, outcome: Outcome) -> None:
        """Count a refusal by its cause and by the fate of its call, and a failed call by its reason."""
        if fate == "handed_back":
            self._count_failure(failure_reason(outcome))
        if outcome.kind in REFUSED:
            self.integers[PLACES[refusal_counter(fate, outcome)]] += 1
            self.save()

    def _recent_cause(self) -> Cause:
        recent = self._queue.admission.used_at - self._cause_at <= EXPLAINED_SECONDS
        return self._cause if recent else Cause.NONE

    def _note_slots(self, slots: int, now: float) -> None:
        known = self._slots
        if known and NOTED_CUT_FACTOR * known < slots < NOTED_RISE_FACTOR * known:
            return
        self._slots = slots
        if known:
            origin = self._queue.admission.provenance.limit.origin
            cause = self._recent_cause() if slots < known else Cause.NONE
            self._changes.add(now, "concurrency", known, slots, cause, origin)

    def _note_members(self, members: int, now: float) -> None:
        numbers = self.integers
        before, numbers[_MEMBERS] = numbers[_MEMBERS], members
        numbers[_MOST_MEMBERS] = max(members, numbers[_MOST_MEMBERS])
        carrier = self._queue.sharing.carrier
        if carrier:
            numbers[_CARRIER] = CARRIERS.index(carrier if carrier in CARRIERS else "other")
        if before:
            self._changes.add(now, "members", before, members)

    def _note_cooldown(self, pause: Pause, now: float) -> None:
        known, self._paused_until = self._paused_until, pause.until
        if pause.until <= now:
            return
        if pause.until <= known + NOTED_COOLDOWN_SECONDS and known > now:
            # A wave of refusals moves the end a little each time: the line that is there says enough.
            self._paused_until = known
            return
        origin = self._queue.admission.provenance.pause.origin
        stated = pause.stated if pause.stated_until > now else 0.0
        self._changes.add(now, "cooldown", stated, pause.until - now, self._recent_cause(), origin)

    def _note_breaker(self, state: BreakerState, opens_in: float, now: float) -> None:
        self._breaker = state
        self.integers[_BREAKER] = BREAKER_STATES.index(state.value)
        if state is BreakerState.OPEN:
            self._changes.add(now, "breaker_opened", 0.0, max(0.0, opens_in), Cause.OUTAGE, Source.FAILURES)
        elif state is CLOSED:
            self._changes.add(now, "breaker_closed", 0.0, 0.0)

    def _note_rejection(self, now: float) -> None:
        rejection = self._rejection = self._queue.admission.rejection
        cause = rejection.outcome.cause if rejection is not None else Cause.NONE
        self.integers[_REJECTED] = CAUSE_CODES[cause]
        self._changes.add(now, "rejected" if rejection is not None else "accepted", 0.0, 0.0, cause)

    def _look_ahead(self, now: float) -> None:
        self._write_closing()
        admission = self._queue.admission
        seen = queue_forecast(admission, self.integers[_WAITING], self._queue.mean_cost(), now)
        seconds = self._doubles
        seconds[LOOKED_AT] = now
        seconds[LATENCY] = seen.latency or 0.0
        latencies = sorted(self.latencies)
        if latencies:
            last = len(latencies) - 1
            seconds[LATENCY_P50], seconds[LATENCY_P99] = latencies[last // 2], latencies[int(last * 0.99)]
        provenance = admission.provenance
        seconds[SLOTS_ORIGIN], seconds[SLOTS_KNOWN_AT] = _known(provenance.limit)
        seconds[PACE_ORIGIN], seconds[PACE_KNOWN_AT] = _known(provenance.pace)
        pace = self._pace
        if seen.pace != pace and not (pace and NOTED_CUT_FACTOR * pace < seen.pace < NOTED_RISE_FACTOR * pace):
            self._pace = seen.pace
            self._changes.add(now, "pace", pace, seen.pace, self._recent_cause(), provenance.pace.origin)
        known = {quota.name: quota for quota in seen.quotas}
        origins = admission.quotas.provenance
        for name, number in list(self._numbers.items())[:KEPT_QUOTAS]:
            quota = known.get(name)
            facts = (0.0, CONTINUOUS, 0.0)  # a forgotten quota: it charges nothing
            if quota is not None:
                back_at = CONTINUOUS if quota.boundary_in is None else now + quota.boundary_in
                facts = quota.level, back_at, quota.amount
            at = quota_at(number)
            for place, fact in enumerate(facts, at + _LEVEL):
                seconds[place] = fact
            seconds[at + _MARGIN] = quota.margin if quota is not None else 0.0
            origin = origins.get(name)
            if origin is not None:
                seconds[at + _ORIGIN], seconds[at + _ORIGIN + 1] = _known(origin)
                seconds[at + _ORIGIN + 2] = SOURCE_CODES[origin.window]

    def _attach(self) -> None:
        begun = self.integers
        row = self._row = self._get_row()
        self._take(row.memory)
        self.integers[:] = begun
        self._doubles[BEGAN_AT] = self._queue.held.began_at
        name_key(row.memory, str(self._queue.admission.key))

    def _take(self, row: memoryview) -> None:
        self.integers = integers(row)
        self._doubles = doubles(row)
        self._changes = ChangeRing(ring(row))
        self._named = 0
        self._numbers: dict[str, int] = {}
        self._due = self._quotas_at = self._outlook_at = float("-inf")
        self._begin_noting()


class SharedTokenCounter(TokenCounter):
    """Totals of the tokens of one key, which are also in its row."""

    __slots__ = ("_counts",)

    def __init__(self, counts: SharedKeyCounts) -> None:
        super().__init__()
        self._counts = counts

    def add(self, usage: Usage, nanodollars: int | None) -> None:
        """Count one answer; its end, which is counted after it, writes the row to the file."""
        super().add(usage, nanodollars)
        self._counts.integers[_TOKENS_AT:] = array("q", FIELDS(self))


class SharedHeldTime(HeldTime):
    """Times of the gates of one key, which are also in its row."""

    __slots__ = ("_counts",)

    def __init__(self, counts: SharedKeyCounts, now: float) -> None:
        super().__init__(now)
        self._counts = counts

    def note(self, gate: str, now: float) -> None:
        before = self.gate
        super().note(gate, now)
        if before:
            self._counts.note_held(before, self.seconds[before])


def _known(provenance: Provenance) -> tuple[float, float]:
    """Return the code of an origin, and the instant of its last observation; 0 where there was none."""
    return SOURCE_CODES[provenance.origin], max(0.0, provenance.at) if provenance.count else 0.0


class SharedLineLength(WaitQueue):
    """Wait queue that writes its length to the row of its key."""

    __slots__ = ("_counts",)

    def __init__(self, counts: SharedKeyCounts) -> None:
        super().__init__()
        self._counts = counts

    def enqueue(self, waiter: Waiter) -> ExecutorGroup:
        group = super().enqueue(waiter)
        self._counts.waited(self.length)
        return group

    def dequeue(self, waiter: Waiter) -> bool:
        is_removed = super().dequeue(waiter)
        self._counts.waited(self.length)
        return is_removed

    def put_aside(self, change: int) -> None:
        super().put_aside(change)
        self._counts.waited(self.length)

    def clear(self) -> None:
        super().clear()
        self._counts.waited(self.length)
