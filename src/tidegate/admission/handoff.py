"""A permit that is requested before a piece of work begins, and handed down to the first attempt that needs it.

Theory of operation. A scheduler whose slots must not wait calls `registry.try_admit` before it starts a piece of work,
and runs the work inside `hand_off`. The work's first governed attempt at the permit's key uses that permit at once, in
any layer below (an SDK, `registry.execute`). If the provider refuses it for lack of capacity, the work gets the refusal
without a wait, and the SDK does not repeat it. So the scheduler puts the work back, and its slot is free. Every other
attempt of the work waits in its queue as usual.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar, Token
from typing import Any

from tidegate.admission.key_table import KeyTable
from tidegate.core.limiter_state import Permit
from tidegate.core.values import CAPACITY, INFINITY, AnsweredBy, Cause, Cost, Key, Kind, Outcome, Silence

_handoff: ContextVar[PermitHandoff | None] = ContextVar("tidegate_hand", default=None)

MAX_KEYS = 16
"""Keys that are remembered for one piece of work. Raising it uses more memory for work with many keys. Chosen: the
first keys show which permit to request next time."""


class PermitHandoff:
    """The permit handed down to a piece of work, and the work's calls; a context manager around the work.

    `keys` maps each key of its attempts to the expected cost, in order of first use. `refused` is the refusal for
    lack of capacity of `refused_at`, which the work got; that attempt does not count as one of the work. `outcome` is
    that of its last attempt, at `outcome_at`. `unserved` says that the key of this attempt is down, and that no server
    has worked there so far. `answered_by` has the choices of its fallbacks that answered. A permit that was not used is
    withdrawn at the end; nothing is learned from it.

    The `outer` handoff, of which this one is a part, gives its permit where this one has none. It gets the keys, waits
    and attempts of the part, so its scheduler sees them as those of the work.
    """

    __slots__ = (
        "_lock",
        "_outer",
        "_permit",
        "_queues",
        "_sending",
        "_token",
        "_waited",
        "_waiting_calls",
        "_waiting_since",
        "answered_by",
        "keys",
        "outcome",
        "outcome_at",
        "recalled",
        "refused",
        "refused_at",
        "unserved",
        "wait_until",
    )

    def __init__(
        self, queues: KeyTable, permit: Permit | None, wait_until: float = INFINITY, outer: PermitHandoff | None = None
    ) -> None:
        if permit is not None:
            queues.require_own(permit)
        self._queues = queues
        self._permit = permit
        self._outer = outer
        self._lock = threading.RLock()
        self._token: Token[PermitHandoff | None] | None = None
        self.keys: dict[Key, Cost] = {}
        self.answered_by: tuple[AnsweredBy, ...] = ()
        self.refused: Outcome | None = None
        self.refused_at: Key | None = None
        self.outcome: Outcome | None = None
        self.outcome_at: Key | None = None
        self.unserved = False
        self.recalled = False
        self.wait_until = wait_until
        self._waiting_calls: set[Any] = set()
        self._sending: set[Permit] = set()
        self._waiting_since = self._waited = 0.0

    def __enter__(self) -> PermitHandoff:
        self._token = _handoff.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._token is not None:
            _handoff.reset(self._token)
            self._token = None
        self.close()

    def close(self) -> None:
        """Withdraw the permit if unused; repeating it does nothing."""
        permit = self._take()
        if permit is not None:
            self._queues.withdraw(permit)

    def take(self, queues: KeyTable, key: Key) -> Permit | None:
        """Return the permit, once, for an attempt at `key` of this registry."""
        permit = self._permit
        mine = permit is not None and queues is self._queues and permit.key == key
        taken = self._take() if mine else None
        return taken if taken is not None or self._outer is None else self._outer.take(queues, key)

    def _take(self) -> Permit | None:
        # Threads of one piece of work may take it at the same time.
        with self._lock:
            permit, self._permit = self._permit, None
        if permit is not None:
            permit.thread = threading.get_ident()
        return permit

    def recall(self) -> None:
        """End the waits of the work's calls, now and later: each gets its last refusal, as at its deadline."""
        with self._lock:
            self.recalled = True
            calls = list(self._waiting_calls)
        for call in calls:
            waker = getattr(call, "waker", None)
            if waker is not None:
                waker.wake()

    @property
    def is_recalled(self) -> bool:
        """Return whether the work's calls wait no longer."""
        return self.recalled or (self._outer is not None and self._outer.is_recalled)

    def waiting_keys(self) -> set[Key]:
        """Return the keys in whose queues the work's calls wait now."""
        with self._lock:
            return {call.key for call in self._waiting_calls}

    def note_wait_started(self, call: object, now: float) -> None:
        """Note that one of the work's calls waits in a queue; `now` is in seconds of the registry's clock."""
        with self._lock:
            if not self._waiting_calls:
                self._waiting_since = now
            self._waiting_calls.add(call)
        if self._outer is not None:
            self._outer.note_wait_started(call, now)

    def note_wait_ended(self, call: object, now: float) -> None:
        """Note that a call waits no more; repeating it does nothing."""
        with self._lock:
            if call in self._waiting_calls:
                self._waiting_calls.remove(call)
                if not self._waiting_calls:
                    self._waited += now - self._waiting_since
        if self._outer is not None:
            self._outer.note_wait_ended(call, now)

    def note_sending(self, permit: Permit) -> None:
        """Note that one of the work's calls holds a permit and makes an attempt."""
        with self._lock:
            self._sending.add(permit)
        if self._outer is not None:
            self._outer.note_sending(permit)

    def note_settled(self, permit: Permit) -> None:
        """Note that an attempt of the work has ended; that of a stream ends with the stream."""
        with self._lock:
            self._sending.discard(permit)
        if self._outer is not None:
            self._outer.note_settled(permit)

    def note_timeout(self, slow: bool) -> Silence:
        """Note that the work's time is over; return what the silence of the providers that it asks means.

        Earlier attempts at the work are known to be `slow`, though the provider answers other calls.
        """
        with self._lock:
            sending = list(self._sending)
        found = [self._queues.note_silent(permit, slow) for permit in sending]
        return next((each for each in (Silence.OUTAGE, Silence.SLOW) if each in found), Silence.UNKNOWN)

    @property
    def is_waiting(self) -> bool:
        """Return whether one of the work's calls waits in a queue now."""
        return bool(self._waiting_calls)

    @property
    def calling(self) -> bool:
        """Return whether one of the work's calls waits in a queue, or is in flight, now."""
        return bool(self._waiting_calls or self._sending)

    def waited_seconds(self) -> float:
        """Return the seconds for which at least one of the work's calls has waited in a queue, until now."""
        with self._lock:
            return self._waited + (self._queues.clock() - self._waiting_since if self._waiting_calls else 0.0)

    def note_use(self, key: Key, cost: Cost) -> None:
        """Remember a key that the work used, and its last expected cost."""
        if key in self.keys or len(self.keys) < MAX_KEYS:
            self.keys[key] = cost
        if self._outer is not None:
            self._outer.note_use(key, cost)

    def note_answered_by(self, choice: AnsweredBy) -> None:
        """Remember the choice of a fallback that answered."""
        with self._lock:
            if choice not in self.answered_by:
                self.answered_by = (*self.answered_by, choice)
        if self._outer is not None:
            self._outer.note_answered_by(choice)

    def note_outcome(self, permit: Permit, outcome: Outcome, direct: bool) -> None:
        """Remember the outcome of an attempt; `direct` says that it used the handed permit, or repeated that attempt.

        A straight attempt is `refused` if it met a lack of capacity, or an outage as the breaker's probe.
        """
        self.note_use(permit.key, permit.cost)
        self.outcome, self.outcome_at = outcome, permit.key
        breaker = permit.state.breaker
        self.unserved = not (breaker.reached or breaker.closed)
        outage = permit.probe and outcome.kind is Kind.TRANSIENT and outcome.cause is Cause.OUTAGE
        if direct and (outcome.kind in CAPACITY or outage):
            self.refused, self.refused_at = outcome, permit.key
        if self._outer is not None:
            # The whole work is not refused by it, as another part may be admitted.
            self._outer.note_outcome(permit, outcome, False)


def hand_off(queues: KeyTable, permit: Permit | None = None, wait_until: float = INFINITY) -> PermitHandoff:
    """Return a context that hands `permit` down to the code inside it; without a permit it only records the keys.

    The calls inside wait until `wait_until` at most (monotonic seconds). Inside another handoff it is a part of that.
    """
    outer = _handoff.get()
    return PermitHandoff(queues, permit, wait_until, outer)


current_handoff = _handoff.get
"""Return the handoff of this context, or None."""
