"""Whose turn it is: fairness, turns that are kept, and what a dispatch costs."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Hashable

from tidegate.experiments.engine.queues import FairQueue


def level(experiment: int, gate: Hashable) -> int:
    return 0


def serve(fair_queue: FairQueue, count: int) -> list[int]:
    served = []
    for _ in range(count):
        turn = fair_queue.next(level)
        if turn is None:
            break
        fair_queue.dispatched(turn[0])
        served.append(turn[0])
    return served


def roster_of(*experiments: int, gate: str = "key") -> FairQueue:
    fair_queue = FairQueue()
    for experiment in experiments:
        fair_queue.join(experiment)
        fair_queue.offer(experiment, gate)
    return fair_queue


def test_of_an_experiments_open_gates_the_most_urgent_work_goes_first() -> None:
    fair_queue = FairQueue()
    fair_queue.join(1)
    for gate in ("tasks", "judge"):
        fair_queue.offer(1, gate)
    urgent = {"tasks": 2, "judge": 0}
    assert fair_queue.next(lambda _, gate: urgent[str(gate)]) == (1, "judge")
    urgent = {"tasks": 0, "judge": 2}
    assert fair_queue.next(lambda _, gate: urgent[str(gate)]) == (1, "tasks")
    fair_queue.close("tasks")
    assert fair_queue.next(lambda _, gate: urgent[str(gate)]) == (1, "judge")


def test_a_gate_that_is_removed_is_as_good_as_new() -> None:
    fair_queue = roster_of(1)
    fair_queue.close("key")
    fair_queue.remove("key")
    fair_queue.leave(1)
    fair_queue.join(2)
    fair_queue.offer(2, "key")
    assert fair_queue.next(level) == (2, "key")


def test_whatever_happens_the_next_is_the_open_experiment_that_was_served_longest_ago() -> None:
    """The same history on a plain list, which sorts everything every time."""
    draw = random.Random(11)
    for _ in range(60):
        fair_queue, last, offers, held = FairQueue(), {}, {}, set()
        closed: set[str] = set()
        gates = ["a", "b", "c"]
        served, joined = 0, -1000
        for step in range(400):
            move, who, gate = draw.randrange(8), draw.randrange(8), draw.choice(gates)
            if move == 0 and who not in last:
                joined += 1
                last[who], offers[who] = joined, set()
                fair_queue.join(who)
            elif move == 1 and who in last:
                offers[who].add(gate)
                fair_queue.offer(who, gate)
            elif move == 2 and who in last and draw.random() < 0.3:
                offers[who].discard(gate)
                fair_queue.withdraw(who, gate)
            elif move == 3 and who in last:
                fair_queue.hold(who, who not in held)
                held ^= {who}
            elif move == 4:
                (fair_queue.open if gate in closed else fair_queue.close)(gate)
                closed ^= {gate}
            elif move == 5 and draw.random() < 0.1 and who in last:
                fair_queue.leave(who)
                held.discard(who)
                del last[who], offers[who]
            else:
                able = [each for each in last if each not in held and offers[each] - closed]
                turn = fair_queue.next(level)
                assert (turn is None) == (not able), step
                if turn is not None:
                    assert turn[0] == min(able, key=last.__getitem__)
                    assert turn[1] in offers[turn[0]] - closed
                    served += 1
                    last[turn[0]] = served
                    fair_queue.dispatched(turn[0])


def moves_of_a_dispatch(count: int) -> float:
    """Function calls that a dispatch takes with so many live experiments on three keys: exact on any machine."""
    fair_queue = FairQueue()
    for experiment in range(count):
        fair_queue.join(experiment)
        fair_queue.offer(experiment, f"key {experiment % 3}")
    serve(fair_queue, 3 * count)
    calls = 0

    def count_calls(frame: object, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count_calls)
    try:
        serve(fair_queue, 1000)
    finally:
        sys.setprofile(None)
    return calls / 1000


def test_a_dispatch_among_a_thousand_experiments_takes_no_more_steps_than_among_ten() -> None:
    assert moves_of_a_dispatch(1000) < 1.2 * moves_of_a_dispatch(10)


def weighted(weights: dict[int, float], gate: str = "key") -> FairQueue:
    fair_queue = FairQueue()
    for experiment, weight in weights.items():
        fair_queue.join(experiment, weight)
        fair_queue.offer(experiment, gate)
    return fair_queue


def test_a_turn_has_as_many_dispatches_as_the_weight() -> None:
    assert serve(weighted({1: 1.0, 2: 3.0}), 9) == [1, 2, 2, 2, 1, 2, 2, 2, 1]
    assert serve(weighted({1: 0.5, 2: 1.0}), 6) == [1, 2, 2, 1, 2, 2]
    assert serve(weighted({1: 7.0, 2: 7.0}), 4) == [1, 2, 1, 2]


def test_dispatches_are_shared_by_weight_whatever_the_weights_are() -> None:
    draw = random.Random(5)
    for _ in range(50):
        weights = {number: round(draw.uniform(0.01, 5.0), 2) for number in range(1, draw.randrange(3, 7))}
        least, total = min(weights.values()), sum(weights.values())
        # Whole rounds of the lightest: each share is met to within one turn.
        rounds = 40
        counts = Counter(serve(weighted(weights), round(rounds * total / least)))
        for number, weight in weights.items():
            assert abs(counts[number] - rounds * weight / least) <= weight / least + len(weights), (weights, counts)


def test_weights_hold_at_a_throttled_key_beside_a_fast_one() -> None:
    fair_queue = weighted({1: 1.0, 2: 3.0})
    fair_queue.join(3)
    fair_queue.offer(3, "fast")
    slow = []
    for _ in range(40):
        fair_queue.close("key")
        assert set(serve(fair_queue, 100)) == {3}
        fair_queue.open("key")
        turn = fair_queue.next(level)
        assert turn is not None
        fair_queue.dispatched(turn[0])
        slow.append(turn[0])
    assert Counter(slow) == {1: 10, 2: 30}


def test_a_throttled_experiment_saves_up_no_dispatches() -> None:
    fair_queue = weighted({2: 1.0}, "other")
    fair_queue.join(1, 2.0)
    fair_queue.offer(1, "key")
    fair_queue.close("key")
    serve(fair_queue, 100)
    fair_queue.open("key")
    assert serve(fair_queue, 6) == [1, 1, 2, 1, 1, 2]


def test_the_lightest_that_leaves_makes_turns_short_again() -> None:
    fair_queue = weighted({1: 0.01, 2: 1.0, 3: 1.0})
    serve(fair_queue, 201)
    fair_queue.leave(1)
    served = serve(fair_queue, 300)
    assert served[-4:] in ([2, 3, 2, 3], [3, 2, 3, 2])


def test_a_turn_that_began_beside_a_lighter_one_ends_with_it() -> None:
    fair_queue = weighted({1: 100.0, 2: 0.01})
    serve(fair_queue, 10)
    fair_queue.leave(2)
    fair_queue.join(3, 100.0)
    fair_queue.offer(3, "key")
    assert Counter(serve(fair_queue, 100)) == {1: 50, 3: 50}
