"""Two runs of one test suite, test by test: what differs, and what of it counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

ABSENT = "absent"
"""The outcome of a test that the other run has and this one has not."""

ROUNDS = 3
"""How often a test that differs is run again, alone, before it counts."""


MANY = 40
"""So many differences are no accident: they all count at once."""


class Result(NamedTuple):
    """What one test came to, and the first line of its failure."""

    outcome: str
    why: str = ""


Results = Mapping[str, Result]

MISSING = Result(ABSENT)


class Difference(NamedTuple):
    """A test that came to one thing without tidegate and to another with it."""

    test: str
    without: Result
    governed: Result

    def __str__(self) -> str:
        why = self.governed.why or self.without.why
        return f"{self.test}: {self.without.outcome} -> {self.governed.outcome}" + (f" ({why})" if why else "")


class Verdict(NamedTuple):
    """The differences that count, and those that were gone when their tests were run alone."""

    differences: list[Difference]
    passing: list[Difference]


def results_of(path: Path) -> dict[str, Result]:
    """What a run wrote down: `{node id: result}`, empty where it wrote nothing."""
    if not path.exists():
        return {}
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return {node: Result(outcome, why) for node, outcome, why in lines}


def differences(without: Results, governed: Results) -> list[Difference]:
    """The tests whose outcomes differ, sorted; how a failure reads does not matter."""
    pairs = [(test, without.get(test, MISSING), governed.get(test, MISSING)) for test in sorted({*without, *governed})]
    return [Difference(*pair) for pair in pairs if pair[1].outcome != pair[2].outcome]


def settled(found: list[Difference], again: Callable[[Collection[str]], tuple[Results, Results]]) -> Verdict:
    """Tells the differences that last from those that pass: what still differs in each of `ROUNDS` runs, counts.

    More than `MANY` are not run again. `again` runs the given tests, each alone, and returns the results without
    tidegate and with it.
    """
    lasting = found
    for _ in range(ROUNDS if len(found) <= MANY else 0):
        if not lasting:
            break
        without, governed = again([each.test for each in lasting])
        seen = {each.test: each for each in differences(without, governed)}
        # A test that could not be run again has not been seen to agree.
        lasting = [
            seen.get(each.test, each)
            for each in lasting
            if each.test in seen or each.test not in without or each.test not in governed
        ]
    tests = {each.test for each in lasting}
    return Verdict(lasting, [each for each in found if each.test not in tests])


def tally(results: Results) -> str:
    """How many passed, failed and were skipped, as `passed/failed/skipped`; expected failures count as passed."""
    counts = Counter(result.outcome for result in results.values())
    passed = counts["passed"] + counts["xfailed"]
    return f"{passed}/{counts['failed'] + counts['error'] + counts['xpassed']}/{counts['skipped']}"
