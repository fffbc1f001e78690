"""The chunks of an answer while a task writes it: `emit`, or a generator."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

_emitting: ContextVar[Callable[[Any], None] | None] = ContextVar("tidegate_emitting", default=None)


def emit(chunk: Any) -> None:
    """Gives a piece of the running task's answer to the experiment's subscribers; from any thread, never blocking.

    Nothing is kept of it: the answer is what the task returns. Outside a task it does nothing.
    """
    emitting = _emitting.get()
    if emitting is not None:
        emitting(chunk)


def emits_to(receiver: Callable[[Any], None]) -> None:
    """From here on, what is emitted in this context goes to `receiver`."""
    _emitting.set(receiver)


def whole(chunks: list[Any]) -> Any:
    """The answer that was given in chunks: one text where all are texts, else their list."""
    if chunks and all(isinstance(chunk, str) for chunk in chunks):
        return "".join(chunks)
    return chunks
