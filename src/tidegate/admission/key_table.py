"""Key to slots, under one short lock: decide inside it, act after it.

Every step of a call takes the lock for a few microseconds, lets the core decide, and returns what to do; waking and
telling listeners happen after the lock is free. There is no background thread and no polling.

One line in the log for each time that a provider rejects a key: which key, why, how many requests that spared.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Protocol
from weakref import WeakSet

from tidegate import redaction
from tidegate.admission import fork, key_hook
from tidegate.admission.executors import ExecutorTable
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.listeners import Listener, Listeners
from tidegate.admission.loop_monitor import LoopProbe
from tidegate.admission.wait_queue import Price, Waiter
from tidegate.core import events, saved_state
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.credentials import masked
from tidegate.core.limiter_state import Permit
from tidegate.core.rejection import KeyRejection
from tidegate.core.snapshot import RegistrySnapshot
from tidegate.core.values import CAPACITY, OK, Key, Kind, Outcome, RequestFacts, Usage
from tidegate.errors import PermitMisuse
from tidegate.saved_state import Seeds
from tidegate.settings import Settings

ABANDONED = Outcome(Kind.ABANDONED)
logger = logging.getLogger("tidegate")
_warned = False


def today() -> datetime:
    """Return the time of day, aware."""
    return datetime.now(UTC)


class KeyTable:
    """The slots of every key of a process, and the steps that a call takes at them; `clock` is in monotonic seconds.

    Keys that an earlier run knew begin with its `seeds`, whose ages count from now.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float],
        draw: Callable[[], float],
        calendar: Callable[[], datetime] = today,
    ) -> None:
        self._settings = settings
        self._calendar = calendar
        given = settings.digest_key
        self._digest_key = given.get_secret_value().encode()[:64] if given is not None else secrets.token_bytes(32)
        # What two processes with one digest key have in common, and it tells nothing of the key.
        self._digests = self.digest("whose digests these are") if given is not None else ""
        self._seeds = Seeds(settings.initial_state, self._digests, calendar())
        self.disabled = settings.disabled
        self.interned: dict[tuple[object, ...], Key] = {}
        self.routes: dict[tuple[object, ...], Any] = {}
        self._addresses: dict[str, str] = {}
        self._began_at = clock()
        self.clock = clock
        self.draw = draw
        self._lock = threading.Lock()
        self._slots: OrderedDict[Key, KeyQueue] = OrderedDict()
        self._executors = ExecutorTable()
        self._listeners = Listeners()
        self._dropped: deque[tuple[Permit, Outcome]] = deque()
        self._rejections: deque[tuple[Key, KeyRejection | None, KeyRejection | None]] = deque()
        fork.follow(self)

    @property
    def settings(self) -> Settings:
        """The settings it was made with: they hold for its life."""
        return self._settings

    def enter(self, key: Key, price: Price, window: float) -> Permit | None:
        """The permit of a call that `key` admits at once; None where it must wait, or where somebody listens.

        Most calls come and go this way; the others, and all of them where events are told, have the whole dialogue.
        """
        if self._listeners.all:
            return None
        with self._lock:
            now = self.clock()
            permit = self._slots_of(key, window, now).enter(price, now)
            if permit is not None:
                permit.thread = threading.get_ident()
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
            permit = slots.take(waiter)
            if permit is not None:
                permit.thread = threading.get_ident()
        if woken or out or self._dropped:
            self._act(woken, out)
        if permit is None:
            _warn_of_blocking(waiter)
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
            slots: KeyQueue | None = waiter.slots
            woken: list[Waiter] = []
            permit = None
            if slots is not None:
                now = self.clock()
                executor = waiter.executor
                if waiter.permit is None or (executor is not None and executor.stalled):
                    woken = [each for each in slots.look(waiter, now, out) if each is not waiter]
                elif executor is not None:
                    executor.seen(now)
                permit = slots.take(waiter)
                if permit is not None:
                    # It goes out now; the permit was given when somebody else settled.
                    permit.sent_at = now
                    if not slots.admission.untaken and slots.gate == "concurrency":
                        woken += slots.pump(now, out)
        self._act(woken, out)
        return permit

    def settle(self, permit: Permit, outcome: Outcome, rejoin: Waiter | None = None) -> None:
        """Gives a permit back with what its attempt came to; raises `PermitMisuse` for one already given back.

        `rejoin` is the call that held it, where it goes on: it stands at its old place before anybody else is let in.
        """
        out: list[events.Event] | None = [] if self._listeners.all else None
        with self._lock:
            if permit.settled:
                raise PermitMisuse(f"{permit.key}: this permit was settled before")
            woken = self._settle(permit, outcome, out, rejoin)
            if rejoin is not None:
                woken = [waiter for waiter in woken if waiter is not rejoin]
        if woken or out or self._dropped or self._rejections:
            self._act(woken, out)
        if rejoin is not None and rejoin.permit is None:
            _warn_of_blocking(rejoin)

    def leave(self, waiter: Waiter) -> None:
        """Gives up a place in the line, or a permit that was given and never used."""
        if not waiter.standing and waiter.permit is None:
            return
        out = self._out()
        woken = self._remove(waiter, out)
        if woken or out or self._dropped:
            self._act(woken, out)

    def withdraw(self, permit: Permit) -> None:
        """Takes back a permit under which nothing was sent: nothing happened, and nothing is learned."""
        out = self._out()
        with self._lock:
            if permit.settled:
                raise PermitMisuse(f"{permit.key}: this permit was settled before")
            now = self.clock()
            slots = self._slots_behind(permit)
            permit.settled = True
            if slots is not None and permit.generation == slots.admission.generation:
                slots.admission.withdraw(permit, now, out)
            woken = self._pump(slots, now, out)
        self._act(woken, out)

    def learn(self, permit: Permit, outcome: Outcome) -> None:
        """Takes in the headers of an answer whose body is still streaming; `settle` follows at its end."""
        out = self._out()
        with self._lock:
            now = self.clock()
            slots = self._slots_behind(permit)
            if slots is not None:
                before = slots.admission.rejection
                slots.admission.learn(permit, outcome, now, out)
                if slots.admission.rejection is not before:
                    self._rejections.append((permit.key, before, slots.admission.rejection))
            woken = self._pump(slots, now, out)
        if woken or out or self._dropped or self._rejections:
            self._act(woken, out)

    def learn_usage(self, permit: Permit, inquiry: RequestFacts, usage: Usage) -> None:
        """Teaches the key's estimate what a request of that shape used."""
        with self._lock:
            permit.state.estimate.learn(inquiry, usage)
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

    def count_failed(self, waiter: Waiter) -> None:
        """Counts a call whose failure is handed back."""
        with self._lock:
            waiter.slots.admission.counts.failed_calls += 1
        if self._dropped:
            self._drain()

    def count_replayed(self, waiter: Waiter, unsent: bool) -> None:
        """Counts a call that is given the answer of another one; `unsent` where no attempt of it was ever made."""
        with self._lock:
            counts = waiter.slots.admission.counts
            counts.failed_calls += 1
            counts.replayed += 1
            counts.spared += unsent
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
        """Return whether anybody would hear an event."""
        return bool(self._listeners.all)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with every event, after the lock is free; returns what ends the subscription.

        A listener that raises is logged and goes on being called. With no listener no event is built.
        """
        with self._lock:
            self._listeners.add(listener)
        return partial(self.unsubscribe, listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Ends a subscription; repeating it does nothing."""
        with self._lock:
            self._listeners.remove(listener)

    def intern(self, facts: tuple[object, ...], key: Key) -> None:
        """Remembers the key of requests that share `facts` (no secret among them), for as many as there may be keys."""
        if len(self.interned) >= self.settings.max_keys:
            self.interned.clear()
        self.interned[facts] = key

    def keep_route(self, facts: tuple[object, ...], route: object) -> None:
        """Remembers where requests of one address lead, in `routes`, for as many as there may be keys."""
        if len(self.routes) >= self.settings.max_keys:
            self.routes.clear()
        self.routes[facts] = route

    def address(self, name: str) -> str:
        """Return the plain name of a key; an address without its user and query, its credentials as digests."""
        if "://" not in name:
            return name
        found = self._addresses.get(name)
        if found is None:
            if len(self._addresses) >= self.settings.max_keys:
                self._addresses.clear()
            found = self._addresses[name] = masked(name, self.digest, redaction.is_known)
            redaction.remember(redaction.in_address(name))
        return found

    def digest(self, credential: str) -> str:
        """A keyed digest of a credential, 16 hexadecimal digits; empty for an empty one."""
        if not credential:
            return ""
        return hashlib.blake2b(credential.encode(), key=self._digest_key, digest_size=8).hexdigest()

    def snapshot(self) -> RegistrySnapshot:
        """Return what every known key does now: limits, levels, who waits, which gate is closed and until when."""
        with self._lock:
            now = self.clock()
            keys = {key: slots.snapshot(now) for key, slots in self._slots.items()}
        if self._dropped or self._listeners.untold:
            self._act([], None)
        return RegistrySnapshot(keys)

    def before_fork(self) -> None:
        """Lets the step under way end, so that the child finds nothing half done."""
        self._lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Goes on."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Forgets who waits and what is under way: it is the parent's."""
        self._lock = threading.Lock()
        self._dropped.clear()
        self._listeners.untold.clear()
        for slots in self._slots.values():
            slots.forget()
            slots.admission.forked()
        self._executors.clear()

    def _out(self) -> list[events.Event] | None:
        return [] if self._listeners.all else None

    def _slots_of(self, key: Key, window: float, now: float) -> KeyQueue:
        slots = self._slots.get(key)
        if slots is None:
            self._evict(now)
            slots = self._slots[key] = KeyQueue(self._seeded(key, window, now), self._executors)
            if key_hook.told is not None:
                key_hook.told(slots)
        else:
            self._slots.move_to_end(key)
        return slots

    def _seeded(self, key: Key, window: float, now: float) -> AdmissionController:
        admission = AdmissionController(key, self.settings, window, now)
        found = self._seeds.take(key) if self._seeds else None
        if found is None:
            return admission
        known, age = found
        try:
            saved_state.seed(admission, known, age + now - self._began_at, now)
        except Exception:
            # A file can say what nobody thought of; that must not cost a call.
            logger.exception("what an earlier run learned of %s is ignored", key)
            return AdmissionController(key, self.settings, window, now)
        return admission

    def _evict(self, now: float) -> None:
        # Least recently used first; a key with calls waiting or under way is never forgotten.
        over = len(self._slots) >= self.settings.max_keys
        for key in list(islice(self._slots, 64 if over else 2)):
            slots = self._slots[key]
            if not slots.idle:
                self._slots.move_to_end(key)
            elif over or now - slots.admission.used_at > self.settings.idle_after:
                if slots.admission.rejection is not None:
                    self._rejections.append((key, slots.admission.rejection, None))
                del self._slots[key]
                over = len(self._slots) >= self.settings.max_keys

    def _remove(self, waiter: Waiter, out: list[events.Event] | None) -> list[Waiter]:
        slots: KeyQueue | None = waiter.slots
        if slots is None:
            return []
        with self._lock:
            now = self.clock()
            permit = slots.take(waiter)
            if permit is not None:
                if not permit.settled and permit.generation == slots.admission.generation:
                    slots.admission.withdraw(permit, now, out)
                return slots.look(waiter, now, out)
            return slots.leave(waiter, now, out)

    def _settle(
        self, permit: Permit, outcome: Outcome, out: list[events.Event] | None, rejoin: Waiter | None = None
    ) -> list[Waiter]:
        now = self.clock()
        slots = self._slots_behind(permit)
        if slots is None or permit.generation != slots.admission.generation:
            permit.settled = True
        elif not permit.settled:
            draw = 0.0 if outcome.kind is OK else self.draw()
            before = slots.admission.rejection
            slots.admission.settle(permit, outcome, now, draw, out)
            if slots.admission.rejection is not before:
                self._rejections.append((permit.key, before, slots.admission.rejection))
        if rejoin is None or rejoin.slots is None:
            return self._pump(slots, now, out)
        woken: list[Waiter] = []
        rejection = permit.state.rejection
        if outcome.kind is Kind.DAILY_LIMIT and rejection is not None and rejection.in_vain:
            # Its own answer is what it gets: to stand again would only send it again.
            rejoin.replay = outcome
        else:
            woken = rejoin.slots.rejoin(rejoin, now, out)
        return [*woken, *self._pump(slots, now, out)]

    def _slots_behind(self, permit: Permit) -> KeyQueue | None:
        """Return the queue of the key that gave a permit; None where it is another registry's."""
        slots = self._slots.get(permit.state.key)
        return slots if slots is not None and slots.admission is permit.state else None

    def _pump(self, slots: KeyQueue | None, now: float, out: list[events.Event] | None) -> list[Waiter]:
        if slots is None or not (slots.line.count or slots.asking):
            return []
        return slots.pump(now, out, threading.get_ident())

    def _act(self, woken: list[Waiter], out: list[events.Event] | None) -> None:
        """Wakes, gives back what was dropped meanwhile, and tells, with the lock free."""
        self._wake_all(woken, out)
        if self._dropped:
            self._drain()
        if self._rejections:
            self._log_rejections()
        if out or self._listeners.untold:
            self._listeners.tell(out or ())

    def _log_rejections(self) -> None:
        """Write one line for each rejection that has ended; one that lasts is written at the end of the process."""
        while self._rejections:
            with suppress(IndexError):
                key, ended, begun = self._rejections.popleft()
                if ended is not None:
                    log_end(key, ended, "a call was let in again")
                if begun is not None:
                    log_begin(self, key, begun)

    def rejections(self) -> list[tuple[Key, KeyRejection]]:
        """The keys that the provider rejects now."""
        with self._lock:
            found = [(key, slots.admission.rejection) for key, slots in self._slots.items()]
        return [(key, rejection) for key, rejection in found if rejection is not None]

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
            self._listeners.untold.extend(out or ())


def _warn_once(message: str, *arguments: object) -> None:
    """Write one warning a process about event loops that are blocked."""
    global _warned
    if not _warned:
        _warned = True
        logger.warning(message, *arguments)


def _warn_of_blocking(waiter: Waiter) -> None:
    """Warn of a call that has to wait and keeps an event loop from running."""
    executor = waiter.executor
    if executor is not None and executor.blocks:
        _warn_once(
            "event loop of thread %s blocked: a synchronous call waits on it for %s of %s; it goes before the loop's"
            " own calls, which stand still until it returns; use the asynchronous client, or asyncio.to_thread",
            threading.current_thread().name,
            waiter.slots.gate or "its turn",
            waiter.slots.admission.key,
        )


def _warn_of_stalled_loop(probe: LoopProbe) -> None:
    """Warn that other calls do not wait for the attempts of an event loop that does not run."""
    _warn_once(
        "event loop of thread %s blocked: it holds slots that calls of other threads wait for; they go before its own"
        " calls, which stand still until it runs again; await what it waits for, or use asyncio.to_thread",
        next((thread.name for thread in threading.enumerate() if thread.ident == probe.thread), probe.thread),
    )


def _wake(waiter: Waiter) -> bool:
    waker = waiter.waker
    if isinstance(waiter, LoopProbe) and waiter.stalled:
        _warn_of_stalled_loop(waiter)
    if waker is None:
        return True
    if waiter.permit is None and waiter.until is not None:
        return waker.arm(waiter.until)
    return waker.wake()


class RejectionSource(Protocol):
    """A registry, as far as it is asked for what it has left to say."""

    def rejections(self) -> list[tuple[Key, KeyRejection]]:
        """The keys that the provider rejects now."""
        ...


_keepers: WeakSet[RejectionSource] = WeakSet()


def log_rest() -> None:
    """Write the lines of the rejections that last until the end of the process."""
    for keeper in list(_keepers):
        _keepers.discard(keeper)
        for key, rejection in keeper.rejections():
            log_end(key, rejection, "it was still so at the end")


atexit.register(log_rest)


def log_begin(keeper: RejectionSource, key: Key, rejection: KeyRejection) -> None:
    """Say that a key is rejected; the line with the numbers follows when that ends, or with the process."""
    _keepers.add(keeper)
    logger.info("%s rejected: %s; its calls get that answer, and one a second asks again", key, _reason(rejection))


def log_end(key: Key, rejection: KeyRejection, what: str) -> None:
    """Write the line of a rejection that is over."""
    counted = f"{rejection.replayed} call{'' if rejection.replayed == 1 else 's'}"
    logger.warning("%s rejected: %s; %s answered without a request; %s", key, _reason(rejection), counted, what)


def _reason(rejection: KeyRejection) -> str:
    outcome = rejection.outcome
    return f"{outcome.cause.value} (status {outcome.status}, {outcome.row})"
