"""Admission and wait queue of one key: permits given, calls that wait, and waiters that a change wakes.

Theory of operation. A gate is one limiter of the key that may hold a call back. Only the head of the wait queue waits
for an instant at which it may be admitted. All other calls wait to be woken, or for a deadline. Every change (`settle`,
`enqueue`, `dequeue`, a timer) ends in `pump`. It admits from the head as many calls as may go, and returns the waiters
to wake. The caller wakes them after it has released the key table's lock. A refused call is the head again. Where it
may be the cause of its refusals, a call that was never sent tests the key in its place.

An executor is an event loop or a thread. Where calls of several executors matter, one call of each looks now and then.
A permit that is not taken within `UNTAKEN_SECONDS` is taken back, and the calls of its executor are passed over until
one of them looks. A call that blocks an event loop's own thread goes beyond the slots at once: the loop's attempts
cannot end before. `tidegate.admission.callers` finds any other loop that holds slots and does not run. Open streams
that nobody reads keep the head waiting for `UNREAD_SECONDS` only: a program may make its next call between two chunks.
"""

from __future__ import annotations

from tidegate.admission.callers import LoopProbe
from tidegate.admission.key_permits import KeyPermits, priced
from tidegate.admission.wait_queue import (
    UNPRICED,
    UNTAKEN_SECONDS,
    ExecutorGroup,
    Waiter,
    executor_of,
)
from tidegate.core.limiter_state import Out, Permit
from tidegate.core.rejection import KeyRejection
from tidegate.core.unheard_members import ABANDONED
from tidegate.core.values import INFINITY, Cost

LOOKS_PER_SECOND = 8
"""Looks of waiting executors a second, at most, together. Raising it wakes many waiting threads more often; lowering it
takes permits back later. Chosen: an eighth of a second is short beside `UNTAKEN_SECONDS`."""

UNREAD_SECONDS = 0.5
"""Seconds without a chunk, after which readers of open streams may wait for the next call. Raising it makes programs
that ask between chunks slower than without tidegate. Lowering it takes slow streams for unread ones, and refuses more
calls. Precedent: openai and anthropic send a refused call again after so many."""


class KeyQueue(KeyPermits):
    """The admission controller and the wait queue of one key."""

    __slots__ = ()

    def enter(self, cost: Cost, now: float) -> Permit | None:
        """Return the permit of a call that may go at once with no call queued before it; else None, without effect."""
        admission = self.admission
        if self.waiting.count or admission.rejection is not None:
            return None
        cost = priced(lambda estimate: cost, admission.estimate, UNPRICED)
        ready, self.gate = admission.ready_at(cost, now)
        if ready > now and admission.released_at((ready, self.gate), cost, now)[0] > now:
            return None
        return admission.admit(cost, now, 0.0, None)

    def enqueue(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Admit a call at once if no call is queued before it and the gates are open; else queue it.

        Return the waiters to wake, never `waiter` itself.
        """
        waiter.joined_at = now
        self.admission.counts.unsent += waiter.is_unsent
        rejection = self.admission.rejection
        if rejection is not None and rejection.reset_at is not None and not rejection.waits(waiter.deadline):
            self._price(waiter)
            if self.admission.admits(waiter.cost, now)[0] <= now:
                self._give_permit(waiter, now, out, beyond=True)
                return []
        if waiter.immediate:
            self._admit_or_refuse_now(waiter, now, out)
            return []
        if not self.waiting.count and self.admission.rejection is None:
            self._price(waiter)
            held = self.admission.ready_at(waiter.cost, now)
            ready, self.gate = self.admission.released_at(held, waiter.cost, now)
            if ready <= now:
                self._give_permit(waiter, now, out)
                return []
        to_wake: list[Waiter] = []
        group = self._join(waiter, now, to_wake)
        to_wake += self.pump(now, out)
        if group.timer_holder is None or group.timer_holder.until is None or waiter.deadline < group.timer_holder.until:
            group.ensure_timer(to_wake)
        if waiter.is_queued and self.gate == "concurrency" and getattr(waiter.waker, "blocks", False):
            self._price(waiter)
            if self.admission.admits(waiter.cost, now, slots=False)[0] <= now:
                # The attempts that hold the slots may be those of the event loop that this call blocks.
                self._admit_beyond(waiter, now, out, to_wake)
        return [each for each in to_wake if each is not waiter]

    def rejoin(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Put a refused call back to its old place; return the waiters to wake. The caller pumps after it."""
        waiter.joined_at = now
        to_wake: list[Waiter] = []
        self._join(waiter, now, to_wake).ensure_timer(to_wake)
        return to_wake

    def poll(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Look on behalf of a waiting call, which shows that its executor runs; return the waiters to wake."""
        group = self.waiting.groups.get(waiter.executor)
        if group is not None:
            self.waiting.restore(group)
            if group.timer_holder is waiter:
                # Its timer has run out, or is about to be set again.
                waiter.until = None
        to_wake = self.pump(now, out)
        group = self.waiting.groups.get(waiter.executor)
        if group is not None:
            self._expire(group, now, to_wake, out)
            group.ensure_timer(to_wake)
        self._note_empty(now)
        return to_wake

    def dequeue(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Take a call out of the queue; return the waiters to wake."""
        group = self.waiting.groups.get(waiter.executor) if waiter.is_queued else None
        if group is None:
            return []
        changed = group.timer_holder is waiter or group.passed_over
        self.waiting.dequeue(waiter)
        self._note_empty(now)
        if not changed:
            return []
        self.waiting.restore(group)
        to_wake = self.pump(now, out)
        group.ensure_timer(to_wake)
        return to_wake

    def forget(self) -> None:
        """Forget waiting calls and permits not taken yet: after a fork they belong to the parent."""
        self.waiting.clear()
        self.callers.clear()
        self.ready_callbacks.clear()
        self._untaken.clear()
        self._probe = None
        self.held.restart(self.admission.used_at)

    def mend(self, now: float, out: Out) -> list[Waiter]:
        """Make consistent again what an interrupt of the program left half done; return the waiters to wake.

        The truth is which calls wait, and which permits are in flight. A permit that no call has is taken back.
        """
        callers, admission = set(self.callers.waiting), self.admission
        ready = {waiter for waiter in callers if waiter.permit is not None}
        answered = {waiter for waiter in callers if waiter.opens_at is not None}
        self._untaken = dict.fromkeys(ready, now)
        admission.untaken = len(ready)
        for waiter in ready | answered:
            waiter.is_queued = False
        self.waiting.rebuild(callers - ready - answered)
        for permit in admission.unowned():
            if permit not in {waiter.permit for waiter in ready}:
                admission.settle(permit, ABANDONED, now, 0.0, out)
        admission.count_lost()
        to_wake = [*ready, *answered, *self.pump(now, out)]
        for group in list(self.waiting.groups.values()):
            group.ensure_timer(to_wake)
        return to_wake

    def pump(self, now: float, out: Out, outside_waiters: int = 0) -> list[Waiter]:
        """Admit calls from the head while the gates are open; return the waiters to wake.

        These are the admitted calls, the expired ones and a new head. `outside_waiters` calls wait outside the queue.
        """
        to_wake: list[Waiter] = []
        waiting, admission = self.waiting, self.admission
        changed_groups: list[ExecutorGroup] = []
        if self._untaken:
            self._reclaim_permits(now, out, outside_waiters, to_wake)
        rejection = admission.rejection
        reset_at = rejection.reset_at if rejection is not None else None
        if rejection is not None and reset_at is not None and self._soonest_deadline < reset_at:
            self._admit_without_time(rejection, now, out, changed_groups, to_wake)
        while (group := waiting.head_group()) is not None:
            head = group.first
            assert head is not None, "an empty group is taken out of the line"
            # Usually the key is not rejected and the head is priced: this saves a function call.
            if rejection is not None or head.priced_version != admission.estimate.version:
                ready, gate = self._ready_at(head, now)
            else:
                ready, gate = admission.ready_at(head.cost, now)
            ready, self.gate = admission.released_at((ready, gate), head.cost, now)
            unread = ready > now and gate == "concurrency" and self._streams_unread(head, now)
            if ready > now and not unread:
                if gate == "concurrency" and self._pass_blocked_loop(group, head, now, out, to_wake):
                    changed_groups.append(group)
                    continue
                # A slot becomes free when an answer arrives: that instant is never certain.
                if (
                    ready > self._soonest_deadline
                    and gate != "concurrency"
                    and self._expire_early(now, ready, changed_groups, to_wake)
                ):
                    continue
                self._plan_look(group.executor, now)
                look_at = admission.look_at(ready, self.gate, now)
                if not self._time_head(group, head, look_at, now, out, to_wake):
                    changed_groups.append(group)
                    continue
                break
            if not head.is_unsent and admission.tests_again:
                head = self._next_test(head, now)
                group = waiting.groups[head.executor]
            beyond = rejection is not None and rejection.in_force and admission.ready_at(head.cost, now)[0] > now
            # Beyond learned slots it is a test of these; beyond a bound there is nothing to learn.
            beyond = beyond or (unread and len(admission.permits_in_flight) >= admission.concurrency.highest)
            # Keep this order: `KeyTable.dequeue` reads `is_queued` first, then `permit`, without the lock.
            self._give_permit(head, now, out, beyond)
            waiting.dequeue(head)
            head.until = None
            if group.timer_holder is None and group.count:
                changed_groups.append(group)
            to_wake.append(head)
        if self.callers.nested and self.gate == "concurrency" and group is not None:
            for nested in self.callers.next_nested(admission.permits_in_flight.values()):
                self._admit_beyond(nested, now, out, to_wake)
        if group is not None and waiting.count:
            self.held.note(self.gate, now)
        else:
            self._note_empty(now)
        for each in changed_groups:
            each.ensure_timer(to_wake)
        if (
            self.ready_callbacks
            and not outside_waiters
            and group is None
            and admission.ready_at(UNPRICED, now)[0] < INFINITY
        ):
            to_wake += self.ready_callbacks.values()
            self.ready_callbacks.clear()
        return to_wake

    def _next_test(self, head: Waiter, now: float) -> Waiter:
        """Return the call that tests the key after the head was refused: one that was never sent, where it may go.

        The head's own request may be the cause of its refusals.
        """
        other = self.waiting.first_unsent()
        return other if other is not None and self._ready_at(other, now)[0] <= now else head

    def _note_empty(self, now: float) -> None:
        """Record that no gate holds a call, where none waits, or all wait for their executor to run."""
        if self.held.gate and self.waiting.head_group() is None:
            self.held.note("", now)

    def _admit_beyond(self, waiter: Waiter, now: float, out: Out, to_wake: list[Waiter]) -> None:
        """Admit a queued call beyond the slots."""
        self._give_permit(waiter, now, out, beyond=True)
        self.waiting.dequeue(waiter)
        to_wake.append(waiter)

    def _time_head(
        self,
        group: ExecutorGroup,
        head: Waiter,
        ready: float,
        now: float,
        out: Out,
        to_wake: list[Waiter],
    ) -> bool:
        """Set the timer of the head's group; return False where deadlines have passed and calls were taken out."""
        look_at = self.waiting.look_at
        if (
            now < self._soonest_deadline
            and ready == INFINITY
            and group.timer_holder is head
            and head.until
            and head.until <= look_at
        ):
            # No deadline has passed, and the head's timer is set for the next one.
            return True
        earliest = group.earliest()
        deadline = earliest.deadline if earliest is not None else INFINITY
        if deadline <= now:
            self._expire(group, now, to_wake, out)
            return False
        if group.timer_holder is not head or head.until != min(ready, deadline, look_at):
            group.set_timer(ready, to_wake)
        return True

    def _admit_without_time(
        self, rejection: KeyRejection, now: float, out: Out, changed_groups: list[ExecutorGroup], to_wake: list[Waiter]
    ) -> None:
        """Admit queued calls whose deadlines come before the named reset: only other calls wait for that."""
        if self._released_order == rejection.order:
            return
        self._released_order, soonest = rejection.order, INFINITY
        for waiter in list(self.waiting.in_order()):
            if not rejection.waits(waiter.deadline):
                self._price(waiter)
                if self.admission.admits(waiter.cost, now)[0] <= now:
                    self._give_permit(waiter, now, out, beyond=True)
                    self._remove(waiter, changed_groups)
                    to_wake.append(waiter)
                    continue
            soonest = min(soonest, waiter.deadline)
        self._soonest_deadline = soonest

    def _expire_early(
        self, now: float, ready: float, changed_groups: list[ExecutorGroup], to_wake: list[Waiter]
    ) -> bool:
        """Take out the calls whose gate certainly opens only after their deadline; return whether there was any.

        The head may go at `ready`, so calls with a later deadline stay.
        """
        if not self.admission.certain(self.gate):
            return False
        expired, soonest = False, INFINITY
        for group in list(self.waiting.groups.values()):
            while (first := group.earliest()) is not None:
                opens, gate = self._ready_at(first, now) if now < first.deadline < ready else (now, "")
                if not first.deadline < opens < INFINITY or not self.admission.certain(gate):
                    soonest = min(soonest, first.deadline)
                    break
                self._remove(first, changed_groups)
                first.opens_at = opens
                to_wake.append(first)
                expired = True
        self._soonest_deadline = soonest
        return expired

    def _remove(self, waiter: Waiter, changed_groups: list[ExecutorGroup]) -> None:
        """Take a call out of the queue; the caller then keeps the timer of its group, appended to `changed_groups`."""
        group = self.waiting.groups[waiter.executor]
        self.waiting.dequeue(waiter)
        waiter.until = None
        changed_groups.append(group)

    def _join(self, waiter: Waiter, now: float, to_wake: list[Waiter]) -> ExecutorGroup:
        """Put a call into the queue and return its group; pass over the calls of an event loop that it blocks."""
        waker, waiting = waiter.get_waker(), self.waiting
        if waiter.executor is None:
            waiter.executor = executor_of(waker)
        self.callers.add(waiter)
        self.callers.replace_twin(waiter, waiting, now)
        self._soonest_deadline = min(self._soonest_deadline, waiter.deadline) if waiting.count else waiter.deadline
        if getattr(waker, "blocks", False):
            thread = getattr(waker, "thread", 0)
            for other in waiting.groups.values():
                if other.first is not None and getattr(other.first.waker, "thread", 0) == thread:
                    self._pass_over(other, to_wake)
        group = waiting.enqueue(waiter)
        waiting.restore(group)
        self._plan_look(waiter.executor, now)
        return group

    def _others_wait(self, executor: object, outside_waiters: int) -> bool:
        """Return whether calls of executors other than `executor` wait that are not passed over."""
        group = self.waiting.groups.get(executor)
        return self.waiting.active_groups + outside_waiters > (group is not None and group.entry is not None)

    def _reclaim_permits(self, now: float, out: Out, outside_waiters: int, to_wake: list[Waiter]) -> None:
        """Take back the permits that were not taken in time, if a call of another executor waits."""
        while self._untaken:
            waiter, given_at = next(iter(self._untaken.items()))
            late = now >= given_at + UNTAKEN_SECONDS
            if waiter.executor is None or not late or not self._others_wait(waiter.executor, outside_waiters):
                return
            permit = self.take(waiter)
            if permit is not None and not permit.settled and permit.generation == self.admission.generation:
                self.withdraw(waiter, permit, now, out)
            self.callers.add(waiter)
            self._pass_over(self.waiting.enqueue(waiter), to_wake)

    def _pass_over(self, group: ExecutorGroup, to_wake: list[Waiter]) -> None:
        """Pass over the calls of a group until one looks; wake the first, so that it looks when its executor runs."""
        first = group.first
        if first is not None and not group.passed_over:
            self.waiting.pass_over(group)
            if group.timer_holder is not None:
                group.timer_holder.until = None
            group.timer_holder = first.until = None
            to_wake.append(first)

    def _pass_blocked_loop(
        self, group: ExecutorGroup, head: Waiter, now: float, out: Out, to_wake: list[Waiter]
    ) -> bool:
        """Admit the head beyond slots that a blocked event loop holds, or pass over that loop's calls.

        Return whether either was done. A slot of a thread, or of the head's own loop, is waited for: that attempt ends.
        A call that was refused first waits `UNTAKEN_SECONDS`. An attempt of a closed loop never ends: its slot is free.
        """
        admission, probe = self.admission, self._probe
        flying = admission.permits_in_flight.values()
        oldest = next(iter(flying), None)
        loop = oldest.loop if oldest is not None else None
        if oldest is not None and getattr(loop, "is_closed", bool)():
            admission.settle(oldest, ABANDONED, now, 0.0, out)
            return True
        if oldest is None or loop is None or (loop is group.executor and self.waiting.active_groups < 2):
            self._probe = None
        elif probe is None or probe.attempt is not oldest or probe.answered:
            if now >= admission.used_at + UNTAKEN_SECONDS:
                self._probe = LoopProbe(oldest, now)
                to_wake.append(self._probe)
        elif now >= probe.sent_at + UNTAKEN_SECONDS:
            if loop is group.executor:
                self._pass_over(group, to_wake)
                return True
            if (
                (head.is_unsent or now >= head.joined_at + UNTAKEN_SECONDS)
                and not self._untaken
                and all(each.loop not in (None, group.executor) for each in flying if each.thread)
                and admission.admits(head.cost, now, slots=False)[0] <= now
            ):
                self._admit_beyond(head, now, out, to_wake)
                to_wake.append(probe)
                return True
        return False

    def _streams_unread(self, head: Waiter, now: float) -> bool:
        """Return whether the head goes although no slot is free: open streams hold all of them, and nobody reads these.

        Their readers may wait for this very call: programs ask again between two chunks. A stream whose server is
        silent looks the same. So one call goes in `UNREAD_SECONDS`, and fewer the more are beyond a bound.
        """
        admission, size, beyond = self.admission, 0, 0
        if not admission.permits_in_flight:
            # Other processes hold the slots.
            return False
        # The newest first: of those the answer has rarely begun.
        for permit in reversed(admission.permits_in_flight.values()):
            if not permit.learned:
                return False
            size += len(getattr(permit, "seen", None) or ())
            beyond += permit.beyond
        if size != self._read[0]:
            self._read = (size, now)
        since = max(self._read[1], admission.used_at)
        return (
            now >= since + UNREAD_SECONDS * (1 + beyond)
            and not self._untaken
            and admission.admits(head.cost, now, slots=False)[0] <= now
        )

    def _plan_look(self, executor: object, now: float) -> None:
        """Set when each group looks at the latest: other executors than its own may not run, or a stream is not read.

        `executor` is that of the head.
        """
        waiting, count = self.waiting, len(self.waiting.groups)
        oldest = next(iter(self.admission.permits_in_flight.values()), None)
        streams = oldest is not None and oldest.learned
        alone = count < 2 and not streams
        if alone and self._untaken:
            alone = next(iter(self._untaken)).executor is executor
        if alone and oldest is not None:
            alone = oldest.loop in (None, executor)
        patience = UNREAD_SECONDS if streams else UNTAKEN_SECONDS
        waiting.look_at = INFINITY if alone else now + max(patience, count / LOOKS_PER_SECOND)

    def _expire(self, group: ExecutorGroup, now: float, to_wake: list[Waiter], out: Out) -> None:
        """Take out the calls of a group whose deadline has passed; admit those that `_held_by_slow_start` names."""
        while (first := group.earliest()) is not None and first.deadline <= now:
            if self._held_by_slow_start(first, now):
                self._give_permit(first, now, out, beyond=True)
            self.waiting.dequeue(first)
            first.until = first.deadline
            to_wake.append(first)
