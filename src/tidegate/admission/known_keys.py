"""Keys that a registry knows: their names, their queues, made with what an earlier run learned, and their state.

A key that nothing uses is forgotten. All methods take the lock of the table, but for those that only look names up.
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
from typing import Any, TypeVar
from weakref import WeakSet

from tidegate.admission import hooks, process, redaction
from tidegate.admission.accounts import AccountTable, ModelQueue, SharingModels
from tidegate.admission.key_log import WaitLog
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.saved_state import Seeds
from tidegate.admission.shared_keys import SharedKeys
from tidegate.admission.steps import Listener, StepTable, nothing
from tidegate.admission.wait_queue import Waiter
from tidegate.core import saved_state
from tidegate.core.admission_controller import AccountController, AdmissionController, ModelController
from tidegate.core.limiter_state import Out
from tidegate.core.safe_text import masked
from tidegate.core.snapshot import RegistrySnapshot, queue_forecast
from tidegate.core.values import Cost, Key, Usage
from tidegate.core.wait_text import QueueForecast
from tidegate.settings import Settings
from tidegate.shared_log import text_of
from tidegate.shared_log.carrier import Carrier

MAX_REGISTRY_KEYS = 4096
KEY_IDLE_SECONDS = 3600.0
"""Keys of one registry at most, and seconds after which an idle one is forgotten. Raising them takes more memory.
Chosen: more keys than a program has models and credentials, and the longest window but a day's."""

logger = logging.getLogger("tidegate")


T = TypeVar("T")


def today() -> datetime:
    return datetime.now(UTC)


def _looked(
    look: Callable[[Key, float], T | None], name: Key, clock: Callable[[], float], out: Out
) -> tuple[list[Waiter], T | None]:
    return [], look(name, clock())


class KnownKeys(StepTable):
    """The key queues of a process, by their keys, and what names the keys.

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

    def count_usage(self, key: Key, window: float, usage: Usage, nanodollars: int | None) -> None:
        """Add an answer of a provider's batch, for which the key has no call, to its totals."""

        def count() -> None:
            queue = self._queue_of(key, window, self.clock())
            queue.tokens.add(usage, nanodollars)
            queue.admission.counts.save()

        self._apply(count)

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

        A gate is one limiter of a key that may hold a call back. `keys` selects some of the keys. Each key is read at
        an instant of its own, so that the calls of other keys never wait for all of them.
        """
        selected = None if keys is None else list(keys)
        self.catch_up()
        known, accounts = self._step(lambda out: ([], ([*self._queues], self._accounts.names())), lambda: ([], []))
        queues = self._queues
        return RegistrySnapshot(
            self._states(
                known if selected is None else selected,
                lambda key, now: queues[key].snapshot(now) if key in queues else None,
            ),
            self._states(accounts, self._accounts.snapshot),
        )

    def _states(self, names: list[Key], look: Callable[[Key, float], T | None]) -> dict[Key, T]:
        """Return what `look` says about each name, None left out; each look is one step."""
        states = ((name, self._step(partial(_looked, look, name, self.clock), nothing)) for name in names)
        return {name: state for name, state in states if state is not None}

    def before_fork(self) -> None:
        """Wait until the current step ends, so that the child finds nothing half done."""
        self._lock.acquire()
        if self._shared is not None:
            self._shared.before_fork()

    def after_fork_in_parent(self) -> None:
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
                queue.close()
                del self._queues[key]
                over = len(self._queues) >= MAX_REGISTRY_KEYS

    def _note_wait(self, queue: KeyQueue, waiting: int, now: float) -> None:
        """Note for the log that calls wait for the end of a cooldown or an outage, where such a record is due."""
        if self.settings.log:
            queue.wait_log = queue.wait_log or WaitLog()
            record = queue.wait_log.look(queue.admission, waiting, self.settings.max_wait, now)
            if record is not None:
                self._records.append(partial(logger.log, record.level, "%s %s", queue.admission.key, record.text))
