"""Where code is tried out: a script, a notebook with a loop of its own, and what is shown of what is there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tidegate.experiments import Experiment, ExperimentRunner


def double(row: Any) -> Any:
    return row["n"] * 2


def even(row: Any, output: Any) -> Any:
    return output % 4 == 0


def doubles() -> Experiment:
    return Experiment("doubles", [{"n": n} for n in range(4)], double, [even], repetitions=2)


def test_a_script_runs_an_experiment_as_often_as_it_likes(tmp_path: Path) -> None:
    for _ in range(3):
        assert doubles().run(str(tmp_path / "runs.db")).complete


def test_where_a_loop_runs_already_it_says_what_to_await(tmp_path: Path) -> None:
    async def cell() -> None:
        with pytest.raises(
            RuntimeError, match=r"an event loop runs here already, as in a notebook; use `await experiment.arun\("
        ):
            doubles().run(str(tmp_path / "runs.db"))
        assert (await doubles().arun(str(tmp_path / "runs.db"))).complete

    asyncio.run(cell())


def test_cells_of_one_loop_share_a_runner(tmp_path: Path) -> None:
    with asyncio.Runner() as notebook:
        runner = ExperimentRunner(str(tmp_path / "runs.db"))

        async def cell() -> Any:
            return await runner.run(doubles())

        assert [notebook.run(cell()).complete for _ in range(3)] == [True] * 3
        notebook.run(runner.shutdown())


def test_an_experiment_and_its_summary_are_shown_in_words(tmp_path: Path) -> None:
    experiment = doubles()
    assert repr(experiment) == "Experiment('doubles', list of double, evaluators=['even'], repetitions=2)"
    summary = experiment.run(str(tmp_path / "runs.db"))
    assert repr(summary) == str(summary) == "doubles: COMPLETED: 4 rows × 2, 8 answered\neven: 0.500 of 8"
