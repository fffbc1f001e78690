"""Forecast of a queue (ETA), and the texts that state which gate holds calls back, why, and until when.

A gate is one limiter of a key that may hold a call back. A `QueueForecast` holds a key's state as plain numbers. They
come from an `AdmissionController`, or from the files in which the processes of a run keep the same numbers.
Each gate estimates when it will have admitted all waiting calls at their mean cost, and the latest estimate is the ETA.
The estimate assumes that no other calls arrive, limits stay, and attempts take as long as the last ones. For results
whose keys are unknown, `RecentRate` estimates by the results of the last minute.

Status row, `tidegate status`, notebooks, the display of experiments and the log use the same words.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import ceil, floor
from typing import NamedTuple

from tidegate.core.rejection import DAY, REJECTED
from tidegate.core.values import INFINITY, Cause, Outcome

MINUTE_SECONDS = 60.0
DECIMAL_BELOW_SECONDS = 10.0
"""Seconds below which a duration has a decimal."""

NOW_BELOW_SECONDS = 0.05
"""Seconds below which a time is `now`: half of the smallest one that a text shows."""

WINDOWS = {1.0: "s", 60.0: "min", 3600.0: "h", 86_400.0: "day"}

CLOSED = frozenset({"pause", "breaker", DAY, REJECTED})
"""Gates that hold every call of a key, whatever it costs."""

AWAITED = {
    "": "earlier calls",
    "concurrency": "a free slot",
    "pace": "the learned rate",
    "pause": "the end of a pause",
    "breaker": "the provider, which is down",
    DAY: "the reset of the day's quota",
    REJECTED: "the provider, which rejects the key",
}
"""What calls behind a gate wait for; a quota stands for itself."""


def clock(seconds: float) -> str:
    """Return seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """Return seconds as `4.2 s`, `43 s`, m:ss or h:mm:ss."""
    if seconds < DECIMAL_BELOW_SECONDS - NOW_BELOW_SECONDS:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < MINUTE_SECONDS - 0.5 else clock(seconds)


def awaited(gate: str) -> str:
    return AWAITED.get(gate, gate)


def failure_text(outcome: Outcome) -> str:
    """Return the last refusal or failure of a key in a few words."""
    if outcome.status is not None:
        return f"status {outcome.status}"
    if outcome.error:
        return outcome.error
    cause = outcome.cause
    return "no connection" if cause is Cause.OUTAGE else "no answer in time" if cause is Cause.NONE else str(cause)


NEVER_ANSWERED_REFUSALS = 20
"""Refusals without any answer from which on texts say so. Chosen: a full bucket answers before."""


def never_answered(answered: int, refused: int) -> str:
    return (
        ""
        if answered or refused < NEVER_ANSWERED_REFUSALS
        else f"no call of this key was ever answered: {refused} refusals"
    )


def wait_text(gate: str, seconds: float | None, stated: float = 0.0, cause: str = "") -> str:
    """Return why no call goes now and when the next one does.

    The next try is in `seconds` (None: when an attempt in flight ends). The provider asked for `stated` seconds (0: for
    none). `cause` is its last answer, if known.
    """
    when = (
        "when an answer arrives"
        if seconds is None
        else f"in {duration(seconds)}"
        if seconds >= NOW_BELOW_SECONDS
        else "now"
    )
    why = f" ({cause})" if cause else ""
    if gate == "pause":
        asked = f"paused: provider asks for {duration(stated)}{why}, " if stated else f"paused after a refusal{why}: "
        return f"{asked}next try {when}"
    if gate == "breaker":
        return f"provider down{why}: next probe {when}"
    if gate == DAY:
        return f"quota of the day spent{why}: provider's reset {when}"
    if gate == REJECTED:
        return f"key rejected{why}: next call {when}"
    if gate == "concurrency":
        return "all slots taken: next call when an answer arrives"
    if gate == "pace":
        return f"learned rate reached{why}: next call {when}"
    if gate and when == "now":
        return f"{gate}: the next call goes now, those behind it wait"
    return f"{gate} used up: next call {when}" if gate else f"behind earlier calls: next call {when}"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 call`, `2 calls`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def refusals_text(refused: int, retried: int) -> str:
    """Return the refusals, and those that were retried where not all were."""
    if refused <= retried:
        return f"{counted(retried, 'refusal')} retried"
    return f"{counted(refused, 'refusal')}, {retried} of them retried"


def shared_by(members: int, carrier: str) -> str:
    return f"shared by {members} processes" + (f" ({carrier})" if carrier else "")


def queue_text(in_flight: int, slots: int, waiting: int, eta: str, shared: str) -> str:
    """Return the calls of a key in one line; `eta` is shown while calls wait, `shared` where it is not empty."""
    parts = [f"{in_flight} of at most {slots} in flight", f"{waiting} waiting"]
    return " · ".join([*parts, *([f"ETA {eta}"] if waiting else []), *filter(None, [shared])])


def eta_text(seconds: float | None) -> str:
    """Return the time until the last waiting call is admitted (None: unknown)."""
    return "unknown" if seconds is None else clock(seconds)


def quota_left(level: float, name: str, limit: float, window: float) -> str:
    return f"{amount(max(0.0, level))} of {sized(name, limit, window)} left"


def sized(name: str, limit: float, window: float) -> str:
    """Return a quota in short form: `120 requests/min`."""
    return f"{amount(limit)} {per(name, window)}"


def per(name: str, window: float) -> str:
    """Return the units of a quota and its window: `requests/min`."""
    seconds = f"{window:.0f} s" if window >= 1000.0 else f"{window:.3g} s"
    return f"{name.replace('_', ' ')}/{WINDOWS.get(window, seconds)}"


def amount(number: float) -> str:
    """Return a number in a few digits: `999`, `12.3k`, `4M`, `1,000M`."""
    for unit, size, least in (("M", 1e6, 999_500.0), ("k", 1e3, 1e4)):
        if number >= least:
            scaled = number / size
            return f"{scaled:,.0f}{unit}" if scaled >= 999.5 else f"{scaled:.3g}{unit}"
    return f"{number:.0f}"


class QuotaForecast(NamedTuple):
    """Quota of which `level` of `limit` units are left, and which refills the limit per `window` seconds.

    `boundary_in` is the seconds until it refills all at once; None where it refills continuously. `amount` is the
    charge of one waiting call. A call goes when the level exceeds its charge by `margin`.
    """

    name: str
    level: float
    limit: float
    window: float
    boundary_in: float | None
    amount: float
    elsewhere: int = 0
    margin: float = 0.0

    @property
    def usable(self) -> float:
        """Return the units that calls may still use: without those that are kept in hand."""
        return max(0.0, self.level - self.margin)

    def drained_in(self, calls: int, start: float) -> float:
        """Return the seconds until `calls` more are admitted, from `start` on, after those that wait `elsewhere`."""
        calls += self.elsewhere
        if self.amount <= 0.0:
            return start
        amount = min(self.amount, self.limit)
        if self.boundary_in is not None:
            return self._drained_by_windows(calls, amount, self.boundary_in, start)
        rate = self.limit / self.window
        level = min(self.limit, self.level + rate * start)
        needed = calls * amount + min(self.margin, self.limit - amount)
        return start + max(0.0, needed - level) / rate

    def _drained_by_windows(self, calls: int, amount: float, boundary: float, start: float) -> float:
        level = self.level
        if boundary <= start:
            boundary += (floor((start - boundary) / self.window) + 1) * self.window
            level = self.limit
        beyond = calls - max(0, floor(level / amount + 1e-9))
        if beyond <= 0:
            return start
        windows = ceil(beyond / max(1, floor(self.limit / amount + 1e-9)))
        return boundary + (windows - 1) * self.window


class QueueForecast(NamedTuple):
    """Queue of one key: `waiting` calls, and the gates before them. Durations are in seconds.

    The queue does not move for `closed_for` seconds; `closed_by` names the reason (pause, breaker, quota day). One call
    tries after `tried_in` seconds, which is earlier where the provider asks for a wait of `stated` seconds and that is
    long. At most `slots` attempts may be in flight, and `flights` has the age of each one that is. `latency` is the
    duration of one attempt (None: unknown). `pace` is the number of calls admitted per second, 0 without pacing; the
    next one goes in `paced_for` seconds.
    """

    waiting: int
    closed_for: float = 0.0
    closed_by: str = ""
    slots: int = 1
    flights: tuple[float, ...] = ()
    latency: float | None = None
    quotas: tuple[QuotaForecast, ...] = ()
    pace: float = 0.0
    tried_in: float = 0.0
    stated: float = 0.0
    paced_for: float = 0.0
    cause: str = ""


class HeadWait(NamedTuple):
    """Gate that holds the next call back now ('': none), and the seconds until that call may go (None: unknown).

    The provider asked for a wait of `stated` seconds (0: it named none). `cause` is what it answered last, in words.
    """

    gate: str
    seconds: float | None
    stated: float = 0.0
    cause: str = ""


def head_wait(queue_forecast: QueueForecast) -> HeadWait:
    """Return what holds back the next call: the first one that waits, or one that comes now.

    It gives the instant that the queue itself waits for, and no forecast: nobody knows when an answer frees a slot.
    """
    if queue_forecast.closed_by:
        tried = queue_forecast.tried_in or queue_forecast.closed_for
        wait = None if tried == INFINITY else tried
        return HeadWait(queue_forecast.closed_by, wait, queue_forecast.stated, queue_forecast.cause)
    seconds, gate = estimate_eta(queue_forecast._replace(waiting=1))
    if gate == "concurrency":
        return HeadWait(gate, None)
    if not gate and queue_forecast.pace > 0.0 and queue_forecast.waiting:
        gate = "pace"
    if not gate:
        # The next call is due. The quota that holds back those behind it tells more than no gate.
        behind = estimate_eta(queue_forecast).gate
        gate = behind if behind.startswith("quota ") else ""
    return HeadWait(gate, seconds, cause=queue_forecast.cause if gate == "pace" else "")


class Eta(NamedTuple):
    """Seconds until the last waiting call is admitted (None: unknown), and the gate that determines it."""

    seconds: float | None
    gate: str


def estimate_eta(queue_forecast: QueueForecast) -> Eta:
    """Return when the last call waiting now will be admitted, and the gate that determines it ('' where none waits)."""
    if not queue_forecast.waiting:
        return Eta(0.0, "")
    latest, binding = queue_forecast.closed_for, queue_forecast.closed_by
    if latest == INFINITY or binding == "breaker":
        # It is unknown when a provider that is down comes back.
        return Eta(None, binding)
    for seconds, gate in _gates(queue_forecast):
        if seconds is None:
            return Eta(None, gate)
        if seconds > latest:
            latest, binding = seconds, gate
    return Eta(latest, binding)


def _gates(queue_forecast: QueueForecast) -> Iterator[tuple[float | None, str]]:
    for quota in queue_forecast.quotas:
        yield quota.drained_in(queue_forecast.waiting, queue_forecast.closed_for), f"quota {quota.name}"
    if queue_forecast.pace > 0.0:
        first = max(queue_forecast.closed_for, queue_forecast.paced_for)
        yield first + (queue_forecast.waiting - 1) / queue_forecast.pace, "pace"
    yield _slots_given(queue_forecast), "concurrency"


def _slots_given(queue_forecast: QueueForecast) -> float | None:
    # Slots are used in turn: each is free again when its attempt has lasted for one latency.
    slots = max(1, queue_forecast.slots)
    if queue_forecast.waiting <= slots - len(queue_forecast.flights):
        return queue_forecast.closed_for
    if queue_forecast.latency is None:
        return None
    latency, start = queue_forecast.latency, queue_forecast.closed_for
    ends = sorted(max(start, latency - lasted) for lasted in queue_forecast.flights)[
        max(0, len(queue_forecast.flights) - slots) :
    ]
    free = [start] * (slots - len(ends)) + ends
    rounds, last = divmod(queue_forecast.waiting - 1, slots)
    return free[last] + rounds * latency


RATE_SPAN_SECONDS = 60.0
"""Seconds over which the rate is measured. Chosen: a quota per minute shows its true rate."""


class RecentRate:
    """Rate of results in the last minute, and at the beginning in the later half of the time so far.

    An opening burst is much faster than the rate that follows, so the earlier half is left out.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque()
        self._began = 0.0

    def note(self, done: int, now: float) -> None:
        if not self._looks:
            self._began = now
        self._looks.append((now, done))
        while len(self._looks) > 2 and self._looks[1][0] <= now - RATE_SPAN_SECONDS:
            self._looks.popleft()

    def clear(self) -> None:
        """Forget all looks: the results so far are no work of this run."""
        self._looks.clear()

    def seconds(self, left: int) -> float | None:
        """Return the seconds in which `left` more results come; None without a rate."""
        if not self._looks:
            return None
        first, (now, after) = self._looks[0], self._looks[-1]
        middle = (self._began + now) / 2
        later = max((look for look in self._looks if look[0] <= middle), default=first)
        then, before = later if after > later[1] else first
        return left * (now - then) / (after - before) if after > before else None
