"""Rate limit registry: the public operations on a process's key queues, and the default registry."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from tidegate.admission import hooks
from tidegate.admission.arguments import checked_cost
from tidegate.admission.callers import ReadyCallback
from tidegate.admission.drive import adrive, drive
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.key_table import KeyTable
from tidegate.admission.known_keys import today
from tidegate.admission.saved_state import MAX_KEYS, LearnedKey, LearnedState
from tidegate.admission.steps import next_call_number
from tidegate.admission.wait_queue import UNTAKEN_SECONDS, Waiter
from tidegate.core import events
from tidegate.core.circuit_breaker import AVAILABLE, KeyOutage
from tidegate.core.limiter_state import Out, Permit
from tidegate.core.saved_state import SavedKey, export, export_quotas
from tidegate.core.values import INFINITY, Cost, Key, Outcome
from tidegate.core.window_bounds import DEFAULT_WINDOW_SECONDS
from tidegate.errors import ConfigurationError
from tidegate.providers import load_prices
from tidegate.settings import Settings
from tidegate.shared_log import AUTO, carrier_of
from tidegate.shared_log.carrier import Carrier, Unshared, Unsupported

T = TypeVar("T")

logger = logging.getLogger("tidegate")


class NotReady:
    """Negative answer of `try_admit`: the call cannot go now. It is false.

    `ready_at` is in monotonic seconds, and `gate` names the closed gate: the limiter that holds the call back. `stated`
    says that the provider has named `ready_at`; else it is an estimate. Other calls wait before it if it is `queued`.
    `rejection` is the newest answer by which the provider rejects the key; None where it rejects no key.
    """

    __slots__ = ("gate", "queued", "ready_at", "rejection", "stated")

    def __init__(
        self,
        ready_at: float,
        gate: str,
        stated: bool = False,
        queued: bool = False,
        rejection: Outcome | None = None,
    ) -> None:
        self.rejection = rejection
        self.queued = queued
        self.ready_at = ready_at
        self.gate = gate
        self.stated = stated

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"NotReady(ready_at={self.ready_at:.3f}, gate={self.gate!r})"


def _show_process(queue: Any) -> Callable[[], object] | None:
    """Share the counts of the first key, and of all later ones, with `tidegate status`; return the record of a failure.

    The key table's lock is held: no handler of the log may run here.
    """
    hooks.on_new_queue = None
    if os.name != "posix":
        return None
    try:
        from tidegate.launch.process_status import own_counters

        counters = own_counters()
        if counters is not None:
            counters.track(queue)
            hooks.on_new_queue = counters.track
    except Exception as error:
        # The call of the program must not fail.
        text = "process not shown in `tidegate status`: %s: %s; it runs on"
        return partial(logger.warning, text, type(error).__name__, error)
    return None


SHARE = "TIDEGATE_SHARE"

_told_unshared: set[str] = set()


def _carrier(settings: Settings) -> Carrier | None:
    """Return the carrier that the settings ask for; None, with one warning, where its folder cannot be used.

    The environment decides for settings that a program made without a word on sharing.
    """
    if "share" not in settings.model_fields_set:
        settings = Settings.from_environment({SHARE: os.environ.get(SHARE, "")})
    try:
        return carrier_of(settings.share)
    except Unsupported as error:
        if settings.share != AUTO:
            _warn_unshared(error)
    except Unshared as error:
        _warn_unshared(error)
    return None


def _warn_unshared(error: Unshared) -> None:
    if str(error) not in _told_unshared:
        _told_unshared.add(str(error))
        logger.warning("limits not shared: %s; this process decides alone", error)


class RateLimitRegistry(KeyTable):
    """The admission states of a process, one per key, shared by every thread, event loop and trio run.

    `settings` defaults to the environment's. `clock` returns monotonic seconds, `draw` uniform numbers in [0, 1), and
    `calendar` the aware current time. `carrier` keeps the logs by which keys are shared with other processes. By
    default it is the one that `Settings.share` names; a registry with a clock of its own has none.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
        calendar: Callable[[], datetime] = today,
        carrier: Carrier | None = None,
    ) -> None:
        settings = settings if settings is not None else Settings.from_environment()
        if settings.prices is not None:
            load_prices(settings.prices)
        own: Carrier | None = None
        if carrier is None and clock is time.monotonic and not settings.disabled:
            # Only the machine's clock is that of other processes.
            own = _carrier(settings)
        super().__init__(settings, clock, draw, calendar, carrier or own)
        if own is not None:
            weakref.finalize(self, own.close)
        if self.settings.telemetry:
            from tidegate.telemetry.activation import watch_for_sdk

            watch_for_sdk(self)
        # A clock of its own is not the one by which another process reads the counts.
        if self.settings.status and not self.disabled and clock is time.monotonic and hooks.on_new_queue is None:
            hooks.on_new_queue = _show_process

    def __repr__(self) -> str:
        seen = self.snapshot()
        facts = {"keys": len(seen.keys), "calls": seen.calls, "in_flight": seen.in_flight, "waiting": seen.waiting}
        return f"RateLimitRegistry({', '.join(f'{name}={number}' for name, number in facts.items())})"

    def wrap(self, client: T, *, max_wait: float | None = None, priority: int = 0) -> T:
        """Return the same client, governed by this registry; see `tidegate.wrap`."""
        from tidegate.transports.sdks import attach

        return attach(client, self, max_wait, priority)

    def export_state(self) -> LearnedState:
        """Return the knowledge of every key, frozen, for `Settings.initial_state` of a later run, or for a file.

        It holds digests of credentials only where `Settings.digest_key` was given.
        """

        def step(out: Out) -> tuple[list[Waiter], dict[Key, SavedKey]]:
            now = self.clock()
            taken = {key: export(queue.admission, now) for key, queue in self._queues.items()}
            for key, account in self._accounts.controllers():
                taken[key] = SavedKey(export_quotas(account.quotas, now), {})
            return [], taken

        taken = self._step(step, dict[Key, SavedKey])
        today, told = self._calendar(), bool(self._digests)
        keys = [LearnedKey.of(key, each, today, told) for key, each in taken.items() if each.quotas or each.gates]
        return LearnedState(digests=self._digests, keys=tuple(keys[-MAX_KEYS:]))

    def try_admit(
        self, key: Key, cost: Cost | None = None, *, wake: Callable[[], object] | None = None
    ) -> Permit | NotReady:
        """Return a permit if `key` admits the call at once and no call waits before it; else return `NotReady`.

        The method never blocks and never queues. `NotReady.ready_at` is in seconds of the registry's clock, infinity
        where an attempt in flight must end first. The holder of the permit must `settle` it, or hand it down
        (`tidegate.admission.handoff.hand_off`).

        On `NotReady`, `wake` is called once, from any thread, when a change may admit the call before `ready_at`. It
        must not block or raise. Raise `ConfigurationError` for an unusable `cost`, or a `key` that is no `Key`.
        """
        cost = checked_cost(cost)
        if not isinstance(key, Key):
            raise ConfigurationError("key", key, "a tidegate.Key")

        def step(out: Out) -> tuple[list[Waiter], Permit | NotReady]:
            now = self.clock()
            queue = self._queue_of(key, DEFAULT_WINDOW_SECONDS, now)
            now = now if self._shared is None else self._shared.enter(queue, now)
            to_wake, answer = self._admit_or_refuse(queue, cost, now, out)
            if wake is not None and not answer:
                queue.ready_callbacks.setdefault(wake, ReadyCallback(wake))
            return to_wake, answer

        return self._step(step, lambda: NotReady(self.clock() + UNTAKEN_SECONDS, "queue", queued=True))

    def _admit_or_refuse(
        self, queue: KeyQueue, cost: Cost, now: float, out: list[events.Event] | None
    ) -> tuple[list[Waiter], Permit | NotReady]:
        """Return the waiters to wake, and the answer of `try_admit`."""
        admission = queue.admission
        to_wake: list[Waiter] = []
        if queue.waiting.count or admission.untaken or queue.is_shared:
            to_wake = queue.pump(now, out, outside_waiters=1)
        ready, gate = admission.ready_at(cost, now)
        stated = gate.startswith("quota") or ready <= admission.unavailability.stated_until
        head, rejection = queue.waiting.head(), admission.rejection
        opens = now if rejection is None else rejection.rests_until(now)
        if rejection is not None and opens > now:
            refusal = NotReady(opens, rejection.gate, rejection.waits(INFINITY), rejection=rejection.outcome)
        elif head is not None:
            first, _ = admission.ready_at(head.cost, now)
            refusal = NotReady(max(ready, first), gate or "queue", bool(gate) and stated, queued=True)
        elif ready > now:
            refusal = NotReady(ready, gate, stated and ready < INFINITY)
        else:
            permit = admission.admit(cost, now, 0.0, out, call=0 if out is None else next_call_number())
            permit.thread = threading.get_ident()
            return to_wake, permit
        queue.note_asked(cost, refusal.ready_at, refusal.gate, now)
        # Permits that other calls do not take are taken back then.
        refusal.ready_at = min(admission.look_at(refusal.ready_at, refusal.gate, now), queue.next_reclaim_at(now))
        return to_wake, refusal

    def unavailable(self, key: Key) -> KeyOutage:
        """Return for how long `key` has answered no call, and why; zero seconds for an unknown key."""

        def step(out: Out) -> tuple[list[Waiter], KeyOutage]:
            queue = self._queues.get(key)
            return [], queue.admission.unavailable(self.clock()) if queue is not None else AVAILABLE

        return self._step(step, lambda: AVAILABLE)

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
        """Return the result of `call()` once `key` admits it; retry it as needed.

        Capacity refusals cost no attempt: the call returns to the head of its queue. Transient failures get
        three attempts with full jitter. Any other exception is raised at once, unchanged. `key`
        may be a plain name. A higher `priority` goes first within a key.

        Raise `DeadlineExceeded` if `max_wait` seconds pass before the first attempt. A call that was refused until then
        raises (or returns) the provider's last refusal. Raise `ConfigurationError` for an unusable argument.
        """
        from tidegate.admission.call import FunctionCall

        if iscoroutinefunction(call):
            raise ConfigurationError("call", call, "a function that returns its result; `aexecute` awaits coroutines")
        governed = FunctionCall(
            self, key, call, cost, get_headers, is_rate_limited, get_retry_after, max_wait, priority
        )
        result: T = drive(governed)
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
        """Return a coroutine that returns the result of `await call()`; otherwise act as `execute`."""
        from tidegate.admission.call import FunctionCall

        # No additional coroutine: a hundred thousand calls may wait.
        governed = FunctionCall(
            self, key, call, cost, get_headers, is_rate_limited, get_retry_after, max_wait, priority
        )
        return adrive(governed)


# A signal handler may make a call inside the first one.
_lock = threading.RLock()
_registry: RateLimitRegistry | None = None


def registry() -> RateLimitRegistry:
    """Return the default `RateLimitRegistry` of this process; its settings come from the environment at first use."""
    global _registry
    with _lock:
        if _registry is None:
            made = RateLimitRegistry()
            if _registry is None:
                _registry = made
        return _registry
