"""Stages of an experiment: its task and its evaluators, and the execution of one item.

Theory of operation. A stage is the task or one evaluator of an experiment. Its `KeyUsage` learns the key that its
function asks first, so that the next call's permit can be requested in advance. Its `FailureGuard` stops a run that
cannot succeed, after a number of consecutive permanent failures of one kind. A dead provider never reaches the guard:
the circuit breaker pauses its key, and no row is lost. The guard counts failures that another attempt cannot repair: a
wrong credential, an empty account, a template that fits no row.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from tidegate.admission.key_table import KeyTable
from tidegate.core.events import AttemptEnded
from tidegate.core.limiter_state import Permit
from tidegate.core.token_totals import TokenTotals
from tidegate.experiments.engine.experiment import Experiment
from tidegate.experiments.engine.item import TASK, TASK_STAGE, Item, copied
from tidegate.experiments.engine.settings import RunnerSettings
from tidegate.pool.execution import Execution, ExecutionOwner, KeyUsage, implementation
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
"""Consecutive failures of one kind that stop a run or an evaluator. Raising it pays for more failures. Precedent:
Phoenix, 5."""


class FailureGuard:
    """Counter of a stage's consecutive permanent failures; a success or another kind of failure restarts it."""

    __slots__ = ("count", "kind", "tripped")

    def __init__(self) -> None:
        self.kind = ""
        self.count = 0
        self.tripped = False

    def succeeded(self) -> None:
        """Reset the counter."""
        self.kind = ""
        self.count = 0

    def failed(self, kind: str) -> bool:
        """Return whether this failure trips the guard; it trips once."""
        self.count = self.count + 1 if kind == self.kind else 1
        self.kind = kind
        if self.tripped or self.count < GUARD_FAILURES:
            return False
        self.tripped = True
        return True


Invocation = Callable[[Item], Awaitable[Any]]


class StageClosing(NamedTuple):
    """Reason why a stage is no longer tried in this run, and the kind of its parked items."""

    kind: str
    reason: str


class Stage:
    """Task or evaluator of an experiment; `timeout` is in seconds.

    `invoke(item)` calls the function: a coroutine function in the event loop, a synchronous one in a thread with a copy
    of the context. A thread cannot be cancelled: after its timeout it is abandoned, and its result dropped. Items of a
    stage with a `closing` are parked. `last_error` is the latest failure of a call that got no answer.
    """

    __slots__ = ("closing", "guard", "index", "invoke", "key_usage", "last_error", "name", "outputs", "timeout")

    def __init__(
        self, index: int, name: str, function: Callable[..., Any], outputs: tuple[str, ...], timeout: float
    ) -> None:
        self.index = index
        self.name = name
        self.outputs = outputs
        self.timeout = timeout
        self.guard = FailureGuard()
        self.closing: StageClosing | None = None
        self.last_error = ""
        self.key_usage = KeyUsage()
        self.invoke = invocation(function, _row if index == TASK else _row_and_output)


def stages_of(experiment: Experiment, settings: RunnerSettings) -> list[Stage]:
    """Return the stages of an experiment: its task, then its evaluators in their order."""
    task_timeout = experiment.task_timeout or settings.task_timeout
    stages = [Stage(TASK, TASK_STAGE, experiment.task, (), task_timeout)]
    for index, evaluator in enumerate(experiment.evaluators, start=1):
        timeout = evaluator.timeout or settings.eval_timeout
        stages.append(Stage(index, evaluator.name, evaluator.function, evaluator.outputs, timeout))
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
"""Spend of a job whose calls have not ended. One object serves all jobs: each item has several."""


class Job(Execution[Item, Stage]):
    """One execution of an item by its stage's function; `attempts` has those of its calls that have ended."""

    __slots__ = ("answered", "attempts", "spent")

    def __init__(
        self, item: Item, stage: Stage, owner: ExecutionOwner, queues: KeyTable, permit: Permit | None
    ) -> None:
        super().__init__(item, stage, owner, queues, permit)
        self.attempts: list[AttemptEnded] = []
        self.spent = UNSPENT
        self.answered = False
