"""The choice of the next experiment: of all with something ready behind an open gate, the one served longest ago.

Theory of operation. Every dispatch gives an experiment the next number; the least number goes first, and a new
experiment begins below all of them. One that is throttled keeps its number, and with it its turn. Each gate has a heap
of the experiments that offer work behind it, and the open gates stand in a heap by the number of their first. Numbers
only grow, so an entry that is out of date stands too far in front, never too far behind: it is put right when it comes
to the top. A dispatch so costs the logarithm of how many experiments and gates there are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from heapq import heappop, heappush, heapreplace

NEWEST = -(2**62)


class GateQueue:
    """The stages behind one gate; by `first`, its number, and `entry` it stands among the open ones."""

    __slots__ = ("closed", "entry", "first", "heap", "members", "name")

    def __init__(self, name: Hashable) -> None:
        self.name = name
        self.heap: list[tuple[int, int]] = []
        self.members: set[int] = set()
        self.closed = False
        self.first: int | None = None
        self.entry = 0


class QueuedExperiment:
    """One experiment: the number of its last dispatch, and the gates behind which it has something ready."""

    __slots__ = ("held", "last", "offers")

    def __init__(self, last: int) -> None:
        self.last = last
        self.offers: set[Hashable] = set()
        self.held = False


class FairQueue:
    """The turns of all live experiments, which are known by numbers of their own."""

    def __init__(self) -> None:
        self._seats: dict[int, QueuedExperiment] = {}
        self._gates: dict[Hashable, GateQueue] = {}
        self._top: list[tuple[int, int, GateQueue]] = []
        self._served = 0
        self._joined = NEWEST
        self._entries = 0

    def join(self, experiment: int) -> None:
        """A new experiment: it goes before all that have been served; of several new ones, the first."""
        self._joined += 1
        self._seats[experiment] = QueuedExperiment(self._joined)

    def leave(self, experiment: int) -> None:
        """It has ended; repeating it does nothing."""
        self._seats.pop(experiment, None)

    def offer(self, experiment: int, gate: Hashable) -> None:
        """It has something ready behind that gate."""
        seat = self._seats[experiment]
        if gate in seat.offers:
            return
        seat.offers.add(gate)
        if not seat.held:
            self._enter(experiment, seat, gate)

    def withdraw(self, experiment: int, gate: Hashable) -> None:
        """It has nothing more behind that gate."""
        seat = self._seats.get(experiment)
        if seat is not None:
            seat.offers.discard(gate)

    def hold(self, experiment: int) -> None:
        """It has as much under way as it may."""
        self._seats[experiment].held = True

    def free(self, experiment: int) -> None:
        """It may go on, and has kept its turn."""
        seat = self._seats.get(experiment)
        if seat is not None and seat.held:
            seat.held = False
            for gate in seat.offers:
                self._enter(experiment, seat, gate)

    def close(self, gate: Hashable) -> None:
        """Nothing goes through that gate for now."""
        self._gate(gate).closed = True

    def open(self, gate: Hashable) -> None:
        """Whoever stands behind that gate may be asked again."""
        found = self._gates.get(gate)
        if found is None or not found.closed:
            return
        if not found.heap:
            self.remove(gate)
            return
        found.closed = False
        self._show(found)

    def remove(self, gate: Hashable) -> None:
        """Nobody will stand behind that gate any more."""
        found = self._gates.pop(gate, None)
        if found is not None:
            found.closed = True

    def next(self, rank: Callable[[int, Hashable], int]) -> tuple[int, Hashable] | None:
        """The experiment whose turn it is, and the gate behind which its most urgent work is; None where nobody is.

        `rank` says how urgent what an experiment has behind a gate is, less being more urgent; it is asked only where
        the same experiment comes first behind several open gates.
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
        """It has been served: its next turn comes after everybody's."""
        self._served += 1
        self._seats[experiment].last = self._served

    def _gate(self, name: Hashable) -> GateQueue:
        gate = self._gates.get(name)
        if gate is None:
            gate = self._gates[name] = GateQueue(name)
        return gate

    def _enter(self, experiment: int, seat: QueuedExperiment, name: Hashable) -> None:
        gate = self._gate(name)
        if experiment in gate.members:
            return
        gate.members.add(experiment)
        heappush(gate.heap, (seat.last, experiment))
        if not gate.closed:
            self._show(gate)

    def _show(self, gate: GateQueue) -> None:
        """Puts an open gate where its first belongs among the others, if it does not stand in front of that."""
        if gate.heap and (gate.first is None or gate.heap[0][0] < gate.first):
            gate.first = gate.heap[0][0]
            self._entries += 1
            gate.entry = self._entries
            heappush(self._top, (gate.first, gate.entry, gate))

    def _first(self) -> GateQueue | None:
        """The open gate whose first experiment was served longest ago; both heaps then say the truth at their tops."""
        top = self._top
        while top:
            number, entry, gate = top[0]
            if entry != gate.entry:
                # It was shown with a lesser number since.
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
            seat = self._seats.get(experiment)
            if seat is None or seat.held or gate.name not in seat.offers:
                heappop(heap)
                gate.members.discard(experiment)
            elif number != seat.last:
                heapreplace(heap, (seat.last, experiment))
            else:
                return number
        return None
