"""Fair choice of the next experiment: of those with ready work behind an open gate, the one served longest ago.

Theory of operation. A gate is a key, or a stage without a known key, that may hold work back. Every turn of an
experiment gives it the next number at its end. The smallest number goes first, and new experiments start below all
others. A turn has as many dispatches as the experiment's weight, in units of the smallest weight; a remainder counts
for the next turn (deficit round robin, Shreedhar and Varghese 1995). With equal weights each dispatch is a turn. A
throttled experiment keeps its number and so its position, but no turns add up for it.

Each gate has a heap of the experiments that offer work behind it. Another heap orders the open gates by their first
experiment. Numbers only grow, so an outdated entry is too far in front, never too far behind. It is corrected when it
reaches the top. A dispatch costs the logarithm of the number of experiments and gates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from heapq import heappop, heappush, heapreplace

NEW_EXPERIMENT = -(2**62)
"""Number below which no experiment starts: it leaves 2**62 numbers for new experiments, all smaller than any dispatch.
"""

WHOLE = 1.0 - 1e-9
"""Credit of one dispatch. Lowering it gives dispatches for less. Derived from the rounding of sums of weights."""


class GateQueue:
    """Experiments behind one gate; `first` and `entry` are its sort key among the open gates."""

    __slots__ = ("closed", "entry", "first", "heap", "members", "name")

    def __init__(self, name: Hashable) -> None:
        self.name = name
        self.heap: list[tuple[int, int]] = []
        self.members: set[int] = set()
        self.closed = False
        self.first: int | None = None
        self.entry = 0


class QueuedExperiment:
    """One experiment: the number of its last turn, and the gates behind which it has ready work.

    `credit` is the number of dispatches that are left of its turn, with a fraction for the next one.
    """

    __slots__ = ("credit", "held", "last", "offers", "weight")

    def __init__(self, last: int, weight: float, credit: float) -> None:
        self.last = last
        self.weight = weight
        self.credit = credit
        self.offers: set[Hashable] = set()
        self.held = False


class FairQueue:
    """Dispatch order of all live experiments, which are identified by their numbers."""

    def __init__(self) -> None:
        self._members: dict[int, QueuedExperiment] = {}
        self._gates: dict[Hashable, GateQueue] = {}
        self._top: list[tuple[int, int, GateQueue]] = []
        self._turn_count = 0
        self._joined = NEW_EXPERIMENT
        self._entries = 0
        self._weights: Counter[float] = Counter()
        self._least = 1.0

    def join(self, experiment: int, weight: float = 1.0) -> None:
        """Add a new experiment before all that were served; several new ones go in their order.

        Of the dispatches that several experiments compete for, each gets a share in proportion to its `weight`.
        """
        self._joined += 1
        self._weights[weight] += 1
        self._least = min(self._weights)
        self._members[experiment] = QueuedExperiment(self._joined, weight, weight / self._least)

    def leave(self, experiment: int) -> None:
        """Remove an experiment that has ended; a repeated call does nothing."""
        member = self._members.pop(experiment, None)
        if member is not None:
            self._weights[member.weight] -= 1
            # Without zeros and negative counts.
            self._weights = +self._weights
            self._least = min(self._weights, default=1.0)

    def offer(self, experiment: int, gate: Hashable) -> None:
        """Record that an experiment has ready work behind a gate."""
        member = self._members[experiment]
        if gate in member.offers:
            return
        member.offers.add(gate)
        if not member.held:
            self._enter(experiment, member, gate)

    def withdraw(self, experiment: int, gate: Hashable) -> None:
        """Record that an experiment has no more ready work behind a gate."""
        member = self._members.get(experiment)
        if member is not None:
            member.offers.discard(gate)

    def hold(self, experiment: int) -> None:
        """Suspend an experiment that has its maximum of jobs in flight."""
        self._members[experiment].held = True

    def free(self, experiment: int) -> None:
        """Let a suspended experiment continue at its old position."""
        member = self._members.get(experiment)
        if member is not None and member.held:
            member.held = False
            for gate in member.offers:
                self._enter(experiment, member, gate)

    def close(self, gate: Hashable) -> None:
        """Close a gate: no work behind it is dispatched."""
        self._gate(gate).closed = True

    def open(self, gate: Hashable) -> None:
        """Open a gate: the experiments behind it may be dispatched again."""
        found = self._gates.get(gate)
        if found is None or not found.closed:
            return
        if not found.heap:
            self.remove(gate)
            return
        found.closed = False
        self._show(found)

    def remove(self, gate: Hashable) -> None:
        """Remove a gate that no experiment will use."""
        found = self._gates.pop(gate, None)
        if found is not None:
            found.closed = True

    def next(self, rank: Callable[[int, Hashable], int]) -> tuple[int, Hashable] | None:
        """Return the next experiment and the gate of its most urgent work; None if no work can be dispatched.

        `rank` returns the urgency of an experiment's work behind a gate; the lowest value is the most urgent. It is
        called only if the same experiment is first behind several open gates.
        """
        gate = self._first()
        if gate is None:
            return None
        number, experiment = gate.heap[0]
        best, best_rank = gate, None
        others: list[tuple[int, int, GateQueue]] = []
        while True:
            others.append(heappop(self._top))
            other = self._first()
            if other is None or other.first != number:
                break
            best_rank = rank(experiment, best.name) if best_rank is None else best_rank
            other_rank = rank(experiment, other.name)
            if other_rank < best_rank:
                best, best_rank = other, other_rank
        for entry in others:
            heappush(self._top, entry)
        return experiment, best.name

    def dispatched(self, experiment: int) -> None:
        """Count a dispatch of an experiment, and move it behind all others at the end of its turn."""
        member = self._members[experiment]
        turn = member.weight / self._least
        # A turn that began beside a smaller weight is worth less once that one has left.
        member.credit = min(member.credit, turn + 1.0) - 1.0
        if member.credit >= WHOLE:
            return
        member.credit += turn
        self._turn_count += 1
        member.last = self._turn_count

    def _gate(self, name: Hashable) -> GateQueue:
        gate = self._gates.get(name)
        if gate is None:
            gate = self._gates[name] = GateQueue(name)
        return gate

    def _enter(self, experiment: int, member: QueuedExperiment, name: Hashable) -> None:
        gate = self._gate(name)
        if experiment in gate.members:
            return
        gate.members.add(experiment)
        heappush(gate.heap, (member.last, experiment))
        if not gate.closed:
            self._show(gate)

    def _show(self, gate: GateQueue) -> None:
        """Insert an open gate by its first experiment, unless it already has an entry in front of that position."""
        if gate.heap and (gate.first is None or gate.heap[0][0] < gate.first):
            gate.first = gate.heap[0][0]
            self._entries += 1
            gate.entry = self._entries
            heappush(self._top, (gate.first, gate.entry, gate))

    def _first(self) -> GateQueue | None:
        """Return the open gate whose first experiment was served longest ago, and correct the tops of both heaps."""
        top = self._top
        while top:
            number, entry, gate = top[0]
            if entry != gate.entry:
                # The gate was inserted again with a smaller number.
                heappop(top)
                continue
            real = None if gate.closed else self._front(gate)
            if real == number:
                return gate
            gate.first = real
            if real is None:
                heappop(top)
                if not gate.closed:
                    self._gates.pop(gate.name, None)
            else:
                heapreplace(top, (real, entry, gate))
        return None

    def _front(self, gate: GateQueue) -> int | None:
        heap = gate.heap
        while heap:
            number, experiment = heap[0]
            member = self._members.get(experiment)
            if member is None or member.held or gate.name not in member.offers:
                heappop(heap)
                gate.members.discard(experiment)
            elif number != member.last:
                heapreplace(heap, (member.last, experiment))
            else:
                return number
        return None
