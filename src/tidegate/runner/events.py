"""The subscribers of a run: bounded streams of its events, which never hold the run up.

A subscriber that does not keep up loses chunks, the oldest first, then anything else; it is told how many. Its end of
the stream is never lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidegate.storage import AnnotationResult, RunResult, Status


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an answer that is being written; `attempt` is 1 for the first, and a new one begins from nothing."""

    ordinal: int
    repetition: int
    attempt: int
    chunk: Any


@dataclass(frozen=True, slots=True)
class Retrying:
    """An item is tried again: after `kind` it waits for its turn; `stage` is `task` or the evaluator's name."""

    ordinal: int
    repetition: int
    stage: str
    attempts: int
    kind: str


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The experiment is now RUNNING, or has come to its end here, and why."""

    status: Status
    reason: str | None = None


Event: TypeAlias = Chunk | Retrying | StateChanged | RunResult | AnnotationResult
"""What subscribers get; a result is told when it is durable."""


class Subscription:
    """One subscriber's stream; iterate it, or close it. `lost` counts the events that it was too slow for."""

    def __init__(self, hub: SubscriberHub, topic: int | str, size: int) -> None:
        self.lost = 0
        self._hub = hub
        self._topic = topic
        self._size = size
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._ended = False

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()

    def close(self) -> None:
        """Ends the stream; repeating it does nothing."""
        self._hub.leave(self._topic, self)
        self.end()

    def put(self, event: Event) -> None:
        """Takes an event in; where there is no room, something is lost."""
        if len(self._events) >= self._size:
            self.lost += 1
            if isinstance(event, Chunk):
                return
            self._make_room()
        self._events.append(event)
        self._news.set()

    def end(self) -> None:
        """Nothing more will come."""
        self._ended = True
        self._news.set()

    def _make_room(self) -> None:
        for place, event in enumerate(self._events):
            if isinstance(event, Chunk):
                del self._events[place]
                return
        self._events.popleft()


class SubscriberHub:
    """The subscribers of a runner, by the number or name of their experiment: one may subscribe before it starts."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._topics: dict[int | str, list[Subscription]] = {}

    def subscribe(self, topic: int | str) -> Subscription:
        """A new subscriber."""
        made = Subscription(self, topic, self._size)
        self._topics.setdefault(topic, []).append(made)
        return made

    def leave(self, topic: int | str, subscription: Subscription) -> None:
        """A subscriber goes."""
        subscriptions = self._topics.get(topic, [])
        if subscription in subscriptions:
            subscriptions.remove(subscription)
        if not subscriptions:
            self._topics.pop(topic, None)

    def heard(self, *topics: int | str) -> bool:
        """Return whether anybody listens."""
        return bool(self._topics) and any(topic in self._topics for topic in topics)

    def tell(self, event: Event, *topics: int | str) -> None:
        """Tells the subscribers of an experiment, by its number and its name."""
        for topic in topics:
            for subscription in self._topics.get(topic, ()):
                subscription.put(event)

    def end(self, *topics: int | str) -> None:
        """The run has ended: so have their streams."""
        for topic in topics:
            for subscription in self._topics.pop(topic, []):
                subscription.end()

    def end_all(self) -> None:
        """The runner goes."""
        self.end(*list(self._topics))
