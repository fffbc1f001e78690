"""What fails in a run: how often it is tried, what is kept of it, and when it breaks the run off."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.runner.scene import HeldTask, Refused, in_loop, ran, rows, runner_at, statuses, stored
from tidegate.admission.registry import RateLimitRegistry
from tidegate.experiments import Evaluator, Experiment, UnusableAnswer
from tidegate.experiments.storage import ResultStatus, Status

OK, ERROR = ResultStatus.OK, ResultStatus.ERROR


def Watch_as(name: str) -> Evaluator:
    return Evaluator(HeldTask(), name=name)


class TestFailures:
    @in_loop
    async def test_what_may_pass_has_three_attempts_and_then_leaves_a_row_that_says_why(self, tmp_path: Path) -> None:
        calls: list[int] = []

        async def answer(row: Any) -> str:
            calls.append(row["n"])
            if row["n"] == 1 or calls.count(row["n"]) < 3:
                raise ConnectionError("reset")
            return "at last"

        summary, runs = await ran(tmp_path, Experiment("e", rows(3), answer))
        assert [(run.status, run.attempts, run.error_kind) for run in runs] == [
            (OK, 3, None),
            (ERROR, 3, "outage"),
            (OK, 3, None),
        ]
        assert str(runs[1].error).startswith("ConnectionError: reset (test_failing.py:")
        assert not summary.complete

    @in_loop
    async def test_what_another_attempt_cannot_mend_fails_at_once(self, tmp_path: Path) -> None:
        async def answer(row: Any) -> str:
            raise KeyError("question")

        async with runner_at(tmp_path) as runner:
            summary = await runner.run(Experiment("e", rows(2), answer))
            runs = await stored(runner.store, summary.experiment.id)
            lines = await runner.store.reports.last_logs(summary.experiment.id, 1000)
        assert [(run.status, run.attempts, run.error_kind) for run in runs] == [(ERROR, 1, "KeyError")] * 2
        assert sum(line.detail["type"] == "failure" for line in lines) == 2

    @in_loop
    async def test_five_failures_of_one_kind_stop_the_run_with_the_reason(self, tmp_path: Path) -> None:
        async def answer(row: Any) -> str:
            raise Refused(401)

        async with runner_at(tmp_path, max_concurrency=1) as runner:
            summary = await runner.run(Experiment("e", rows(50), answer))
            assert await statuses(runner.store, summary.experiment.id) == {ERROR: 5}
        assert summary.status is Status.ERROR
        assert str(summary.last_error).startswith("5 consecutive failures of task (auth): Refused: status 401 (")

    @in_loop
    async def test_reason_of_a_guard_says_how_many_rows_more_it_left_in_flight(self, tmp_path: Path) -> None:
        refused = asyncio.Event()

        async def answer(row: Any) -> str:
            # The first row runs alone until it has ended or made a call.
            if row["id"] == "r20":
                refused.set()
            if row["id"] != "r0":
                await refused.wait()
            raise Refused(401)

        named = [{"id": f"r{number}"} for number in range(50)]
        async with runner_at(tmp_path, max_concurrency=20) as runner:
            summary = await runner.run(Experiment("e", named, answer))
            failed = (await statuses(runner.store, summary.experiment.id))[ERROR]
            (first, *_) = [each.detail for each in await runner.store.reports.last_logs(summary.experiment.id, 99)
                           if each.detail["type"] == "failure"]  # fmt: skip
        # Slots of the first failures may be taken again before the guard closes the task.
        assert failed >= 21
        assert str(summary.last_error).endswith(f"; {failed - 5} more rows were in flight")
        assert first["id"] == f"r{first['row']}"

    @in_loop
    async def test_guard_of_an_evaluator_closes_that_evaluator_alone(self, tmp_path: Path) -> None:
        seen: list[str] = []

        async def bad(row: Any, output: Any) -> float:
            raise ValueError("no number in the judge's answer")

        async with runner_at(tmp_path, max_concurrency=1, PAGE_ITEMS=20) as runner:
            number = await runner.start(Experiment("e", rows(120), HeldTask(), [Watch_as("good"), bad]))
            async for _ in runner.subscribe(number):
                progress = runner.progress(number)
                seen += [stage.closed for stage in progress.stages if stage.closed] if progress is not None else []
            summary = await runner.wait(number)
            counts = await runner.store.reports.counts(number)
            failures = await runner.store.reports.failures(number)
            lines = await runner.store.reports.last_logs(number, 1000)
        assert summary.status is Status.ERROR
        assert (summary.last_error or "").startswith("5 consecutive failures of bad (ValueError)")
        assert counts.runs == {OK: 120}
        assert counts.annotations == {"good": {OK: 120}, "bad": {ERROR: 5, ResultStatus.PARKED: 115}}
        assert {each.kind for each in failures if each.status is ResultStatus.PARKED} == {"guard"}
        assert next(score for score in summary.scores if score.evaluator == "bad").mean is None
        assert sum(line.detail["type"] == "evaluator_closed" for line in lines) == 1
        assert seen
        assert seen[0].startswith("5 consecutive failures of bad")

    @in_loop
    async def test_evaluations_parked_by_a_guard_are_resumed(self, tmp_path: Path) -> None:
        broken = [True]

        async def judge(row: Any, output: Any) -> float:
            if broken[0]:
                raise ValueError("no number in the judge's answer")
            return 1.0

        experiment = Experiment("e", rows(30), HeldTask(), [judge])
        async with runner_at(tmp_path, max_concurrency=1) as runner:
            assert (await runner.run(experiment)).status is Status.ERROR
            broken[0] = False
            assert (await runner.run(experiment)).complete

    @in_loop
    async def test_an_unlucky_answer_of_a_judge_is_asked_for_again(self, tmp_path: Path) -> None:
        asked: Counter[int] = Counter()

        async def judge(row: Any, output: Any) -> float:
            asked[row["n"]] += 1
            if asked[row["n"]] < 3:
                raise UnusableAnswer("the judge's answer is not one number: 'well…'")
            return 1.0

        summary, runs = await ran(tmp_path, Experiment("e", rows(20), HeldTask(), [judge]), max_concurrency=1)
        assert summary.complete
        assert {run.annotations[0][1].score for run in runs} == {1.0}
        assert set(asked.values()) == {3}

    @in_loop
    async def test_judge_whose_answers_can_never_be_used_is_closed_with_the_reason(self, tmp_path: Path) -> None:
        asked: Counter[int] = Counter()

        async def judge(row: Any, output: Any) -> float:
            asked[row["n"]] += 1
            raise UnusableAnswer("not one number: 'well…'")

        summary, _ = await ran(tmp_path, Experiment("e", rows(50), HeldTask(), [judge]), max_concurrency=1)
        assert summary.status is Status.ERROR
        assert (summary.last_error or "").startswith("5 consecutive failures of judge (UnusableAnswer):")
        assert "not one number: 'well…'" in (summary.last_error or "")
        assert sorted(asked.values())[-5:] == [3] * 5
        assert next(score for score in summary.scores).mean is None

    @in_loop
    async def test_what_may_pass_never_stops_a_run_however_often_it_happens(self, tmp_path: Path) -> None:
        async def answer(row: Any) -> str:
            raise ConnectionError("reset")

        async with runner_at(tmp_path, max_concurrency=1, attempts=2) as runner:
            summary = await runner.run(Experiment("e", rows(12), answer))
            assert await statuses(runner.store, summary.experiment.id) == {ERROR: 12}
        assert summary.status is Status.COMPLETED

    @pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001)
    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("RateLimitError", "slow down"),
            ("Exception", "Error code: 429 - Too Many Requests"),
            ("ThrottlingException", "Rate exceeded"),
            ("ValueError", "litellm.RateLimitError: the provider refused"),
        ],
    )
    @pytest.mark.parametrize("executed", [True, False])
    @in_loop
    async def test_rate_limit_known_by_type_or_text_spends_no_attempt(
        self, tmp_path: Path, name: str, text: str, executed: bool
    ) -> None:
        made = {"Exception": Exception, "ValueError": ValueError}
        refused = made.get(name) or type(name, (Exception,), {})
        calls: Counter[int] = Counter()
        registry = RateLimitRegistry(tidegate.Settings())

        async def call(number: int) -> int:
            calls[number] += 1
            if calls[number] == 1:
                raise refused(text)
            return number

        async def answer(row: Any) -> Any:
            number = row["n"]
            return await (registry.aexecute("k", lambda: call(number)) if executed else call(number))

        _, runs = await ran(tmp_path, Experiment("e", rows(2), answer), registry=registry, attempts=1, GUARD_FAILURES=1)
        assert [(run.status, run.attempts) for run in runs] == [(OK, 1)] * 2

    @pytest.mark.parametrize("returned", [None, {"tone": 0.5}])
    @in_loop
    async def test_what_is_no_judgement_is_an_error_at_once(self, tmp_path: Path, returned: Any) -> None:
        asked: list[int] = []

        async def judge(row: Any, output: Any) -> Any:
            asked.append(row["n"])
            return returned

        summary, _ = await ran(tmp_path, Experiment("e", rows(3), HeldTask(), [Evaluator(judge, outputs=["style"])]))
        assert (sorted(asked), summary.unjudged) == ([0, 1, 2], 3)

    @in_loop
    async def test_an_answer_that_is_not_json_is_a_failure_that_says_so(self, tmp_path: Path) -> None:
        async def answer(row: Any) -> Any:
            return object()

        _, (run,) = await ran(tmp_path, Experiment("e", rows(1), answer))
        assert (run.status, run.error_kind) == (ERROR, "not_json")

    @in_loop
    async def test_no_evaluation_is_made_of_a_task_that_failed(self, tmp_path: Path) -> None:
        judge = HeldTask()

        async def answer(row: Any) -> Any:
            if row["n"] == 1:
                raise KeyError
            return 1

        async with runner_at(tmp_path) as runner:
            await runner.run(Experiment("e", rows(3), answer, [Evaluator(judge, name="judge")]))
        assert sorted(judge.calls) == [0, 2]

    @in_loop
    async def test_errors_are_kept_without_secrets(self, tmp_path: Path) -> None:
        async def answer(row: Any) -> Any:
            raise ValueError("Incorrect API key provided: sk-proj-abcdefghijklmnopqrstuvwxyz0123456789")

        summary, _ = await ran(tmp_path, Experiment("e", rows(9), answer))
        assert "sk-…" in (summary.last_error or "")
        kept = b"".join([path.read_bytes() for path in tmp_path.glob("runs.db*")])  # noqa: ASYNC240
        assert b"Incorrect API key" in kept
        assert b"abcdefghijkl" not in kept
