"""Table of the key queues of a process, under one lock, and the steps of a call at its queue.

Theory of operation. Every step takes the lock for a few microseconds, makes the core decide, and returns. Waiters are
woken, listeners notified and log records written after the lock is released. There is no background thread and no
polling. The base class in `tidegate.admission.steps` runs a step, and then wakes, notifies and writes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from threading import get_ident

from tidegate.admission.callers import warn_of_blocking
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.known_keys import KnownKeys
from tidegate.admission.process import MEASURE_EVERY, measure
from tidegate.admission.steps import nothing
from tidegate.admission.wait_queue import UNPRICED, Waiter
from tidegate.core import events
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.limiter_state import KeyCounts, Out, Permit
from tidegate.core.rejection import is_final
from tidegate.core.unheard_members import ABANDONED
from tidegate.core.values import INFINITY, OK, Key, Kind, Outcome, RequestFacts, Silence, Usage
from tidegate.core.wait_text import HeadWait
from tidegate.errors import PermitMisuse
from tidegate.providers import count_usage

logger = logging.getLogger("tidegate")


class KeyTable(KnownKeys):
    """The key queues of a process, and the steps of a call at its queue."""

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
                    queue = self._queues.get(key)
                    if queue is None:
                        queue = self._queue_of(key, window, now)
                    else:
                        self._queues.move_to_end(key)
                    if self._shared is not None:
                        now = self._shared.enter(queue, now)
                    waiting, admission = queue.waiting, queue.admission
                    try:
                        cost = call.price(admission.estimate)
                    except Exception:
                        cost = UNPRICED
                    permit = None if waiting.count else admission.enter(cost, now)
                    if permit is None:
                        permit = queue.enter(cost, now)
                    if permit is not None:
                        permit.place = waiting.next_place()
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
                    if permit.settled or permit.state.home is not self._identity:
                        self.require_own(permit)
                    failed = outcome.kind is not OK and outcome.kind is not Kind.ABANDONED and not is_counted
                    if failed and permit.generation == permit.state.generation:
                        permit.state.counts.note_failed_call(outcome)
                    to_wake = self._settle(permit, outcome, out, rejoin)
                    if rejoin is not None:
                        to_wake = [waiter for waiter in to_wake if waiter is not rejoin]
                        if permit.state.aside or is_final(outcome, permit.state.rejection):
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
        state = permit.state
        if state.calm_slots and permit.epoch == state.epoch and not outcome.readings:
            # At a calm key only the order of the answers is new.
            permit.learned = True
            state.answered_order = max(state.answered_order, permit.order)
            return

        def step(out: Out) -> tuple[list[Waiter], None]:
            queue = self._queue_behind(permit)
            now = self._enter(queue)
            if queue is not None:
                queue.admission.learn(permit, outcome, now, out)
            return self._pump(queue, now, out), None

        self._step(step, nothing)

    def learn_usage(self, permit: Permit, request_facts: RequestFacts, usage: Usage) -> None:
        """Update the key's cost estimate with the usage of a request of that shape."""

        def step(out: Out) -> tuple[list[Waiter], None]:
            queue = self._queue_behind(permit)
            if queue is not None and queue.admission.calm_slots:
                # No other process hears of a calm key.
                queue.admission.estimate.learn(request_facts, usage)
            elif queue is not None:
                queue.admission.learn_usage(request_facts, usage, self.clock())
            return [], None

        self._step(step, nothing)

    def drop(self, permit: Permit, outcome: Outcome = ABANDONED) -> None:
        """Settle a permit from a finalizer: safe at any point of any thread, also inside this registry.

        The interrupted code may hold any lock, so the next step of any call does it, and reports the events.
        """
        if not permit.settled:
            self._defer(partial(self._settle_dropped, permit, outcome), self._queues.get(permit.key))

    def count(self, waiter: Waiter, note: Callable[[KeyCounts], object]) -> None:
        """Count how a call, or an attempt of it, ends."""
        self._apply(lambda: note(waiter.queue.admission.counts))

    def count_left(self, waiter: Waiter) -> None:
        """Count a call that its caller ended while it was not in flight; safe in a finalizer."""

        queue: KeyQueue | None = waiter.queue
        if queue is None:
            return
        counts = queue.admission.counts

        def rest(out: Out) -> list[Waiter]:
            counts.left += 1
            return []

        self._deferred.append(rest)

    def note_aside(self, waiter: Waiter, change: int) -> None:
        """Note that a call begins (1) or ends (-1) to wait outside its queue; safe in a finalizer."""
        queue: KeyQueue | None = waiter.queue

        if queue is not None:
            waiting = queue.waiting

            def rest(out: Out) -> list[Waiter]:
                waiting.put_aside(change)
                return []

            self._deferred.append(rest)
        if change > 0:
            # No finalizer begins a wait.
            self._drain()

    def closing(self, waiter: Waiter) -> HeadWait:
        """Return the gate that now holds back the queue of a call, and until when."""
        queue: KeyQueue | None = waiter.queue
        unknown = HeadWait("", None)
        if queue is None:
            return unknown
        return self._step(lambda out: ([], queue.closing(self.clock())), lambda: unknown)

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
        if queue is None or permit.generation != state.generation:
            permit.settled = True
        elif not permit.settled:
            admission, is_good = queue.admission, outcome.kind is OK
            if outcome.usage is not None:
                # Before the end of the attempt, with which shared counts write both at once.
                count_usage(queue.tokens, state.key[0], outcome.usage)
            if not (is_good and out is None and admission.answer(permit, outcome, now)):
                if self._shared is not None and is_good and admission.at_bound:
                    self._at_bound.add(queue)
                admission.settle(permit, outcome, now, 0.0 if is_good else self.draw(), out)
                limit = admission.concurrency
                if is_good and limit.limit >= limit.highest and admission.bound.may_rise:
                    self._at_bound.add(queue)
                if not is_good:
                    self._note_wait(queue, queue.waiting.count + (rejoin is not None), now)
        if rejoin is None or rejoin.queue is None or permit.state.aside:
            if queue is None or not (queue.waiting.count or queue.ready_callbacks or queue.is_shared):
                return []
            return queue.pump(now, out)
        if is_final(outcome, permit.state.rejection):
            return self._pump(queue, now, out)
        return [*rejoin.queue.rejoin(rejoin, now, out), *self._pump(queue, now, out)]

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
