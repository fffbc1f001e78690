"""Records of the events of a key that its processes share: their form in a log, and the reading of foreign ones.

Theory of operation. A record is a checksum of four bytes, and a JSON list: the kind of the event, the tag of the key,
and its facts. Instants are offsets in seconds from the instant of the record. The reader checks each value, as a log
may be truncated or scrambled. It raises `UnreadableRecord` for what is no event, and nothing else.

No text of a provider is in a record, as other people may read a log: it may repeat a credential. A refusal is written
as its kind, cause and times. Its error object stays in the process that got it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from enum import StrEnum
from operator import ne
from typing import Any, NamedTuple
from zlib import crc32

from pydantic_core import PydanticSerializationError, from_json, to_json

from tidegate.core.values import (
    Cause,
    Cost,
    Kind,
    Outcome,
    QuotaReading,
    Refill,
    RequestFacts,
    ResetInstant,
    Usage,
)

MAX_RECORD_BYTES = 16_384
"""Bytes of a record at most. Chosen: forty times the usual record with four readings."""

MAX_ATTEMPT_SECONDS = 1e6
"""Seconds between an attempt's sending and its end, at most. Chosen: eleven days."""


class UnreadableRecord(ValueError):
    """A payload that is no record of an event."""


class EventKind(StrEnum):
    """Kind of a shared event, in one letter."""

    ADMITTED = "a"
    WITHDRAWN = "w"
    LEARNED = "l"
    SETTLED = "s"
    SILENT = "n"
    USAGE = "u"
    GONE = "g"
    ASKED = "q"


EVENT_KINDS = {each.value: each for each in EventKind}
KINDS = {each.value: each for each in Kind}
WHOLE = (EventKind.GONE, EventKind.ASKED)
"""Kinds whose number is a whole one."""

CAUSES = {each.value: each for each in Cause}


class ReplicaEvent(NamedTuple):
    """One event. `tag` names the key within its log, `serial` the permit within its member.

    `sent` is the sending of the attempt in seconds after the event, so at most 0. The other fields have values only for
    the kinds that need them. `flag` is whether a call is beyond the limits (`ADMITTED`) or slow (`SILENT`). `number` is
    the time waited (`ADMITTED`), a uniform draw (`SETTLED`, `SILENT`), a member (`GONE`), or the place of the log from
    which on a member hears it (`ASKED`).
    """

    kind: EventKind
    tag: str = ""
    serial: int = 0
    sent: float = 0.0
    number: float = 0.0
    flag: bool = False
    cost: Cost = Cost()
    outcome: Outcome | None = None
    facts: RequestFacts | None = None
    usage: Usage | None = None


def write_event(event: ReplicaEvent) -> bytes:
    text = _encoded(_plain(event))
    return crc32(text).to_bytes(4, "little") + text


def read_event(payload: bytes) -> ReplicaEvent:
    """Return the event of a record. Raise `UnreadableRecord` for a payload that is none."""
    try:
        if not 4 < len(payload) <= MAX_RECORD_BYTES or crc32(payload[4:]) != int.from_bytes(payload[:4], "little"):
            raise UnreadableRecord("record unreadable: wrong length or checksum")
        return _event(_decoded(payload[4:]))
    except UnreadableRecord:
        raise
    except Exception as error:
        raise UnreadableRecord(f"record unreadable: {type(error).__name__}") from error


def _encoded(plain: list[Any]) -> bytes:
    try:
        return to_json(plain)
    except PydanticSerializationError:
        # Python's encoder takes five times as long, but accepts lone surrogates.
        return json.dumps(plain, separators=(",", ":")).encode()


def _decoded(text: bytes) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


def _plain(event: ReplicaEvent) -> list[Any]:
    kind = event.kind
    plain: list[Any] = [kind._value_, event.tag, event.serial]
    if kind is EventKind.ADMITTED:
        return [*plain, event.number, event.flag, _trimmed(event.cost, Cost())]
    if kind is EventKind.SETTLED or kind is EventKind.LEARNED:
        outcome = event.outcome
        assert outcome is not None, "an ended attempt has an outcome"
        return [*plain, event.sent, event.number, _plain_outcome(outcome)]
    if kind is EventKind.SILENT:
        return [*plain, event.number, event.flag]
    if kind is EventKind.USAGE:
        return [*plain, event.facts, _plain_usage(event.usage)]
    return [*plain, event.number if kind in WHOLE else event.sent]


def _event(plain: Any) -> ReplicaEvent:
    kind, tag, serial = EVENT_KINDS[plain[0]], _text(plain[1], 64), _whole(plain[2])
    rest = plain[3:]
    if kind is EventKind.ADMITTED:
        waited, beyond, amounts = rest
        cost = Cost(*map(_number, amounts))
        if not cost.sound:
            raise UnreadableRecord("record unreadable: its cost is unsound")
        return ReplicaEvent(kind, tag, serial, 0.0, _number(waited), beyond is True, cost)
    if kind is EventKind.SETTLED or kind is EventKind.LEARNED:
        sent, draw, outcome = rest
        return ReplicaEvent(kind, tag, serial, _offset(sent), _number(draw), outcome=_outcome(*outcome))
    if kind is EventKind.SILENT:
        draw, slow = rest
        return ReplicaEvent(kind, tag, serial, 0.0, _number(draw), slow is True)
    if kind is EventKind.USAGE:
        facts, usage = rest
        model, chars, bound, stream = facts
        bound = None if bound is None else _whole(bound)
        found = RequestFacts(_text(model, 1_024), _whole(chars), bound, stream is True)
        return ReplicaEvent(kind, tag, serial, facts=found, usage=_usage(usage))
    (number,) = rest
    if kind in WHOLE:
        return ReplicaEvent(kind, tag, serial, number=_whole(number))
    return ReplicaEvent(kind, tag, serial, _offset(number))


def _trimmed(values: tuple[Any, ...], defaults: tuple[Any, ...]) -> list[Any]:
    """Return the values without those at the end that are the defaults."""
    # Written with C functions because each event runs it.
    differs = [*map(ne, values, defaults)]
    differs.reverse()
    return list(values[: len(values) - differs.index(True)]) if True in differs else []


def _plain_usage(usage: Usage | None) -> list[int] | None:
    """Return the parts of a usage that limiters know. The others are counted by the member that got the answer."""
    return None if usage is None else list(usage[:3])


def _usage(plain: Any) -> Usage:
    input_tokens, output_tokens, cached_tokens = map(_whole, plain)
    return Usage(input_tokens, output_tokens, cached_tokens)


PLAIN_OUTCOME = (None, "none", None, (), None, "", None, 0, False, False, False)
PLAIN_READING = (None, None, None, None, None, None, None, 0.001, 1.0, False, None)


def _plain_outcome(outcome: Outcome) -> list[Any]:
    return _trimmed(
        (
            outcome.kind._value_,
            outcome.cause._value_,
            outcome.retry_after,
            [_trimmed(each, PLAIN_READING) for each in outcome.readings],
            _plain_usage(outcome.usage),
            outcome.row[:64],
            outcome.status,
            outcome.ignored,
            # A wrong credential may be that of one process.
            outcome.of_key and outcome.cause is not Cause.AUTH,
            outcome.own,
            outcome.again,
        ),
        PLAIN_OUTCOME,
    )


def _outcome(
    kind: str,
    cause: str = "none",
    retry_after: float | None = None,
    readings: Any = (),
    usage: Any = None,
    row: str = "",
    status: int | None = None,
    ignored: int = 0,
    of_key: bool = False,
    own: bool = False,
    again: bool = False,
) -> Outcome:
    return Outcome(
        KINDS[kind],
        CAUSES[cause],
        _optional(retry_after, _number),
        tuple(_reading(*each) for each in readings),
        None if usage is None else _usage(usage),
        _text(row, 64),
        _optional(status, _whole),
        _whole(ignored),
        of_key=of_key is True,
        own=own is True,
        again=again is True,
    )


def _reading(
    name: str,
    unit: str,
    refill: Refill,
    limit: float | None = None,
    remaining: float | None = None,
    reset_after: float | None = None,
    window: float | None = None,
    resolution: float = 0.001,
    quantum: float = 1.0,
    from_receipt: bool = False,
    instant: Any = None,
) -> QuotaReading:
    if refill != "continuous" and refill != "fixed" and refill != "rolling":
        raise UnreadableRecord("record unreadable: its kind of refill is unknown")
    return QuotaReading(
        _text(name, 256),
        _text(unit, 256),
        refill,
        _optional(limit, _number),
        _optional(remaining, _number),
        _optional(reset_after, _number),
        _optional(window, _number),
        _number(resolution),
        _number(quantum),
        from_receipt is True,
        None if instant is None else ResetInstant(*map(_number, instant)),
    )


def _optional(value: Any, read: Callable[[Any], Any]) -> Any:
    return None if value is None else read(value)


def _number(value: Any) -> float:
    if (type(value) is not float and type(value) is not int) or value != value or abs(value) > 1e300:
        raise UnreadableRecord("record unreadable: a number is none")
    return value


def _offset(value: Any) -> float:
    if not -MAX_ATTEMPT_SECONDS <= _number(value) <= MAX_ATTEMPT_SECONDS:
        raise UnreadableRecord("record unreadable: an instant is too far away")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > 1 << 62:
        raise UnreadableRecord("record unreadable: a count is none")
    return value


def _text(value: Any, longest: int) -> str:
    if type(value) is not str or len(value) > longest:
        raise UnreadableRecord("record unreadable: a text is none")
    return value
