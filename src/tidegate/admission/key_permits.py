"""Permits of one key: those that its calls get, and may not have taken yet, and what the key shows of itself.

A call gets a permit from the limiters of the key, at the cost by what the key knows then. It takes the permit when its
executor (event loop or thread) runs.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any
from weakref import WeakSet

from tidegate.admission.callers import Callers, LoopProbe, ReadyCallback
from tidegate.admission.key_log import WaitLog
from tidegate.admission.wait_queue import UNPRICED, UNTAKEN_SECONDS, Price, Waiter, WaitQueue
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.held_time import HeldTime
from tidegate.core.limiter_state import Out, Permit
from tidegate.core.snapshot import UNSHARED, KeySnapshot, Sharing, cause_of, key_snapshot, latest_pause
from tidegate.core.token_totals import TokenCounter
from tidegate.core.values import INFINITY, Cost
from tidegate.core.wait_text import HeadWait

SAMPLED_CALLS = 256
"""Queued calls whose cost `mean_cost` reads, at most. Raising it makes each snapshot of a long queue slower. Chosen: a
mean of this many is right within a few per cent."""


class KeyPermits:
    """The admission controller and the wait queue of one key.

    `ready_callbacks` holds callbacks of `try_admit`; `gate` was closed last. `held` has the time for which each gate
    held the first waiting call. `pools` are the connection pools of the clients that use the key, as far as known.
    `wait_log` exists after the first failed attempt. `callers` are the calls that wait. `is_shared`: steps here may
    admit calls of other keys, which share quotas with this one. `log` is that of the key where other processes share
    its limits (`admission.shared_keys.LogSession`).
    """

    __slots__ = (
        "_probe",
        "_read",
        "_released_order",
        "_soonest_deadline",
        "_untaken",
        "admission",
        "callers",
        "gate",
        "held",
        "log",
        "pools",
        "ready_callbacks",
        "tokens",
        "unshared_reason",
        "wait_log",
        "waiting",
    )

    is_shared = False

    def __init__(self, admission: AdmissionController) -> None:
        self.admission = admission
        self.waiting = WaitQueue()
        self.gate = ""
        self.held = HeldTime(admission.used_at)
        self.pools: WeakSet[Any] | None = None
        self.ready_callbacks: dict[Callable[[], object], ReadyCallback] = {}
        self.callers = Callers()
        # Calls with a permit that they have not taken yet, and its instant.
        self._untaken: dict[Waiter, float] = {}
        # The last probe of an event loop that holds a slot for which calls of other executors wait.
        self._probe: LoopProbe | None = None
        # Bytes that were read of the open streams at the last look, and the instant at which that changed.
        self._read = (0, -INFINITY)
        # No queued call has an earlier deadline.
        self._soonest_deadline = INFINITY
        # Number of the attempt whose rejection named the newest reset.
        self._released_order = 0
        self.wait_log: WaitLog | None = None
        self.tokens = TokenCounter()
        self.unshared_reason = ""
        self.log: Any = None

    @property
    def sharing(self) -> Sharing:
        """Return the number of processes that share the key's limits, and by what; for none perhaps a reason."""
        if self.log is not None:
            sharing: Sharing = self.log.sharing
            return sharing
        return Sharing(lost=self.unshared_reason) if self.unshared_reason else UNSHARED

    @property
    def idle(self) -> bool:
        return not self.waiting.count and not self.admission.permits_in_flight

    def snapshot(self, now: float) -> KeySnapshot:
        """Return the state of the key at `now`."""
        head = self.waiting.head()
        first, tokens = head.cost if head is not None else UNPRICED, self.tokens.totals
        return key_snapshot(
            self.admission, self.waiting.length, first, self.mean_cost(), now, self.sharing, tokens, self.held
        )

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
        """Return the mean cost of the first `SAMPLED_CALLS` waiting calls; one request if none waits."""
        total, count = [0.0] * len(UNPRICED), 0
        for waiter in islice(self.waiting.in_order(), SAMPLED_CALLS):
            self._price(waiter)
            total = [sum(pair) for pair in zip(total, waiter.cost, strict=True)]
            count += 1
        return Cost(*(each / count for each in total)) if count else UNPRICED

    def take(self, waiter: Waiter) -> Permit | None:
        """Return the permit that was given to a queued call, if there is one."""
        permit = waiter.permit
        if permit is not None:
            # Both in one, before anything that an interrupt may cut off.
            waiter.held, waiter.permit = permit, None
            self.callers.discard(waiter)
            self._untaken.pop(waiter, None)
            if self.admission.untaken:
                self.admission.untaken -= 1
        return permit

    def withdraw(self, waiter: Waiter, permit: Permit, now: float, out: Out) -> None:
        """Take back the permit of a call that has not used it."""
        self.admission.counts.unsent += waiter.is_unsent
        self.admission.withdraw(permit, now, out)

    def note_asked(self, cost: Cost, ready: float, gate: str, now: float) -> None:
        """Note that a call outside the queue was told to ask again at `ready`; here nothing changes that unseen."""

    def close(self) -> None:
        """End the use of the queue: its key is forgotten, and its log left."""
        if self.log is not None:
            self.log.leave(self)

    def next_reclaim_at(self, now: float) -> float:
        """Return when to look next for a permit that was not taken; infinity if there is none."""
        if not self._untaken:
            return INFINITY
        at = next(iter(self._untaken.values())) + UNTAKEN_SECONDS
        return at if at > now else now + UNTAKEN_SECONDS

    def _ready_at(self, waiter: Waiter, now: float) -> tuple[float, str]:
        """Return when a queued call may go, and the gate that holds it."""
        if waiter.priced_version != self.admission.estimate.version:
            self._price(waiter)
        rejection, admission = self.admission.rejection, self.admission
        if rejection is None:
            return admission.ready_at(waiter.cost, now)
        if rejection.waits(waiter.deadline):
            opens = rejection.opens_at(now)
            if opens > now:
                return opens, rejection.gate
        ready, gate = admission.ready_at(waiter.cost, now)
        if ready > now and rejection.lets_go(len(admission.permits_in_flight)):
            return admission.admits(waiter.cost, now)
        return ready, gate

    def _give_permit(self, waiter: Waiter, now: float, out: Out, beyond: bool = False) -> None:
        """Give a call a permit, perhaps `beyond` the slots and the pace."""
        waiter.place = waiter.place or self.waiting.next_place()
        waited, admission = now - waiter.joined_at, self.admission
        waiter.permit = admission.admit(waiter.cost, now, waited, out, beyond, call=waiter.number)
        admission.counts.unsent -= waiter.is_unsent
        admission.untaken += 1
        admission.given_at = now
        self._untaken[waiter] = now

    def _admit_or_refuse_now(self, waiter: Waiter, now: float, out: Out) -> None:
        """Admit a call that does not wait, unless a quota, the pause, the breaker or the highest concurrency holds it.

        Learned concurrency and pace do not hold it, nor does a queue that only these hold. But it takes no capacity
        that the head waits for.
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
            self._give_permit(waiter, now, out, beyond=not within)
            return
        if gate not in ("breaker", "concurrency"):
            waiter.opens_at = ready

    def _price(self, waiter: Waiter) -> None:
        estimate = self.admission.estimate
        if waiter.priced_version != estimate.version:
            waiter.priced_version = estimate.version
            waiter.cost = priced(waiter.price, estimate, waiter.cost)

    def _held_by_slow_start(self, waiter: Waiter, now: float) -> bool:
        """Return whether only the untested slots of a first round, without a refusal so far, hold a call."""
        if not self.admission.untested or self._ready_at(waiter, now)[1] != "concurrency":
            return False
        return self.admission.admits(waiter.cost, now)[0] <= now


def priced(price: Price, estimate: CostEstimator, otherwise: Cost) -> Cost:
    """Return the price of a call; that of `otherwise` where it fails."""
    # Runs under the lock, in the step of any call: a price that fails leaves the old cost.
    try:
        cost = price(estimate)
        return cost if cost is UNPRICED or cost.sound else cost.mended()
    except Exception:
        return otherwise
