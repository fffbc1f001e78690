"""Value types of the project: key, cost, usage, quota reading, outcome.

A *quota* is a limit that the provider enforces, and a *reading* is its state in one response. A *cost* is our estimate
before the call, and *usage* is the consumption that the response states. An *outcome* is the result of an attempt.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple

from tidegate.core.safe_text import printable, shown_address

MAX_AMOUNT = 1e15
"""Units of a quota, and of the charge of one call, at most. Derived from the 53 bits of a float."""

PAST_WEIGHT_SHARE = 0.9
"""Share of the weight of earlier values that each new value leaves in a running mean. Chosen: about the last ten count
(curator keeps the last fifty answers, ten refusals show a few per cent)."""

INFINITY = float("inf")
"""An instant that does not come, or an amount without a bound."""

new = tuple.__new__
"""Make a named tuple of all its fields where every call needs one: the constructor would be one more Python call."""

Unit = str
"""Unit that a quota counts: `requests`, `tokens`, `input_tokens`, `output_tokens`, `input_images`, …"""

Refill = Literal["continuous", "fixed", "rolling"]
"""Kind of refill of a quota: continuously, all at once at a boundary, or each unit a window after it was taken."""


class Kind(StrEnum):
    """Kind of an attempt's result, by the caller's next step."""

    OK = "ok"
    RATE_LIMIT = "rate_limit"
    DAILY_LIMIT = "daily_limit"
    QUOTA_EXHAUSTED = "quota_exhausted"
    OVERLOADED = "overloaded"
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    ABANDONED = "abandoned"


OK = Kind.OK
"""Alias for every call's path, because Python 3.11 needs 50 ns to find a member of an enumeration."""


class Source(StrEnum):
    """Origin of a learned value."""

    DEFAULT = "default"
    EARLIER_RUN = "earlier run"
    HEADERS = "headers"
    RETRY_AFTER = "retry-after"
    ANSWERS = "answers"
    REFUSALS = "refusals"
    FAILURES = "failures"
    USAGE = "usage"


class Silence(StrEnum):
    """Meaning of an attempt that got no answer within the time limit of its caller.

    `SLOW`: it alone takes so long, as later attempts were answered. `UNKNOWN`: no later one was answered. `OUTAGE`: so
    many in a row were silent that the circuit breaker is not closed.
    """

    SLOW = "slow"
    UNKNOWN = "unknown"
    OUTAGE = "outage"


class Cause(StrEnum):
    """Cause of a result, where one status means several things (a 429 has seven meanings).

    `OVERLOAD` is stated by a code, words, a wait or a status of its own. `UNAVAILABLE` is a 503 that states nothing:
    the server sheds load while other calls of the key are answered, and is down while none is.
    """

    NONE = "none"
    RATE = "rate"
    CONCURRENCY = "concurrency"
    DAY = "day"
    MONEY = "money"
    NEVER_FITS = "never_fits"
    OTHERS_CAPACITY = "others_capacity"
    SLOPE = "slope"
    NOT_READY = "not_ready"
    OVERLOAD = "overload"
    OUTAGE = "outage"
    AUTH = "auth"
    INVALID = "invalid"
    UNAVAILABLE = "unavailable"


CAPACITY = frozenset({Kind.RATE_LIMIT, Kind.OVERLOADED})
"""Kinds that cost no attempt: the call waits and is sent again (promise 3)."""

REFUSED = frozenset({Kind.RATE_LIMIT, Kind.OVERLOADED, Kind.DAILY_LIMIT, Kind.QUOTA_EXHAUSTED})
"""Kinds that the provider did not charge for."""

TERMINAL = frozenset({Kind.DAILY_LIMIT, Kind.QUOTA_EXHAUSTED, Kind.PERMANENT})
"""Kinds that another attempt cannot change within this call."""

ELSEWHERE = frozenset({Cause.OTHERS_CAPACITY, Cause.NOT_READY})
"""Causes of a refusal that no rate or concurrency of this client changes."""

LOAD = frozenset({Cause.OVERLOAD, Cause.UNAVAILABLE, Cause.OUTAGE})
"""Causes with which a server speaks of itself, and of no quota of the key. While other calls are answered, a time that
it names binds only the call that it refused."""

UNSERVING = frozenset({Cause.NOT_READY, Cause.UNAVAILABLE})
"""Causes of a refusal that is an outage where no call of the key is answered in between."""

FAILING = frozenset({Cause.OUTAGE, Cause.UNAVAILABLE})
"""Causes of a failure that do not show a working server at the address: a proxy with a wrong route gives them, too."""


CUSTOM = "custom"
"""Provider of the keys that a program names itself. Two programs of a user may mean different things by one name, so
these keys are shared only at a place that the settings name."""


class Key(NamedTuple):
    """Owner of the quota that a call counts against: one admission state per key.

    `credential` is a keyed digest (hexadecimal), never the secret or a part of it. `scope` is the model, deployment or
    region where the provider's quota has that scope, else empty. `family` names an endpoint family with separate
    limits, else empty.
    """

    provider: str
    base_url: str
    credential: str = ""
    scope: str = ""
    family: str = ""

    def __str__(self) -> str:
        parts = [self.provider, shown_address(self.base_url).removeprefix("https://").removeprefix("http://")]
        if self.scope:
            parts.append(self.scope)
        if self.family:
            parts.append(self.family)
        if self.credential:
            parts.append(f"key {self.credential[:6]}")
        return printable(" · ".join(parts))


class Cost(NamedTuple):
    """Expected charge of a call, estimated before it is sent. `tokens` is the provider's combined count.

    `produced` is the output that a provider charges only as it is generated (Anthropic). It is reserved at first, and
    counts against `tokens` and `output_tokens` when the answer ends. An output token counts `weight`. The part `held`
    of `tokens` is returned when the answer ends, except for the output produced.

    The next three are the estimates behind these amounts: input, the request's bound of the output, and output. From
    them other charging rules than the provider table's are computed (`core.charging`); zeros mean unknown.
    """

    requests: float = 1.0
    tokens: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    produced: float = 0.0
    weight: float = 1.0
    held: float = 0.0
    input_estimate: float = 0.0
    output_bound: float = 0.0
    output_estimate: float = 0.0

    def plus(self, other: Cost) -> Cost:
        """Return the cost of this call and another one; `weight` is that of this call."""
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))._replace(weight=self.weight)

    def times(self, calls: float) -> Cost:
        return Cost(*(calls * field for field in self))._replace(weight=self.weight)

    @property
    def sound(self) -> bool:
        """Return whether no amount is negative, their sum is at most `MAX_AMOUNT`, and `weight` is above zero."""
        # A comparison with NaN is False, and a sum with NaN is NaN.
        return min(self) >= 0.0 and self.weight > 0.0 and sum(self) <= MAX_AMOUNT

    def mended(self) -> Cost:
        """Return the same cost with the default instead of each amount that no quota can be charged."""
        plain = Cost()
        kept = [given if 0.0 <= given <= MAX_AMOUNT else other for given, other in zip(self, plain, strict=True)]
        mended = Cost(*kept)
        return mended if mended.weight > 0.0 else mended._replace(weight=plain.weight)

    def amount(self, unit: Unit) -> float:
        """Return the amount charged at admission to a quota that counts `unit`; 0 for an unknown unit."""
        place = PLACES.get(unit)
        return self[place] if place is not None else 0.0

    def reserve(self, unit: Unit) -> float:
        return self.produced if unit in PRODUCED else 0.0


PLACES: dict[Unit, Literal[0, 1, 2, 3]] = {"requests": 0, "tokens": 1, "input_tokens": 2, "output_tokens": 3}
"""Index of the field of `Cost` that a quota of each unit is charged at admission."""

HOLDING = "tokens"
"""Unit of the quotas that are charged the bound of the output and get back the part not produced."""

PRODUCED = frozenset({"tokens", "output_tokens"})
"""Units that count the produced output when the answer ends."""


class Usage(NamedTuple):
    """Usage that a response states, in tokens.

    `cached_tokens` is the part of the input that was read from a cache, and `cache_write_tokens` the part that was
    written to one. `reasoning_tokens` is the part of the output that the model thought. `model` is the model that the
    request names. `tier` is the service tier of the answer, empty for the standard one.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    model: str = ""
    tier: str = ""


class RequestFacts(NamedTuple):
    """Facts of a request, read once from its body before it is queued.

    `input_chars` is the number of characters that count as input. `max_output_tokens` is the request's own bound or
    None. `model` is empty where the request names none.
    """

    model: str = ""
    input_chars: int = 0
    max_output_tokens: int | None = None
    stream: bool = False


class ResetInstant(NamedTuple):
    """Reset that a header names as an instant, and the `date` of the same answer; both in seconds since 1970.

    The reset was rounded to `rounding` seconds.
    """

    reset: float
    rounding: float
    dated: float


class QuotaReading(NamedTuple):
    """State of one quota as one response states it.

    `name` identifies the quota within its key, and is constant over responses, whatever window is derived. `window` is
    in seconds where the header's name, its value or the provider's table states it, else None. `reset_after` is in
    seconds from the response: until full for `continuous`, until the boundary for `fixed`. It was rounded to
    `resolution` seconds, and `remaining` to `quantum`. With `from_receipt`, the header named an instant, and
    `reset_after` counts from the receipt of the answer. Else it counts from the admission of the request. `instant` is
    that instant where the answer has a `date`.
    """

    name: str
    unit: Unit
    refill: Refill
    limit: float | None = None
    remaining: float | None = None
    reset_after: float | None = None
    window: float | None = None
    resolution: float = 0.001
    quantum: float = 1.0
    from_receipt: bool = False
    instant: ResetInstant | None = None


class Outcome(NamedTuple):
    """Result of one attempt, and the facts learned from it.

    `retry_after` is in seconds, and None where the answer names no time (or is no refusal). `row` names the table row
    that decided. `ignored` counts unusable values (negative, not a number, absurd, too long). `of_key` says that a
    rejection holds for its key, and not for one request. `error` is the text of a connection error, where no response
    came. With `own`, the failure shows nothing about its key: the call itself is the cause, or its answer had begun.
    `again` says that its call had failed before.
    """

    kind: Kind
    cause: Cause = Cause.NONE
    retry_after: float | None = None
    readings: tuple[QuotaReading, ...] = ()
    usage: Usage | None = None
    row: str = ""
    status: int | None = None
    ignored: int = 0
    of_key: bool = False
    error: str = ""
    own: bool = False
    again: bool = False


class AnsweredBy(NamedTuple):
    """Choice that answered a call: its name, its provider, and its model; an unknown one is empty.

    Scores of answers by one model compare, whatever choice gave them.
    """

    choice: str
    provider: str
    model: str


class NextStep(StrEnum):
    """Next step of a row of a pool or an experiment."""

    ANSWERED = "answered"
    CAPACITY = "capacity"
    PARKED = "parked"
    TRANSIENT = "transient"
    UNUSABLE = "unusable"
    PERMANENT = "permanent"


class Action(StrEnum):
    """Action for a job after its failure."""

    REQUEUE = "requeue"
    RETRY = "retry"
    POISON = "poison"


class Consequences(NamedTuple):
    """The next step of a `row`, the action for a `job` of a queue, and the `reason` in fallbacks and counters.

    A fallback passes a choice over for a reason in its `on`; an empty one is none.
    """

    row: NextStep
    job: Action
    reason: str


CONSEQUENCES = {
    Kind.RATE_LIMIT: Consequences(NextStep.CAPACITY, Action.REQUEUE, "rate"),
    Kind.OVERLOADED: Consequences(NextStep.CAPACITY, Action.REQUEUE, "overload"),
    Kind.DAILY_LIMIT: Consequences(NextStep.PARKED, Action.REQUEUE, "day"),
    Kind.QUOTA_EXHAUSTED: Consequences(NextStep.PERMANENT, Action.POISON, "money"),
    Kind.TRANSIENT: Consequences(NextStep.TRANSIENT, Action.RETRY, ""),
    Kind.PERMANENT: Consequences(NextStep.PERMANENT, Action.POISON, ""),
    Kind.ABANDONED: Consequences(NextStep.PERMANENT, Action.POISON, ""),
    Kind.OK: Consequences(NextStep.ANSWERED, Action.POISON, ""),
}


def passing_reason(outcome: Outcome) -> str:
    """Return the reason for which a fallback may pass over a choice; empty if there is none."""
    if outcome.kind is Kind.TRANSIENT and outcome.cause is Cause.OUTAGE:
        return "outage"
    return CONSEQUENCES[outcome.kind].reason


def refusal_counter(fate: str, outcome: Outcome) -> str:
    return f"{fate}_elsewhere" if outcome.cause in ELSEWHERE else f"{fate}_{CONSEQUENCES[outcome.kind].reason}"


_WORDS = {
    Cause.AUTH: "key rejected",
    Cause.DAY: "day quota spent",
    Cause.MONEY: "money spent",
    Cause.NEVER_FITS: "larger than the limit",
    Cause.RATE: "rate limit",
    Cause.CONCURRENCY: "too many at once",
    Cause.OVERLOAD: "overloaded",
    Cause.OTHERS_CAPACITY: "overloaded",
    Cause.UNAVAILABLE: "unavailable",
    Cause.NOT_READY: "model not ready",
    Cause.INVALID: "request refused",
}


def failure_reason(outcome: Outcome) -> str:
    """Return the status and the cause of a failure; for one without an answer, the error that came instead."""
    words = _WORDS.get(outcome.cause, "")
    if outcome.status is not None:
        return f"{outcome.status}: {words}" if words else f"status {outcome.status}"
    return words or outcome.error or ("no connection" if outcome.cause is Cause.OUTAGE else "no answer in time")
