"""The slots of one key: who holds one, who waits, and whom a change wakes.

Theory of operation. Whoever is at the head of the line holds the clock: it waits with a timeout, until its call could
be admitted or the first deadline of its executor's calls has come; everybody else waits to be woken. Every change
(`settle`, `stand`, `leave`, a tick of the clock) ends in `pump`, which admits from the head as many as may go and
returns whom to wake; the caller wakes them after it has let go of the registry's lock.

Nothing depends on the head's event loop or thread alone. Where several executors wait, a few others *watch*: they look
`PATIENCE` seconds after the head had to look, or a permit had to be taken. What was not taken is taken back, and the
executor that did not run is passed over until it does. Each executor keeps the clock for its own calls' deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from tidegate.admission.executors import PATIENCE, Executor, ExecutorTable
from tidegate.admission.loop_monitor import LoopMonitor
from tidegate.admission.wait_queue import NEVER, UNPRICED, ExecutorGroup, Price, ReadyCallback, Waiter, WaitQueue
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.limiter_state import Out, Permit
from tidegate.core.provenance import MINUTE
from tidegate.core.rejection import KeyRejection
from tidegate.core.snapshot import KeySnapshot, key_snapshot
from tidegate.core.values import Cost

SAMPLE = 256
"""Calls in the line whose cost is looked at, at the most: a mean of so many is right within a few per cent."""

WATCHERS = 8
"""Executors besides the head's that keep a timer, at the most. More find a way past more that stand still at once; in a
line that moves each of them looks about once in `PATIENCE` seconds times its number."""


class KeyQueue:
    """One key's admission and its line."""

    __slots__ = (
        "_answered",
        "_given",
        "_mixed",
        "_monitor",
        "_soonest",
        "_watchers",
        "admission",
        "asking",
        "executors",
        "gate",
        "line",
    )

    def __init__(self, admission: AdmissionController, executors: ExecutorTable | None = None) -> None:
        self.admission = admission
        self.executors = executors if executors is not None else ExecutorTable()
        self.line = WaitQueue()
        self.gate = ""
        self.asking: dict[Callable[[], object], ReadyCallback] = {}
        # Calls that were given a permit and have not taken it yet, with the instants at which it was given.
        self._given: dict[Waiter, float] = {}
        # They may be of more than one executor.
        self._mixed = False
        self._watchers: list[ExecutorGroup] = []
        # No call that stands has an earlier deadline.
        self._soonest = NEVER
        # The attempt whose rejection those in the line were given last.
        self._answered = 0
        self._monitor = LoopMonitor(admission, self.executors)

    @property
    def idle(self) -> bool:
        """Return whether nobody waits and nothing is under way."""
        return not self.line.count and not self.admission.flying

    def snapshot(self, now: float) -> KeySnapshot:
        """The state of the key at `now`."""
        head = self.line.head()
        first = head.cost if head is not None else UNPRICED
        return key_snapshot(self.admission, self.line.count, first, self.mean_cost(), now)

    def mean_cost(self) -> Cost:
        """Return the mean cost of those who wait, as far as the first of them show; one request of nobody."""
        total, count = [0.0] * len(UNPRICED), 0
        for waiter in islice(self.line.standing(), SAMPLE):
            self._price(waiter)
            total = [sum(pair) for pair in zip(total, waiter.cost, strict=True)]
            count += 1
        return Cost(*(each / count for each in total)) if count else UNPRICED

    def enter(self, price: Price, now: float) -> Permit | None:
        """The permit of a call that may go at once, nobody standing before it; else None, and nothing happened."""
        line, admission = self.line, self.admission
        if line.count or admission.rejection is not None:
            return None
        cost = _priced(price, admission.estimate, UNPRICED)
        ready, self.gate = admission.ready_at(cost, now)
        if ready > now:
            return None
        permit = admission.admit(cost, now, 0.0, None)
        permit.place = line.next_place()
        return permit

    def stand(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Admits a call at once where nobody stands before it and the gates are open, else puts it in the line.

        Returns whom to wake; never the caller itself.
        """
        waiter.joined_at = now
        if self.admission.rejection is not None and self._answer(waiter, now, out):
            return []
        if waiter.immediate:
            self._pass_or_refuse(waiter, now, out)
            return []
        if not self.line.count and self.admission.rejection is None:
            self._price(waiter)
            ready, self.gate = self.admission.ready_at(waiter.cost, now)
            if ready <= now:
                waiter.place = waiter.place or self.line.next_place()
                waiter.permit = self.admission.admit(waiter.cost, now, now - waiter.joined_at, out)
                self._gave(waiter, now)
                return []
        group = self._join(waiter, now, out)
        woken = self.pump(now, out)
        if group.holder is None or group.holder.until is None or waiter.deadline < group.holder.until:
            self._keep_clock(group, woken)
        return [each for each in woken if each is not waiter]

    def take(self, waiter: Waiter) -> Permit | None:
        """The permit that was given to a call while it stood, where there is one."""
        permit, waiter.permit = waiter.permit, None
        if permit is not None:
            self._given.pop(waiter, None)
            self._mixed = self._mixed and bool(self._given)
            if self.admission.untaken:
                self.admission.untaken -= 1
        return permit

    def rejoin(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Puts a refused call back to its old place; the caller pumps, and wakes who is returned."""
        waiter.joined_at = now
        woken: list[Waiter] = []
        self._keep_clock(self._join(waiter, now, out), woken)
        return woken

    def look(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """A call that waits has come to look, so its executor runs; returns whom to wake."""
        self._seen(waiter, now)
        woken = self.pump(now, out)
        group = self.line.groups.get(waiter.executor)
        if group is not None:
            self._expire(group, now, woken, out)
            self._keep_clock(group, woken)
        return woken

    def leave(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Takes a call out of the line; returns whom to wake."""
        executor = waiter.executor
        revived = executor is not None and executor.stalled
        group = self.line.groups.get(executor) if waiter.standing else None
        held = group is not None and group.holder is waiter
        if not self.line.leave(waiter):
            return []
        if executor is not None:
            executor.seen(now)
        if not held and not revived:
            return []
        woken = self.pump(now, out)
        if group is not None:
            self._keep_clock(group, woken)
        return woken

    def forget(self) -> None:
        """Forgets who waits and who was given a permit: after a fork they are the parent's."""
        self.line.clear()
        self.asking.clear()
        self._given.clear()
        self._mixed = False
        self._watchers.clear()
        self._monitor.forget()

    def take_back(self, now: float, out: Out, here: int = 0, others: int = 0) -> None:
        """Takes back the permits of executors that do not run, where somebody else waits who does.

        `here` is a thread that is known to run; `others` wait elsewhere than in the line.
        """
        while self._given:
            waiter, given_at = next(iter(self._given.items()))
            executor = waiter.executor
            if executor is None or not executor.late(given_at, now, here) or not self._others(executor, others):
                return
            self._stall(executor, now, out)

    def taken_back_at(self, now: float) -> float:
        """When to look next for a permit that nobody has taken; infinity where there is none."""
        if not self._given:
            return NEVER
        waiter, given_at = next(iter(self._given.items()))
        executor = waiter.executor
        at = (given_at if executor is None else max(given_at, executor.seen_at)) + PATIENCE
        return at if at > now else now + PATIENCE

    def pump(self, now: float, out: Out, here: int = 0, others: int = 0) -> list[Waiter]:
        """Admits from the head while the gates are open; returns whom to wake: admitted, expired, a new head.

        `here` is a thread that is known to run, `others` wait elsewhere than in the line.
        """
        woken: list[Waiter] = []
        line, admission, until, doubt_at = self.line, self.admission, NEVER, NEVER
        left: list[ExecutorGroup] = []
        if self._given:
            self.take_back(now, out, here, others)
        rejection = admission.rejection
        if rejection is not None and rejection.order != self._answered:
            self._answer_line(rejection, now, left, woken)
        while (group := line.head_group()) is not None:
            head, executor = group.first, group.executor
            assert head is not None, "an empty group is taken out of the line"
            if line.running + others > 1 and executor is not None and _missed(group, now, here):
                self._stall(executor, now, out)
                continue
            blocks = executor.blocks if executor is not None else 0
            # Nearly always the key is not rejected and the head is priced: then one call less, on the hottest path.
            if rejection is not None or head.priced_by != admission.estimate.version:
                ready, gate = self._ready_at(head, now, blocks)
            else:
                ready, gate = admission.ready_at(head.cost, now, blocks)
            self.gate = gate
            if ready > now:
                if gate == "concurrency" and self._monitor.doubts(executor, line.running):
                    doubt_at, blocked = self._monitor.ask(executor, line.running, now, here, woken)
                    if blocked is not None:
                        self._stall(blocked, now, out)
                    if doubt_at <= now:
                        continue
                # A slot is free when an answer comes: nobody can be told for certain.
                if ready > self._soonest and gate != "concurrency" and self._dismiss(now, ready, left, woken):
                    continue
                if not self._hold_head(group, head, ready, doubt_at, now, out, woken):
                    left.append(group)
                    continue
                until = ready
                break
            # In this order: whoever leaves without the lock looks at `standing` first, then at `permit`.
            permit = head.permit = admission.admit(head.cost, now, now - head.joined_at, out, blocks)
            if executor is not None:
                permit.thread = executor.thread
            self._gave(head, now)
            line.leave(head)
            head.until = None
            if group.holder is None and group.count:
                left.append(group)
            woken.append(head)
        for each in left:
            self._keep_clock(each, woken)
        if line.running > 1 or (
            self._given and group is not None and (self._mixed or self._first_given().executor is not group.executor)
        ):
            self._watch(group, min(until, doubt_at - PATIENCE), now, here, out, woken)
        if group is None:
            self._monitor.forget()
        if line.passed:
            self._tell_passed(woken)
        if self.asking and not others and group is None and admission.ready_at(UNPRICED, now)[0] < NEVER:
            woken += self.asking.values()
            self.asking.clear()
        return woken

    def _hold_head(
        self,
        group: ExecutorGroup,
        head: Waiter,
        ready: float,
        doubt_at: float,
        now: float,
        out: Out,
        woken: list[Waiter],
    ) -> bool:
        """Set the timer of the head's group; False: deadlines of the group have come, and its calls were taken out."""
        if now < self._soonest and ready == NEVER and doubt_at == NEVER and group.holder is head and head.until:
            # No deadline has come, and the head's timer is set for the next one.
            return True
        earliest = group.earliest()
        deadline = earliest.deadline if earliest is not None else NEVER
        if deadline <= now:
            self._expire(group, now, woken, out)
            return False
        if doubt_at < group.watch_at and self.line.running < 2:
            group.watch_at = doubt_at
            self._hold_clock(group, ready, woken)
        elif group.holder is not head or head.until != min(ready, deadline):
            self._hold_clock(group, ready, woken)
        return True

    def _ready_at(self, waiter: Waiter, now: float, blocks: int = 0) -> tuple[float, str]:
        """Return when a call that stands in the line may go, and the gate that says so."""
        if waiter.priced_by != self.admission.estimate.version:
            self._price(waiter)
        rejection = self.admission.rejection
        if rejection is not None:
            opens = rejection.opens_at(waiter.deadline, now)
            if opens > now:
                return opens, rejection.gate
        return self.admission.ready_at(waiter.cost, now, blocks)

    def _answer(self, waiter: Waiter, now: float, out: Out) -> bool:
        """Deal with a call that comes while the provider rejects the whole key; False: it joins the line.

        It is given the kept answer, or goes to ask. In the line stand only those that wait for the reset.
        """
        rejection = self.admission.rejection
        assert rejection is not None, "the key is rejected"
        if rejection.waits(waiter.deadline):
            return False
        if waiter.replayable() and rejection.replays(waiter.deadline, now):
            self._replay(waiter)
            return True
        self._price(waiter)
        admission = self.admission
        # The one that asks is held by nothing that was learned. Those that follow it are many.
        asks = rejection.asks(now) or not waiter.replayable() or rejection.answer is None
        ready, self.gate = (admission.admits if asks else admission.ready_at)(waiter.cost, now)
        if ready <= now:
            waiter.place = waiter.place or self.line.next_place()
            waiter.permit = admission.admit(waiter.cost, now, 0.0, out, beyond=asks)
            self._gave(waiter, now)
            return True
        if not waiter.replayable() or rejection.answer is None:
            return False
        if not asks and rejection.reset_at is None:
            # Nobody in the line waits for a reset: it moves, and a rejection of the asking one ends it.
            return False
        self._replay(waiter)
        return True

    def _answer_line(self, rejection: KeyRejection, now: float, left: list[ExecutorGroup], woken: list[Waiter]) -> None:
        """Give the newest rejecting answer to those in the line who do not wait for the reset."""
        self._answered = rejection.order
        if rejection.answer is None:
            return
        for waiter in list(self.line.standing()):
            if rejection.replays(waiter.deadline, now) and waiter.replayable():
                self._remove(waiter, left)
                self._replay(waiter)
                woken.append(waiter)

    def _replay(self, waiter: Waiter) -> None:
        rejection = self.admission.rejection
        assert rejection is not None, "the key is rejected"
        rejection.replayed += 1
        waiter.replay = rejection.outcome

    def _pass_or_refuse(self, waiter: Waiter, now: float, out: Out) -> None:
        """Admit a call that does not wait, unless a quota, a cooldown or the breaker is closed for it.

        Learned slots and rate hold it not, nor does the line where these alone hold that; but what the line waits for
        is not taken away from it. Otherwise the call is given the newest refusal, if that is news.
        """
        admission, head = self.admission, self.line.head()
        self._price(waiter)
        ready, gate = now, ""
        if head is not None:
            self._price(head)
            ready, gate = admission.admits(head.cost, now)
        if ready <= now:
            ready, gate = admission.admits(waiter.cost, now)
        self.gate = gate
        if ready <= now:
            within = head is None and admission.ready_at(waiter.cost, now)[0] <= now
            waiter.place = waiter.place or self.line.next_place()
            waiter.permit = admission.admit(waiter.cost, now, 0.0, out, beyond=not within)
            self._gave(waiter, now)
            return
        if gate not in ("breaker", "concurrency"):
            waiter.opens_at = ready
        refusal = admission.refusal
        if refusal is not None and now - refusal[1] <= MINUTE and gate != "breaker" and waiter.replayable():
            waiter.replay = refusal[0]

    def _dismiss(self, now: float, ready: float, left: list[ExecutorGroup], woken: list[Waiter]) -> bool:
        """Take out the calls whose gate opens for certain only after their deadline; return whether any was.

        The head may go at `ready`, so calls with a later deadline stay.
        """
        if not self.admission.certain(self.gate):
            return False
        dismissed, soonest = False, NEVER
        for group in list(self.line.groups.values()):
            while (first := group.earliest()) is not None:
                opens, gate = self._ready_at(first, now) if now < first.deadline < ready else (now, "")
                if not first.deadline < opens < NEVER or not self.admission.certain(gate):
                    soonest = min(soonest, first.deadline)
                    break
                self._remove(first, left)
                first.opens_at = opens
                woken.append(first)
                dismissed = True
        self._soonest = soonest
        return dismissed

    def _remove(self, waiter: Waiter, left: list[ExecutorGroup]) -> None:
        """Take a call out of the line; the clock of its group in `left` has to be kept."""
        group = self.line.groups[waiter.executor]
        self.line.leave(waiter)
        waiter.until = None
        left.append(group)

    def _join(self, waiter: Waiter, now: float, out: Out) -> ExecutorGroup:
        """Puts a call into the line, and passes over the event loops that it blocks."""
        if waiter.executor is None:
            waiter.executor = self.executors.get(waiter.alarm())
        executor = waiter.executor
        executor.seen(now)
        if executor.blocks:
            for blocked in self.executors.stall_thread(executor.blocks):
                self._stall(blocked, now, out)
            self.admission.release_probe(executor.blocks, now)
        self._soonest = min(self._soonest, waiter.deadline) if self.line.count else waiter.deadline
        return self.line.join(waiter)

    def _seen(self, waiter: Waiter, now: float) -> None:
        """A call that stands shows that its executor runs: what that had promised to look at is kept."""
        executor = waiter.executor
        if executor is None:
            return
        executor.seen(now)
        group = self.line.groups.get(executor)
        if group is not None and group.holder is waiter:
            # Its timer is used up, or is about to be set anew.
            group.watch_at = NEVER
            waiter.until = None

    def _others(self, executor: Executor, others: int) -> bool:
        """Return whether somebody waits who runs, besides the calls of `executor`."""
        group = self.line.groups.get(executor)
        return self.line.running + others > (group is not None and group.entry is not None)

    def _stall(self, executor: Executor, now: float, out: Out) -> None:
        """Passes an executor over until it shows life, and takes back the permits that it has not taken."""
        executor.stall()
        for waiter in [waiter for waiter in self._given if waiter.executor is executor]:
            permit = self.take(waiter)
            if permit is not None and not permit.settled and permit.generation == self.admission.generation:
                self.admission.withdraw(permit, now, out)
            # It was woken for that permit: it looks as soon as it runs, and stands at its old place until then.
            waiter.until = None
            self.line.join(waiter)

    def _tell_passed(self, woken: list[Waiter]) -> None:
        """Wakes one call of each group that is passed over: it looks as soon as its executor runs."""
        for group in self.line.passed:
            if group.first is not None and group.stalled:
                if group.holder is not None:
                    group.holder.until = None
                group.holder, group.watch_at = None, NEVER
                group.first.until = None
                woken.append(group.first)
        self.line.passed.clear()

    def _first_given(self) -> Waiter:
        """Return the call that was given its permit first, of those not taken yet; there is one."""
        return next(iter(self._given))

    def _gave(self, waiter: Waiter, now: float) -> None:
        self.admission.untaken += 1
        self.admission.given_at = now
        if self._given and waiter.executor is not None and self._first_given().executor is not waiter.executor:
            self._mixed = True
        self._given[waiter] = now

    def _price(self, waiter: Waiter) -> None:
        estimate = self.admission.estimate
        if waiter.priced_by != estimate.version:
            waiter.priced_by = estimate.version
            waiter.cost = _priced(waiter.price, estimate, waiter.cost)

    def _expire(self, group: ExecutorGroup, now: float, woken: list[Waiter], out: Out) -> None:
        """Takes out the calls of a group whose deadline has come."""
        while (first := group.earliest()) is not None and first.deadline <= now:
            if self._would_be_taken(first, now):
                first.permit = self.admission.admit(first.cost, now, now - first.joined_at, out, beyond=True)
                self._gave(first, now)
            self.line.leave(first)
            first.until = first.deadline
            woken.append(first)

    def _would_be_taken(self, waiter: Waiter, now: float) -> bool:
        """Return whether only the slots of a first round hold a call, of which the provider has refused none yet."""
        if not self.admission.untested or self._ready_at(waiter, now)[1] != "concurrency":
            return False
        return self.admission.admits(waiter.cost, now)[0] <= now

    def _hold_clock(self, group: ExecutorGroup, ready: float, woken: list[Waiter]) -> None:
        """Makes the first of a group the one that waits with a timeout, and wakes it if that is less than it waits."""
        holder, earliest = group.first, group.earliest()
        if holder is None or earliest is None:
            return
        until = min(ready, group.watch_at, earliest.deadline)
        if group.holder is not holder:
            if group.holder is not None:
                group.holder.until = None
            group.holder = holder
        sooner = holder.until is None or until < holder.until - 1e-6
        holder.until = until if until < NEVER else None
        if sooner and until < NEVER:
            woken.append(holder)

    def _keep_clock(self, group: ExecutorGroup, woken: list[Waiter]) -> None:
        """Sees to it that a group's first deadline is met, wherever the group stands in the line."""
        earliest, holder = group.earliest(), group.holder
        if earliest is None or group.stalled:
            return
        if holder is None or (holder.until is None and earliest.deadline < NEVER):
            self._hold_clock(group, NEVER, woken)
        elif holder.until is not None and earliest.deadline < holder.until - 1e-6:
            self._hold_clock(group, holder.until, woken)

    def _watch(
        self, own: ExecutorGroup | None, ready: float, now: float, here: int, out: Out, woken: list[Waiter]
    ) -> None:
        """Makes a few executors look in case that the head's (`own`), or one that was given a permit, does not run.

        Each looks `PATIENCE` later than the one before it, so each that stands still too costs that much. The head's
        own timer is set for this only where few others watch, since the head changes with each admission.
        """
        line, watchers = self.line, self._watchers
        for group in watchers:
            executor = group.executor
            if executor is not None and group.entry is not None and line.running > 1 and _missed(group, now, here):
                self._stall(executor, now, out)
        watchers[:] = [group for group in watchers if group.entry is not None and group is not own]
        due = min(ready + PATIENCE, self.taken_back_at(now))
        if due == NEVER:
            return
        if len(watchers) < WATCHERS:
            watchers += [group for group in self._candidates(own) if group not in watchers][: WATCHERS - len(watchers)]
        suspect = self._first_given().executor if self._given else None
        chain = [group for group in watchers if group.executor is not suspect]
        # The head's group watches too, where another executor than its own was given a permit.
        doubtful = self._given and own is not None and (self._mixed or own.executor is not suspect)
        if own is not None and doubtful and len(watchers) < WATCHERS:
            chain.append(own)
        chain += [group for group in watchers if group.executor is suspect]
        for number, group in enumerate(chain):
            at = due + number * PATIENCE
            if at < group.watch_at - 1e-6:
                group.watch_at = at
                self._hold_clock(group, ready if group is own else NEVER, woken)

    def _candidates(self, own: ExecutorGroup | None) -> Iterator[ExecutorGroup]:
        """The groups that came last, which wait longest: whoever watches is seldom replaced."""
        for group in islice(reversed(self.line.groups.values()), 2 * WATCHERS):
            if group is not own and group.entry is not None:
                yield group


def _missed(group: ExecutorGroup, now: float, here: int) -> bool:
    """Return whether a group did not look at an instant at which it had to."""
    holder, executor = group.holder, group.executor
    return (
        holder is not None
        and holder.until is not None
        and executor is not None
        and (executor.late(holder.until, now, here))
    )


def _priced(price: Price, estimate: CostEstimator, otherwise: Cost) -> Cost:
    # Runs under the lock and in anybody's step: a price that fails leaves the cost there was.
    try:
        cost = price(estimate)
        return cost if cost is UNPRICED or cost.sound else cost.mended()
    except Exception:
        return otherwise
