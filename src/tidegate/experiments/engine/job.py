"""Stages of an experiment: its task and its evaluators, and the execution of one item.

Theory of operation. A stage is the task or one evaluator of an experiment. Its `KeyUsage` learns the key that its
function asks first, so that the next call's permit can be requested in advance. It stops a run that cannot succeed,
after a number of consecutive permanent failures of one kind. A dead provider never counts: the circuit breaker pauses
its key, and no row is lost. It counts failures that another attempt cannot repair: a wrong credential, an empty
account, a template that fits no row.

A stage waits behind one gate (`tidegate.pool.key_gates`): the key that its function asks first, or its own gate while
that key is unknown or absent. A stage with an unknown key sends one item ahead, which waits inside its call, and closes
its own gate. The gate opens when the key is known or the item has ended.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tidegate.core.events import AttemptEnded
from tidegate.core.token_totals import TokenTotals
from tidegate.core.values import Cost, Key
from tidegate.experiments.engine.experiment import Experiment
from tidegate.experiments.engine.queues import TASK, TASK_STAGE, FairQueue, Item, WorkQueue, copied
from tidegate.experiments.engine.settings import RunnerSettings
from tidegate.pool.execution import Execution, KeyUsage, ObservedHandoff, implementation
from tidegate.pool.key_gates import KeyGates, StageGate
from tidegate.pool.threads import in_thread

_emitting: ContextVar[Callable[[Any], None] | None] = ContextVar("tidegate_emitting", default=None)


def emit(chunk: Any) -> None:
    """Send a chunk of the running task's answer to the experiment's subscribers; from any thread, without blocking.

    The chunk is not stored: the answer is the task's return value. Outside a task the call does nothing.
    """
    emitting = _emitting.get()
    if emitting is not None:
        emitting(chunk)


def emits_to(receiver: Callable[[Any], None]) -> None:
    """Send all chunks emitted in this context to `receiver`."""
    _emitting.set(receiver)


def whole(chunks: list[Any]) -> Any:
    """Join the chunks of an answer: one string if all are strings, else their list."""
    if chunks and all(isinstance(chunk, str) for chunk in chunks):
        return "".join(chunks)
    return chunks


GUARD_FAILURES = 5
"""Consecutive failures of one kind that stop a run or an evaluator. Precedent: Phoenix, 5."""


Invocation = Callable[[Item], Awaitable[Any]]


@dataclass(slots=True, eq=False)
class Stage:
    """Task or evaluator of an experiment; `timeout` is in seconds.

    `invoke(item)` calls the function: a coroutine function in the event loop, a synchronous one in a thread with a copy
    of the context. A thread cannot be cancelled: after its timeout it is abandoned, and its result dropped. Items of a
    stage that is closed are parked; `closing` is the reason. `last_error` is the latest failure of a call that got no
    answer.
    """

    index: int
    name: str
    outputs: tuple[str, ...]
    timeout: float
    invoke: Invocation
    failures: int = 0
    failure_kind: str = ""
    closing: str = ""
    last_error: str = ""
    key_usage: KeyUsage = field(default_factory=KeyUsage)

    def succeeded(self) -> None:
        """End a sequence of failures."""
        self.failures = 0

    def failed(self, kind: str) -> bool:
        """Count a permanent failure; return whether it is the `GUARD_FAILURES`th of its kind in a row."""
        self.failures = self.failures + 1 if kind == self.failure_kind else 1
        self.failure_kind = kind
        return self.failures == GUARD_FAILURES


def stages_of(experiment: Experiment, settings: RunnerSettings) -> list[Stage]:
    """Return the stages of an experiment: its task, then its evaluators in their order."""
    task_timeout = experiment.task_timeout or settings.task_timeout
    stages = [Stage(TASK, TASK_STAGE, (), task_timeout, invocation(experiment.task, _row))]
    for index, evaluator in enumerate(experiment.evaluators, start=1):
        timeout = evaluator.timeout or settings.eval_timeout
        invoke = invocation(evaluator.function, _row_and_output)
        stages.append(Stage(index, evaluator.name, evaluator.outputs, timeout, invoke))
    return stages


def _row(item: Item) -> tuple[Any, ...]:
    return (copied(item.body),)


def _row_and_output(item: Item) -> tuple[Any, ...]:
    return copied(item.body), copied(item.output)


def invocation(function: Callable[..., Any], arguments: Callable[[Item], tuple[Any, ...]]) -> Invocation:
    """Return a callable that runs `function` for an item, according to the kind of function."""
    plain = implementation(function)
    if inspect.iscoroutinefunction(plain):
        return lambda item: function(*arguments(item))
    if inspect.isasyncgenfunction(plain):
        return lambda item: _streamed(function(*arguments(item)))
    if inspect.isgeneratorfunction(plain):
        return lambda item: _in_thread(partial(_drained, function, arguments(item)))
    return lambda item: _in_thread(partial(function, *arguments(item)))


async def _streamed(chunks: Any) -> Any:
    given = []
    try:
        async for chunk in chunks:
            emit(chunk)
            given.append(chunk)
    finally:
        await chunks.aclose()
    return whole(given)


def _drained(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    given = []
    for chunk in function(*arguments):
        emit(chunk)
        given.append(chunk)
    return whole(given)


async def _in_thread(call: Callable[[], Any]) -> Any:
    result = await in_thread(call)
    return await result if inspect.isawaitable(result) else result


UNSPENT = TokenTotals()
"""Spend of a job of which no call has ended. One object serves all jobs: each item has several."""


@dataclass(slots=True, eq=False)
class Job(Execution[Item, Stage]):
    """One execution of an item by its stage's function; `attempts` has those of its calls that have ended.

    The first `metered` of these have `spent` these tokens and costs.
    """

    attempts: list[AttemptEnded] = field(default_factory=list)
    metered: int = 0
    spent: TokenTotals = UNSPENT
    answered: bool = False


@dataclass(eq=False)
class KeyDiscovery:
    """Discovery of the keys of one run's stages.

    `number` is the experiment's number. `on_new_key` is called after a stage has moved behind another key.
    """

    _number: int
    _stages: Sequence[Stage]
    _work_queue: WorkQueue
    _gates: KeyGates
    _fair_queue: FairQueue
    _on_new_key: Callable[[], None]
    _keys: set[Key] = field(default_factory=set)
    _ended: bool = False

    def __post_init__(self) -> None:
        # No key is known yet, so every stage waits behind its own gate.
        for stage in self._stages:
            self._work_queue.set_gate(stage.index, self._stage_gate(stage))

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
