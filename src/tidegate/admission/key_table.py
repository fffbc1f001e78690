"""Table of the key queues of a process, under one lock, and the steps of a call at its queue.

Theory of operation. Every step takes the lock for a few microseconds, makes the core decide, and returns. Waiters are
woken, listeners notified and log records written after the lock is released. There is no background thread and no
polling. The log gets the records of `tidegate.admission.key_log` and `tidegate.admission.key_log`.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from threading import get_ident
from typing import Any
from weakref import WeakSet

from tidegate.admission import audit, hooks, process, redaction
from tidegate.admission.accounts import AccountTable, ModelQueue, SharingModels
from tidegate.admission.callers import warn_of_blocking
from tidegate.admission.key_log import WaitLog, log_begin, log_end
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.process import MEASURE_EVERY, measure
from tidegate.admission.saved_state import Seeds
from tidegate.admission.shared_keys import SharedKeys
from tidegate.admission.steps import CallTable, Listener, nothing
from tidegate.admission.wait_queue import UNPRICED, Waiter
from tidegate.core import events, saved_state
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.limiter_state import Out, Permit
from tidegate.core.rejection import KeyRejection, in_force
from tidegate.core.safe_text import masked
from tidegate.core.snapshot import QueueForecast, RegistrySnapshot, queue_forecast
from tidegate.core.two_levels import AccountController, ModelController
from tidegate.core.unheard_members import ABANDONED
from tidegate.core.values import INFINITY, OK, Cost, Key, Kind, Outcome, RequestFacts, Silence, Usage
from tidegate.errors import PermitMisuse
from tidegate.settings import Settings
from tidegate.shared_log.carrier import Carrier
from tidegate.shared_log.carriers import text_of

MAX_REGISTRY_KEYS = 4096
KEY_IDLE_SECONDS = 3600.0
"""Keys of one registry at most, and seconds after which an idle one is forgotten. Raising them takes more memory.
Chosen: more keys than a program has models and credentials, and the longest window but a day's."""

logger = logging.getLogger("tidegate")


def today() -> datetime:
    """Return the current time, aware, in UTC."""
    return datetime.now(UTC)


class KeyTable(CallTable):
    """The key queues of a process, and the steps of a call at its queue.

    `clock` returns monotonic seconds, `draw` uniform numbers in [0, 1), and `calendar` the aware current time. The keys
    of an earlier run start from its saved state, whose age counts from now. With a `carrier`, keys are shared with the
    other processes at its logs.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float],
        draw: Callable[[], float],
        calendar: Callable[[], datetime] = today,
        carrier: Carrier | None = None,
    ) -> None:
        self._settings = settings
        self._identity = object()
        self._calendar = calendar
        given = settings.digest_key
        common = None if carrier is None else carrier.secret
        self._digest_key = given.get_secret_value().encode()[:64] if given is not None else secrets.token_bytes(32)
        if given is None and common:
            # All processes that share logs name a key alike.
            self._digest_key = text_of(common).encode()
        # Two processes with the same digest key share this value; it reveals nothing of the key.
        self._digests = self.digest("whose digests these are") if given is not None else ""
        state = settings.initial_state
        self._seeds = Seeds(state, self._digests, calendar()) if state is not None else None
        self.disabled = settings.disabled
        self.interned: dict[tuple[object, ...], Key] = {}
        self.operations: dict[Key, str] = {}
        self.routes: dict[tuple[object, ...], Any] = {}
        # Places in queues that are kept for calls that an SDK repeats with a new token.
        self.places: dict[tuple[Key, int], int] = {}
        self._addresses: dict[str, str] = {}
        self._began_at = self._measured_at = clock()
        # Keys whose bound is reached: they would admit more.
        self._at_bound: set[KeyQueue] = set()
        self.clock = clock
        self.draw = draw
        super().__init__()
        # The keys shared with other processes, None where none are.
        self._shared = (
            SharedKeys(carrier, settings, clock, self._digest_key, self._listeners.note, self._step, self._records)
            if carrier is not None
            else None
        )
        self._queues: OrderedDict[Key, KeyQueue] = OrderedDict()
        self._accounts = AccountTable(settings)
        process.register(self)

    @property
    def settings(self) -> Settings:
        """Return the settings of this registry; they never change."""
        return self._settings

    def enter(self, call: Waiter, key: Key, window: float) -> Permit | None:
        """Return the permit of a call that `key` admits at once, else None.

        Return None too where a listener is subscribed. Most calls take this short path; all others run the full
        exchange, which reports events.
        """
        if self._listeners.all:
            return None
        try:
            with self._lock:
                if self._stepping:
                    return None
                self._stepping = True
                try:
                    now = self.clock()
                    queue = self._queue_of(key, window, now)
                    if self._shared is not None:
                        now = self._shared.enter(queue, now)
                    permit = queue.enter(call.price, now)
                    if permit is not None:
                        call.held = permit
                        permit.thread = get_ident()
                finally:
                    try:
                        if self._shared is not None:
                            self._shared.end_steps()
                    finally:
                        self._stepping = False
            if self._deferred or self._records:
                self._act([], None)
        except BaseException:
            self._deferred.append(self._mend)
            raise
        return permit

    def enqueue(self, waiter: Waiter, key: Key, window: float) -> Permit | None:
        """Admit a call at once, or put it in the queue of `key`; `window` is the provider's usual one in seconds."""

        def step(out: Out) -> tuple[list[Waiter], Permit | None]:
            now = self.clock()
            queue = self._queue_of(key, window, now)
            now = now if self._shared is None else self._shared.enter(queue, now)
            waiter.bind_queue(queue)
            to_wake = queue.enqueue(waiter, now, out)
            permit = queue.take(waiter)
            if permit is not None:
                permit.thread = get_ident()
            return to_wake, permit

        permit = self._step(step, lambda: self._ungoverned(key, window))
        if permit is None:
            warn_of_blocking(waiter)
        return permit

    def bind_waiter(self, waiter: Waiter, key: Key, window: float) -> None:
        """Tie an admitted call that has not queued to the queue that it may have to return to."""
        self._apply(lambda: waiter.bind_queue(self._queue_of(key, window, self.clock())))

    def poll(self, waiter: Waiter) -> Permit | None:
        """Return the permit of a waiting call, if it has one by now."""

        def step(out: Out) -> tuple[list[Waiter], Permit | None]:
            queue: KeyQueue | None = waiter.queue
            to_wake: list[Waiter] = []
            if queue is None:
                return to_wake, None
            now = self._enter(queue)
            if waiter.permit is None:
                to_wake = [each for each in queue.poll(waiter, now, out) if each is not waiter]
                if queue.wait_log is not None and waiter.permit is None:
                    self._note_wait(queue, queue.waiting.count, now)
            permit = queue.take(waiter)
            if permit is not None:
                # The attempt starts now; the permit was given when another call settled.
                permit.sent_at, permit.thread = now, permit.thread or get_ident()
                limit = queue.admission.concurrency
                if not queue.admission.untaken and queue.gate == "concurrency" and limit.opens_at(now) < INFINITY:
                    to_wake += queue.pump(now, out)
            return to_wake, permit

        return self._step(step, nothing)

    def settle(self, permit: Permit, outcome: Outcome, rejoin: Waiter | None = None, is_counted: bool = False) -> bool:
        """Settle a permit with the outcome of its attempt; return whether its call is in the queue again.

        Raise `PermitMisuse` if it was settled before, or is another registry's.

        `rejoin` is the call that held it, where it continues at its old place, before any other call is admitted. After
        a refusal that shows no limit it does not rejoin. With `is_counted` the caller counts how the call ends.
        """
        out: list[events.Event] | None = [] if self._listeners.all else None
        try:
            with self._lock:
                if self._stepping:
                    self._deferred.append(partial(self._settle_dropped, permit, outcome))
                    return False
                self._stepping = True
                try:
                    self.require_own(permit)
                    failed = not is_counted and outcome.kind is not OK and outcome.kind is not Kind.ABANDONED
                    if failed and permit.generation == permit.state.generation:
                        permit.state.counts.note_failed_call(outcome)
                    to_wake = self._settle(permit, outcome, out, rejoin)
                    if rejoin is not None:
                        to_wake = [waiter for waiter in to_wake if waiter is not rejoin]
                        if permit.state.aside:
                            rejoin = None
                finally:
                    try:
                        if self._shared is not None:
                            self._shared.end_steps()
                    finally:
                        self._stepping = False
            if permit.trace is not None:
                permit.trace.deliver()
            if to_wake or out or self._deferred or self._records:
                self._act(to_wake, out)
            if self._at_bound:
                self._raise_bounds()
        except PermitMisuse:
            raise
        except BaseException:
            self._deferred.append(self._mend)
            raise
        if rejoin is not None and rejoin.permit is None:
            warn_of_blocking(rejoin)
        return rejoin is not None

    def note_silent(self, permit: Permit, slow: bool) -> Silence:
        """Record that an attempt got no answer within the time limit of its caller; return what that means.

        Earlier attempts at the same work are known to be `slow`, though the provider answers other calls.
        """

        def step(out: Out) -> tuple[list[Waiter], Silence]:
            queue = self._queue_behind(permit)
            if queue is None or permit.generation != queue.admission.generation:
                return [], Silence.UNKNOWN
            now = self._enter(queue)
            silence = queue.admission.note_silent(permit, slow, now, self.draw(), out)
            self._note_wait(queue, queue.waiting.count, now)
            return queue.pump(now, out), silence

        return self._step(step, lambda: Silence.UNKNOWN)

    def dequeue(self, waiter: Waiter) -> None:
        """Give up a place in the queue, or an unused permit; safe in a finalizer."""
        queue: KeyQueue | None = waiter.queue
        if queue is None:
            return
        if waiter.is_queued or waiter.permit is not None:
            self._defer(partial(self._take_out, waiter), queue)
        else:
            queue.callers.forget(waiter)

    def require_own(self, permit: Permit) -> None:
        """Raise `PermitMisuse` for a permit that cannot be settled here: settled before, or another registry's."""
        if permit.settled:
            raise PermitMisuse(f"permit of {permit.key} unusable: it was settled before; request another permit")
        if permit.state.home is not self._identity:
            raise PermitMisuse(f"permit of {permit.key} unusable: another registry gave it; settle it there")

    def withdraw(self, permit: Permit) -> None:
        """Take back a permit under which nothing was sent; nothing is learned.

        Raise `PermitMisuse` if it was settled before, or is another registry's.
        """

        def step(out: Out) -> tuple[list[Waiter], None]:
            self.require_own(permit)
            queue = self._queue_behind(permit)
            now = self._enter(queue)
            if queue is not None and permit.generation == queue.admission.generation:
                queue.admission.withdraw(permit, now, out)
            permit.settled = True
            return self._pump(queue, now, out), None

        self._step(step, lambda: self.drop(permit))

    def learn(self, permit: Permit, outcome: Outcome) -> None:
        """Learn from the headers of an answer whose body still streams; `settle` follows at its end."""
        out = self._out()
        try:
            with self._lock:
                if self._stepping:
                    return
                self._stepping = True
                try:
                    queue = self._queue_behind(permit)
                    now = self._enter(queue)
                    if queue is not None:
                        before = queue.admission.rejection and in_force(queue.admission.rejection)
                        queue.admission.learn(permit, outcome, now, out)
                        if before is not None:
                            self._note_rejection(permit.key, before, in_force(queue.admission.rejection))
                    to_wake = self._pump(queue, now, out)
                finally:
                    try:
                        if self._shared is not None:
                            self._shared.end_steps()
                    finally:
                        self._stepping = False
            if to_wake or out or self._deferred or self._records:
                self._act(to_wake, out)
        except BaseException:
            self._deferred.append(self._mend)
            raise

    def learn_usage(self, permit: Permit, request_facts: RequestFacts, usage: Usage) -> None:
        """Update the key's cost estimate with the usage of a request of that shape."""

        def step(out: Out) -> tuple[list[Waiter], None]:
            queue = self._queue_behind(permit)
            if queue is not None:
                queue.admission.learn_usage(request_facts, usage, self.clock())
            return [], None

        self._step(step, nothing)

    def count_usage(self, key: Key, window: float, usage: Usage, nanodollars: int | None) -> None:
        """Add an answer of a provider's batch, for which the key has no call, to its totals."""
        self._apply(lambda: self._queue_of(key, window, self.clock()).tokens.add(usage, nanodollars))

    def forecast(self, key: Key, cost: Cost | None) -> tuple[QueueForecast, int] | None:
        """Return the forecast of a key for calls of `cost` (None: as those that wait), and its answered attempts.

        Return None for an unknown key.
        """

        def step(out: Out) -> tuple[list[Waiter], tuple[QueueForecast, int] | None]:
            queue = self._queues.get(key)
            if queue is None:
                return [], None
            mean = queue.mean_cost() if cost is None else cost
            admission = queue.admission
            known = queue_forecast(admission, queue.waiting.count, mean, self.clock()), admission.counts.answered
            return [], known

        return self._step(step, nothing)

    def note_pool(self, key: Key, pool: object, size: int) -> None:
        """Record the connection pool of a client that uses `key`; `size` is its number of connections, 0 if unbounded.

        Calls beyond the pool of a key's only client wait in the queue instead of in the client.
        """
        queue = self._queues.get(key)
        if queue is None or (queue.pools is not None and pool in queue.pools):
            return
        known = queue

        def step(out: Out) -> tuple[list[Waiter], None]:
            known.pools = WeakSet() if known.pools is None else known.pools
            known.pools.add(pool)
            admission = known.admission
            admission.bound.pool = size if size and len(known.pools) == 1 else None
            admission.apply_bound()
            return [], None

        self._step(step, nothing)

    def drop(self, permit: Permit, outcome: Outcome = ABANDONED) -> None:
        """Settle a permit from a finalizer: safe at any point of any thread, also inside this registry.

        The interrupted code may hold any lock, so the next step of any call does it, and reports the events.
        """
        if not permit.settled:
            self._defer(partial(self._settle_dropped, permit, outcome), self._queues.get(permit.key))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event, after the lock is free; return a function that ends the subscription.

        A listener that raises is logged and stays subscribed. Without a listener no event is built.
        """
        self._apply(lambda: self._listeners.add(listener), always=True)
        return partial(self.unsubscribe, listener)

    def unsubscribe(self, listener: Listener) -> None:
        """End a subscription; repeating it does nothing."""
        self._apply(lambda: self._listeners.remove(listener), always=True)

    def intern(self, facts: tuple[object, ...], key: Key, operation: str = "") -> None:
        """Remember the key of requests that share `facts` (without a secret), for up to `MAX_REGISTRY_KEYS` entries.

        `operations` has the operation of each key's requests, empty for a key with several.
        """
        if len(self.interned) >= MAX_REGISTRY_KEYS:
            self.interned.clear()
            self.operations.clear()
        self.interned[facts] = key
        self.operations[key] = operation if self.operations.get(key, operation) == operation else ""

    def keep_route(self, facts: tuple[object, ...], route: object) -> None:
        """Remember the route of requests that share `facts` in `routes`, for up to `MAX_REGISTRY_KEYS` entries."""
        if len(self.routes) >= MAX_REGISTRY_KEYS:
            self.routes.clear()
        self.routes[facts] = route

    def address(self, name: str) -> str:
        """Return the plain name of a key: an address without its user and query, its credentials as digests."""
        if "://" not in name:
            return name
        found = self._addresses.get(name)
        if found is None:
            if len(self._addresses) >= MAX_REGISTRY_KEYS:
                self._addresses.clear()
            found = self._addresses[name] = masked(name, self.digest, redaction.is_known)
            redaction.remember(redaction.in_address(name))
        return found

    def digest(self, credential: str) -> str:
        """Return a keyed digest of a credential, 16 hexadecimal digits; empty for an empty one."""
        if not credential:
            return ""
        return hashlib.blake2b(credential.encode(), key=self._digest_key, digest_size=8).hexdigest()

    def snapshot(self, keys: Iterable[Key] | None = None) -> RegistrySnapshot:
        """Return the present state of every known key: limits, levels, waiting calls, the closed gate and its opening.

        A gate is one limiter of a key that may hold a call back. `keys` selects some of the keys.
        """
        selected = None if keys is None else list(keys)
        self.catch_up()

        def step(out: Out) -> tuple[list[Waiter], RegistrySnapshot]:
            now, queues = self.clock(), self._queues
            known = queues if selected is None else [key for key in selected if key in queues]
            seen = {key: queues[key].snapshot(now) for key in known}
            return [], RegistrySnapshot(seen, self._accounts.snapshot(now))

        return self._step(step, lambda: RegistrySnapshot({}, {}))

    def before_fork(self) -> None:
        """Wait until the current step ends, so that the child finds nothing half done."""
        self._lock.acquire()
        if self._shared is not None:
            self._shared.before_fork()

    def after_fork_in_parent(self) -> None:
        """Release the lock."""
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Forget waiting calls and attempts in flight: they belong to the parent."""
        self._lock = threading.RLock()
        self._stepping = False
        if self._shared is not None:
            self._shared.after_fork()
        self._deferred.clear()
        self._listeners.pending.clear()
        for queue in self._queues.values():
            queue.forget()
            queue.admission.forked()

    def _queue_of(self, key: Key, window: float, now: float) -> KeyQueue:
        queue = self._queues.get(key)
        if queue is None:
            self._evict(now)
            queue = self._queues[key] = self._new_queue(key, window, now)
        else:
            self._queues.move_to_end(key)
        return queue

    def _new_queue(self, key: Key, window: float, now: float) -> KeyQueue:
        account = self._accounts.of(key, window, now, self._seed_account)
        admission = self._seeded(key, window, now, account)
        queue: KeyQueue
        if account is not None and isinstance(admission, ModelController):
            queue = ModelQueue(admission, account.queue)
        else:
            queue = KeyQueue(admission)
        if self._shared is not None:
            self._shared.attach(queue)
        if hooks.on_new_queue is not None and (record := hooks.on_new_queue(queue)) is not None:
            self._records.append(record)
        if account is not None:
            # After the hook, which may replace the wait queue.
            queue.waiting.next_place = account.queue.next_place
        return queue

    def _seed_account(self, account: AccountController, now: float) -> None:
        found = self._seeds.take(account.key) if self._seeds else None
        if found is not None:
            known, age = found
            saved_state.seed_quotas(account.quotas, known.quotas, age + now - self._began_at, now)

    def _seeded(self, key: Key, window: float, now: float, account: SharingModels | None) -> AdmissionController:
        admission = self._new(key, window, now, account)
        found = self._seeds.take(key) if self._seeds else None
        if found is None:
            return admission
        known, age = found
        try:
            saved_state.seed(admission, known, age + now - self._began_at, now)
        except Exception as error:
            # A file may hold anything unexpected; that must not fail a call.
            reason = type(error).__name__
            logger.exception("saved state of %s ignored: %s was raised; the key learns its limits again", key, reason)
            if isinstance(admission, ModelController):
                admission.account.models.remove(admission)
            return self._new(key, window, now, account)
        return admission

    def _new(self, key: Key, window: float, now: float, account: SharingModels | None) -> AdmissionController:
        admission: AdmissionController | None
        if self._shared is not None and (admission := self._shared.controller(key, window, now, account)) is not None:
            pass
        elif account is None:
            admission = AdmissionController(key, self.settings, window, now)
        else:
            admission = ModelController(key, self.settings, window, now, account.controller)
        admission.home = self._identity
        return admission

    def _evict(self, now: float) -> None:
        # Least recently used first; a key with calls waiting or in flight is never forgotten.
        over = len(self._queues) >= MAX_REGISTRY_KEYS
        for key in list(islice(self._queues, 64 if over else 2)):
            queue = self._queues[key]
            if not queue.idle:
                self._queues.move_to_end(key)
            elif over or now - queue.admission.used_at > KEY_IDLE_SECONDS:
                if (rejection := in_force(queue.admission.rejection)) is not None:
                    self._note_rejection(key, rejection, None, forgotten=True)
                queue.close()
                del self._queues[key]
                over = len(self._queues) >= MAX_REGISTRY_KEYS

    def _enter(self, queue: KeyQueue | None) -> float:
        """Return the time, after what other processes did at a shared key was replayed."""
        now = self.clock()
        return now if self._shared is None else self._shared.enter(queue, now)

    def _mend(self, out: Out) -> list[Waiter]:
        """Mend the keys after an interrupt of the program cut off a step."""
        to_wake: list[Waiter] = []
        for queue in list(self._queues.values()):
            to_wake += queue.mend(self._enter(queue), out)
        return to_wake

    def _ungoverned(self, key: Key, window: float) -> Permit:
        """Return a permit that counts nowhere: a call inside a step of its own thread must not wait for that step."""
        now = self.clock()
        state = AdmissionController(key, self.settings, window, now)
        state.home = self._identity
        return state.admit(UNPRICED, now, 0.0, None)

    def _take_out(self, waiter: Waiter, out: Out) -> list[Waiter]:
        """Take a call out of its queue, with an unused permit."""
        queue: KeyQueue | None = waiter.queue
        if queue is None:
            return []
        now = self._enter(queue)
        permit = queue.take(waiter)
        queue.callers.forget(waiter)
        if permit is None:
            return queue.dequeue(waiter, now, out)
        if not permit.settled and permit.generation == queue.admission.generation:
            queue.withdraw(waiter, permit, now, out)
        return queue.poll(waiter, now, out)

    def _settle_dropped(self, permit: Permit, outcome: Outcome, out: Out) -> list[Waiter]:
        """Settle a permit at the next step, unless an interrupt cut off its settling: then it is free already."""
        if permit.state.permits_in_flight.get(permit.order) is not permit:
            permit.settled = True
            return []
        to_wake = self._settle(permit, outcome, out)
        if permit.trace is not None:
            self._records.append(permit.trace.deliver)
        return to_wake

    def _settle(
        self, permit: Permit, outcome: Outcome, out: list[events.Event] | None, rejoin: Waiter | None = None
    ) -> list[Waiter]:
        # As `_queue_behind` and `_enter`, without their calls: every call comes here.
        state = permit.state
        queue = self._queues.get(state.key)
        if queue is not None and queue.admission is not state:
            queue = None
        now = self.clock()
        if self._shared is not None:
            now = self._shared.enter(queue, now)
        if queue is None or permit.generation != queue.admission.generation:
            permit.settled = True
        elif not permit.settled:
            draw = 0.0 if outcome.kind is OK else self.draw()
            before = queue.admission.rejection and in_force(queue.admission.rejection)
            if self._shared is not None and outcome.kind is OK and queue.admission.at_bound:
                self._at_bound.add(queue)
            queue.admission.settle(permit, outcome, now, draw, out)
            if outcome.usage is not None:
                audit.count_usage(queue.tokens, permit.key, outcome.usage)
            limit = queue.admission.concurrency
            if limit.limit >= limit.highest and outcome.kind is OK and queue.admission.bound.may_rise:
                self._at_bound.add(queue)
            if before is not None or queue.admission.rejection is not None:
                self._note_rejection(permit.key, before, in_force(queue.admission.rejection))
            if outcome.kind is not OK:
                self._note_wait(queue, queue.waiting.count + (rejoin is not None), now)
        if rejoin is None or rejoin.queue is None or permit.state.aside:
            return self._pump(queue, now, out)
        to_wake: list[Waiter] = []
        rejection = permit.state.rejection
        if outcome.kind is Kind.DAILY_LIMIT and rejection is not None and rejection.has_false_reset:
            # The call gets its own answer: another attempt would get the same one.
            rejoin.replay = outcome
        else:
            to_wake = rejoin.queue.rejoin(rejoin, now, out)
        return [*to_wake, *self._pump(queue, now, out)]

    def _raise_bounds(self) -> None:
        """Raise the bounds of the keys that admit more, as far as the machine carries them; at most once a second.

        The machine is measured with the lock free: that reads files.
        """
        now = self.clock()
        if now < self._measured_at + MEASURE_EVERY:
            return
        self._measured_at = now
        more, _ = measure().calls

        def step(out: Out) -> tuple[list[Waiter], None]:
            to_wake: list[Waiter] = []
            queues, self._at_bound = self._at_bound, set()
            for queue in queues if more is not None else ():
                admission = queue.admission
                admission.bound.rise(admission.in_flight + (more or 0))
                admission.apply_bound()
                to_wake += self._pump(queue, now, out)
            return to_wake, None

        self._step(step, nothing)

    def _queue_behind(self, permit: Permit) -> KeyQueue | None:
        """Return the queue of the key that gave a permit; None if that key was forgotten, as after a fork."""
        queue = self._queues.get(permit.state.key)
        return queue if queue is not None and queue.admission is permit.state else None

    def _pump(self, queue: KeyQueue | None, now: float, out: list[events.Event] | None) -> list[Waiter]:
        if queue is None or not (queue.waiting.count or queue.ready_callbacks or queue.is_shared):
            return []
        return queue.pump(now, out)

    def _note_rejection(
        self, key: Key, ended: KeyRejection | None, begun: KeyRejection | None, forgotten: bool = False
    ) -> None:
        """Note for the log that a rejection began or ended; `log_rest` logs those that last until the process ends."""
        if ended is not None and ended is not begun:
            what = "the key is forgotten" if forgotten else "a call was admitted again"
            self._records.append(partial(log_end, key, ended, what))
        if begun is not None and begun is not ended:
            self._records.append(partial(log_begin, self, key, begun))

    def _note_wait(self, queue: KeyQueue, waiting: int, now: float) -> None:
        """Note for the log that calls wait for the end of a cooldown or an outage, where such a record is due."""
        if self.settings.log:
            queue.wait_log = queue.wait_log or WaitLog()
            record = queue.wait_log.look(queue.admission, waiting, now)
            if record is not None:
                self._records.append(partial(logger.log, record.level, "%s %s", queue.admission.key, record.text))

    def rejections(self) -> list[tuple[Key, KeyRejection]]:
        """Return the keys that the provider rejects now."""
        found = self._step(
            lambda out: ([], [(key, in_force(queue.admission.rejection)) for key, queue in self._queues.items()]),
            list[tuple[Key, KeyRejection | None]],
        )
        return [(key, rejection) for key, rejection in found if rejection is not None]
