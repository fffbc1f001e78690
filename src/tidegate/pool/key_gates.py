"""Gates of a runner or a pool: a gate decides whether the work of a function may start.

Theory of operation. Work waits behind one gate: the key that its function asks first, or a separate gate while that
key is unknown or absent. The scheduler asks a gate only when it selects its work. If one of a key's limiters rejects,
the key is closed in the queue, so it costs nothing. It reopens at the instant that the limiter stated or at the
registry's wake call, whichever is first. Nothing is polled in between. A key's gate exists while it is in use, or
while it records a spent daily quota, which the key does not record.

Work is overdue after `limit` seconds of active waiting in which its gate answered no call. It is also overdue `limit`
seconds after its own first refusal. Time in which the gate is closed until a reset that the provider stated does not
count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from tidegate.admission.registry import NotReady, RateLimitRegistry
from tidegate.core.backoff import half_jitter
from tidegate.core.circuit_breaker import AVAILABLE, KeyOutage
from tidegate.core.limiter_state import Permit
from tidegate.core.rejection import REJECTED
from tidegate.core.values import INFINITY, Cost, Key, Outcome
from tidegate.pool.execution import Execution
from tidegate.pool.failure_class import OUTAGE, UNHEARD, FailureClass

MIN_RETRY_SECONDS = 0.001
"""Minimum seconds before a gate is asked again without a wake call from the registry. Chosen: an earlier waiter, which
may be admitted now, must run first."""

DAY_RECHECK_SECONDS = 3600.0
"""Seconds after which a key with a spent daily quota and no stated reset is asked again. Chosen: one probe an hour."""


MIN_CHECK_SECONDS = 0.05
"""Minimum seconds between two checks of waiting work. Chosen: it is small beside the latency of a call."""

CHECK_SHARE = 0.005
"""Time between two checks as a share of the limit. Chosen: work ends late by that share at most."""


class StageGate(NamedTuple):
    """Name of the gate of a stage whose key is unknown, or that has none."""

    experiment: int
    stage: int


class GateClosing(NamedTuple):
    """Name of the limiter or event that closes a gate, and until when by the loop's clock (infinity: until something
    ends).
    """

    reason: str
    until: float


@dataclass(slots=True, eq=False)
class _KeyGate:
    wake: Callable[[], None]
    closed: GateClosing | None = None
    closed_at: float = 0.0
    known: bool = False
    firm: bool = False
    total: float = 0.0
    refusals: int = 0
    users: int = 0
    unanswered_since: tuple[float, float] | None = None
    down_since: tuple[float, float] | None = None
    timer: asyncio.TimerHandle | None = None


class GatedQueue(Protocol):
    """Queue of the work behind the gates."""

    def open(self, gate: Hashable) -> None:
        """Let the work behind a gate be chosen again."""
        ...

    def close(self, gate: Hashable) -> None:
        """Let no work behind a gate be chosen."""
        ...

    def remove(self, gate: Hashable) -> None:
        """Forget a gate that no work will use."""
        ...


class KeyGates:
    """Gates of a runner or pool: each holds back the work of one key, or of a function whose key is not known.

    `opened` is called after a gate has opened; it must be cheap.
    """

    def __init__(
        self,
        registry: RateLimitRegistry,
        queue: GatedQueue,
        loop: asyncio.AbstractEventLoop,
        opened: Callable[[], None],
        draw: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._queue = queue
        self._loop = loop
        self._opened = opened
        self.draw = draw
        self._gates: dict[Hashable, _KeyGate] = {}

    def add_user(self, name: Key) -> None:
        """Register a run that uses a key: the gate then keeps its closed time until `remove_user`."""
        self._gate(name).users += 1

    def remove_user(self, name: Key) -> None:
        gate = self._gates[name]
        gate.users -= 1
        if not gate.users and not gate.firm:
            self._drop(name, gate)

    def end(self) -> None:
        for name, gate in list(self._gates.items()):
            self._drop(name, gate)

    def request_permit(self, name: Hashable, cost: Cost | None) -> Permit | bool:
        """Return a permit, True if none is needed, or False if the gate is closed (the queue then knows)."""
        if not isinstance(name, Key):
            return True
        gate = self._gate(name)
        answer = self._registry.try_admit(name, cost, wake=gate.wake)
        if not isinstance(answer, NotReady):
            return answer
        if answer.gate == REJECTED:
            # A row has no other choice of its own: its call is sent, and gets the provider's answer.
            return True
        # An earlier waiter may be admitted now and must run first; asking again at once would only spin.
        wait = max(MIN_RETRY_SECONDS, answer.ready_at - self._registry.clock())
        known = answer.ready_at < INFINITY and answer.stated
        self._shut(name, gate, GateClosing(answer.gate, self._loop.time() + wait), known)
        return False

    def close_stage(self, name: StageGate, reason: str) -> None:
        self._shut(name, self._gate(name), GateClosing(reason, INFINITY), False)

    def refused(self, name: StageGate, hint: float | None, is_outage: bool) -> None:
        """Pause a stage without a key for `hint` seconds, or for a growing time; `is_outage`: no server answered."""
        gate = self._gate(name)
        begun = self._loop.time(), self.closed_for(name)
        gate.unanswered_since = gate.unanswered_since or begun
        gate.down_since = (gate.down_since or begun) if is_outage else None
        again = gate.closed is not None
        if not again:
            # In a burst of refusals only the first one lengthens the pause.
            gate.refusals += 1
        named = hint is not None and hint > 0
        if again and not named:
            return
        wait = hint if hint is not None and named else half_jitter(gate.refusals, self.draw())
        until = self._loop.time() + wait
        if gate.closed is None or gate.closed.until < until:
            self._shut(name, gate, GateClosing("refused", until), named)

    def close_for_day(self, name: Key, reset_in: float | None) -> None:
        """Close a key with a spent daily quota for `reset_in` seconds, or `DAY_RECHECK_SECONDS` if that is unknown."""
        until = self._loop.time() + (DAY_RECHECK_SECONDS if reset_in is None else reset_in)
        gate = self._gate(name)
        self._shut(name, gate, GateClosing("quota day", until), reset_in is not None)
        gate.firm = True

    def answered(self, name: StageGate) -> None:
        """Reset the backoff of a stage without a key, because a call was answered."""
        gate = self._gates.get(name)
        if gate is not None:
            gate.refusals = 0
            gate.unanswered_since = gate.down_since = None

    def open(self, name: Hashable) -> None:
        """Open a gate, so its experiments may ask again; an open gate stays open."""
        gate = self._gates.get(name)
        if gate is None or gate.closed is None:
            return
        self._end_closing(gate)
        gate.closed = None
        self._queue.open(name)
        self._opened()
        if isinstance(name, Key) and not gate.users:
            self._drop(name, gate)

    def remove(self, name: StageGate) -> None:
        """Remove a stage's own gate after the end of its experiment."""
        gate = self._gates.get(name)
        if gate is not None:
            self._drop(name, gate)
        else:
            self._queue.remove(name)

    def closed(self, name: Hashable) -> GateClosing | None:
        gate = self._gates.get(name)
        return gate.closed if gate is not None else None

    def closed_for(self, name: Hashable) -> float:
        """Return the total seconds for which a gate was closed with a known reset; this is no active waiting."""
        gate = self._gates.get(name)
        if gate is None:
            return 0.0
        run = self._loop.time() - gate.closed_at if gate.closed is not None and gate.known else 0.0
        return gate.total + run

    def closed_until_known(self, name: Hashable) -> float:
        """Return the seconds until the known reset of a closed gate; 0 if there is none."""
        gate = self._gates.get(name)
        if gate is None or gate.closed is None or not gate.known:
            return 0.0
        return max(0.0, gate.closed.until - self._loop.time())

    def unavailable(self, name: Hashable) -> KeyOutage:
        """Return for how long no call behind the gate `name` was answered, and the last outcome."""
        if isinstance(name, Key):
            return self._registry.unavailable(name)
        gate = self._gates.get(name)
        if gate is None:
            return AVAILABLE
        now, closed = self._loop.time(), self.closed_for(name)
        unanswered, outage = (
            0.0 if begun is None else max(0.0, now - begun[0] - (closed - begun[1]))
            for begun in (gate.unanswered_since, gate.down_since)
        )
        return KeyOutage(unanswered, outage, self.closed_until_known(name))

    def _gate(self, name: Hashable) -> _KeyGate:
        gate = self._gates.get(name)
        if gate is None:
            gate = self._gates[name] = _KeyGate(partial(self._on_wake, name))
        return gate

    def _drop(self, name: Hashable, gate: _KeyGate) -> None:
        if gate.timer is not None:
            gate.timer.cancel()
        del self._gates[name]
        self._queue.remove(name)

    def _shut(self, name: Hashable, gate: _KeyGate, closed: GateClosing, known: bool) -> None:
        self._end_closing(gate)
        gate.closed, gate.known, gate.closed_at = closed, known, self._loop.time()
        if closed.until < INFINITY:
            gate.timer = self._loop.call_at(closed.until, self.open, name)
        self._queue.close(name)

    def _end_closing(self, gate: _KeyGate) -> None:
        if gate.timer is not None:
            gate.timer.cancel()
            gate.timer = None
        if gate.closed is not None and gate.known:
            gate.total += self._loop.time() - gate.closed_at
        gate.firm = False

    def _on_wake(self, name: Hashable) -> None:
        # Any thread may call this, even after the loop has closed: the registry outlives the runner.
        try:
            self._loop.call_soon_threadsafe(self._ask_again, name)
        except RuntimeError:
            return

    def _ask_again(self, name: Hashable) -> None:
        gate = self._gates.get(name)
        if gate is not None and not gate.firm:
            self.open(name)


class WaitingWork(Protocol):
    """Unit of work that may wait: ready since `ready_at`, first refused at `refused_at`, in the loop's seconds.

    `closed_before` is the total time that its gate had been closed until a known reset by that first refusal.
    `elsewhere` counts refusals that no gate has recorded.
    """

    ready_at: float
    refused_at: float | None
    closed_before: float
    elsewhere: int


WorkT = TypeVar("WorkT", bound=WaitingWork)
JobT = TypeVar("JobT", bound=Execution[Any, Any])


class CapacityDeadline:
    """Deadline of work that waits: it is overdue after `limit` seconds of active waiting.

    Waiting work is to be checked every `period` seconds; `now` is in the loop's seconds.
    """

    def __init__(self, gates: KeyGates, limit: float) -> None:
        self._gates = gates
        self._limit = limit
        self.period = check_period(limit)

    def delay_of_refused(
        self, item: WaitingWork, gate: Hashable, now: float, failure: FailureClass, refused: Outcome | None
    ) -> float | None:
        """Record a refusal for lack of capacity; return the seconds until the next attempt, None if it is overdue.

        It waits behind its gate alone (0) where that knows of the refusal. A key knows of `refused`, which the given
        permit got, and of a call that nothing answered.
        """
        held = isinstance(gate, StageGate) or refused is not None or failure is UNHEARD
        if isinstance(gate, StageGate):
            self._gates.refused(gate, failure.retry_after, failure.kind == OUTAGE)
        self.refused(item, gate, now)
        if self._waited(item, gate, now, self._gates.unavailable(gate)) >= self._limit:
            return None
        if held:
            return 0.0
        item.elsewhere += 1
        return failure.delay_elsewhere(item.elsewhere, self._gates.draw(), self._limit)

    def refused(self, item: WaitingWork, gate: Hashable, now: float) -> None:
        if item.refused_at is None:
            item.refused_at = now
            item.closed_before = self._gates.closed_for(gate)

    def overdue(self, waiting: Iterable[tuple[WorkT, Hashable]], now: float) -> list[WorkT]:
        """Return the items that are overdue, of pairs with their gates."""
        states: dict[Hashable, KeyOutage] = {}
        found = []
        for item, gate in waiting:
            state = states.get(gate) or states.setdefault(gate, self._gates.unavailable(gate))
            if 0.0 < self._waited(item, gate, now, state) >= self._limit:
                found.append(item)
        return found

    def overdue_in_call(self, jobs: Iterable[tuple[JobT, Hashable]], now: float) -> list[JobT]:
        """Return the jobs that wait inside a call, at any key, and are overdue, of pairs with their gates."""
        found = []
        for job, gate in jobs:
            for key in job.handoff.waiting_keys():
                since = job.item.ready_at if key == gate else job.began
                if min(self._gates.unavailable(key).unanswered, now - since) >= self._limit:
                    found.append(job)
                    break
        return found

    def _waited(self, item: WaitingWork, gate: Hashable, now: float, state: KeyOutage) -> float:
        """Return the seconds of active waiting: those without an answer, or since the first refusal."""
        refused_for = 0.0
        if item.refused_at is not None:
            # Without the time of stated resets.
            refused_for = now - item.refused_at - max(0.0, self._gates.closed_for(gate) - item.closed_before)
        return max(min(state.unanswered, now - item.ready_at), refused_for)


def check_period(limit: float) -> float:
    """Return the seconds between two checks of waiting work, which may wait for `limit` seconds."""
    return max(MIN_CHECK_SECONDS, CHECK_SHARE * limit)
