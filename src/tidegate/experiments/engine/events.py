"""Event streams of an experiment's subscribers: bounded, so that they never delay the run.

A full stream drops a new chunk. For any other event it drops its oldest chunk, or its oldest event if it holds no
chunk. `lost` counts the dropped events. The end of the stream is never lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from tidegate.experiments.storage import AnnotationResult, RunResult, Status


@dataclass(frozen=True, slots=True)
class Chunk:
    """Piece of an answer in progress, for row `ordinal` (from 0) and `repetition` (from 1).

    `attempt` is 1 for the first, and each attempt begins with an empty answer. A repeat after a refusal for lack of
    capacity keeps its attempt number.
    """

    ordinal: int
    repetition: int
    attempt: int
    chunk: Any


@dataclass(frozen=True, slots=True)
class Retrying:
    """Retry of an item after a failure of `kind`.

    `attempts` counts the spent attempts. `stage` is `task` or the evaluator's name.
    """

    ordinal: int
    repetition: int
    stage: str
    attempts: int
    kind: str


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Change of the experiment's status: it is RUNNING, or has ended here for `reason`."""

    status: Status
    reason: str | None = None


Event: TypeAlias = Chunk | Retrying | StateChanged | RunResult | AnnotationResult
"""Event of a subscription; a result is sent when it is durable."""


class Subscription:
    """Event stream of one subscriber; iterate it, or close it.

    `lost` counts the events that were dropped because it was too slow.
    """

    def __init__(self, hub: SubscriberHub, topic: int | str) -> None:
        self.lost = 0
        self._hub = hub
        self._topic = topic
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
        """End the stream; a repeated call does nothing."""
        self._hub.leave(self._topic, self)
        self.end()

    def put(self, event: Event) -> None:
        """Add an event; if the stream is full, one event is lost."""
        if len(self._events) >= MAX_EVENTS:
            self.lost += 1
            if isinstance(event, Chunk):
                return
            self._make_room()
        self._events.append(event)
        self._news.set()

    def end(self) -> None:
        """Mark the end of the stream."""
        self._ended = True
        self._news.set()

    def _make_room(self) -> None:
        for place, event in enumerate(self._events):
            if isinstance(event, Chunk):
                del self._events[place]
                return
        self._events.popleft()


MAX_EVENTS = 1000
"""Events held for one subscriber at most. Precedent: Phoenix, 1000."""


class SubscriberHub:
    """Subscribers of a runner by the number or name of their experiment; a subscription may precede its start."""

    def __init__(self) -> None:
        self._topics: dict[int | str, list[Subscription]] = {}

    def subscribe(self, topic: int | str) -> Subscription:
        made = Subscription(self, topic)
        self._topics.setdefault(topic, []).append(made)
        return made

    def leave(self, topic: int | str, subscription: Subscription) -> None:
        subscriptions = self._topics.get(topic, [])
        if subscription in subscriptions:
            subscriptions.remove(subscription)
        if not subscriptions:
            self._topics.pop(topic, None)

    def has_subscribers(self, *topics: int | str) -> bool:
        return bool(self._topics) and any(topic in self._topics for topic in topics)

    def publish(self, event: Event, *topics: int | str) -> None:
        for topic in topics:
            for subscription in self._topics.get(topic, ()):
                subscription.put(event)

    def end(self, *topics: int | str) -> None:
        for topic in topics:
            for subscription in self._topics.pop(topic, []):
                subscription.end()

    def end_all(self) -> None:
        self.end(*list(self._topics))
