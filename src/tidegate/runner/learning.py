"""Learns from its calls which key a stage's function asks first, and has the stage stand behind that key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.core.values import Cost, Key
from tidegate.runner.gates import Own
from tidegate.runner.job import Asking
from tidegate.runner.stage import Stage

if TYPE_CHECKING:
    from tidegate.runner.running import Running


class Learning:
    """The knowledge of one run about its stages' keys."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._keys: set[Key] = set()

    def begin(self) -> None:
        """Nothing is known: every stage stands behind a gate of its own."""
        for stage in self._running.stages:
            self._running.workload.stand_behind(stage.index, self._own(stage))

    def end(self) -> None:
        """The gates of the stages are needed no more, as far as this run goes."""
        gates = self._running.floor.gates
        for stage in self._running.stages:
            gates.remove(self._own(stage))
        for key in self._keys:
            gates.let_go(key)
        self._keys.clear()

    def dispatched(self, stage: Stage) -> None:
        """An item has been started; while the key is not known, no other follows."""
        if not stage.habit.known:
            self._running.floor.gates.shut(self._own(stage), "its first call")

    def took(self, stage: Stage, hand: Asking) -> None:
        """A job has ended: what it asked for is known by now, or that it asks for nothing."""
        if hand.first is not None:
            self.know(stage, hand.first, hand.keys[hand.first])
        elif stage.habit.ended():
            self._running.floor.gates.open(self._own(stage))

    def know(self, stage: Stage, key: Key, cost: Cost) -> None:
        """The function asks `key` first."""
        running = self._running
        if not stage.habit.asked(key, cost) or not running.live:
            return
        if key not in self._keys:
            self._keys.add(key)
            running.floor.gates.keep(key)
        before = running.workload.gate(stage.index)
        running.workload.stand_behind(stage.index, key)
        if not running.workload.has(before):
            running.floor.roster.withdraw(running.id, before)
        running.floor.gates.open(self._own(stage))
        running.waits.nearer()
        running.offer()

    def _own(self, stage: Stage) -> Own:
        return Own(self._running.id, stage.index)
