"""The permit of an admitted call, and the counters of a key."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tidegate.core.tab import Charge
from tidegate.core.vocabulary import Cost, Key

if TYPE_CHECKING:
    from tidegate.core.admission import Admission


class Permit:
    """Proof of admission for one attempt; settled exactly once, by whoever holds it.

    `informs` says whether a success's headers are to be read: all, unless ample quota is known to be left; then now and
    then. A refusal's are read always. One that is sent `beyond` the learned slots and rate, for a call that does not
    wait, cuts neither where it is refused. `thread` is the identifier of the thread that runs the attempt, 0 if not
    known, and `loop` the event loop that does, None for an attempt that blocks its thread. One that was `overcommitted`
    took a slot that an attempt of a loop that does not run may hold yet; it is beyond the learned slots, too.
    """

    __slots__ = (
        "admission",
        "answered",
        "beyond",
        "charges",
        "cost",
        "epoch",
        "generation",
        "in_flight",
        "informs",
        "learned",
        "loop",
        "mark",
        "order",
        "overcommitted",
        "place",
        "probe",
        "sent_at",
        "settled",
        "thread",
    )

    def __init__(
        self, admission: Admission, cost: Cost, order: int, sent_at: float, probe: bool, beyond: bool = False
    ) -> None:
        self.admission = admission
        self.beyond = beyond
        self.cost = cost
        self.order = order
        self.epoch = admission.epoch
        self.generation = admission.generation
        self.in_flight = len(admission.flying) + 1
        self.mark = admission.pacer.mark if not beyond else -1
        self.sent_at = sent_at
        self.probe = probe
        self.place = 0
        self.thread = 0
        self.loop: object = None
        self.overcommitted = False
        self.settled = False
        self.answered = False
        self.learned = False
        self.charges: list[Charge] = admission.quotas.debit(cost, order, sent_at, self)
        self.informs = admission.quotas.asks

    @property
    def key(self) -> Key:
        """Return whose quota it counts against."""
        return self.admission.key


class Counts:
    """The counters of one key since it was made; latencies of the last hundred answered attempts, in seconds.

    `resent` attempts were of calls that had been sent before, `absorbed` of those after a refusal, which the caller so
    never saw. Calls that were `given_up` for want of capacity include those that were never sent, `unsent`. The failure
    of `failed_calls` was handed back; `replayed` calls got an answer that another call had been given, and those of
    them that were never sent are counted in `spared`.
    """

    __slots__ = (
        "abandoned",
        "absorbed",
        "answered",
        "attempts",
        "failed",
        "failed_calls",
        "given_up",
        "ignored",
        "latencies",
        "refused",
        "replayed",
        "resent",
        "spared",
        "unsent",
    )

    def __init__(self) -> None:
        self.attempts = self.answered = self.refused = self.failed = 0
        self.abandoned = self.ignored = self.resent = self.absorbed = self.given_up = self.unsent = 0
        self.failed_calls = self.replayed = self.spared = 0
        self.latencies: deque[float] = deque(maxlen=100)

    @property
    def latency(self) -> float:
        """The mean latency of the last answered attempts, in seconds; infinity where none was answered."""
        return sum(self.latencies) / len(self.latencies) if self.latencies else float("inf")
