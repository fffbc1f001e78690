"""The attempts and the statistics of an experiment: kept with its results, exported, and free of what is secret."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

import tidegate
from tests.runner.scene import Refused, in_loop, make, ran, rows, runner_at
from tests.runner.test_deleting import until
from tidegate.admission.registry import RateLimitRegistry
from tidegate.errors import ConfigurationError
from tidegate.experiments import Evaluator, Experiment, ExperimentRunner, RunnerSettings
from tidegate.experiments.engine.audit import BusyTime
from tidegate.experiments.engine.progress import CLASSES_PER_E, LATENCY_CLASS_RATIO, RunStats, added_up
from tidegate.experiments.storage import Status, Store

pytestmark = pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001)

KEY = tidegate.Key("p", "https://p.test", "0123456789abcdef", "m")
SECRET = "sk-secret-of-the-runner"
PROMPT = "the prompt that no attempt has"
ANSWER = "the answer that no attempt has"


def registry_of(**changes: Any) -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(**changes))


def refusing(times: int, registry: RateLimitRegistry) -> Any:
    """A governed function that is refused so often before it answers."""
    left = [times]

    async def once() -> str:
        if left[0]:
            left[0] -= 1
            raise Refused(429, 0.001)
        return ANSWER

    async def ask(row: Any) -> str:
        return await registry.aexecute(KEY, once)

    return ask


async def kept(runner: ExperimentRunner, name: str = "e") -> list[Any]:
    number = (await runner.summary(name)).experiment.id
    return await runner.store.reports.attempts(number, after=None, limit=1000)


class TestAttempts:
    @in_loop
    async def test_all_keeps_each_attempt_under_its_row(self, tmp_path: Path) -> None:
        registry = registry_of()
        async with runner_at(tmp_path, audit="all", registry=registry) as runner:
            summary = await runner.run(Experiment("e", rows(5), refusing(3, registry)))
            found = await kept(runner)
        assert summary.attempts == {"capacity_retry": 3, "success": 5}
        by_row: dict[int, list[Any]] = {}
        for each in found:
            by_row.setdefault(each["ordinal"], []).append(each)
        for attempts in by_row.values():
            assert [each["call_index"] for each in attempts] == list(range(len(attempts)))
            assert attempts[-1]["status"] == "success"
            assert {each["status"] for each in attempts[:-1]} <= {"capacity_retry"}
        assert {(each["stage"], each["run_epoch"], each["key"]) for each in found} == {("task", 1, str(KEY))}
        refused = next(each for each in found if each["status"] == "capacity_retry")
        assert (refused["kind"], refused["cause"], refused["http_status"]) == ("rate_limit", "rate", 429)
        assert all(each["waited"] >= 0.0 and each["latency"] >= 0.0 for each in found)

    @in_loop
    async def test_refusals_keeps_what_was_not_answered_with_its_place_in_the_row(self, tmp_path: Path) -> None:
        registry = registry_of()
        summary, _ = await ran(
            tmp_path, Experiment("e", rows(5), refusing(3, registry)), audit="refusals", registry=registry
        )
        assert summary.attempts == {"capacity_retry": 3}
        assert (summary.stats.calls, summary.stats.capacity_retries) == (8, 3)

    @in_loop
    async def test_off_keeps_none_and_counts_them_all(self, tmp_path: Path) -> None:
        registry = registry_of()
        summary, _ = await ran(
            tmp_path, Experiment("e", rows(5), refusing(3, registry)), audit="off", registry=registry
        )
        assert summary.attempts == {}
        assert (summary.stats.calls, summary.stats.capacity_retries) == (8, 3)

    @in_loop
    async def test_a_function_without_a_governed_call_leaves_one_attempt_a_job(self, tmp_path: Path) -> None:
        failures = [1]

        def task(row: Any) -> int:
            if row["n"] == 2:
                raise ValueError(PROMPT)
            if row["n"] == 1 and failures.pop() if failures else False:
                raise TimeoutError
            return int(row["n"])

        async with runner_at(tmp_path, audit="all") as runner:
            judge = Evaluator(lambda row, output: 1.0, name="judge")
            await runner.run(Experiment("e", rows(3), task, [judge]))
            found = await kept(runner)
        told = sorted((each["ordinal"], each["stage"], each["call_index"], each["status"]) for each in found)
        assert told == [
            (0, "judge", 0, "success"),
            (0, "task", 0, "success"),
            (1, "judge", 0, "success"),
            (1, "task", 0, "failure"),
            (1, "task", 1, "success"),
            (2, "task", 0, "failure"),
        ]
        assert {each["key"] for each in found} == {""}

    @in_loop
    async def test_no_attempt_has_a_prompt_an_answer_or_a_credential(self, tmp_path: Path) -> None:
        answers = iter([429, 200, 400])

        def answer(request: httpx.Request) -> httpx.Response:
            error = {"error": {"message": f"{PROMPT} {SECRET}"}}
            headers = {"retry-after-ms": "1"}
            status = next(answers)
            return httpx.Response(status, headers=headers, json={"text": ANSWER} if status == 200 else error)

        registry = registry_of()
        client = registry.wrap(
            httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="https://api.openai.com/v1")
        )

        async def ask(row: Any) -> Any:
            sent = await client.post(
                "/chat/completions",
                json={"model": "m", "messages": [{"role": "user", "content": PROMPT}]},
                headers={"authorization": f"Bearer {SECRET}"},
            )
            return sent.raise_for_status().json()

        async with runner_at(tmp_path, audit="all", registry=registry, max_concurrency=1) as runner:
            summary = await runner.run(Experiment("e", rows(2), ask))
            found = await kept(runner)
            log = await runner.store.reports.last_logs(summary.experiment.id, 100)
        assert sorted(each["http_status"] for each in found) == [200, 400, 429]
        told = repr(found) + repr(summary.stats) + repr([line for line in log if line.detail["type"] == "ended"])
        for secret in (SECRET, PROMPT, ANSWER):
            assert secret not in told

    @in_loop
    async def test_a_later_claim_numbers_its_attempts_anew(self, tmp_path: Path) -> None:
        broken = [True]

        def task(row: Any) -> str:
            if broken[0]:
                raise ValueError("not yet")
            return "fine"

        async with runner_at(tmp_path, audit="all") as runner:
            await runner.run(Experiment("e", rows(1), task))
            broken[0] = False
            summary = await runner.run(Experiment("e", rows(1), task))
            found = await kept(runner)
        assert [(each["run_epoch"], each["call_index"], each["status"]) for each in found] == [
            (1, 0, "failure"),
            (2, 0, "success"),
        ]
        assert summary.stats.calls == 2

    @in_loop
    async def test_attempts_at_a_row_without_a_result_are_kept_when_the_run_stops(self, tmp_path: Path) -> None:
        registry, refused = registry_of(), asyncio.Event()

        async def once() -> None:
            refused.set()
            raise Refused(429, 60.0)

        async def ask(row: Any) -> Any:
            return await registry.aexecute(KEY, once)

        async with runner_at(tmp_path, audit="refusals", registry=registry, grace=0.0) as runner:
            number = await runner.start(Experiment("e", rows(1), ask))
            await refused.wait()
            runner.leave(number)
            summary = await runner.wait(number)
        assert summary.status is Status.STOPPED
        assert summary.attempts.get("capacity_retry") == 1

    @in_loop
    async def test_an_audit_around_a_run_gets_its_attempts_too(self, tmp_path: Path) -> None:
        registry = registry_of()
        async with runner_at(tmp_path, registry=registry) as runner:
            with tidegate.audit() as trail:
                await runner.run(Experiment("e", rows(3), refusing(1, registry)))
        assert sorted(each.status for each in trail.attempts) == ["capacity_retry", *["success"] * 3]

    @pytest.mark.parametrize("value", ["some", "", None, True, 1])
    def test_the_setting_is_one_of_three_words(self, value: Any) -> None:
        with pytest.raises(ConfigurationError) as told:
            RunnerSettings(audit=value)
        assert told.value.field == "audit"

    def test_the_setting_may_come_from_the_environment(self) -> None:
        assert RunnerSettings.from_environment({"TIDEGATE_EXPERIMENTS_AUDIT": "all"}).audit == "all"
        with pytest.raises(ConfigurationError, match="TIDEGATE_EXPERIMENTS_AUDIT"):
            RunnerSettings.from_environment({"TIDEGATE_EXPERIMENTS_AUDIT": "most"})


class TestStatistics:
    @in_loop
    async def test_every_end_leaves_one_line_and_the_statistics_of_the_claim(self, tmp_path: Path) -> None:
        def task(row: Any) -> int:
            if row["n"] == 3:
                raise ValueError("row 3 cannot be answered")
            return int(row["n"])

        async with runner_at(tmp_path) as runner:
            summary = await runner.run(Experiment("e", rows(10), task, [Evaluator(lambda row, output: 1.0, name="j")]))
            lines = await runner.store.reports.last_logs(summary.experiment.id, 100)
            (claim,) = await runner.store.reports.claim_stats(summary.experiment.id)
        (end,) = [line.detail for line in lines if line.detail["type"] == "ended"]
        told = {name: end[name] for name in ("status", "answered", "failed", "parked", "invalid", "judged")}
        assert told == {"status": "COMPLETED", "answered": 9, "failed": 1, "parked": 0, "invalid": 0, "judged": 9}
        stats = summary.stats
        assert end["stats"] == stats.to_json()
        assert added_up([claim]) == stats
        assert (stats.submitted, stats.answered, stats.failed, stats.parked, stats.calls) == (19, 18, 1, 0, 19)
        assert 1 <= stats.max_concurrent <= 19
        assert 0.0 < stats.executing_for <= stats.wall_seconds

    @in_loop
    async def test_statistics_of_several_claims_add_up(self, tmp_path: Path) -> None:
        registry = registry_of()
        async with runner_at(tmp_path, registry=registry) as runner:
            experiment = Experiment("e", rows(4), refusing(2, registry))
            once = await runner.run(experiment)
            again = await runner.run(experiment)
        assert once.stats.throttle_seconds > 0.0
        assert 0.0 < once.stats.throttled_for <= once.stats.wall_seconds
        assert again.stats.calls == once.stats.calls == 6
        assert again.stats.wall_seconds > once.stats.wall_seconds

    @in_loop
    async def test_a_killed_run_leaves_the_statistics_of_its_last_heartbeat(self, tmp_path: Path) -> None:
        asked, go = asyncio.Event(), asyncio.Event()

        async def task(row: Any) -> int:
            if row["n"] == 2:
                asked.set()
                await go.wait()
            return 1

        async with runner_at(tmp_path) as runner:
            number = await runner.start(Experiment("e", rows(3), task))
            await asked.wait()
            await runner._heartbeat.renew_claims()
            # The process could be killed now: it writes nothing more.
            await until(partial(runner.store.reports.claim_stats, number))
            found = await runner.store.reports.claim_stats(number)
            go.set()
            summary = await runner.wait(number)
        assert (found[0]["calls"], found[0]["wall_seconds"] > 0.0) == (2, True)
        assert summary.stats.calls == 3

    @in_loop
    async def test_a_shutdown_leaves_the_statistics_of_its_claim(self, tmp_path: Path) -> None:
        asked, go = asyncio.Event(), asyncio.Event()

        async def task(row: Any) -> int:
            if row["n"]:
                asked.set()
                await go.wait()
            return 1

        runner = make(tmp_path, CANCEL_GRACE_SECONDS=0.001)
        number = await runner.start(Experiment("e", rows(2), task))
        await asked.wait()
        await runner.shutdown(grace=0.0)
        store = await Store.open(str(tmp_path / "runs.db"))
        (claim,) = await store.reports.claim_stats(number)
        (end,) = [each.detail for each in await store.reports.last_logs(number, 100) if each.detail["type"] == "ended"]
        await store.close()
        assert (claim["submitted"], claim["answered"], end["status"]) == (2, 1, "RUNNING")

    @in_loop
    async def test_tokens_are_those_of_every_answer(self, tmp_path: Path) -> None:
        usage = {"usage": {"prompt_tokens": 9, "completion_tokens": 3}}
        transport = httpx.MockTransport(lambda request: httpx.Response(200, json=usage))
        registry = registry_of()
        client = registry.wrap(httpx.AsyncClient(transport=transport, base_url="https://api.openai.com/v1"))

        async def ask(row: Any) -> Any:
            return (await client.post("/chat/completions", json={"model": "m", "messages": []})).json()

        summary, _ = await ran(tmp_path, Experiment("e", rows(100), ask), registry=registry)
        assert (summary.stats.input_tokens, summary.stats.output_tokens) == (900, 300)
        assert "900 input + 300 output tokens" in str(summary.stats)

    def test_percentiles_are_within_their_class(self) -> None:
        counts: dict[str, int] = {}
        for number in range(1, 101):
            name = str(round(math.log(number / 10) * CLASSES_PER_E))
            counts[name] = counts.get(name, 0) + 1
        stats = RunStats(latencies=counts)
        assert stats.latency_p50 == pytest.approx(5.0, rel=LATENCY_CLASS_RATIO - 1.0)
        assert stats.latency_p99 == pytest.approx(9.9, rel=LATENCY_CLASS_RATIO - 1.0)
        assert RunStats().latency_p50 is None

    def test_a_sum_has_every_statistic(self) -> None:
        one = RunStats(**{each.name: 2 for each in dataclasses.fields(RunStats)[:-1]}, latencies={"3": 1})
        both = one + RunStats(max_concurrent=1, latencies={"3": 1, "4": 1})
        assert both == dataclasses.replace(one, latencies={"3": 2, "4": 1})
        assert added_up([json.loads(json.dumps(one.stored())), {"of a later version": 1}]) == one

    def test_a_busy_time_is_that_of_any_and_its_total_that_of_all(self) -> None:
        busy = BusyTime()
        busy.begin("a", 1.0)
        busy.begin("b", 2.0)
        busy.end("a", 4.0)
        busy.end("a", 5.0)
        busy.end("b", 6.0)
        busy.begin("c", 10.0)
        busy.end_all(11.0)
        assert (busy.some, busy.total) == (6.0, 8.0)
