"""Fallbacks in experiments: each result has the choice that answered it, and mixed models are told."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import tidegate
from tests.runner.scene import Refused, in_loop, ran, rows, runner_at
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.values import AnsweredBy
from tidegate.experiments import Evaluator, Experiment, UnusableAnswer
from tidegate.fallbacks import Choice, Fallback, fallback

NO_MONEY = {"code": "insufficient_quota", "message": "You exceeded your current quota"}
LARGE, SMALL = tidegate.Key("p", "https://p.test", "", "large"), tidegate.Key("p", "https://p.test", "", "small")


class Bankrupt(Refused):
    """What a client raises whose account has nothing left."""

    def __init__(self) -> None:
        super().__init__(429)
        self.body = {"error": NO_MONEY}


def models(registry: RateLimitRegistry, paid: int, **options: Any) -> Fallback[Any]:
    """A fallback from `large`, which answers so many calls, to `small`."""
    left = [paid]

    async def large(row: Any) -> str:
        if not left[0]:
            raise Bankrupt
        left[0] -= 1
        return "large"

    async def small(row: Any) -> str:
        return "small"

    return fallback([Choice(LARGE, large, "a"), Choice(SMALL, small, "b")], registry=registry, **options)


def asking(judge: Fallback[Any]) -> Any:
    async def ask(row: Any) -> Any:
        return (await judge.aexecute(row)).value

    return ask


def registry_of() -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings())


@in_loop
async def test_each_row_has_the_choice_that_answered_it(tmp_path: Path) -> None:
    registry = registry_of()
    summary, runs = await ran(
        tmp_path, Experiment("e", rows(10), asking(models(registry, 7))), registry=registry, max_concurrency=1
    )
    by = {"large": (AnsweredBy("a", "p", "large"),), "small": (AnsweredBy("b", "p", "small"),)}
    assert [run.answered_by for run in runs] == [by[run.output] for run in runs]
    assert summary.answered_by == {"task": {"a": 7, "b": 3}}
    assert summary.warnings == (
        "scores of all evaluators not comparable: 2 models answered (task: large 7, small 3); the export has the "
        "choice of each row",
    )
    assert str(summary).endswith(summary.warnings[0])


@in_loop
async def test_mixed_models_of_a_judge_concern_its_own_scores_only(tmp_path: Path) -> None:
    registry = registry_of()
    judge = models(registry, 2)

    async def judged(row: Any, output: Any) -> dict[str, Any]:
        return {"score": 1.0, "by": (await judge.aexecute(row)).value}

    evaluator = Evaluator(judged, name="judge", outputs=["score", "by"])
    summary, runs = await ran(
        tmp_path,
        Experiment("e", rows(5), lambda row: row["n"], [evaluator, lambda row, output: 1]),
        registry=registry,
        max_concurrency=1,
    )
    assert summary.answered_by == {"judge": {"b": 3, "a": 2}}
    assert [each.split(" not comparable")[0] for each in summary.warnings] == ["scores of judge"]
    for run in runs:
        assert run.answered_by == ()
        outputs = {one.output: one for name, one in run.annotations if name == "judge"}
        assert outputs["score"].answered_by == outputs["by"].answered_by
        assert outputs["by"].answered_by[0].model == outputs["by"].label


@in_loop
async def test_one_model_is_not_warned_of(tmp_path: Path) -> None:
    registry = registry_of()

    async def answers(row: Any) -> str:
        return "an answer"

    same = [Choice(LARGE, answers, "east", model="m"), Choice(SMALL, answers, "west", model="m")]
    spread = [Choice("one", answers), Choice("two", answers)]
    other = fallback([Choice("judge", answers)], registry=registry)
    pair = fallback(same, registry=registry, order="first_ready")
    hosts = fallback(spread, registry=registry, order="first_ready")

    async def task(row: Any) -> str:
        await pair.aexecute(row)
        await hosts.aexecute(row)
        return str((await other.aexecute(row)).value)

    summary, _ = await ran(tmp_path, Experiment("e", rows(6), task), registry=registry)
    counted = summary.answered_by["task"]
    assert counted.pop("judge") == 6
    assert sorted(counted) == ["east", "one", "two", "west"]
    assert summary.warnings == ()


@in_loop
async def test_only_the_attempt_that_answered_counts(tmp_path: Path) -> None:
    registry = registry_of()
    tries: list[str] = []
    judge = models(registry, 1)

    async def task(row: Any) -> str:
        value = str((await judge.aexecute(row)).value)
        tries.append(value)
        if value == "large":
            raise UnusableAnswer("not what was asked for")
        return value

    summary, _ = await ran(tmp_path, Experiment("e", rows(1), task), registry=registry, max_concurrency=1)
    assert tries == ["large", "small"]
    assert summary.answered_by == {"task": {"b": 1}}


@in_loop
async def test_row_that_fails_was_answered_by_nobody(tmp_path: Path) -> None:
    registry = registry_of()
    judge = models(registry, 5)

    async def task(row: Any) -> str:
        await judge.aexecute(row)
        raise ValueError("no use")

    summary, _ = await ran(tmp_path, Experiment("e", rows(1), task), registry=registry)
    assert summary.counts.runs == {"error": 1}
    assert summary.choices == ()


@in_loop
async def test_resumed_run_ends_with_the_counts_of_all(tmp_path: Path) -> None:
    registry = registry_of()
    rich, poor = models(registry, 100), models(registry, 0)
    async with runner_at(tmp_path, registry=registry) as runner:
        await runner.run(Experiment("e", rows(4), asking(rich)))
        summary = await runner.run(Experiment("e", rows(4), asking(poor), repetitions=2))
    assert summary.answered_by == {"task": {"a": 4, "b": 4}}


@in_loop
async def test_long_and_hostile_names_are_cut(tmp_path: Path) -> None:
    registry = registry_of()

    async def answers(row: Any) -> str:
        return "x"

    many = [fallback([Choice(f"k{n}", answers, "数\0" * 400 + str(n))], registry=registry) for n in range(5)]

    async def task(row: Any) -> list[Any]:
        return [each.value for each in await asyncio.gather(*(one.aexecute(row) for one in many))]

    summary, _ = await ran(tmp_path, Experiment("e", rows(2), task), registry=registry)
    ((choice, count),) = summary.answered_by["task"].items()
    assert count == 2
    assert choice.startswith("数")
    assert len(choice.encode()) <= 200
