"""The table: complete, feasible, the same for the same seed."""

from __future__ import annotations

import pytest

from bench.scenarios import NAMES, row_named
from tidegate.testing import Scenario


@pytest.mark.parametrize("name", NAMES)
def test_the_oracle_finishes_every_row_within_half_a_minute(name: str) -> None:
    row = row_named(name)
    schedule = row.ideal(0)
    assert 5.0 < schedule.makespan < 30.0
    assert len(schedule.ended_at) == row.count
    assert row.ideal(0) == schedule != row.ideal(1)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_goes_to_the_simulator_as_text_and_comes_back(name: str) -> None:
    scenario = row_named(name).seeded(3)
    assert Scenario.from_json(scenario.to_json()) == scenario
