"""One stage of an experiment: its function as something that can be awaited, and what is known of it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
from anyio import to_thread

from tidegate.runner.chunks import emit, whole
from tidegate.runner.guard import Guard
from tidegate.runner.habit import Habit
from tidegate.runner.item import TASK, Item, copied

Invocation = Callable[[Item], Awaitable[Any]]


class Stage:
    """The tasks of an experiment, or one of its evaluators; `timeout` is in seconds.

    `invoke(item)` calls the function: a coroutine function in the loop, a synchronous one in a thread with the context
    copied. A thread cannot be cancelled: when its time is up it is left alone, and what it returns is dropped.
    """

    __slots__ = ("guard", "habit", "index", "invoke", "name", "outputs", "timeout")

    def __init__(
        self, index: int, name: str, function: Callable[..., Any], outputs: tuple[str, ...], timeout: float, guard: int
    ) -> None:
        self.index = index
        self.name = name
        self.outputs = outputs
        self.timeout = timeout
        self.guard = Guard(guard)
        self.habit = Habit()
        self.invoke = invocation(function, _row if index == TASK else _row_and_output)


def _row(item: Item) -> tuple[Any, ...]:
    return (copied(item.body),)


def _row_and_output(item: Item) -> tuple[Any, ...]:
    return copied(item.body), copied(item.output)


def invocation(function: Callable[..., Any], arguments: Callable[[Item], tuple[Any, ...]]) -> Invocation:
    """How `function` is called for an item: by what kind of function it is."""
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
    # The runner's slots bound the threads: a limiter would count those that hang.
    limiter = anyio.CapacityLimiter(math.inf)
    result = await to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)
    return await result if inspect.isawaitable(result) else result
