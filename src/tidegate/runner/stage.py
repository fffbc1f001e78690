"""One stage of an experiment: its function as something that can be awaited, and what is known of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from tidegate.runner.chunks import emit, whole
from tidegate.runner.experiment import Experiment
from tidegate.runner.guard import Guard
from tidegate.runner.habit import Habit
from tidegate.runner.item import TASK, Item, copied
from tidegate.runner.settings import RunnerSettings
from tidegate.runner.threads import in_thread

Invocation = Callable[[Item], Awaitable[Any]]


class Closing(NamedTuple):
    """Why nothing of a stage is tried any more in this run: the kind of its parked items, and the reason."""

    kind: str
    reason: str


class Stage:
    """The tasks of an experiment, or one of its evaluators; `timeout` is in seconds.

    `invoke(item)` calls the function: a coroutine function in the loop, a synchronous one in a thread with the context
    copied. A thread cannot be cancelled: when its time is up it is left alone, and what it returns is dropped.
    Once there is a `closing`, its items are parked. `last_error` is how its newest call failed for want of an answer.
    """

    __slots__ = ("closing", "guard", "habit", "index", "invoke", "last_error", "name", "outputs", "timeout")

    def __init__(
        self, index: int, name: str, function: Callable[..., Any], outputs: tuple[str, ...], timeout: float, guard: int
    ) -> None:
        self.index = index
        self.name = name
        self.outputs = outputs
        self.timeout = timeout
        self.guard = Guard(guard)
        self.closing: Closing | None = None
        self.last_error = ""
        self.habit = Habit()
        self.invoke = invocation(function, _row if index == TASK else _row_and_output)


def stages_of(experiment: Experiment, settings: RunnerSettings) -> list[Stage]:
    """The stages of an experiment: its tasks, then its evaluators in their order."""
    task_timeout = experiment.task_timeout or settings.task_timeout
    stages = [Stage(TASK, "task", experiment.task, (), task_timeout, settings.guard)]
    for index, evaluator in enumerate(experiment.evaluators, start=1):
        timeout = evaluator.timeout or settings.eval_timeout
        stages.append(Stage(index, evaluator.name, evaluator.function, evaluator.outputs, timeout, settings.guard))
    return stages


def _row(item: Item) -> tuple[Any, ...]:
    return (copied(item.body),)


def _row_and_output(item: Item) -> tuple[Any, ...]:
    return copied(item.body), copied(item.output)


def invocation(function: Callable[..., Any], arguments: Callable[[Item], tuple[Any, ...]]) -> Invocation:
    """Return how `function` is called for an item: by what kind of function it is."""
    plain = function if inspect.isroutine(function) or isinstance(function, partial) else type(function).__call__
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
