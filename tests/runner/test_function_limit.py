"""The number of functions under way follows the keys, the machine, and the speed of the functions' own work."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import pytest

from tidegate.admission.process import CALL_BYTES, SPARE_DESCRIPTORS, FreeResources
from tidegate.pool import function_limit
from tidegate.pool.function_limit import FIRST_FUNCTIONS, LEAST_FUNCTIONS, FunctionLimit, Hold, WorkMargin

PLENTY = FreeResources(2**40, 10**6)


class Worker:
    """A function under way."""

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.at_work_since: float | None = None
        self.beside = 0
        self.over = False


class Machine:
    """A limit with a clock and free resources of its own."""

    def __init__(self, configured: int | None = None, free: FreeResources = PLENTY) -> None:
        self.now = 0.0
        self.free = free
        self.woken = 0
        self.limit = FunctionLimit(configured, lambda: self.now, self.wake, lambda: self.free)

    def wake(self) -> None:
        self.woken += 1

    def start(self, size: int = 0) -> Worker | None:
        if not self.limit.has_room():
            return None
        worker = Worker(size)
        self.limit.started(worker)
        return worker

    def start_in_calls(self, most: int, size: int = 0) -> list[Worker]:
        """Start functions that are in a call at once, as many as may start, at most so many."""
        begun: list[Worker] = []
        while len(begun) < most and (worker := self.start(size)) is not None:
            self.limit.calls(worker)
            begun.append(worker)
        return begun


def finished(most: float, works: Callable[[int], float]) -> tuple[int, int]:
    """Run functions that make no call for `most` seconds; each one works `works(at work)` seconds.

    Return how many ended, and the highest number at work.
    """
    machine, ends, done, peak, count = Machine(), [], 0, 0, 0
    while True:
        while (worker := machine.start()) is not None:
            count += 1
            heappush(ends, (machine.now + works(len(ends) + 1), count, worker))
        peak = max(peak, len(ends))
        machine.now, _, worker = heappop(ends)
        if machine.now > most:
            return done, peak
        machine.limit.ended(worker)
        done += 1


class TestOwnWork:
    def test_functions_that_only_compute_stay_at_the_floor_but_for_short_trials(self) -> None:
        """A processor that each of them shares: twice as many take twice as long."""
        done, peak = finished(100.0, lambda at_work: 0.05 * at_work)
        assert peak <= 2 * LEAST_FUNCTIONS
        assert done >= 0.99 * 100.0 / 0.05 - 2 * LEAST_FUNCTIONS

    def test_functions_that_wait_elsewhere_become_more(self) -> None:
        done, peak = finished(60.0, lambda at_work: 2.0)
        assert peak == FIRST_FUNCTIONS
        assert done >= 20_000

    def test_functions_share_a_server_of_some_slots_and_no_more_than_twice_as_many_are_at_work(self) -> None:
        done, peak = finished(100.0, lambda at_work: 1.0 * max(1.0, at_work / 60))
        assert peak <= 4 * 60
        assert done >= 0.9 * 60 * 100

    def test_margin_goes_back_when_the_functions_do_something_else(self) -> None:
        margin, now = WorkMargin(), 0.0
        for _ in range(2000):
            now += 0.01
            margin.worked(margin.allowed, now - 1.0, now)
        high = margin.allowed
        assert high > 4 * LEAST_FUNCTIONS
        for _ in range(20 * high):
            now += 0.01
            margin.worked(margin.allowed, now - 0.05 * margin.allowed, now)
        assert margin.allowed <= 2 * LEAST_FUNCTIONS

    def test_what_is_in_a_call_is_not_at_work(self) -> None:
        machine = Machine()
        begun = machine.start_in_calls(500)
        assert len(begun) == 500
        for worker in begun:
            machine.limit.works(worker)
        assert machine.start() is None
        assert machine.limit.held_by is Hold.OWN_WORK
        machine.limit.calls(begun[0])
        assert machine.woken == 1

    def test_a_function_that_has_ended_is_counted_no_more(self) -> None:
        machine = Machine()
        worker = machine.start()
        assert worker is not None
        machine.limit.ended(worker)
        machine.limit.works(worker)
        machine.limit.calls(worker)
        assert (machine.limit.in_flight, machine.limit.free) == (0, LEAST_FUNCTIONS)


class TestMachine:
    def test_bound_rises_while_the_keys_admit_more(self) -> None:
        machine = Machine()
        assert len(machine.start_in_calls(10**6)) == FIRST_FUNCTIONS
        assert machine.limit.held_by is Hold.MOST
        for expected in (2 * FIRST_FUNCTIONS, 4 * FIRST_FUNCTIONS):
            machine.now += 1.0
            machine.start_in_calls(10**6)
            assert machine.limit.in_flight == expected

    def test_memory_bounds_it(self) -> None:
        machine = Machine(free=FreeResources(2 * CALL_BYTES * 300, None))
        begun = machine.start_in_calls(10**6)
        assert len(begun) <= function_limit.MIN_MEASURED_FUNCTIONS + 300
        assert machine.limit.held_by is Hold.MEMORY

    def test_descriptors_bound_it(self) -> None:
        machine = Machine(free=FreeResources(2**40, SPARE_DESCRIPTORS + 156))
        begun = machine.start_in_calls(10**6)
        assert len(begun) <= function_limit.MIN_MEASURED_FUNCTIONS + 156
        assert machine.limit.held_by is Hold.DESCRIPTORS

    def test_bound_stays_where_nothing_is_known_of_the_machine(self) -> None:
        machine = Machine(free=FreeResources(None, None))
        machine.start_in_calls(10**6)
        machine.now += 10.0
        machine.start_in_calls(10**6)
        assert machine.limit.in_flight == FIRST_FUNCTIONS

    def test_some_functions_may_always_run(self) -> None:
        machine = Machine(free=FreeResources(0, 0))
        assert len(machine.start_in_calls(10**6, size=10**9)) == LEAST_FUNCTIONS
        assert machine.limit.held_by is Hold.MEMORY

    def test_large_rows_are_bounded_by_their_bytes_and_free_memory(self) -> None:
        size, free = 1_000_000, FreeResources(3_200_000_000, None)
        machine = Machine(free=free)
        begun = machine.start_in_calls(10**6, size)
        assert 3_200_000_000 / 16 <= machine.limit.size <= 3_200_000_000 / 16 + 100 * size
        assert machine.limit.held_by is Hold.MEMORY
        for worker in begun:
            machine.limit.ended(worker)
        assert machine.limit.size == 0
        assert len(machine.start_in_calls(10, size)) == 10


class TestConfigured:
    @pytest.mark.parametrize("number", [1, 3, 700])
    def test_the_number_that_is_given_is_that_of_the_functions_that_do_not_wait_in_a_queue(self, number: int) -> None:
        machine = Machine(number)
        begun = [machine.start() for _ in range(number)]
        assert None not in begun
        assert machine.start() is None
        assert machine.limit.held_by is Hold.CONFIGURED
        machine.limit.lend(1)
        assert machine.start() is not None
        machine.limit.lend(-1)
        assert machine.limit.free == -1
