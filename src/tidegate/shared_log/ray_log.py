"""Logs in one named actor of a Ray cluster, which the first process that needs it creates.

The actor keeps `LogTable` in its memory, and serves the exchanges of all processes in turn; it does what a server's
script does. Time is an argument there: seconds of the serving process's wall clock.

Nothing here starts Ray: its public functions do that in a process that is not connected, so they are called without
that. The actor outlives the job that created it, and uses no CPU of the cluster's account.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable
from importlib.util import find_spec
from itertools import islice
from typing import Any

from tidegate.errors import ConfigurationError
from tidegate.shared_file import VERSION
from tidegate.shared_log.carrier import MAX_MEMBERS, NoConnection, Unshared
from tidegate.shared_log.store_carrier import EXPIRY_SECONDS, GONE_AFTER_SECONDS, StoreCarrier
from tidegate.shared_log.store_log import KEPT_ENTRIES, Answer, Ask, Limits, Stored

LOOK_SECONDS = 60.0
"""Seconds between two searches for logs that no process uses. Derived: a tenth of `EXPIRY_SECONDS`."""


class TableMember:
    """One live member of a log: its last beat, its head, and the number of the last record that it stored."""

    __slots__ = ("beat", "head", "stored")

    def __init__(self, beat: float) -> None:
        self.beat = beat
        self.stored = 0
        self.head = b""


class TableLog:
    """One log. `base` is the place of its first entry, `last_at` the last instant of the clock, which runs forwards."""

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(8)
        self.base = 0
        self.entries: deque[Stored] = deque(maxlen=KEPT_ENTRIES)
        self.tail = 0
        self.last_number = 0
        self.members: dict[int, TableMember] = {}
        self.last_at = -math.inf

    def exchange(self, ask: Ask, now: float) -> Answer | None:
        """Append, beat and read for one member; None where it leaves or the log has too many members."""
        now = self.last_at = max(now, self.last_at)
        for number in [number for number, each in self.members.items() if now - each.beat > GONE_AFTER_SECONDS]:
            self._remove(number, now)
        member = self.members.get(ask.member) if ask.epoch == self.epoch else None
        if ask.leaves:
            if member is not None:
                self._remove(ask.member, now)
            return None
        number, cursor = ask.member, ask.cursor
        if member is not None:
            self._store(member, ask, now)
        elif len(self.members) >= MAX_MEMBERS:
            return None
        else:
            self.last_number = number = self.last_number + 1
            self.members[number] = TableMember(now)
            cursor = self.tail
        return Answer(
            now, self.epoch, number, self.tail,
            list(islice(reversed(self.entries), self.tail - max(cursor, self.base)))[::-1],
            {each: found.head for each, found in self.members.items() if found.head},
            [*self.members],
        )  # fmt: skip

    def _store(self, member: TableMember, ask: Ask, now: float) -> None:
        for number, (at, payload) in enumerate(ask.records, ask.sequence):
            # A record that comes again, after an exchange that failed, is stored already.
            if number > member.stored:
                self._append(ask.member, at, payload)
                member.stored = number
        member.beat, member.head = now, ask.head

    def _remove(self, number: int, now: float) -> None:
        """End a member: an entry without a payload says so, at one place of the order."""
        del self.members[number]
        self._append(number, now, b"")

    def _append(self, number: int, at: float, payload: bytes) -> None:
        self.entries.append(Stored(self.tail, number, at, payload))
        self.tail += 1
        self.base = self.tail - len(self.entries)


class LogTable:
    """The logs by name."""

    def __init__(self) -> None:
        self._logs: dict[bytes, TableLog] = {}
        self._looked_at = -math.inf

    def exchange(self, name: bytes, ask: Ask, now: float) -> Answer | None:
        if now >= self._looked_at + LOOK_SECONDS:
            self._looked_at = now
            for unused in [each for each, log in self._logs.items() if now - log.last_at > EXPIRY_SECONDS]:
                del self._logs[unused]
        log = self._logs.get(name)
        if log is None:
            log = self._logs[name] = TableLog()
        return log.exchange(ask, now)


RAY = "ray"
"""Value of the setting `share`, and the seed of its secret."""

NAME, NAMESPACE = f"tidegate-log-v{VERSION}", "tidegate"
"""Name of the actor, with the version of all shared files, which a change of `Ask`, `Answer` or the payloads raises."""

ACTOR_TIMEOUT_SECONDS = 1.0
"""Seconds after which the actor counts as away. Measured: 1 ms, and up to 0.31 s on a busy machine."""

CREATION_TIMEOUT_SECONDS = 10.0
"""Seconds for which a joiner waits until the actor exists. Measured: 0.8 s, longer on a busy machine."""


class LogActor:
    """The actor: it serves one exchange after the other."""

    def __init__(self) -> None:
        self._table = LogTable()

    def ready(self) -> bool:
        return True

    def exchange(self, name: bytes, ask: Ask) -> Answer | None:
        return self._table.exchange(name, ask, time.time())


class RayStore:
    """The actor, as used by the thread of one process; the actor is created where there is none."""

    def __init__(self) -> None:
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            raise NoConnection("this process is not connected to Ray")
        if _connection(ray) in _inherited:
            raise Unshared("a fork of a process of Ray has no connection to it")
        self._handle: Any = _found(ray) or _created(ray)
        # A handle that a fork of this process dropped would wait for locks of threads that it does not have.
        _handles.append(self._handle)
        self._result(self._handle.ready.remote(), CREATION_TIMEOUT_SECONDS)

    def exchange(self, name: bytes, ask: Ask) -> Answer | None:
        found: Answer | None = self._result(self._handle.exchange.remote(name, ask), ACTOR_TIMEOUT_SECONDS)
        return found

    def _result(self, reference: Any, limit: float) -> Any:
        # `ray.get` warns in the process of an asynchronous actor, of whose loop this thread is not.
        return reference.future().result(limit)

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            _handles.remove(self._handle)


def _found(ray: Any) -> Any:
    try:
        return _plain(ray.get_actor)(NAME, namespace=NAMESPACE)
    except ValueError:
        return None


def _created(ray: Any) -> Any:
    """Create the actor and return it, or the one that another process has created since."""
    actor = ray.remote(LogActor)
    options = {
        "name": NAME, "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0, "max_restarts": -1,
        "enable_task_events": False,
    }  # fmt: skip
    try:
        return _plain(actor._remote.__func__)(actor, (), {}, **options)
    except ValueError:
        return _found(ray)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of Ray without the part around it that starts Ray where it is not running."""
    found: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return found


def _connection(ray: Any) -> str:
    """Return the name of this process in the cluster."""
    return str(_plain(ray.get_runtime_context)().get_worker_id())


_handles: list[Any] = []
_inherited: set[str] = set()
"""Connections that this process has from the one that forked it: they do not work here."""


def _after_fork_in_child() -> None:
    ray = sys.modules.get("ray")
    with contextlib.suppress(Exception):
        if ray is not None and ray.is_initialized():
            _inherited.add(_connection(ray))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def ray_carrier() -> StoreCarrier:
    """Return the carrier in the Ray cluster of this process; raise `ConfigurationError` where Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigurationError("share", RAY, "sharing through a Ray cluster needs Ray: pip install ray")
    return StoreCarrier(
        RayStore,
        "ray",
        RAY,
        f"the actor {NAME} of the Ray cluster",
        Limits(ACTOR_TIMEOUT_SECONDS, CREATION_TIMEOUT_SECONDS),
    )
