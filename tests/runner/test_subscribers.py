"""Who watches a run: bounded streams that lose chunks rather than hold anything up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.runner.scene import in_loop, rows, runner_at, stored
from tidegate.experiments import Chunk, Event, Experiment, Retrying, StateChanged, Subscription, emit
from tidegate.experiments.engine.events import SubscriberHub
from tidegate.experiments.storage import AnnotationResult, RunResult, Status


def chunk(number: int) -> Chunk:
    return Chunk(0, 1, 1, number)


def state(reason: str) -> StateChanged:
    return StateChanged(Status.RUNNING, reason)


async def drained(subscription: Subscription) -> list[Event]:
    return [event async for event in subscription]


@pytest.mark.constants(MAX_EVENTS=3)
@in_loop
async def test_one_that_does_not_keep_up_loses_chunks_and_knows_how_many() -> None:
    hub = SubscriberHub()
    slow = hub.subscribe(1)
    for number in range(5):
        hub.publish(chunk(number), 1)
    hub.end(1)
    assert await drained(slow) == [chunk(0), chunk(1), chunk(2)]
    assert slow.lost == 2


@pytest.mark.constants(MAX_EVENTS=3)
@in_loop
async def test_what_is_no_chunk_takes_a_chunks_place() -> None:
    hub = SubscriberHub()
    slow = hub.subscribe(1)
    for event in (state("a"), chunk(1), chunk(2), state("b"), state("c"), state("d")):
        hub.publish(event, 1)
    hub.end(1)
    assert await drained(slow) == [state("b"), state("c"), state("d")]
    assert slow.lost == 3


@in_loop
async def test_a_subscriber_that_closes_gets_no_more_and_the_others_go_on() -> None:
    hub = SubscriberHub()
    one, other = hub.subscribe("name"), hub.subscribe("name")
    one.close()
    one.close()
    hub.publish(chunk(1), 7, "name")
    hub.end_all()
    assert await drained(one) == []
    assert await drained(other) == [chunk(1)]
    assert not hub.has_subscribers("name", 7)


class TestRuns:
    @in_loop
    async def test_a_subscriber_sees_chunks_results_and_states_and_then_the_end(self, tmp_path: Path) -> None:
        async def answer(row: Any) -> Any:
            for word in ("so", "far"):
                yield word

        async def judge(row: Any, output: Any) -> float:
            emit("evaluators do not stream")
            return 1.0

        async with runner_at(tmp_path) as runner:
            experiment = Experiment("e", rows(1), answer, [judge])
            early = runner.subscribe(experiment)
            await runner.run(experiment)
            events = await drained(early)
        assert [event for event in events if isinstance(event, Chunk)] == [Chunk(0, 1, 1, "so"), Chunk(0, 1, 1, "far")]
        assert [type(event) for event in events] == [
            StateChanged,
            Chunk,
            Chunk,
            RunResult,
            AnnotationResult,
            StateChanged,
        ]
        assert events[-1] == StateChanged(Status.COMPLETED)

    @in_loop
    async def test_a_synchronous_function_streams_from_its_thread(self, tmp_path: Path) -> None:
        def answer(row: Any) -> Any:
            emit("from a thread")
            return 1

        async with runner_at(tmp_path) as runner:
            stream = runner.subscribe("e")
            await runner.run(Experiment("e", rows(1), answer))
            assert Chunk(0, 1, 1, "from a thread") in await drained(stream)

    @in_loop
    async def test_a_plain_generator_streams_what_it_yields_and_answers_with_it(self, tmp_path: Path) -> None:
        def answer(row: Any) -> Any:
            yield "so far"
            yield {"n": row["n"]}

        async with runner_at(tmp_path) as runner:
            stream = runner.subscribe("e")
            summary = await runner.run(Experiment("e", rows(1), answer))
            assert [run.output for run in await stored(runner.store, summary.experiment.id)] == [["so far", {"n": 0}]]
            events = await drained(stream)
        assert [each.chunk for each in events if isinstance(each, Chunk)] == ["so far", {"n": 0}]

    @in_loop
    async def test_an_answer_that_begins_anew_says_so(self, tmp_path: Path) -> None:
        calls: list[int] = []

        async def answer(row: Any) -> Any:
            calls.append(1)
            yield f"try {len(calls)}"
            if len(calls) == 1:
                raise ConnectionError

        async with runner_at(tmp_path) as runner:
            stream = runner.subscribe("e")
            await runner.run(Experiment("e", rows(1), answer))
            events = await drained(stream)
        assert [event for event in events if isinstance(event, Chunk | Retrying)] == [
            Chunk(0, 1, 1, "try 1"),
            Retrying(0, 1, "task", 1, "outage"),
            Chunk(0, 1, 2, "try 2"),
        ]

    @in_loop
    async def test_the_reason_of_a_run_that_was_stopped_is_told(self, tmp_path: Path) -> None:
        async def answer(row: Any) -> Any:
            raise KeyError("x")

        async with runner_at(tmp_path) as runner:
            stream = runner.subscribe("e")
            await runner.run(Experiment("e", rows(9), answer))
            last = (await drained(stream))[-1]
        assert isinstance(last, StateChanged)
        assert last.status is Status.ERROR
        assert str(last.reason).startswith(
            "5 consecutive failures of task (KeyError): KeyError: 'x' (test_subscribers.py"
        )
