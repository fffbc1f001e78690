"""Key to admission, under one short lock: decide inside it, act after it.

Every public method takes the lock for a few microseconds, lets the core decide, and returns what to do; waking and
telling listeners happen after the lock is free. There is no background thread and no polling.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import secrets
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import Context
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from tidegate import opening
from tidegate.core import events
from tidegate.core.admission import Admission, Permit
from tidegate.core.derive import DEFAULT_WINDOW
from tidegate.core.snapshot import RegistrySnapshot
from tidegate.core.vocabulary import CAPACITY, Cost, Inquiry, Key, Kind, Outcome, Usage
from tidegate.drive import adrive, drive
from tidegate.errors import PermitMisuse
from tidegate.line import Price, Waiter
from tidegate.settings import Settings
from tidegate.slots import Slots

Listener = Callable[[events.Event], object]
T = TypeVar("T")
logger = logging.getLogger("tidegate")

_registries: weakref.WeakSet[RateLimitRegistry] = weakref.WeakSet()
ABANDONED = Outcome(Kind.ABANDONED)


class NotReady:
    """The answer of `try_admit` where the call cannot go now."""

    __slots__ = ("gate", "ready_at")

    def __init__(self, ready_at: float, gate: str) -> None:
        self.ready_at = ready_at
        self.gate = gate

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"NotReady(ready_at={self.ready_at:.3f}, gate={self.gate!r})"


class RateLimitRegistry:
    """The admission states of a process, one per key, shared by every thread, event loop and trio run.

    `settings` defaults to what the environment says. `clock` gives monotonic seconds.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings if settings is not None else Settings.from_environment()
        self.disabled = self.settings.disabled
        self.clock = clock
        self.draw = draw
        self._lock = threading.Lock()
        self._slots: OrderedDict[Key, Slots] = OrderedDict()
        self._listeners: tuple[Listener, ...] = ()
        self.interned: dict[tuple[object, ...], Key] = {}
        self._dropped: deque[tuple[Permit, Outcome]] = deque()
        given = self.settings.digest_key
        self._digest_key = given.get_secret_value().encode()[:64] if given is not None else secrets.token_bytes(32)
        self._untold: deque[events.Event] = deque()
        _registries.add(self)
        if self.settings.telemetry:
            from tidegate.telemetry.activation import attend

            attend(self)

    @property
    def settings(self) -> Settings:
        """The settings it was made with: they hold for its life."""
        return self._settings

    def wrap(self, client: T, *, max_wait: float | None = None, priority: int = 0) -> T:
        """Returns the same client, governed by this registry; see `tidegate.wrap`."""
        from tidegate.wrapping import wrap

        return wrap(client, registry=self, max_wait=max_wait, priority=priority)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with every event, after the lock is free; returns what ends the subscription.

        A listener that raises is logged and goes on being called. With no listener no event is built.
        """
        with self._lock:
            self._listeners = (*self._listeners, listener)
        return partial(self.unsubscribe, listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Ends a subscription; repeating it does nothing."""
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

    def snapshot(self) -> RegistrySnapshot:
        """What every known key does now: limits, levels, who waits, which gate is closed and until when."""
        with self._lock:
            now = self.clock()
            keys = {key: slots.snapshot(now) for key, slots in self._slots.items()}
        if self._dropped or self._untold:
            self._act([], None)
        return RegistrySnapshot(keys)

    def intern(self, facts: tuple[object, ...], key: Key) -> None:
        """Remembers the key of requests that share `facts` (no secret among them), for as many as there may be keys."""
        if len(self.interned) >= self.settings.max_keys:
            self.interned.clear()
        self.interned[facts] = key

    def digest(self, credential: str) -> str:
        """A keyed digest of a credential, 16 hexadecimal digits; empty for an empty one."""
        if not credential:
            return ""
        return hashlib.blake2b(credential.encode(), key=self._digest_key, digest_size=8).hexdigest()

    def try_admit(self, key: Key, cost: Cost | None = None) -> Permit | NotReady:
        """A permit where `key` would admit the call at once and nobody waits before it; else when to ask again.

        Never blocks and never queues. `NotReady.ready_at` is in seconds of the registry's clock, infinity where an
        attempt under way must end first. The holder of the permit must `settle` it.
        """
        cost = cost if cost is not None else Cost()
        out = self._out()
        with self._lock:
            now = self.clock()
            slots = self._slots_of(key, DEFAULT_WINDOW, now)
            ready, gate = slots.admission.ready_at(cost, now)
            head = slots.line.head()
            if head is not None:
                first, _ = slots.admission.ready_at(head.cost, now)
                answer: Permit | NotReady = NotReady(max(ready, first), gate or "queue")
            elif ready > now:
                answer = NotReady(ready, gate)
            else:
                answer = slots.admission.admit(cost, now, 0.0, out)
        self._act([], out)
        return answer

    def settle(self, permit: Permit, outcome: Outcome, rejoin: Waiter | None = None) -> None:
        """Gives a permit back with what its attempt came to; raises `PermitMisuse` for one already given back.

        `rejoin` is the call that held it, where it goes on: it stands at its old place before anybody else is let in.
        """
        out: list[events.Event] | None = [] if self._listeners else None
        with self._lock:
            if permit.settled:
                raise PermitMisuse(f"{permit.key}: this permit was settled before")
            woken = self._settle(permit, outcome, out, rejoin)
            if rejoin is not None:
                woken = [waiter for waiter in woken if waiter is not rejoin]
        if woken or out or self._dropped:
            self._act(woken, out)

    def execute(
        self,
        key: Key | str,
        call: Callable[[], T],
        *,
        cost: Cost | None = None,
        get_headers: Callable[[T], Mapping[str, str] | None] | None = None,
        is_rate_limited: Callable[[T | None, Exception | None], bool] | None = None,
        get_retry_after: Callable[[T | None, Exception | None], float | None] | None = None,
        max_wait: float | None = None,
        priority: int = 0,
    ) -> T:
        """Returns what `call()` returns, once `key` admits it; owns its retries.

        Capacity refusals cost no attempt and go back to the head of the queue; transient failures get
        `Settings.transient_attempts` attempts with full jitter; anything else is raised at once, unchanged. Raises
        `DeadlineExceeded` where `max_wait` seconds pass before the first attempt; a call refused until then raises (or
        returns) the provider's own last refusal. `key` may be a plain name.
        """
        from tidegate.calls import Call

        turn = Call(self, key, call, cost, get_headers, is_rate_limited, get_retry_after, max_wait, priority)
        result: T = drive(turn)
        return result

    def aexecute(
        self,
        key: Key | str,
        call: Callable[[], Awaitable[T]],
        *,
        cost: Cost | None = None,
        get_headers: Callable[[T], Mapping[str, str] | None] | None = None,
        is_rate_limited: Callable[[T | None, Exception | None], bool] | None = None,
        get_retry_after: Callable[[T | None, Exception | None], float | None] | None = None,
        max_wait: float | None = None,
        priority: int = 0,
    ) -> Coroutine[Any, Any, T]:
        """A coroutine that returns what `await call()` returns, as `execute` does for a synchronous callable."""
        from tidegate.calls import Call

        # No coroutine of its own: a hundred thousand may wait.
        return adrive(Call(self, key, call, cost, get_headers, is_rate_limited, get_retry_after, max_wait, priority))

    def enter(self, key: Key, price: Price, window: float) -> Permit | None:
        """The permit of a call that `key` admits at once; None where it must wait, or where somebody listens.

        Most calls come and go this way; the others, and all of them where events are told, have the whole dialogue.
        """
        if self._listeners:
            return None
        with self._lock:
            now = self.clock()
            permit = self._slots_of(key, window, now).enter(price, now)
        if self._dropped:
            self._drain()
        return permit

    def stand(self, waiter: Waiter, key: Key, window: float) -> Permit | None:
        """Admits a call at once, or puts it in the line of `key`; `window` is the provider's usual one in seconds."""
        out = self._out()
        with self._lock:
            now = self.clock()
            slots = self._slots_of(key, window, now)
            waiter.belong(slots)
            woken = slots.stand(waiter, now, out)
            permit, waiter.permit = waiter.permit, None
        if woken or out or self._dropped:
            self._act(woken, out)
        return permit

    def seat(self, waiter: Waiter, key: Key, window: float) -> None:
        """Ties a call that has passed without standing to the line it may have to return to."""
        with self._lock:
            waiter.belong(self._slots_of(key, window, self.clock()))
        if self._dropped:
            self._drain()

    def look(self, waiter: Waiter) -> Permit | None:
        """The permit of a waiting call, where it has one by now."""
        out = self._out()
        with self._lock:
            slots = waiter.slots
            woken = []
            if waiter.permit is None and slots is not None:
                woken = [each for each in slots.pump(self.clock(), out) if each is not waiter]
            permit, waiter.permit = waiter.permit, None
            if permit is not None:
                # It goes out now; the permit was given when somebody else settled.
                permit.sent_at = self.clock()
        self._act(woken, out)
        return permit

    def leave(self, waiter: Waiter) -> None:
        """Gives up a place in the line, or a permit that was given and never used."""
        if not waiter.standing and waiter.permit is None:
            return
        out = self._out()
        woken = self._remove(waiter, out)
        if woken or out or self._dropped:
            self._act(woken, out)

    def _remove(self, waiter: Waiter, out: list[events.Event] | None) -> list[Waiter]:
        slots: Slots | None = waiter.slots
        if slots is None:
            return []
        with self._lock:
            now = self.clock()
            permit, waiter.permit = waiter.permit, None
            if permit is not None:
                if not permit.settled and permit.generation == slots.admission.generation:
                    slots.admission.withdraw(permit, now, out)
                return slots.pump(now, out)
            return slots.leave(waiter, now, out)

    def learn(self, permit: Permit, outcome: Outcome) -> None:
        """Takes in the headers of an answer whose body is still streaming; `settle` follows at its end."""
        out = self._out()
        with self._lock:
            now = self.clock()
            permit.admission.learn(permit, outcome, now, out)
            woken = self._pump(permit.admission, now, out)
        self._act(woken, out)

    def learn_usage(self, permit: Permit, inquiry: Inquiry, usage: Usage) -> None:
        """Teaches the key's estimate what a request of that shape used."""
        with self._lock:
            permit.admission.estimate.learn(inquiry, usage)
        if self._dropped:
            self._drain()

    def resent(self, waiter: Waiter, after: Kind) -> None:
        """Counts an attempt of a call whose last one came to `after`."""
        with self._lock:
            counts = waiter.slots.admission.counts
            counts.resent += 1
            counts.absorbed += after in CAPACITY
        if self._dropped:
            self._drain()

    def gave_up(self, waiter: Waiter, unsent: bool) -> None:
        """Counts a call that is given up for want of capacity; `unsent` where no attempt of it was ever made."""
        with self._lock:
            counts = waiter.slots.admission.counts
            counts.given_up += 1
            counts.unsent += unsent
        if self._dropped:
            self._drain()

    def drop(self, permit: Permit, outcome: Outcome = ABANDONED) -> None:
        """Gives back a permit from a finalizer: safe at any point of any thread, also inside this registry.

        Whatever code was interrupted may hold a listener's lock, so the next step of anybody tells of it.
        """
        self._dropped.append((permit, outcome))
        if self._lock.acquire(blocking=False):
            self._lock.release()
            self._drain()

    def tell(self, event: events.Event) -> None:
        """Tells the listeners of an event that no lock was needed for."""
        self._act([], [event])

    @property
    def listening(self) -> bool:
        """Whether anybody would hear an event."""
        return bool(self._listeners)

    def _out(self) -> list[events.Event] | None:
        return [] if self._listeners else None

    def _slots_of(self, key: Key, window: float, now: float) -> Slots:
        slots = self._slots.get(key)
        if slots is None:
            self._evict(now)
            slots = self._slots[key] = Slots(Admission(key, self.settings, window, now))
            if opening.told is not None:
                opening.told(slots)
        else:
            self._slots.move_to_end(key)
        return slots

    def _evict(self, now: float) -> None:
        # Least recently used first; a key with calls waiting or under way is never forgotten.
        over = len(self._slots) >= self.settings.max_keys
        for key in list(islice(self._slots, 64 if over else 2)):
            slots = self._slots[key]
            if not slots.idle:
                self._slots.move_to_end(key)
            elif over or now - slots.admission.used_at > self.settings.idle_after:
                del self._slots[key]
                over = len(self._slots) >= self.settings.max_keys

    def _settle(
        self, permit: Permit, outcome: Outcome, out: list[events.Event] | None, rejoin: Waiter | None = None
    ) -> list[Waiter]:
        now = self.clock()
        admission = permit.admission
        if permit.generation != admission.generation:
            permit.settled = True
        elif not permit.settled:
            draw = 0.0 if outcome.kind is Kind.OK else self.draw()
            admission.settle(permit, outcome, now, draw, out)
        if rejoin is not None and rejoin.slots is not None:
            rejoin.slots.rejoin(rejoin, now)
        return self._pump(admission, now, out)

    def _pump(self, admission: Admission, now: float, out: list[events.Event] | None) -> list[Waiter]:
        slots = self._slots.get(admission.key)
        return slots.pump(now, out) if slots is not None and slots.admission is admission else []

    def _act(self, woken: list[Waiter], out: list[events.Event] | None) -> None:
        """Wakes, gives back what was dropped meanwhile, and tells, with the lock free."""
        self._wake_all(woken, out)
        if self._dropped:
            self._drain()
        while self._untold:
            with suppress(IndexError):  # The call that happens to be here has nothing to do with it.
                Context().run(self._announce, self._untold.popleft())
        for event in out or ():
            self._announce(event)

    def _announce(self, event: events.Event) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                logger.exception("a listener failed at %s", type(event).__name__)

    def _wake_all(self, woken: list[Waiter], out: list[events.Event] | None) -> None:
        dead = [waiter for waiter in woken if not _wake(waiter)]
        while dead:
            # Its event loop is closed: nobody will ever use its place or its permit.
            dead += [waiter for waiter in self._remove(dead.pop(), out) if not _wake(waiter)]

    def _drain(self) -> None:
        while self._dropped:
            out = self._out()
            with self._lock:
                try:
                    permit, outcome = self._dropped.popleft()
                except IndexError:
                    return
                woken = self._settle(permit, outcome, out)
            self._wake_all(woken, out)
            self._untold.extend(out or ())

    def _forked(self) -> None:
        self._dropped.clear()
        self._untold.clear()
        for slots in self._slots.values():
            slots.line.clear()
            slots.admission.forked()


def _wake(waiter: Waiter) -> bool:
    waker = waiter.waker
    if waker is None:
        return True
    if waiter.permit is None and waiter.until is not None:
        return waker.arm(waiter.until)
    return waker.wake()


def _before_fork() -> None:
    for registry in list(_registries):
        registry._lock.acquire()


def _after_fork_in_parent() -> None:
    for registry in list(_registries):
        registry._lock.release()


def _after_fork_in_child() -> None:
    for registry in list(_registries):
        registry._lock = threading.Lock()
        registry._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
