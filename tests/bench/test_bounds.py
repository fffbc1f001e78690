"""Refusals and lost time of the drawn families, taken apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import virtual
from bench.bounds import HEADER, line, parts, played, turns
from bench.drawntable import BARS, Bar, named
from bench.players import probing
from tidegate.testing import Limit

SEED = 1


def test_a_refusal_is_of_the_first_round_or_of_a_test_or_under_way_with_one() -> None:
    """Two were sent before the first refusal was heard at 0.1; a test at 0.5 is heard at 0.6, with one under way."""
    refused = [(0.1, 0.0), (0.12, 0.05), (0.6, 0.5), (0.61, 0.55), (0.9, 0.61)]
    assert parts(refused) == (2, 2, 1)
    assert parts([]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (Limit(limit=20, window=1.0, shares=((2.0, 0.25),), period=4.0), 4.0),
        (Limit(limit=20, window=1.0, shares=((0.0, 0.25), (2.0, 1.0)), period=4.0), 4.0),
        (Limit(kind="fixed", limit=20, window=2.5), 3.6),
        (Limit(limit=20, window=1.0), 0.0),
    ],
)
def test_changes_and_windows_are_counted(limit: Limit, expected: float) -> None:
    assert turns(limit, 9.0) == pytest.approx(expected)


def test_a_run_is_the_laboratory_s_and_its_parts_are_all_of_its_refusals() -> None:
    (family,) = named(["hidden-slots"])
    row = replace(family.row(SEED), count=120)
    made, run = played(row, SEED), virtual.run(row, SEED)
    assert (made.run.ratio, made.run.refused) == (run.ratio, run.refused)
    assert made.first + made.tests + made.under_way == run.refused > 0
    assert made.end == run.ratio - 1.0


def test_only_a_family_that_misses_a_bound_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    (family,) = named(["hidden-slots"])
    made = [played(replace(family.row(SEED), count=120), SEED)]
    monkeypatch.setitem(BARS, family.name, Bar(9.0, 1.0))
    assert line(family, made) is None
    monkeypatch.setitem(BARS, family.name, Bar(9.0, 0.0))
    found = line(family, made)
    assert found is not None
    assert len(found) == len(HEADER)
    assert found[1] == "429s per call"


def test_a_player_that_tests_for_changes_follows_them_and_pays_for_it() -> None:
    (family,) = named(["flips"])
    row = family.row(SEED)
    made = probing(row, SEED)
    assert made.seconds <= 1.3 * row.ideal(SEED).makespan
    assert made.refused >= turns(row.scenario.limiters[0], made.seconds)
