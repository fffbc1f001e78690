"""Texts that state which gate holds calls back, why, and until when, and short texts of quotas and amounts.

A gate is one limiter of a key. Status row, `tidegate status`, notebooks, the runner's display and the log use the same
words.
"""

from __future__ import annotations

from tidegate.core.rejection import DAY, REJECTED
from tidegate.core.values import Cause, Outcome

MINUTE = 60.0
FINE = 10.0
"""Seconds below which a duration has a decimal."""

SHOWN = 0.05
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
    if seconds < FINE - SHOWN:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < MINUTE - 0.5 else clock(seconds)


def awaited(gate: str) -> str:
    """Return what the calls behind a gate wait for, e.g. `quota requests`."""
    return AWAITED.get(gate, gate)


def failure_text(outcome: Outcome) -> str:
    """Return the last refusal or failure of a key in a few words."""
    if outcome.status is not None:
        return f"status {outcome.status}"
    if outcome.error:
        return outcome.error
    cause = outcome.cause
    return "no connection" if cause is Cause.OUTAGE else "no answer in time" if cause is Cause.NONE else str(cause)


NEVER = 20
"""Refusals without any answer from which on texts say so. Chosen: a full bucket answers before."""


def never_answered(answered: int, refused: int) -> str:
    return "" if answered or refused < NEVER else f"no call of this key was ever answered: {refused} refusals"


def wait_text(gate: str, seconds: float | None, stated: float = 0.0, cause: str = "") -> str:
    """Return why no call goes now and when the next one does.

    The next try is in `seconds` (None: when an attempt in flight ends). The provider asked for `stated` seconds (0: for
    none). `cause` is its last answer, if known.
    """
    when = "when an answer arrives" if seconds is None else f"in {duration(seconds)}" if seconds >= SHOWN else "now"
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
        return f"{gate} holds back all but the next call: it goes now"
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
    """Return that this number of processes share the limits of a key, and by what, where that is known."""
    return f"shared by {members} processes" + (f" ({carrier})" if carrier else "")


def queue_text(in_flight: int, slots: int, waiting: int, eta: str, shared: str) -> str:
    """Return the calls of a key in one line; `eta` is shown while calls wait, `shared` where it is not empty."""
    parts = [f"{in_flight} of at most {slots} in flight", f"{waiting} waiting"]
    return " · ".join([*parts, *([f"ETA {eta}"] if waiting else []), *filter(None, [shared])])


def eta_text(seconds: float | None) -> str:
    """Return the time until the last waiting call is admitted (None: unknown)."""
    return "unknown" if seconds is None else clock(seconds)


def quota_left(level: float, name: str, limit: float, window: float) -> str:
    """Return the unused amount of a quota with its limit."""
    return f"{amount(max(0.0, level))} of {sized(name, limit, window)} left"


def sized(name: str, limit: float, window: float) -> str:
    """Return a quota in short form: `120 requests/min`."""
    per = WINDOWS.get(window, f"{window:.0f} s" if window >= 1000.0 else f"{window:.3g} s")
    return f"{amount(limit)} {name.replace('_', ' ')}/{per}"


def amount(number: float) -> str:
    """Return a number in a few digits: `999`, `12.3k`, `4M`, `1,000M`."""
    for unit, size, least in (("M", 1e6, 999_500.0), ("k", 1e3, 1e4)):
        if number >= least:
            scaled = number / size
            return f"{scaled:,.0f}{unit}" if scaled >= 999.5 else f"{scaled:.3g}{unit}"
    return f"{number:.0f}"
