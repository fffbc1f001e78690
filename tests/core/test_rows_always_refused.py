"""Programs with rows that a provider always refuses: other rows are answered meanwhile, and the errors come in time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import OK, REFUSED, UNAVAILABLE, refusal
from tidegate.core.limiter_state import Permit
from tidegate.core.values import INFINITY, Cause, Kind, Outcome

LATENCY = 0.1
"""Seconds of an answer, and of a refusal."""

HINTED = refusal(1.0)
HINTED_503 = Outcome(Kind.OVERLOADED, Cause.OVERLOAD, 5.0, status=503)


class Ends(NamedTuple):
    """Instants at which the rows were answered, and the seconds from the beginning of each other row to its error."""

    answered: dict[int, float]
    errors: dict[int, float]


def run_rows(rows: int, workers: int, fails: Callable[[int, float], bool], outcome: Outcome, seconds: float) -> Ends:
    """Let each worker ask its row, then the next one; `fails` says whether a row is refused that is sent at a time."""
    scene, ends = Scene(), Ends({}, {})
    began_at, flying = scene.clock(), dict[int, tuple[Caller, float]]()
    sent: dict[int, tuple[Permit, float, bool]] = {}
    left = iter(range(rows))
    while len(ends.answered) + len(ends.errors) < rows and scene.clock() < began_at + seconds:
        now = scene.clock() - began_at
        while len(flying) < workers and (row := next(left, None)) is not None:
            flying[row] = scene.call(), now
        for caller, _ in flying.values():
            caller.poll()
        for row, (caller, since) in list(flying.items()):
            if caller.permit is not None:
                if row not in sent or sent[row][0] is not caller.permit:
                    sent[row] = caller.permit, now, fails(row, now)
                if now >= sent[row][1] + LATENCY - 1e-9:
                    caller.reply(outcome if sent[row][2] else OK)
            if caller.state == "ended":
                del flying[row]
                if sent[row][2]:
                    ends.errors[row] = now - since
                else:
                    ends.answered[row] = now
        scene.clock.advance(0.05)
    return ends


def one_in(count: int) -> Callable[[int, float], bool]:
    return lambda row, now: row % count == 2


@pytest.mark.parametrize("workers", [8, 32, 200])
@pytest.mark.parametrize(("outcome", "seconds"), [(HINTED, 60.0), (HINTED_503, 180.0), (REFUSED, 60.0)])
def test_rows_that_are_always_refused_hold_no_other(workers: int, outcome: Outcome, seconds: float) -> None:
    ends = run_rows(200, workers, one_in(20), outcome, seconds)
    assert len(ends.answered) == 190


def test_other_rows_test_the_key_after_a_long_time_that_a_refused_row_names() -> None:
    ends = run_rows(200, 200, one_in(20), refusal(20.0), 60.0)
    assert len(ends.answered) == 190


PLAIN_SECONDS = 2.0
"""Seconds after which an SDK alone raises a refusal that names no time (openai 3.52: two retries)."""


@pytest.mark.parametrize("every", [10, 20])
@pytest.mark.parametrize("outcome", [REFUSED, UNAVAILABLE, HINTED])
def test_workers_that_all_have_a_refused_row_get_its_error_within_half_a_minute(outcome: Outcome, every: int) -> None:
    """Then no worker asks a row that could be answered: the refusals before show that the rows are the cause."""
    ends = run_rows(200, 8, one_in(every), outcome, 120.0)
    assert len(ends.answered) == 200 - 200 // every
    assert len(ends.errors) >= 200 // every - 1
    assert max(ends.errors.values()) < PLAIN_SECONDS + 30.0


@pytest.mark.parametrize("outcome", [REFUSED, UNAVAILABLE])
@pytest.mark.parametrize(("workers", "share"), [(1, 0.1), (8, 0.1), (8, 0.3), (32, 0.3)])
@pytest.mark.parametrize("seed", [1, 3, 5])
def test_refusals_of_an_outage_are_waited_for_whatever_was_refused_by_chance_before(
    outcome: Outcome, workers: int, share: float, seed: int
) -> None:
    draw = random.Random(seed).random

    def fails(row: int, now: float) -> bool:
        return 2.0 <= now < 92.0 or draw() < share

    ends = run_rows(60 * min(workers, 10), workers, fails, outcome, INFINITY)
    assert not ends.errors


@pytest.mark.parametrize("outcome", [REFUSED, HINTED, UNAVAILABLE])
def test_row_of_a_lone_worker_waits_because_no_other_shows_that_the_key_works(outcome: Outcome) -> None:
    ends = run_rows(12, 1, one_in(20), outcome, 300.0)
    assert len(ends.answered) == 2
    assert not ends.errors
