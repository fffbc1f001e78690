"""A permit that was asked for before the work began, handed down to the first attempt that needs it.

A scheduler that must not let its slots wait asks `registry.try_admit` before it starts a piece of work, and runs it
inside `hand_off`. The first governed attempt at the permit's key, however deep below (an SDK's, `registry.execute`),
goes out under that permit at once. Where the provider refuses it for want of capacity, the refusal is handed
straight back instead of being waited for, and the SDK is told not to repeat it: the scheduler puts the work back, and
its slot is free. Every other attempt of the work stands in its queue as always.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar, Token
from typing import Any

from tidegate.admission.key_table import KeyTable
from tidegate.core.limiter_state import Permit
from tidegate.core.values import CAPACITY, Cause, Cost, Key, Kind, Outcome

_handoff: ContextVar[PermitHandoff | None] = ContextVar("tidegate_hand", default=None)

MOST_KEYS = 16
"""Keys that are remembered of one piece of work: its first ones tell what to ask for next time."""


class PermitHandoff:
    """The values handed down to a piece of work, and its calls; a context manager around the work.

    `keys` are those that it asked for, `{key: expected cost}`, first use first. `refused` is the answer of `refused_at`
    that was handed back for want of capacity: nothing was attempted, as far as the work's own attempts are counted.
    `outcome` is what its last attempt came to, at `outcome_at`. A permit that nobody used is withdrawn at the end,
    which teaches nothing.
    """

    __slots__ = (
        "_lock",
        "_permit",
        "_queues",
        "_since",
        "_standing",
        "_token",
        "_waited",
        "keys",
        "outcome",
        "outcome_at",
        "recalled",
        "refused",
        "refused_at",
    )

    def __init__(self, queues: KeyTable, permit: Permit | None) -> None:
        self._queues = queues
        self._permit = permit
        self._lock = threading.Lock()
        self._token: Token[PermitHandoff | None] | None = None
        self.keys: dict[Key, Cost] = {}
        self.refused: Outcome | None = None
        self.refused_at: Key | None = None
        self.outcome: Outcome | None = None
        self.outcome_at: Key | None = None
        self.recalled = False
        self._standing: set[Any] = set()
        self._since = self._waited = 0.0

    def __enter__(self) -> PermitHandoff:
        self._token = _handoff.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._token is not None:
            _handoff.reset(self._token)
            self._token = None
        self.close()

    def close(self) -> None:
        """Takes back the permit, where it was not used; repeating it does nothing."""
        permit = self._take()
        if permit is not None:
            self._queues.withdraw(permit)

    def take(self, queues: KeyTable, key: Key) -> Permit | None:
        """The permit, for an attempt at `key` at these queues, once."""
        permit = self._permit
        if permit is None or queues is not self._queues or permit.key != key:
            return None
        return self._take()

    def _take(self) -> Permit | None:
        # Threads of one piece of work may ask at once.
        with self._lock:
            permit, self._permit = self._permit, None
        if permit is not None:
            permit.thread = threading.get_ident()
        return permit

    def recall(self) -> None:
        """End the waits of the work's calls, now and from now on: each gets the refusal it has, as at its deadline."""
        with self._lock:
            self.recalled = True
            calls = list(self._standing)
        for call in calls:
            waker = getattr(call, "waker", None)
            if waker is not None:
                waker.wake()

    def standing_at(self) -> set[Key]:
        """Return the keys in whose queues the work's calls wait now."""
        with self._lock:
            return {call.key for call in self._standing}

    def stands(self, call: object, now: float) -> None:
        """One of the work's calls waits in a queue; `now` is in seconds of the queues' clock."""
        with self._lock:
            if not self._standing:
                self._since = now
            self._standing.add(call)

    def goes(self, call: object, now: float) -> None:
        """That call waits no more; repeating it does nothing."""
        with self._lock:
            if call in self._standing:
                self._standing.remove(call)
                if not self._standing:
                    self._waited += now - self._since

    @property
    def standing(self) -> bool:
        """Return whether one of the work's calls waits in a queue now."""
        return bool(self._standing)

    def waited(self) -> float:
        """Seconds for which the work has stood in queues, with at least one of its calls, until now."""
        with self._lock:
            return self._waited + (self._queues.clock() - self._since if self._standing else 0.0)

    def asked(self, key: Key, cost: Cost) -> None:
        """Remembers what the work asked for, at its last price."""
        if key in self.keys or len(self.keys) < MOST_KEYS:
            self.keys[key] = cost

    def was_given(self, key: Key, outcome: Outcome) -> None:
        """Remembers an answer that the work got without an attempt: it means what it would mean after one."""
        self.outcome, self.outcome_at = outcome, key

    def came_to(self, permit: Permit, outcome: Outcome, straight: bool) -> None:
        """Remembers what an attempt came to; `straight` says that it was the handed permit's, or a repetition of it.

        No capacity is nobody's answer, nor is the outage that the breaker's probe meets.
        """
        self.asked(permit.key, permit.cost)
        self.outcome, self.outcome_at = outcome, permit.key
        outage = permit.probe and outcome.kind is Kind.TRANSIENT and outcome.cause is Cause.OUTAGE
        if straight and (outcome.kind in CAPACITY or outage):
            self.refused, self.refused_at = outcome, permit.key


def hand_off(queues: KeyTable, permit: Permit | None = None) -> PermitHandoff:
    """Hands `permit` down to what runs inside the `with`; without one it only says which keys were asked for."""
    return PermitHandoff(queues, permit)


def current_handoff() -> PermitHandoff | None:
    """Return what is handed down in this context."""
    return _handoff.get()
