"""Admission and wait queue of one key: permits given, calls that wait, and waiters that a change wakes.

Theory of operation. A gate is one limiter of the key that may hold a call back. Only the head of the wait queue waits
for an instant at which it may be admitted. All other calls wait to be woken, or for a deadline. Every change (`settle`,
`enqueue`, `dequeue`, a timer) ends in `pump`. It admits from the head as many calls as may go, and returns the waiters
to wake. The caller wakes them after it has released the key table's lock.

An executor is an event loop or a thread. Nothing depends on the head's executor alone. If several executors wait, a few
others *watch*: they look `PATIENCE` seconds after the head had to look, or a permit had to be taken. A permit that was
not taken is taken back, and its executor is passed over until it runs again. Each executor keeps the timer for its
calls' deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from weakref import WeakSet

from tidegate.admission.callers import Callers
from tidegate.admission.executors import PATIENCE, Executor, ExecutorTable
from tidegate.admission.loop_monitor import LoopMonitor
from tidegate.admission.wait_log import WaitLog
from tidegate.admission.wait_queue import UNPRICED, ExecutorGroup, Price, ReadyCallback, Waiter, WaitQueue, priced
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.limiter_state import Out, Permit
from tidegate.core.provenance import MINUTE
from tidegate.core.rejection import KeyRejection
from tidegate.core.safe_capacity import ABANDONED
from tidegate.core.snapshot import UNSHARED, HeadWait, KeySnapshot, Sharing, cause_of, key_snapshot, latest_pause
from tidegate.core.token_totals import TokenCounter
from tidegate.core.values import INFINITY, Cost

SAMPLE = 256
"""Queued calls whose cost `mean_cost` reads, at most. Raising it makes each snapshot of a long queue slower. Chosen: a
mean of this many is right within a few per cent."""

WATCHERS = 8
"""Executors other than the head's that keep a timer, at most. Raising it lets the queue pass more executors that stall
at once, and costs more timers. Chosen: while the queue moves, each looks only about once in `PATIENCE` seconds times
its number."""


class KeyQueue:
    """The admission controller and the wait queue of one key.

    `ready_callbacks` holds callbacks of `try_admit`; `gate` was closed last. `pools` are the connection pools of the
    clients that use the key, as far as they are known. `wait_log` exists after the first failed attempt. `callers` are
    the calls that wait. `is_shared`: steps here may admit calls of other keys, which share quotas with this one. `log`
    is that of the key where other processes share its limits (`admission.shared_keys.LogSession`).
    """

    __slots__ = (
        "_ahead_elsewhere",
        "_monitor",
        "_released_order",
        "_soonest_deadline",
        "_untaken",
        "_untaken_of_several",
        "_watchers",
        "admission",
        "callers",
        "executors",
        "gate",
        "log",
        "pools",
        "ready_callbacks",
        "tokens",
        "unshared_reason",
        "wait_log",
        "waiting",
    )

    is_shared = False

    def __init__(self, admission: AdmissionController, executors: ExecutorTable | None = None) -> None:
        self.admission = admission
        self.executors = executors if executors is not None else ExecutorTable()
        self.waiting = WaitQueue()
        self.gate = ""
        self.pools: WeakSet[Any] | None = None
        self.ready_callbacks: dict[Callable[[], object], ReadyCallback] = {}
        self.callers = Callers()
        # Calls with a permit that they have not taken yet, and its instant.
        self._untaken: dict[Waiter, float] = {}
        # Whether these calls may be of more than one executor.
        self._untaken_of_several = False
        self._watchers: list[ExecutorGroup] = []
        # No queued call has an earlier deadline.
        self._soonest_deadline = INFINITY
        # Number of the attempt whose rejection named the newest reset.
        self._released_order = 0
        self._monitor = LoopMonitor(admission, self.executors)
        self.wait_log: WaitLog | None = None
        self.tokens = TokenCounter()
        self.unshared_reason = ""
        self.log: Any = None
        # Calls at other keys that are ahead since an executor was passed over.
        self._ahead_elsewhere: list[Waiter] = []

    @property
    def sharing(self) -> Sharing:
        """Return the number of processes that share the key's limits, and by what; for none perhaps a reason."""
        if self.log is not None:
            sharing: Sharing = self.log.sharing
            return sharing
        return Sharing(lost=self.unshared_reason) if self.unshared_reason else UNSHARED

    @property
    def idle(self) -> bool:
        """Return whether no call waits and no attempt is in flight."""
        return not self.waiting.count and not self.admission.permits_in_flight

    def snapshot(self, now: float) -> KeySnapshot:
        """Return the state of the key at `now`."""
        head = self.waiting.head()
        first, tokens = head.cost if head is not None else UNPRICED, self.tokens.totals
        return key_snapshot(self.admission, self.waiting.length, first, self.mean_cost(), now, self.sharing, tokens)

    def closing(self, now: float) -> HeadWait:
        """Return the gate that holds back one more request at `now`, and until when."""
        ready, gate = self.admission.ready_at(UNPRICED, now)
        rejection = self.admission.rejection
        if rejection is not None and rejection.opens_at(now) > ready:
            ready, gate = rejection.opens_at(now), rejection.gate
        pause = latest_pause(self.admission)
        stated = pause.stated if gate == "pause" and pause.stated_for(now) else 0.0
        opens = None if ready == INFINITY else max(0.0, ready - now)
        return HeadWait(gate, opens, stated, cause_of(self.admission, gate))

    def mean_cost(self) -> Cost:
        """Return the mean cost of the first `SAMPLE` waiting calls; one request if none waits."""
        total, count = [0.0] * len(UNPRICED), 0
        for waiter in islice(self.waiting.in_order(), SAMPLE):
            self._price(waiter)
            total = [sum(pair) for pair in zip(total, waiter.cost, strict=True)]
            count += 1
        return Cost(*(each / count for each in total)) if count else UNPRICED

    def enter(self, price: Price, now: float) -> Permit | None:
        """Return the permit of a call that may go at once with no call queued before it; else None, without effect."""
        waiting, admission = self.waiting, self.admission
        if waiting.count or admission.rejection is not None:
            return None
        cost = priced(price, admission.estimate, UNPRICED)
        ready, self.gate = admission.ready_at(cost, now)
        if ready > now and admission.released_at((ready, self.gate), cost, now)[0] > now:
            return None
        permit = admission.admit(cost, now, 0.0, None)
        permit.place = waiting.next_place()
        return permit

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
                self._give_permit(waiter, now, out)
                return []
        if waiter.immediate:
            self._admit_or_refuse_now(waiter, now, out)
            return []
        if not self.waiting.count and self.admission.rejection is None:
            self._price(waiter)
            held = self.admission.ready_at(waiter.cost, now)
            ready, self.gate = self.admission.released_at(held, waiter.cost, now)
            if ready <= now:
                waiter.place = waiter.place or self.waiting.next_place()
                waiter.permit = self.admission.admit(waiter.cost, now, now - waiter.joined_at, out, call=waiter.number)
                self._note_permit(waiter, now)
                return []
        group = self._join(waiter, now, out)
        to_wake = self.pump(now, out)
        if group.timer_holder is None or group.timer_holder.until is None or waiter.deadline < group.timer_holder.until:
            group.ensure_timer(to_wake)
        return [each for each in to_wake if each is not waiter]

    def take(self, waiter: Waiter) -> Permit | None:
        """Return the permit that was given to a queued call, if there is one."""
        permit = waiter.permit
        if permit is not None:
            # Both in one, before anything that an interrupt may cut off.
            waiter.held, waiter.permit = permit, None
            self.callers.discard(waiter)
            self._untaken.pop(waiter, None)
            self._untaken_of_several = self._untaken_of_several and bool(self._untaken)
            if self.admission.untaken:
                self.admission.untaken -= 1
        return permit

    def withdraw(self, waiter: Waiter, permit: Permit, now: float, out: Out) -> None:
        """Take back the permit of a call that has not used it."""
        self.admission.counts.unsent += waiter.is_unsent
        self.admission.withdraw(permit, now, out)

    def rejoin(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Put a refused call back to its old place; return the waiters to wake. The caller pumps after it."""
        waiter.joined_at = now
        to_wake: list[Waiter] = []
        self._join(waiter, now, out).ensure_timer(to_wake)
        return to_wake

    def poll(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Look on behalf of a waiting call, which shows that its executor runs; return the waiters to wake."""
        self._note_running(waiter, now)
        to_wake = self.pump(now, out)
        group = self.waiting.groups.get(waiter.executor)
        if group is not None:
            self._expire(group, now, to_wake, out)
            group.ensure_timer(to_wake)
        return to_wake

    def dequeue(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Take a call out of the queue; return the waiters to wake."""
        executor = waiter.executor
        revived = executor is not None and executor.stalled
        group = self.waiting.groups.get(executor) if waiter.is_queued else None
        held = group is not None and group.timer_holder is waiter
        if not self.waiting.dequeue(waiter):
            return []
        if executor is not None:
            executor.note_running(now)
        if not held and not revived:
            return []
        to_wake = self.pump(now, out)
        if group is not None:
            group.ensure_timer(to_wake)
        return to_wake

    def note_asked(self, cost: Cost, ready: float, gate: str, now: float) -> None:
        """Note that a call outside the queue was told to ask again at `ready`; here nothing changes that unseen."""

    def close(self) -> None:
        """End the use of the queue: its key is forgotten, and its log left."""
        if self.log is not None:
            self.log.leave(self)

    def forget(self) -> None:
        """Forget waiting calls and permits not taken yet: after a fork they belong to the parent."""
        self.waiting.clear()
        self.callers.clear()
        self.ready_callbacks.clear()
        self._untaken.clear()
        self._untaken_of_several = False
        self._watchers.clear()
        self._monitor.forget()

    def mend(self, now: float, out: Out) -> list[Waiter]:
        """Make consistent again what an interrupt of the program left half done; return the waiters to wake.

        The truth is which calls wait, and which permits are in flight. A permit that no call has is taken back.
        """
        callers, admission = set(self.callers.waiting), self.admission
        ready = {waiter for waiter in callers if waiter.permit is not None}
        answered = {waiter for waiter in callers if waiter.replay is not None or waiter.opens_at is not None}
        self._untaken, self._untaken_of_several = dict.fromkeys(ready, now), len(ready) > 1
        admission.untaken = len(ready)
        self._watchers.clear()
        self._monitor.forget()
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

    def reclaim_permits(self, now: float, out: Out, running_thread: int = 0, outside_waiters: int = 0) -> None:
        """Take back the permits of executors that do not run, if a call of a running executor waits.

        `running_thread` identifies a thread that is known to run (0: none). `outside_waiters` calls wait outside the
        queue.
        """
        while self._untaken:
            waiter, given_at = next(iter(self._untaken.items()))
            executor = waiter.executor
            if (
                executor is None
                or not executor.is_late(given_at, now, running_thread)
                or not self._others_wait(executor, outside_waiters)
            ):
                return
            self._stall(executor, now, out)

    def next_reclaim_at(self, now: float) -> float:
        """Return when to look next for a permit that was not taken; infinity if there is none."""
        if not self._untaken:
            return INFINITY
        waiter, given_at = next(iter(self._untaken.items()))
        executor = waiter.executor
        at = (given_at if executor is None else max(given_at, executor.ran_at)) + PATIENCE
        return at if at > now else now + PATIENCE

    def pump(self, now: float, out: Out, running_thread: int = 0, outside_waiters: int = 0) -> list[Waiter]:
        """Admit calls from the head while the gates are open; return the waiters to wake.

        These are the admitted calls, the expired ones and a new head. `running_thread` identifies a thread that is
        known to run (0: none). `outside_waiters` calls wait outside the queue.
        """
        to_wake: list[Waiter] = []
        waiting, admission, until, probe_at = self.waiting, self.admission, INFINITY, INFINITY
        changed_groups: list[ExecutorGroup] = []
        if self._untaken:
            self.reclaim_permits(now, out, running_thread, outside_waiters)
        rejection = admission.rejection
        reset_at = rejection.reset_at if rejection is not None else None
        if rejection is not None and reset_at is not None and self._soonest_deadline < reset_at:
            self._admit_without_time(rejection, now, out, changed_groups, to_wake)
        while (group := waiting.head_group()) is not None:
            head, executor = group.first, group.executor
            assert head is not None, "an empty group is taken out of the line"
            if (
                waiting.active_groups + outside_waiters > 1
                and executor is not None
                and group.missed(now, running_thread)
            ):
                self._stall(executor, now, out)
                continue
            blocks = executor.blocks if executor is not None else 0
            # Usually the key is not rejected and the head is priced: this saves a function call.
            if rejection is not None or head.priced_version != admission.estimate.version:
                ready, gate = self._ready_at(head, now, blocks)
            else:
                ready, gate = admission.ready_at(head.cost, now, blocks)
            ready, self.gate = admission.released_at((ready, gate), head.cost, now)
            if ready > now:
                if gate == "concurrency" and self._monitor.should_probe(executor, waiting.active_groups):
                    probe_at, blocked = self._monitor.ask(executor, waiting.active_groups, now, running_thread, to_wake)
                    if blocked is not None:
                        self._stall(blocked, now, out)
                    if probe_at <= now:
                        continue
                # A slot becomes free when an answer arrives: that instant is never certain.
                if (
                    ready > self._soonest_deadline
                    and gate != "concurrency"
                    and self._expire_early(now, ready, changed_groups, to_wake)
                ):
                    continue
                look_at = admission.look_at(ready, self.gate, now)
                if not self._time_head(group, head, look_at, probe_at, now, out, to_wake):
                    changed_groups.append(group)
                    continue
                until = ready
                break
            # Keep this order: `KeyTable.dequeue` reads `is_queued` first, then `permit`, without the lock.
            waited = now - head.joined_at
            beyond = (
                rejection is not None and rejection.in_force and admission.ready_at(head.cost, now, blocks)[0] > now
            )
            permit = head.permit = admission.admit(head.cost, now, waited, out, blocks, beyond, call=head.number)
            if executor is not None:
                permit.thread = executor.thread
            self._note_permit(head, now)
            waiting.dequeue(head)
            head.until = None
            if group.timer_holder is None and group.count:
                changed_groups.append(group)
            to_wake.append(head)
        if self.callers.nested and self.gate == "concurrency" and group is not None:
            for nested in self.callers.next_nested(admission.permits_in_flight.values()):
                self._admit_beyond(nested, now, out, to_wake)
        for each in changed_groups:
            each.ensure_timer(to_wake)
        if waiting.active_groups > 1 or (
            self._untaken
            and group is not None
            and (self._untaken_of_several or self._first_untaken().executor is not group.executor)
        ):
            self._watch(group, min(until, probe_at - PATIENCE), now, running_thread, out, to_wake)
        if group is None:
            self._monitor.forget()
        if waiting.passed_over or self._ahead_elsewhere:
            self._wake_passed_over(now, to_wake)
        if (
            self.ready_callbacks
            and not outside_waiters
            and group is None
            and admission.ready_at(UNPRICED, now)[0] < INFINITY
        ):
            to_wake += self.ready_callbacks.values()
            self.ready_callbacks.clear()
        return to_wake

    def _admit_beyond(self, waiter: Waiter, now: float, out: Out, to_wake: list[Waiter]) -> None:
        """Admit a queued call beyond the slots."""
        self._give_permit(waiter, now, out)
        self.waiting.dequeue(waiter)
        to_wake.append(waiter)

    def _time_head(
        self,
        group: ExecutorGroup,
        head: Waiter,
        ready: float,
        probe_at: float,
        now: float,
        out: Out,
        to_wake: list[Waiter],
    ) -> bool:
        """Set the timer of the head's group; return False where deadlines have passed and calls were taken out."""
        if (
            now < self._soonest_deadline
            and ready == INFINITY
            and probe_at == INFINITY
            and group.timer_holder is head
            and head.until
        ):
            # No deadline has passed, and the head's timer is set for the next one.
            return True
        earliest = group.earliest()
        deadline = earliest.deadline if earliest is not None else INFINITY
        if deadline <= now:
            self._expire(group, now, to_wake, out)
            return False
        if probe_at < group.watch_at and self.waiting.active_groups < 2:
            group.watch_at = probe_at
            group.set_timer(ready, to_wake)
        elif group.timer_holder is not head or head.until != min(ready, deadline):
            group.set_timer(ready, to_wake)
        return True

    def _ready_at(self, waiter: Waiter, now: float, blocks: int = 0) -> tuple[float, str]:
        """Return when a queued call may go, and the gate that holds it."""
        if waiter.priced_version != self.admission.estimate.version:
            self._price(waiter)
        rejection, admission = self.admission.rejection, self.admission
        if rejection is None:
            return admission.ready_at(waiter.cost, now, blocks)
        if rejection.waits(waiter.deadline):
            opens = rejection.opens_at(now)
            if opens > now:
                return opens, rejection.gate
        ready, gate = admission.ready_at(waiter.cost, now, blocks)
        if ready > now and rejection.lets_go(len(admission.permits_in_flight)):
            return admission.admits(waiter.cost, now)
        return ready, gate

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
                    self._give_permit(waiter, now, out)
                    self._remove(waiter, changed_groups)
                    to_wake.append(waiter)
                    continue
            soonest = min(soonest, waiter.deadline)
        self._soonest_deadline = soonest

    def _give_permit(self, waiter: Waiter, now: float, out: Out) -> None:
        """Give a call a permit beyond learned limits."""
        waiter.place = waiter.place or self.waiting.next_place()
        waited = now - waiter.joined_at
        waiter.permit = self.admission.admit(waiter.cost, now, waited, out, beyond=True, call=waiter.number)
        self._note_permit(waiter, now)

    def _admit_or_refuse_now(self, waiter: Waiter, now: float, out: Out) -> None:
        """Admit a call that does not wait, unless a quota, the pause, the breaker or the highest concurrency holds it.

        Learned concurrency and pace do not hold it, nor does a queue that only these hold. But it takes no capacity
        that the head waits for. Otherwise the call gets the newest refusal of the last `MINUTE` seconds.
        """
        admission, head = self.admission, self.waiting.head()
        self._price(waiter)
        ready, gate = now, ""
        if head is not None:
            self._price(head)
            ready, gate = admission.admits(head.cost, now)
        if ready <= now:
            ready, gate = admission.admits(waiter.cost, now)
        ready, self.gate = admission.released_at((ready, gate), waiter.cost, now)
        if ready <= now:
            within = head is None and admission.ready_at(waiter.cost, now)[0] <= now
            waiter.place = waiter.place or self.waiting.next_place()
            waiter.permit = admission.admit(waiter.cost, now, 0.0, out, beyond=not within, call=waiter.number)
            self._note_permit(waiter, now)
            return
        if gate not in ("breaker", "concurrency"):
            waiter.opens_at = ready
        refusal = admission.refusal
        recent = refusal is not None and now - refusal[1] <= MINUTE and gate != "breaker"
        if recent and refusal is not None and waiter.receives(refusal[0].answer):
            waiter.replay = refusal[0]

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

    def _join(self, waiter: Waiter, now: float, out: Out) -> ExecutorGroup:
        """Put a call into the queue and return its group; pass over the event loop that it blocks, if it does so."""
        if waiter.executor is None:
            waiter.executor = self.executors.get(waiter.get_waker())
        executor = waiter.executor
        self.callers.add(waiter)
        if executor.loop is None and not waiter.place:
            self.callers.replace_twin(waiter, self.waiting)
        executor.note_running(now)
        if executor.blocks:
            for blocked in self.executors.stall_thread(executor.blocks):
                self._stall(blocked, now, out)
            self.admission.release_probe(executor.blocks, now)
        self._soonest_deadline = min(self._soonest_deadline, waiter.deadline) if self.waiting.count else waiter.deadline
        return self.waiting.enqueue(waiter)

    def _note_running(self, waiter: Waiter, now: float) -> None:
        """Note that the executor of a waiting call runs; clear the group's timer if the call held it."""
        executor = waiter.executor
        if executor is None:
            return
        executor.note_running(now)
        group = self.waiting.groups.get(executor)
        if group is not None and group.timer_holder is waiter:
            # Its timer has run out, or is about to be set again.
            group.watch_at = INFINITY
            waiter.until = None

    def _others_wait(self, executor: Executor, outside_waiters: int) -> bool:
        """Return whether calls of running executors other than `executor` wait."""
        group = self.waiting.groups.get(executor)
        return self.waiting.active_groups + outside_waiters > (group is not None and group.entry is not None)

    def _stall(self, executor: Executor, now: float, out: Out) -> None:
        """Pass an executor over until it runs again, and take back the permits that it has not taken."""
        executor.stall()
        # At other keys it may have stood before calls that run: the next head there looks at once.
        for group in executor.groups:
            ahead = group.next_head()
            if ahead is not None and ahead.queue is not self:
                self._ahead_elsewhere.append(ahead)
        for waiter in [waiter for waiter in self._untaken if waiter.executor is executor]:
            permit = self.take(waiter)
            if permit is not None and not permit.settled and permit.generation == self.admission.generation:
                self.withdraw(waiter, permit, now, out)
            # It was woken for that permit: it looks as soon as it runs.
            waiter.until = None
            self.callers.add(waiter)
            self.waiting.enqueue(waiter)

    def _wake_passed_over(self, now: float, to_wake: list[Waiter]) -> None:
        """Wake one call of each group that is passed over, and the next heads at other keys.

        The former looks as soon as its executor runs, the latter at once.
        """
        for group in self.waiting.passed_over:
            if group.first is not None and group.stalled:
                if group.timer_holder is not None:
                    group.timer_holder.until = None
                group.timer_holder, group.watch_at = None, INFINITY
                group.first.until = None
                to_wake.append(group.first)
        self.waiting.passed_over.clear()
        while self._ahead_elsewhere:
            ahead = self._ahead_elsewhere.pop()
            if ahead.is_queued:
                ahead.until = now
                to_wake.append(ahead)

    def _first_untaken(self) -> Waiter:
        """Return the call whose permit has waited longest to be taken; there must be one."""
        return next(iter(self._untaken))

    def _note_permit(self, waiter: Waiter, now: float) -> None:
        self.admission.counts.unsent -= waiter.is_unsent
        self.admission.untaken += 1
        self.admission.given_at = now
        if self._untaken and waiter.executor is not None and self._first_untaken().executor is not waiter.executor:
            self._untaken_of_several = True
        self._untaken[waiter] = now

    def _price(self, waiter: Waiter) -> None:
        estimate = self.admission.estimate
        if waiter.priced_version != estimate.version:
            waiter.priced_version = estimate.version
            waiter.cost = priced(waiter.price, estimate, waiter.cost)

    def _expire(self, group: ExecutorGroup, now: float, to_wake: list[Waiter], out: Out) -> None:
        """Take out the calls of a group whose deadline has passed; admit those that `_held_by_slow_start` names."""
        while (first := group.earliest()) is not None and first.deadline <= now:
            if self._held_by_slow_start(first, now):
                first.permit = self.admission.admit(
                    first.cost, now, now - first.joined_at, out, beyond=True, call=first.number
                )
                self._note_permit(first, now)
            self.waiting.dequeue(first)
            first.until = first.deadline
            to_wake.append(first)

    def _held_by_slow_start(self, waiter: Waiter, now: float) -> bool:
        """Return whether only the untested slots of a first round, without a refusal so far, hold a call."""
        if not self.admission.untested or self._ready_at(waiter, now)[1] != "concurrency":
            return False
        return self.admission.admits(waiter.cost, now)[0] <= now

    def _watch(
        self, own: ExecutorGroup | None, ready: float, now: float, running_thread: int, out: Out, to_wake: list[Waiter]
    ) -> None:
        """Make a few executors look in case the head's executor, or one that was given a permit, does not run.

        `own` is the head's group. Each watcher looks `PATIENCE` seconds after the one before it, so each stalled one
        costs that much. The head's own timer serves for this only where few others watch, since each admission changes
        the head.
        """
        waiting, watchers = self.waiting, self._watchers
        for group in watchers:
            executor = group.executor
            if (
                executor is not None
                and group.entry is not None
                and waiting.active_groups > 1
                and group.missed(now, running_thread)
            ):
                self._stall(executor, now, out)
        watchers[:] = [group for group in watchers if group.entry is not None and group is not own]
        due = min(ready + PATIENCE, self.next_reclaim_at(now))
        if due == INFINITY:
            return
        if len(watchers) < WATCHERS:
            watchers += [group for group in self._candidates(own) if group not in watchers][: WATCHERS - len(watchers)]
        suspect = self._first_untaken().executor if self._untaken else None
        chain = [group for group in watchers if group.executor is not suspect]
        # The head's group watches too where another executor was given a permit.
        doubtful = self._untaken and own is not None and (self._untaken_of_several or own.executor is not suspect)
        if own is not None and doubtful and len(watchers) < WATCHERS:
            chain.append(own)
        chain += [group for group in watchers if group.executor is suspect]
        for number, group in enumerate(chain):
            at = due + number * PATIENCE
            if at < group.watch_at - 1e-6:
                group.watch_at = at
                group.set_timer(ready if group is own else INFINITY, to_wake)

    def _candidates(self, own: ExecutorGroup | None) -> Iterator[ExecutorGroup]:
        """Yield the newest groups: they wait longest, so a watcher is seldom replaced."""
        for group in islice(reversed(self.waiting.groups.values()), 2 * WATCHERS):
            if group is not own and group.entry is not None:
                yield group
