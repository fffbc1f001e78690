"""Signals of each event: measurements, an event on the caller's span, or a span; docs/telemetry.md has the tables.

Theory of operation. A listener runs on the thread that caused the event. Events of a call itself, and effects of its
own attempt, are reported in the caller's context: the current span there is the caller's. The admission of the next
call, and with it the end of a pause and the probe of the breaker, may happen in the context of any call. Those events
are only measured, and without a span (`apart`).
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from tidegate.core import events
from tidegate.core.values import Kind
from tidegate.telemetry import attributes as a

Facts = tuple[tuple[a.Attribute, Callable[[Any], Any]], ...]
"""Attributes, each with the function that reads it from an event; a fact that is None or empty is omitted."""

WAIT_BOUNDS_SECONDS = (0.0, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Bounds of the histogram of waits, in seconds. Chosen: none, the 10 ms of a real wait, the minute of most windows, the
hour of `Settings.max_wait`."""

ATTEMPT_BOUNDS_SECONDS = (*(0.01 * 2**doubling for doubling in range(14)), 163.84, 327.68, 655.36)
"""Bounds of the histogram of attempts, in seconds. Source: those of `gen_ai.client.inference.duration`, extended past
the 600 s that SDKs wait for an answer."""

TOKEN_BOUNDS = tuple(4.0**power for power in range(14))
"""Bounds of the histogram of tokens. Source: the GenAI conventions, which prescribe them."""

REAL_WAIT_SECONDS = 0.01
"""Seconds above which a wait becomes a span. Chosen: a call that passes at once also waits for its event loop."""


class Instrument(NamedTuple):
    """One metric; `shown` are the attributes that a metric read from snapshots adds to those of the key.

    An `updowncounter` is such a metric whose values add up over keys and processes, as those of a `gauge` do not.
    """

    name: str
    kind: Literal["histogram", "counter", "gauge", "updowncounter"]
    unit: str
    meaning: str
    shown: tuple[a.Attribute, ...] = ()
    bounds: tuple[float, ...] | None = None


class Measure(NamedTuple):
    """Amount that an event adds to an instrument (1 by default; a counter records no zeros), and its facts.

    An amount of None is not recorded. `apart` states that the current span is unrelated, so that it is no exemplar.
    """

    instrument: Instrument
    facts: Facts = ()
    amount: Callable[[Any], float | None] | None = None
    apart: bool = False


class Note(NamedTuple):
    """Event on the current span, or a separate span that ends now and began `lasting` seconds ago."""

    name: str
    facts: Facts
    lasting: Callable[[Any], float] | None = None


class Signals(NamedTuple):
    """Signals of one class of event."""

    measures: tuple[Measure, ...] = ()
    note: Note | None = None


def _error(event: Any) -> str | None:
    if event.kind is Kind.OK:
        return None
    if event.status is not None and event.status >= 400:
        return str(event.status)
    return str(event.cause.value if event.cause.value != "none" else event.kind.value)


def _cause(event: Any) -> str | None:
    return None if event.cause.value == "none" else event.cause.value


def _closed_for(event: Any) -> float:
    return float(max(0.0, event.until - event.at))


def _reset_in(event: Any) -> float | None:
    return None if event.until is None else _closed_for(event)


def _model(event: Any) -> str | None:
    return None if event.usage is None else event.usage.model


def _always(value: str) -> Callable[[Any], str]:
    return lambda event: value


ENDED: Facts = (
    (a.OUTCOME, attrgetter("kind.value")),
    (a.CAUSE, _cause),
    (a.STATUS, attrgetter("status")),
    (a.ERROR, _error),
)
"""Facts about the end of an attempt."""

DEADLINE: Facts = ((a.ERROR, _always("queue_deadline")), (a.GATE, attrgetter("gate")))
"""Facts about a call that left the queue without a permit."""


def _gave_up_on(event: Any) -> str | None:
    return _error(event) if event.gate is None else "queue_deadline"


def _given_up(event: Any) -> int:
    # An exemplar keeps a boolean as it is, and then no metric of the interval can be encoded.
    return int(event.given_up)


FAILED: Facts = (*ENDED[:-1], (a.ERROR, _gave_up_on), (a.GATE, attrgetter("gate")))
"""Facts about the end of a call without an answer."""

WAIT = Instrument(
    "tidegate.wait.duration", "histogram", "s", "time in the queue to an attempt or give-up, 0 if passed at once",
    bounds=WAIT_BOUNDS_SECONDS,
)  # fmt: skip
ATTEMPT = Instrument(
    "tidegate.attempt.duration", "histogram", "s", "time that an attempt held its slot, until the end of a stream",
    bounds=ATTEMPT_BOUNDS_SECONDS,
)  # fmt: skip
TOKEN_USAGE = Instrument(
    "gen_ai.client.token.usage", "histogram", "{token}", "tokens of an answer, with `TIDEGATE_TELEMETRY=tokens`",
    bounds=TOKEN_BOUNDS,
)  # fmt: skip
ATTEMPTS = Instrument("tidegate.attempts", "counter", "{attempt}", "attempts that ended")
HITS = Instrument("tidegate.rate_limit.hits", "counter", "{refusal}", "refusals for want of capacity (429, 503, 529)")
RETRIES = Instrument("tidegate.retries", "counter", "{retry}", "attempts that repeat a call")
GIVE_UPS = Instrument("tidegate.give_ups", "counter", "{call}", "calls given up because they could wait no longer")
CHANGES = Instrument("tidegate.key.changes", "counter", "{change}", "changes in the state of a key")
LIMIT = Instrument("tidegate.concurrency.limit", "updowncounter", "{attempt}", "attempts that may be in flight")
IN_FLIGHT = Instrument("tidegate.concurrency.in_flight", "updowncounter", "{attempt}", "attempts in flight")
WAITING = Instrument("tidegate.queue.waiting", "updowncounter", "{call}", "calls in the queue")
ETA = Instrument(
    "tidegate.queue.eta",
    "gauge",
    "s",
    "until the last call in the queue is admitted, where that is known",
)
REQUESTS_LIMIT = Instrument(
    "tidegate.quota.requests.limit", "gauge", "{request}", "requests that the quota allows in a window", (a.QUOTA,)
)
REQUESTS_REMAINING = Instrument(
    "tidegate.quota.requests.remaining", "gauge", "{request}", "requests of the quota that are left now", (a.QUOTA,)
)
TOKENS_LIMIT = Instrument(
    "tidegate.quota.tokens.limit", "gauge", "{token}", "tokens that the quota allows in a window",
    (a.QUOTA, a.QUOTA_UNIT),
)  # fmt: skip
TOKENS_REMAINING = Instrument(
    "tidegate.quota.tokens.remaining", "gauge", "{token}", "tokens of the quota that are left now",
    (a.QUOTA, a.QUOTA_UNIT),
)  # fmt: skip
OTHERS_LIMIT = Instrument(
    "tidegate.quota.others.limit", "gauge", "{unit}", "units, such as images, that another quota allows in a window",
    (a.QUOTA, a.QUOTA_UNIT),
)  # fmt: skip
OTHERS_REMAINING = Instrument(
    "tidegate.quota.others.remaining", "gauge", "{unit}", "units of another quota that are left now",
    (a.QUOTA, a.QUOTA_UNIT),
)  # fmt: skip

INSTRUMENTS = (
    WAIT, ATTEMPT, TOKEN_USAGE, ATTEMPTS, HITS, RETRIES, GIVE_UPS, CHANGES,
    LIMIT, IN_FLIGHT, WAITING, ETA,
    REQUESTS_LIMIT, REQUESTS_REMAINING, TOKENS_LIMIT, TOKENS_REMAINING, OTHERS_LIMIT, OTHERS_REMAINING,
)  # fmt: skip


def _changed(what: str, note: Facts | None = None, apart: bool = False) -> Signals:
    fact = (a.CHANGE, _always(what))
    event = None if note is None else Note(f"tidegate.key.{what}", note)
    return Signals((Measure(CHANGES, (fact,), None, apart),), event)


SIGNALS: dict[type[events.Event], Signals] = {
    events.SlotAcquired: Signals((Measure(WAIT, (), attrgetter("waited"), apart=True),)),
    events.SlotReleased: Signals((Measure(ATTEMPT, ENDED, attrgetter("held")), Measure(ATTEMPTS, ENDED))),
    # Its other facts are those of SlotReleased.
    events.AttemptEnded: Signals(
        (
            Measure(TOKEN_USAGE, ((a.TOKEN_TYPE, _always("input")), (a.MODEL, _model)), attrgetter("input_tokens")),
            Measure(TOKEN_USAGE, ((a.TOKEN_TYPE, _always("output")), (a.MODEL, _model)), attrgetter("output_tokens")),
        )
    ),
    events.RateLimitHit: Signals(
        (Measure(HITS, (*ENDED, (a.QUOTA, attrgetter("gate")))),),
        Note(
            "tidegate.rate_limit.hit",
            (*ENDED, (a.QUOTA, attrgetter("gate")), (a.RETRY_AFTER, attrgetter("retry_after"))),
        ),
    ),
    events.RateLimitLearned: _changed(
        "quota_learned",
        (
            (a.QUOTA, attrgetter("quota")),
            (a.QUOTA_UNIT, attrgetter("unit")),
            (a.QUOTA_SIZE, attrgetter("limit")),
            (a.WINDOW, attrgetter("window")),
        ),
    ),
    events.RateLimitWarning: _changed("quota_scarce", ((a.QUOTA, attrgetter("quota")), (a.SHARE, attrgetter("share")))),
    events.ConcurrencyIncreased: _changed("limit_increased"),
    events.ConcurrencyDecreased: _changed(
        "limit_decreased", ((a.LIMIT, attrgetter("limit")), (a.CAUSE, _cause), (a.STATUS, attrgetter("status")))
    ),
    events.RequestStarted: Signals((), Note("tidegate.request.started", ((a.WAITED, attrgetter("waited")),))),
    events.RequestWaited: Signals(
        (), Note("tidegate.wait", ((a.GATE, attrgetter("gate")),), lasting=attrgetter("waited"))
    ),
    events.RequestRetrying: Signals(
        (Measure(RETRIES, ENDED),), Note("tidegate.request.retrying", (*ENDED, (a.ATTEMPT, attrgetter("attempt"))))
    ),
    events.RequestCompleted: Signals(
        (),
        Note(
            "tidegate.request.completed",
            (
                (a.STATUS, attrgetter("status")),
                (a.ATTEMPTS, attrgetter("attempts")),
                (a.ELAPSED, attrgetter("elapsed")),
            ),
        ),
    ),
    events.RequestFailed: Signals(
        (Measure(GIVE_UPS, FAILED, _given_up),),
        Note(
            "tidegate.request.failed",
            (
                *FAILED,
                (a.ATTEMPTS, attrgetter("attempts")),
                (a.ELAPSED, attrgetter("elapsed")),
                (a.GIVEN_UP, attrgetter("given_up")),
            ),
        ),
    ),
    events.BreakerOpened: _changed("breaker_opened", ((a.CLOSED_FOR, _closed_for),)),
    events.BreakerHalfOpened: _changed("breaker_half_opened", apart=True),
    events.BreakerClosed: _changed("breaker_closed", ()),
    events.KeyPaused: _changed("paused", ((a.CLOSED_FOR, _closed_for), (a.ORIGIN, attrgetter("origin.value")))),
    events.KeyResumed: _changed("resumed", apart=True),
    events.KeyRejected: _changed("rejected", (*ENDED, (a.CLOSED_FOR, _reset_in))),
    events.KeyAccepted: _changed("accepted", ()),
    events.ShareJoined: _changed("share_joined", apart=True),
    events.ShareLost: _changed("share_lost", apart=True),
    events.QueueDeadline: Signals(
        (Measure(WAIT, DEADLINE[:1], attrgetter("queued")),),
        Note("tidegate.queue.deadline", (*DEADLINE, (a.WAITED, attrgetter("waited")))),
    ),
}


def read(facts: Facts, event: events.Event) -> a.Pairs:
    pairs = []
    for attribute, value_of in facts:
        value = value_of(event)
        if value is not None and value != "":
            pairs.append((attribute.name, value))
    return tuple(pairs)
