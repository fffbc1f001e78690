"""Interface between the state of a key, of which each process holds a replica, and the log that the replicas share.

Theory of operation. A *log* belongs to one key, or to one account with all of its keys. A *member* is one process at
one log. A step of a member is: `enter` locks the log and returns the entries that other members appended; the member
replays them, decides with its own replica, and gives `leave` the records of its own events. A carrier keeps the log: a
file of one host, Redis, PostgreSQL, or memory in tests. It does not read payloads.

Instants in a payload are offsets in seconds from its entry's `at`, so that a carrier between hosts, whose monotonic
clocks differ, maps `at` alone. No error of a carrier reaches a call: sharing ends, and the process continues alone.
"""

from __future__ import annotations

import math
import os
import struct
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol

MAX_MEMBERS = 64
"""Members of one log. Chosen: four workers for each core of a large machine's socket; at a server, 64 members read
5 MB/s at 6,000 calls a minute."""

HEAD = struct.Struct("<qd10d")
"""A member's head: its priority, when it was served last, and the first amounts of `core.values.Cost`."""

HEAD_AMOUNTS = 10
"""Amounts of a head; the last one of `core.values.Cost` is left out."""


class Unshared(Exception):
    """A log cannot be shared; the text is the reason, for `tidegate doctor`."""


class Unsupported(Unshared):
    """This platform or process cannot share at all; that is no defect of its set-up."""


class NoConnection(Exception):
    """This process has no connection to the server now, and does not make it itself; a later try costs nothing."""


class CorruptLog(Unshared):
    """The content of a log is not that of any member."""


class Record(NamedTuple):
    """One own event. `at` is the instant of the event in this process's monotonic seconds; `payload` is not empty."""

    at: float
    payload: bytes


class Entry(NamedTuple):
    """One event of another member. `at` is mapped to this process's monotonic seconds and never runs backwards.

    An empty payload is the end of that member: its attempts in flight are abandoned at this place of the order. `place`
    rises with each entry of a log.
    """

    member: int
    at: float
    payload: bytes
    place: int = 0


class Head(NamedTuple):
    """The first waiting call of a member, published so that members take turns.

    `served_at` is when the member was admitted last, in monotonic seconds; `cost` has the fields of `core.values.Cost`.
    """

    member: int
    priority: int
    served_at: float
    cost: tuple[float, ...]


def packed_head(head: Head) -> bytes:
    cost = (*head.cost, *(0.0,) * HEAD_AMOUNTS)[:HEAD_AMOUNTS]
    return HEAD.pack(max(-(2**63), min(2**63 - 1, head.priority)), head.served_at, *cost)


def unpacked_head(member: int, packed: bytes) -> Head:
    """Return the head of a member; raise `CorruptLog` for content that is none."""
    if len(packed) != HEAD.size:
        raise CorruptLog("a head is not that of a member")
    priority, served_at, *cost = HEAD.unpack(packed)
    # A member that was never served has -infinity.
    if not (all(map(math.isfinite, cost)) and served_at < math.inf) or min(cost) < 0:
        raise CorruptLog("the amounts of a head are not numbers")
    return Head(member, priority, served_at, tuple(cost))


class Step(NamedTuple):
    """Result of `MemberLog.enter`.

    `entries` are replayed in order; all entries before `place` are read with them. `heads` are the heads of the other
    live members. `members` counts the live members, this one included. With `away` the log is out of reach: there are
    no entries, and `members` is the last known number. With `returned` it is back after that, has lost its content, or
    has removed entries that were not read: the attempts of other members are not known, nor the own ones to them. What
    others appended after `heard_at` is not read yet; infinity is a log to which no other member appends during the
    step.
    """

    entries: Sequence[Entry] = ()
    heads: Sequence[Head] = ()
    members: int = 1
    place: int = 0
    away: bool = False
    returned: bool = False
    heard_at: float = math.inf


ALONE = Step()
"""The step of a member without others: it appends and locks nothing, and costs one read of eight bytes.

`leave` has no effect after it, and need not be called."""

ENDED = Step()
"""The step at a log that is no longer shared: `MemberLog.ended` says why."""


class MemberLog(Protocol):
    """One member's end of a log. The caller holds the key table's lock during each call, so no method sleeps."""

    member: int
    """Number of this member, unique among the live ones of the log; negative until it has joined.

    It may change in `enter`, as after a fork.
    """

    keeps: bool
    """True where records that `leave` gets while the log is out of reach are appended later; else they are lost."""

    joins_until: float
    """Instant in monotonic seconds until which steps may be None because this member has not joined yet, and until
    which a state of the other members may take to arrive."""

    def is_alone(self, now: float) -> bool:
        """Return whether `enter` would return `ALONE`, at less cost; it may say False without need."""

    def enter(self, now: float) -> Step | None:
        """Lock the log and return what the others did since the last step;

        None where another member holds the lock. After a step the caller calls `leave` exactly once. It reads `now`
        after this call, inside the lock.
        """

    def leave(self, records: Sequence[Record], head: Head | None) -> None:
        """Append the own records, publish the own head (None: no call waits) and unlock the log."""

    @property
    def ended(self) -> str:
        """Reason why this log is no longer shared (a corrupt entry, a full file system), empty while it is."""

    def close(self) -> None:
        """Leave the log: the own attempts in flight are over. Further calls have no effect."""


_carriers: weakref.WeakSet[Carrier] = weakref.WeakSet()


class Carrier(ABC):
    """The logs of one process, in a folder or at a store.

    `kind` says what keeps them, in one word for displays, and `place` where they are, for a person. A place `is_chosen`
    where the settings name it: then keys that programs name themselves are shared, too. `secret` has 32 random bytes
    that the members have in common, and that key the digests of credentials and keys; it is None where the settings
    do. `reason` says why the last log was not joined, empty where it was.
    """

    kind: str
    place: str
    is_chosen: bool
    secret: bytes | None
    reason: str

    def __init__(self) -> None:
        _carriers.add(self)

    @abstractmethod
    def join(self, name: bytes, now: float) -> MemberLog | None:
        """Return this process's end of the log with a digest as its name; None where it cannot be shared."""

    @abstractmethod
    def after_fork(self) -> None:
        """In a child: become a new member; the parent keeps its own."""

    @abstractmethod
    def close(self) -> None:
        """Leave all logs."""


def _after_fork_in_child() -> None:
    for carrier in list(_carriers):
        carrier.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
