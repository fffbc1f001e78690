"""Table of the key queues of a process, under one lock, and the steps of a call at its queue.

Theory of operation. Every step takes the lock for a few microseconds, makes the core decide, and returns. Waiters are
woken, listeners notified and log records written after the lock is released. There is no background thread and no
polling. The log gets the records of `tidegate.admission.rejection_log` and `tidegate.admission.wait_log`.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from threading import RLock
from typing import Any
from weakref import WeakSet

from tidegate import redaction
from tidegate.admission import fork, key_hook, token_costs
from tidegate.admission.account_queue import ModelQueue
from tidegate.admission.accounts import AccountTable, SharingModels
from tidegate.admission.blocked_loops import wake, warn_of_blocking
from tidegate.admission.executors import ExecutorTable
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.listeners import Listener, Listeners
from tidegate.admission.rejection_log import log_begin, log_end, write_record
from tidegate.admission.resources import measure
from tidegate.admission.shared_keys import SharedKeys
from tidegate.admission.suspensions import SuspensionTable
from tidegate.admission.wait_log import WaitLog
from tidegate.admission.wait_queue import Price, Waiter
from tidegate.core import events, saved_state
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.credentials import masked
from tidegate.core.limiter_state import Permit
from tidegate.core.rejection import KeyRejection, in_force
from tidegate.core.snapshot import HeadWait, QueueForecast, RegistrySnapshot, queue_forecast
from tidegate.core.two_levels import AccountController, ModelController
from tidegate.core.values import INFINITY, OK, REFUSED, Cost, Key, Kind, Outcome, RequestFacts, Silence, Usage
from tidegate.errors import PermitMisuse
from tidegate.saved_state import Seeds
from tidegate.settings import Settings
from tidegate.shared_log.carrier import Carrier
from tidegate.shared_log.carriers import text_of

ABANDONED = Outcome(Kind.ABANDONED)

MEASURE_EVERY = 1.0
"""Seconds between two measurements of the machine, at least, and between two raises of a bound. Raising it slows the
rise of a bound; lowering it costs up to a millisecond a time. Chosen: a doubling a second reaches any real limit."""

logger = logging.getLogger("tidegate")


def today() -> datetime:
    """Return the current time, aware, in UTC."""
    return datetime.now(UTC)


class KeyTable:
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
        self._addresses: dict[str, str] = {}
        self._began_at = self._measured_at = clock()
        # Keys whose bound is reached: they would admit more.
        self._at_bound: set[KeyQueue] = set()
        self.clock = clock
        self.draw = draw
        self._listeners = listeners = Listeners()
        # Log records to write, and shared logs to append to, with the lock free.
        self._records: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        # The keys shared with other processes, None where none are.
        self._shared = (
            SharedKeys(carrier, settings, clock, self._digest_key, listeners.note, self._lock, self._records)
            if carrier is not None
            else None
        )
        # A context at each step inside the lock; where nothing is shared, one that takes no time.
        self._steps: AbstractContextManager[object] = self._shared.steps if self._shared is not None else RLock()
        self._queues: OrderedDict[Key, KeyQueue] = OrderedDict()
        self._accounts = AccountTable(settings)
        self.suspension_table = SuspensionTable(settings, calendar)
        self._executors = ExecutorTable()
        self._dropped: deque[tuple[Permit, Outcome]] = deque()
        fork.register(self)

    @property
    def settings(self) -> Settings:
        """Return the settings of this registry; they never change."""
        return self._settings

    def enter(self, key: Key, price: Price, window: float) -> Permit | None:
        """Return the permit of a call that `key` admits at once, else None.

        Return None too where a listener is subscribed. Most calls take this short path; all others run the full
        exchange, which reports events.
        """
        if self._listeners.all:
            return None
        with self._lock, self._steps:
            now = self.clock()
            queue = self._queue_of(key, window, now)
            now = now if self._shared is None else self._shared.enter(queue, now)
            permit = queue.enter(price, now)
            if permit is not None:
                permit.thread = threading.get_ident()
        if self._dropped or self._records:
            self._act([], None)
        return permit

    def enqueue(self, waiter: Waiter, key: Key, window: float) -> Permit | None:
        """Admit a call at once, or put it in the queue of `key`; `window` is the provider's usual one in seconds."""
        out = self._out()
        with self._lock, self._steps:
            now = self.clock()
            queue = self._queue_of(key, window, now)
            now = now if self._shared is None else self._shared.enter(queue, now)
            waiter.bind_queue(queue)
            to_wake = queue.enqueue(waiter, now, out)
            permit = queue.take(waiter)
            if permit is not None:
                permit.thread = threading.get_ident()
        if to_wake or out or self._dropped or self._records:
            self._act(to_wake, out)
        if permit is None:
            warn_of_blocking(waiter)
        return permit

    def bind_waiter(self, waiter: Waiter, key: Key, window: float) -> None:
        """Tie an admitted call that has not queued to the queue that it may have to return to."""
        with self._lock, self._steps:
            waiter.bind_queue(self._queue_of(key, window, self.clock()))
        if self._dropped:
            self._drain()

    def poll(self, waiter: Waiter) -> Permit | None:
        """Return the permit of a waiting call, if it has one by now."""
        out = self._out()
        with self._lock, self._steps:
            queue: KeyQueue | None = waiter.queue
            to_wake: list[Waiter] = []
            permit = None
            if queue is not None:
                now = self._enter(queue)
                executor = waiter.executor
                if waiter.permit is None or (executor is not None and executor.stalled):
                    to_wake = [each for each in queue.poll(waiter, now, out) if each is not waiter]
                    if queue.wait_log is not None and waiter.permit is None:
                        self._note_wait(queue, queue.waiting.count, now)
                elif executor is not None:
                    executor.note_running(now)
                permit = queue.take(waiter)
                if permit is not None:
                    # The attempt starts now; the permit was given when another call settled.
                    permit.sent_at = now
                    limit = queue.admission.concurrency
                    if not queue.admission.untaken and queue.gate == "concurrency" and limit.opens_at(now) < INFINITY:
                        to_wake += queue.pump(now, out)
        self._act(to_wake, out)
        return permit

    def settle(
        self, permit: Permit, outcome: Outcome, rejoin: Waiter | None = None, *, is_counted: bool = False
    ) -> None:
        """Settle a permit with the outcome of its attempt.

        Raise `PermitMisuse` if it was settled before, or is another registry's.

        `rejoin` is the call that held it, where that call continues. It returns to its old place before any other call
        is admitted. `is_counted` says that the caller counts how the call ends; else a failure ends it.
        """
        out: list[events.Event] | None = [] if self._listeners.all else None
        with self._lock, self._steps:
            self.require_own(permit)
            failed = not is_counted and outcome.kind is not OK and outcome.kind is not Kind.ABANDONED
            if failed and permit.generation == permit.state.generation:
                permit.state.counts.note_failed_call(outcome)
            to_wake = self._settle(permit, outcome, out, rejoin)
            if rejoin is not None:
                to_wake = [waiter for waiter in to_wake if waiter is not rejoin]
        if permit.trace is not None:
            permit.trace.deliver()
        if to_wake or out or self._dropped or self._records:
            self._act(to_wake, out)
        if self._at_bound:
            self._raise_bounds()
        if rejoin is not None and rejoin.permit is None:
            warn_of_blocking(rejoin)

    def note_silent(self, permit: Permit, slow: bool) -> Silence:
        """Record that an attempt got no answer within the time limit of its caller; return what that means.

        Earlier attempts at the same work are known to be `slow`, though the provider answers other calls.
        """
        out = self._out()
        with self._lock, self._steps:
            queue = self._queue_behind(permit)
            if queue is None or permit.generation != queue.admission.generation:
                return Silence.UNKNOWN
            now = self._enter(queue)
            silence = queue.admission.note_silent(permit, slow, now, self.draw(), out)
            self._note_wait(queue, queue.waiting.count, now)
            to_wake = queue.pump(now, out, threading.get_ident())
        self._act(to_wake, out)
        return silence

    def dequeue(self, waiter: Waiter) -> None:
        """Give up a place in the queue, or an unused permit."""
        if not waiter.is_queued and waiter.permit is None:
            return
        out = self._out()
        to_wake = self._remove(waiter, out)
        if to_wake or out or self._dropped or self._records:
            self._act(to_wake, out)

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
        out = self._out()
        with self._lock, self._steps:
            self.require_own(permit)
            queue = self._queue_behind(permit)
            now = self._enter(queue)
            permit.settled = True
            if queue is not None and permit.generation == queue.admission.generation:
                queue.admission.withdraw(permit, now, out)
            to_wake = self._pump(queue, now, out)
        self._act(to_wake, out)

    def learn(self, permit: Permit, outcome: Outcome) -> None:
        """Learn from the headers of an answer whose body still streams; `settle` follows at its end."""
        out = self._out()
        with self._lock, self._steps:
            now = self.clock()
            queue = self._queue_behind(permit)
            if queue is not None:
                now = now if self._shared is None else self._shared.enter(queue, now)
                before = queue.admission.rejection and in_force(queue.admission.rejection)
                queue.admission.learn(permit, outcome, now, out)
                if before is not None:
                    self._note_rejection(permit.key, before, in_force(queue.admission.rejection))
            to_wake = self._pump(queue, now, out)
        if to_wake or out or self._dropped or self._records:
            self._act(to_wake, out)

    def learn_usage(self, permit: Permit, request_facts: RequestFacts, usage: Usage) -> None:
        """Update the key's cost estimate with the usage of a request of that shape."""
        with self._lock, self._steps:
            queue = self._queue_behind(permit)
            if queue is not None:
                queue.admission.learn_usage(request_facts, usage, self.clock())
        if self._dropped or self._records:
            self._act([], None)

    def count_usage(self, key: Key, window: float, usage: Usage, nanodollars: int | None) -> None:
        """Add an answer of a provider's batch, for which the key has no call, to its totals."""
        with self._lock, self._steps:
            self._queue_of(key, window, self.clock()).tokens.add(usage, nanodollars)
        self._act([], None)

    def count_resent(self, waiter: Waiter, after: Outcome, is_second: bool) -> None:
        """Count a repeated attempt; `after` is the call's last outcome."""
        with self._lock, self._steps:
            waiter.queue.admission.counts.note_resent(after, is_second)
        if self._dropped:
            self._drain()

    def count_given_up(self, waiter: Waiter, outcome: Outcome | None = None) -> None:
        """Count a call that is given up for lack of capacity, after its last `outcome` (None: it had none)."""
        with self._lock, self._steps:
            waiter.queue.admission.counts.note_given_up(outcome)
        if self._dropped:
            self._drain()

    def count_left(self, waiter: Waiter) -> None:
        """Count a call that its caller ended while it was not in flight."""
        with self._lock, self._steps:
            waiter.queue.admission.counts.left += 1
        if self._dropped:
            self._drain()

    def forecast(self, key: Key, cost: Cost | None) -> tuple[QueueForecast, int] | None:
        """Return the forecast of a key for calls of `cost` (None: as those that wait), and its answered attempts.

        Return None for an unknown key.
        """
        with self._lock, self._steps:
            queue = self._queues.get(key)
            if queue is None:
                return None
            mean = queue.mean_cost() if cost is None else cost
            admission = queue.admission
            return queue_forecast(admission, queue.waiting.count, mean, self.clock()), admission.counts.answered

    def closing(self, waiter: Waiter) -> HeadWait:
        """Return the gate that now holds back the queue of a call, and until when."""
        with self._lock, self._steps:
            queue: KeyQueue = waiter.queue
            return queue.closing(self.clock())

    def count_failed(self, waiter: Waiter, outcome: Outcome) -> None:
        """Count a call whose failure is handed back."""
        with self._lock, self._steps:
            waiter.queue.admission.counts.note_failed_call(outcome)
        if self._dropped:
            self._drain()

    def count_replayed(self, waiter: Waiter, outcome: Outcome) -> None:
        """Count a call that gets the answer of another one, `outcome`."""
        with self._lock, self._steps:
            counts = waiter.queue.admission.counts
            counts.note_failed_call(outcome)
            counts.replayed += 1
        if self._dropped:
            self._drain()

    def note_pool(self, key: Key, pool: object, size: int) -> None:
        """Record the connection pool of a client that uses `key`; `size` is its number of connections, 0 if unbounded.

        Calls beyond the pool of a key's only client wait in the queue instead of in the client.
        """
        queue = self._queues.get(key)
        if queue is None or (queue.pools is not None and pool in queue.pools):
            return
        with self._lock, self._steps:
            queue.pools = WeakSet() if queue.pools is None else queue.pools
            queue.pools.add(pool)
            admission = queue.admission
            admission.bound.pool = size if size and len(queue.pools) == 1 else None
            admission.apply_bound()

    def drop(self, permit: Permit, outcome: Outcome = ABANDONED) -> None:
        """Settle a permit from a finalizer: safe at any point of any thread, also inside this registry.

        The interrupted code may hold a listener's lock, so the next step of any call reports the events.
        """
        self._dropped.append((permit, outcome))
        if self._lock.acquire(blocking=False):
            self._lock.release()
            self._drain()

    def emit(self, event: events.Event) -> None:
        """Notify the listeners of an event that needed no lock."""
        self._act([], [event])

    @property
    def listening(self) -> bool:
        """Return whether any listener is subscribed."""
        return bool(self._listeners.all)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event, after the lock is free; return a function that ends the subscription.

        A listener that raises is logged and stays subscribed. Without a listener no event is built.
        """
        with self._lock, self._steps:
            self._listeners.add(listener)
        return partial(self.unsubscribe, listener)

    def unsubscribe(self, listener: Listener) -> None:
        """End a subscription; repeating it does nothing."""
        with self._lock, self._steps:
            self._listeners.remove(listener)

    def intern(self, facts: tuple[object, ...], key: Key, operation: str = "") -> None:
        """Remember the key of requests that share `facts` (without a secret), for up to `Settings.max_keys` entries.

        `operations` has the operation of each key's requests, empty for a key with several.
        """
        if len(self.interned) >= self.settings.max_keys:
            self.interned.clear()
            self.operations.clear()
        self.interned[facts] = key
        self.operations[key] = operation if self.operations.get(key, operation) == operation else ""

    def keep_route(self, facts: tuple[object, ...], route: object) -> None:
        """Remember the route of requests that share `facts` in `routes`, for up to `Settings.max_keys` entries."""
        if len(self.routes) >= self.settings.max_keys:
            self.routes.clear()
        self.routes[facts] = route

    def address(self, name: str) -> str:
        """Return the plain name of a key: an address without its user and query, its credentials as digests."""
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
        """Return a keyed digest of a credential, 16 hexadecimal digits; empty for an empty one."""
        if not credential:
            return ""
        return hashlib.blake2b(credential.encode(), key=self._digest_key, digest_size=8).hexdigest()

    def snapshot(self, keys: Iterable[Key] | None = None) -> RegistrySnapshot:
        """Return the present state of every known key: limits, levels, waiting calls, the closed gate and its opening.

        A gate is one limiter of a key that may hold a call back. `keys` selects some of the keys.
        """
        selected = None if keys is None else list(keys)
        with self._lock, self._steps:
            now, queues = self.clock(), self._queues
            known = queues if selected is None else [key for key in selected if key in queues]
            seen = {key: queues[key].snapshot(now) for key in known}
            accounts = self._accounts.snapshot(now)
        if self._dropped or self._listeners.pending:
            self._act([], None)
        return RegistrySnapshot(seen, accounts)

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
        self._lock = threading.Lock()
        if self._shared is not None:
            self._shared.after_fork(self._lock)
        self.suspension_table.renew_locks()
        self._dropped.clear()
        self._listeners.pending.clear()
        for queue in self._queues.values():
            queue.forget()
            queue.admission.forked()
        self._executors.clear()

    def _out(self) -> list[events.Event] | None:
        return [] if self._listeners.all else None

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
        if self._shared is not None and (shared := self._shared.queue(admission, account, self._executors)) is not None:
            queue = shared
        elif account is not None and isinstance(admission, ModelController):
            queue = ModelQueue(admission, account.queue, self._executors)
        else:
            queue = KeyQueue(admission, self._executors)
        if self._shared is not None:
            queue.unshared_reason = self._shared.take_reason(key)
        if key_hook.on_new_queue is not None and (record := key_hook.on_new_queue(queue)) is not None:
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
        over = len(self._queues) >= self.settings.max_keys
        for key in list(islice(self._queues, 64 if over else 2)):
            queue = self._queues[key]
            if not queue.idle:
                self._queues.move_to_end(key)
            elif over or now - queue.admission.used_at > self.settings.idle_after:
                if (rejection := in_force(queue.admission.rejection)) is not None:
                    self._note_rejection(key, rejection, None, forgotten=True)
                queue.close()
                del self._queues[key]
                over = len(self._queues) >= self.settings.max_keys

    def _enter(self, queue: KeyQueue | None) -> float:
        """Return the time, after what other processes did at a shared key was replayed."""
        now = self.clock()
        return now if self._shared is None else self._shared.enter(queue, now)

    def _remove(self, waiter: Waiter, out: list[events.Event] | None) -> list[Waiter]:
        queue: KeyQueue | None = waiter.queue
        if queue is None:
            return []
        with self._lock, self._steps:
            now = self._enter(queue)
            permit = queue.take(waiter)
            if permit is not None:
                if not permit.settled and permit.generation == queue.admission.generation:
                    queue.withdraw(waiter, permit, now, out)
                return queue.poll(waiter, now, out)
            return queue.dequeue(waiter, now, out)

    def _settle(
        self, permit: Permit, outcome: Outcome, out: list[events.Event] | None, rejoin: Waiter | None = None
    ) -> list[Waiter]:
        queue = self._queue_behind(permit)
        now = self._enter(queue)
        if queue is None or permit.generation != queue.admission.generation:
            permit.settled = True
        elif not permit.settled:
            draw = 0.0 if outcome.kind is OK else self.draw()
            before = queue.admission.rejection and in_force(queue.admission.rejection)
            if self._shared is not None and outcome.kind is OK and queue.admission.at_bound:
                self._at_bound.add(queue)
            queue.admission.settle(permit, outcome, now, draw, out)
            if outcome.usage is not None:
                token_costs.count_usage(queue.tokens, permit.key, outcome.usage)
            limit = queue.admission.concurrency
            if limit.limit >= limit.highest and outcome.kind is OK and queue.admission.bound.may_rise:
                self._at_bound.add(queue)
            if before is not None or queue.admission.rejection is not None:
                self._note_rejection(permit.key, before, in_force(queue.admission.rejection))
            if outcome.kind is not OK:
                self._note_wait(queue, queue.waiting.count + (rejoin is not None), now)
                if self.settings.suspend_models and outcome.kind in REFUSED:
                    self._records.append(partial(self.suspension_table.note_refusal, permit.key, outcome))
        if rejoin is None or rejoin.queue is None:
            return self._pump(queue, now, out)
        to_wake: list[Waiter] = []
        rejection = permit.state.rejection
        if outcome.kind is Kind.DAILY_LIMIT and rejection is not None and rejection.is_unanswerable:
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
        out, to_wake = self._out(), list[Waiter]()
        with self._lock, self._steps:
            queues, self._at_bound = self._at_bound, set()
            for queue in queues if more is not None else ():
                admission = queue.admission
                admission.bound.rise(admission.in_flight + (more or 0))
                admission.apply_bound()
                to_wake += self._pump(queue, now, out)
        self._act(to_wake, out)

    def _queue_behind(self, permit: Permit) -> KeyQueue | None:
        """Return the queue of the key that gave a permit; None if that key was forgotten, as after a fork."""
        queue = self._queues.get(permit.state.key)
        return queue if queue is not None and queue.admission is permit.state else None

    def _pump(self, queue: KeyQueue | None, now: float, out: list[events.Event] | None) -> list[Waiter]:
        if queue is None or not (queue.waiting.count or queue.ready_callbacks or queue.is_shared):
            return []
        return queue.pump(now, out, threading.get_ident())

    def _act(self, to_wake: list[Waiter], out: list[events.Event] | None) -> None:
        """Wake waiters, settle dropped permits and notify listeners, with the lock free."""
        self._wake_all(to_wake, out)
        if self._dropped:
            self._drain()
        while self._records:
            with suppress(IndexError):
                write_record(self._records.popleft())
        if out or self._listeners.pending:
            self._listeners.emit(out or ())

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
        with self._lock, self._steps:
            found = [(key, in_force(queue.admission.rejection)) for key, queue in self._queues.items()]
        return [(key, rejection) for key, rejection in found if rejection is not None]

    def _wake_all(self, to_wake: list[Waiter], out: list[events.Event] | None) -> None:
        dead = [waiter for waiter in to_wake if not wake(waiter)]
        while dead:
            # Its event loop is closed: its place or its permit stays unused.
            dead += [waiter for waiter in self._remove(dead.pop(), out) if not wake(waiter)]

    def _drain(self) -> None:
        while self._dropped:
            out = self._out()
            with self._lock, self._steps:
                try:
                    permit, outcome = self._dropped.popleft()
                except IndexError:
                    return
                to_wake = self._settle(permit, outcome, out)
            if permit.trace is not None:
                permit.trace.deliver()
            self._wake_all(to_wake, out)
            self._listeners.pending.extend(out or ())
