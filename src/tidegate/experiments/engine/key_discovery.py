"""Discovery of the keys that the stages of a run ask.

Theory of operation. A stage waits behind one gate (`tidegate.pool.key_gates`): the key that its function asks
first, or its own gate while that key is unknown or absent. A stage with an unknown key sends one item ahead, which
waits inside its call, and closes its own gate. The gate opens when the key is known or the item has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.core.values import Cost, Key
from tidegate.experiments.engine.fair_queue import FairQueue
from tidegate.experiments.engine.job import Stage
from tidegate.experiments.engine.work_queue import WorkQueue
from tidegate.pool.execution import ObservedHandoff
from tidegate.pool.key_gates import KeyGates, StageGate


class KeyDiscovery:
    """Discovery of the keys of one run's stages.

    `number` is the experiment's number. `on_new_key` is called after a stage has moved behind another key.
    """

    def __init__(
        self,
        number: int,
        stages: Sequence[Stage],
        work_queue: WorkQueue,
        gates: KeyGates,
        fair_queue: FairQueue,
        on_new_key: Callable[[], None],
    ) -> None:
        self._number = number
        self._stages = stages
        self._work_queue = work_queue
        self._gates = gates
        self._fair_queue = fair_queue
        self._on_new_key = on_new_key
        self._keys: set[Key] = set()
        self._ended = False
        # No key is known yet, so every stage waits behind its own gate.
        for stage in stages:
            work_queue.set_gate(stage.index, self._stage_gate(stage))

    def end(self) -> None:
        """Release the gates of this run's stages."""
        self._ended = True
        for stage in self._stages:
            self._gates.remove(self._stage_gate(stage))
        for key in self._keys:
            self._gates.remove_user(key)
        self._keys.clear()

    def dispatched(self, stage: Stage) -> None:
        """Close the gate of a stage with an unknown key after its first item was started."""
        if not stage.key_usage.known:
            self._gates.close_stage(self._stage_gate(stage), "its first call")

    def on_job_done(self, stage: Stage, handoff: ObservedHandoff) -> None:
        """Learn from an ended job the key that it asked, or that it asks none."""
        if handoff.first is not None:
            self.set_key(stage, handoff.first, handoff.keys[handoff.first])
        elif stage.key_usage.ended():
            self._gates.open(self._stage_gate(stage))

    def set_key(self, stage: Stage, key: Key, cost: Cost) -> None:
        """Record that the function of a stage asks `key` first."""
        if not stage.key_usage.note_use(key, cost) or self._ended:
            return
        if key not in self._keys:
            self._keys.add(key)
            self._gates.add_user(key)
        before = self._work_queue.gate(stage.index)
        self._work_queue.set_gate(stage.index, key)
        if not self._work_queue.has(before):
            self._fair_queue.withdraw(self._number, before)
        self._gates.open(self._stage_gate(stage))
        self._on_new_key()

    def _stage_gate(self, stage: Stage) -> StageGate:
        return StageGate(self._number, stage.index)
