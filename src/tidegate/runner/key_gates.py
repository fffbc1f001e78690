"""The gates between a stage and its turn: a key of the registry, or a gate of its own while its key is not known.

Theory of operation. A gate is asked when its turn has come. A key that says no is closed on the roster, so that it
costs nothing, and is opened again by whichever comes first: the instant that the key named, or the registry's word that
something happened there. Nothing is asked in between. A stage whose key is not known yet sends one item ahead, which
waits inside its call, and closes its own gate behind it; the gate opens when the key is known, or the item has ended.
A key's gate is there while a run stands behind it, or while it knows of a day that is over, which the key does not.

Learns from its calls which key a stage's function asks first, and has the stage stand behind that key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple

from tidegate.admission.registry import NotReady, RateLimitRegistry
from tidegate.core.backoff import half_jitter
from tidegate.core.limiter_state import Permit
from tidegate.core.rejection import REJECTED
from tidegate.core.unavailability import AVAILABLE, KeyOutage
from tidegate.core.values import Cost, Key
from tidegate.runner.fair_queue import FairQueue
from tidegate.runner.job import ObservedHandoff, Stage
from tidegate.runner.work_queue import WorkQueue

FOREVER = float("inf")
SOONEST = 0.001
"""Seconds before a gate is asked again at the earliest, where nobody has said that something happened there."""

DAY_LOOK = 3600.0
"""Seconds after which a key is asked again whose day is over and that names no reset: a probe an hour."""

PAUSE_BASE, PAUSE_CAP = 1.0, 60.0
"""Seconds for which a stage without a key waits after a refusal that names no time, doubling (promptfoo: 1 s, 60 s)."""


class StageGate(NamedTuple):
    """The gate of a stage whose key is not known, or that has none."""

    experiment: int
    stage: int


class GateClosing(NamedTuple):
    """Why a gate is closed, in a word, and until when by the loop's clock (infinity: until something ends)."""

    reason: str
    until: float


class _KeyGate:
    __slots__ = (
        "closed", "closed_at", "down_since", "firm", "keepers", "known", "refusals", "timer", "told", "total",
        "unanswered_since", "wake",
    )  # fmt: skip

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.closed: GateClosing | None = None
        self.closed_at = 0.0
        self.known = self.firm = False
        self.total = 0.0
        self.refusals = self.keepers = 0
        self.unanswered_since: tuple[float, float] | None = None
        self.down_since: tuple[float, float] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.told: set[Callable[[], None]] = set()


class KeyGates:
    """The gates of a runner. `opened` is called after a gate has been opened; it must be cheap."""

    def __init__(
        self,
        registry: RateLimitRegistry,
        fair_queue: FairQueue,
        loop: asyncio.AbstractEventLoop,
        opened: Callable[[], None],
        draw: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._fair_queue = fair_queue
        self._loop = loop
        self._opened = opened
        self._draw = draw
        self._gates: dict[Hashable, _KeyGate] = {}

    def keep(self, name: Key) -> None:
        """A run stands behind a key, or has stood there: it remembers how long that was closed, until it lets go."""
        self._gate(name).keepers += 1

    def let_go(self, name: Key) -> None:
        """That run has ended."""
        gate = self._gates[name]
        gate.keepers -= 1
        if not gate.keepers and not gate.firm:
            self._drop(name, gate)

    def ask(self, name: Hashable, cost: Cost | None) -> Permit | bool:
        """A permit, or True where none is needed; False where the gate is closed, which the roster knows then."""
        if not isinstance(name, Key):
            return True
        gate = self._gate(name)
        answer = self._registry.try_admit(name, cost, wake=gate.wake)
        if not isinstance(answer, NotReady):
            return answer
        if answer.gate == REJECTED:
            # Nothing is sent for what goes now: its call gets the provider's last answer, which says what it is.
            return True
        # Somebody who stands before us may go now, and has to run first: to ask again at once would only spin.
        wait = max(SOONEST, answer.ready_at - self._registry.clock())
        known = answer.ready_at < FOREVER and answer.stated
        self._shut(name, gate, GateClosing(answer.gate, self._loop.time() + wait), known)
        return False

    def shut(self, name: StageGate, reason: str) -> None:
        """Closes a stage's own gate until it is opened."""
        self._shut(name, self._gate(name), GateClosing(reason, FOREVER), False)

    def refused(self, name: StageGate, hint: float | None, away: bool) -> None:
        """A call without a permit was refused: its stage waits, for `hint` seconds or for a growing time.

        `away` says that nobody answered: the provider is down, as far as is known.
        """
        gate = self._gate(name)
        begun = self._loop.time(), self.closed_for(name)
        gate.unanswered_since = gate.unanswered_since or begun
        gate.down_since = (gate.down_since or begun) if away else None
        again = gate.closed is not None
        if not again:
            # Of a wave of refusals only the first makes the wait longer.
            gate.refusals += 1
        named = hint is not None and hint > 0
        if again and not named:
            return
        wait = hint if hint is not None and named else half_jitter(gate.refusals, PAUSE_BASE, PAUSE_CAP, self._draw())
        until = self._loop.time() + wait
        if gate.closed is None or gate.closed.until < until:
            self._shut(name, gate, GateClosing("refused", until), named)

    def day_is_over(self, name: Key, reset_in: float | None) -> None:
        """A key's quota for the day is spent: nobody asks it before its reset, or for an hour where none is known."""
        until = self._loop.time() + (DAY_LOOK if reset_in is None else reset_in)
        gate = self._gate(name)
        self._shut(name, gate, GateClosing("quota day", until), reset_in is not None)
        gate.firm = True

    def answered(self, name: StageGate) -> None:
        """A call without a permit was answered: the next refusal is the first again."""
        gate = self._gates.get(name)
        if gate is not None:
            gate.refusals = 0
            gate.unanswered_since = gate.down_since = None

    def open(self, name: Hashable) -> None:
        """Lets whoever stands behind it ask again; one that is open stays so."""
        gate = self._gates.get(name)
        if gate is None or gate.closed is None:
            return
        self._end_closing(gate)
        gate.closed = None
        self._fair_queue.open(name)
        self._opened()
        self._tell(gate)
        if isinstance(name, Key) and not gate.keepers:
            self._drop(name, gate)

    def remove(self, name: StageGate) -> None:
        """The experiment behind a gate of its own has ended."""
        gate = self._gates.get(name)
        if gate is not None:
            self._drop(name, gate)
        else:
            self._fair_queue.remove(name)

    def closed(self, name: Hashable) -> GateClosing | None:
        """Why a gate is closed; None where it is open."""
        gate = self._gates.get(name)
        return gate.closed if gate is not None else None

    def closed_for(self, name: Hashable) -> float:
        """Seconds for which a gate has been closed with a known reset, all told: nobody waits actively meanwhile."""
        gate = self._gates.get(name)
        if gate is None:
            return 0.0
        running = self._loop.time() - gate.closed_at if gate.closed is not None and gate.known else 0.0
        return gate.total + running

    def closed_until_known(self, name: Hashable) -> float:
        """Seconds until the known reset with which a gate is closed; 0 where there is none."""
        gate = self._gates.get(name)
        if gate is None or gate.closed is None or not gate.known:
            return 0.0
        return max(0.0, gate.closed.until - self._loop.time())

    def unavailable(self, name: Hashable) -> KeyOutage:
        """Return for how long nobody was answered behind a gate, stated resets aside."""
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

    def tell(self, name: Hashable, told: Callable[[], None]) -> None:
        """Has `told` called once, soon after a gate that is closed has opened or is closed for another time."""
        gate = self._gates.get(name)
        if gate is not None and gate.closed is not None:
            gate.told.add(told)

    def _gate(self, name: Hashable) -> _KeyGate:
        gate = self._gates.get(name)
        if gate is None:
            gate = self._gates[name] = _KeyGate(partial(self._woken, name))
        return gate

    def _drop(self, name: Hashable, gate: _KeyGate) -> None:
        if gate.timer is not None:
            gate.timer.cancel()
        del self._gates[name]
        self._fair_queue.remove(name)

    def _shut(self, name: Hashable, gate: _KeyGate, closed: GateClosing, known: bool) -> None:
        self._end_closing(gate)
        gate.closed, gate.known, gate.closed_at = closed, known, self._loop.time()
        if closed.until < FOREVER:
            gate.timer = self._loop.call_at(closed.until, self.open, name)
        self._fair_queue.close(name)
        self._tell(gate)

    def _end_closing(self, gate: _KeyGate) -> None:
        if gate.timer is not None:
            gate.timer.cancel()
            gate.timer = None
        if gate.closed is not None and gate.known:
            gate.total += self._loop.time() - gate.closed_at
        gate.firm = False

    def _tell(self, gate: _KeyGate) -> None:
        # Soon, and not now: a gate that opens is asked first, and may be closed again.
        for told in gate.told:
            self._loop.call_soon(told)
        gate.told.clear()

    def _woken(self, name: Hashable) -> None:
        # From any thread, also when the loop is gone: the registry outlives the runner.
        try:
            self._loop.call_soon_threadsafe(self._ask_again, name)
        except RuntimeError:
            return

    def _ask_again(self, name: Hashable) -> None:
        gate = self._gates.get(name)
        if gate is not None and not gate.firm:
            self.open(name)


class KeyDiscovery:
    """The knowledge of one run about the keys of its stages.

    `number` is the experiment's. `on_news` is called after a stage stands behind another key.
    """

    def __init__(
        self,
        number: int,
        stages: Sequence[Stage],
        work_queue: WorkQueue,
        gates: KeyGates,
        fair_queue: FairQueue,
        on_news: Callable[[], None],
    ) -> None:
        self._number = number
        self._stages = stages
        self._work_queue = work_queue
        self._gates = gates
        self._fair_queue = fair_queue
        self._on_news = on_news
        self._keys: set[Key] = set()
        self._ended = False
        # Nothing is known yet: every stage stands behind a gate of its own.
        for stage in stages:
            work_queue.stand_behind(stage.index, self._own(stage))

    def end(self) -> None:
        """Let go of the gates of the stages, as far as this run goes."""
        self._ended = True
        for stage in self._stages:
            self._gates.remove(self._own(stage))
        for key in self._keys:
            self._gates.let_go(key)
        self._keys.clear()

    def dispatched(self, stage: Stage) -> None:
        """Take in that an item was started; while the key of its stage is not known, no other follows."""
        if not stage.habit.known:
            self._gates.shut(self._own(stage), "its first call")

    def on_job_done(self, stage: Stage, handoff: ObservedHandoff) -> None:
        """Take in the end of a job: the key that it asked is known by now, or that it asks none."""
        if handoff.first is not None:
            self.know(stage, handoff.first, handoff.keys[handoff.first])
        elif stage.habit.ended():
            self._gates.open(self._own(stage))

    def know(self, stage: Stage, key: Key, cost: Cost) -> None:
        """Take in that the function of a stage asks `key` first."""
        if not stage.habit.asked(key, cost) or self._ended:
            return
        if key not in self._keys:
            self._keys.add(key)
            self._gates.keep(key)
        before = self._work_queue.gate(stage.index)
        self._work_queue.stand_behind(stage.index, key)
        if not self._work_queue.has(before):
            self._fair_queue.withdraw(self._number, before)
        self._gates.open(self._own(stage))
        self._on_news()

    def _own(self, stage: Stage) -> StageGate:
        return StageGate(self._number, stage.index)
