"""How two runs of an SDK's suite are compared: what counts as a difference, and when a comparison proves nothing."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from conformance.comparing import ROUNDS, Result, Results, differences, settled
from conformance.running import Run
from conformance.suites import SUITES, complaints_of

PASSED, FAILED = Result("passed"), Result("failed", "assert 2 == 3")
ASKING, SILENT = (next(suite for suite in SUITES if suite.infers is infers) for infers in (True, False))
CLEAN = settled([], lambda tests: ({}, {}))


class ScriptedRounds:
    """Runs tests again as scripted: the outcomes without tidegate and with it, round by round."""

    def __init__(self, *rounds: tuple[Results, Results]) -> None:
        self.rounds = rounds
        self.asked: list[list[str]] = []

    def __call__(self, tests: Collection[str]) -> tuple[Results, Results]:
        self.asked.append(list(tests))
        return self.rounds[len(self.asked) - 1]


def run(results: Results, *, seen: int = 3, governed: int = 2, ended: str = "exit code 0") -> Run:
    return Run(results, seen, governed, 1.0, ended)


def test_a_test_that_comes_to_something_else_differs_and_says_why() -> None:
    (found,) = differences({"a": PASSED, "b": PASSED}, {"a": PASSED, "b": FAILED})
    assert str(found) == "b: passed -> failed (assert 2 == 3)"


def test_a_difference_counts_when_the_test_differs_alone_in_every_round() -> None:
    found = differences({"a": PASSED}, {"a": FAILED})
    again = ScriptedRounds(*[({"a": PASSED}, {"a": FAILED})] * ROUNDS)
    assert settled(found, again) == (found, [])
    assert again.asked == [["a"]] * ROUNDS


@pytest.mark.parametrize(("seen", "governed"), [(0, 0), (7, 0)])
def test_a_comparison_in_which_nothing_was_governed_proves_nothing(seen: int, governed: int) -> None:
    (complaint,) = complaints_of(ASKING, run({"a": PASSED}), run({"a": PASSED}, seen=seen, governed=governed), CLEAN)
    assert complaint == f"proves nothing: {seen} calls seen, 0 governed"
