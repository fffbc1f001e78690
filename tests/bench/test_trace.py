"""What the figures draw: watched without changing it, complete, in the units that the axes say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.scenarios import row_named
from bench.trace import Trace, per_second, record
from bench.virtual import Laboratory
from tests.bench.rows import SMALL


@pytest.mark.parametrize("name", ["silent-changing", "outage", "fixed-windows"])
def test_watching_changes_nothing(name: str) -> None:
    row = row_named(name)
    row = replace(row, count=row.count // 3)
    laboratory = Laboratory(row, 0)
    laboratory.run()
    trace = record(row, 0)
    assert trace.admitted == laboratory.accounts.truth().admitted_at
    assert trace.makespan == laboratory.makespan


def test_a_trace_has_a_figure_for_every_instant() -> None:
    trace = record(SMALL, 0)
    count = len(trace.times)
    assert count > 100
    assert trace.times == sorted(trace.times)
    assert all(len(line) == count for line in (trace.limit, trace.in_flight, trace.waiting, trace.pace, trace.gates))
    for levels in (trace.mirrored, trace.true):
        assert {name: len(line) for name, line in levels.items()} == {"requests": count}
    assert len(trace.admitted) == SMALL.count
    assert max(trace.in_flight) <= SMALL.callers
    assert any(gate.startswith("quota") for gate in trace.gates)


def test_the_bars_are_calls_a_second_and_what_comes_after_the_last_edge_has_none() -> None:
    assert per_second([0.0, 0.1, 0.4, 0.6, 1.0, 7.0], [0.0, 0.5, 1.0]) == [6.0, 2.0]


def test_the_bars_of_a_run_come_to_all_its_calls() -> None:
    trace = record(SMALL, 0)
    edges = [trace.end / 10 * place for place in range(11)]
    assert sum(per_second(trace.admitted, edges)) * edges[1] == pytest.approx(SMALL.count)
    assert trace.end > trace.makespan >= max(trace.admitted)


def test_a_gate_binds_from_its_first_sample_to_the_one_after_its_last() -> None:
    trace = Trace(SMALL, SMALL.ideal(0), times=[0.0, 0.5, 1.0, 1.5, 2.0])
    trace.gates = ["", "quota requests", "quota tokens", "", "pause"]
    assert trace.bound() == [("quota", 0.5, 1.5), ("pause", 2.0, 2.5)]


def test_the_title_says_what_came_of_it() -> None:
    trace = record(SMALL, 0)
    trace.makespan, trace.refused = 1.25 * trace.oracle.makespan, (1.0,)
    assert trace.title == "small: 1.250 of the oracle's time, 0.020 refusals a call"
