"""Whose a run is: claims that are lost, kept or taken over, and orphans."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from tests.runner.scene import HeldTask, held, in_loop, make, rows, runner_at, stored
from tidegate.errors import CannotLoad, ClaimedElsewhere, StoppedElsewhere, StoreError
from tidegate.experiments import Evaluator, Experiment, ExperimentRunner
from tidegate.experiments.storage import Status, Toggle


async def looked_at(runner: ExperimentRunner, times: int) -> None:
    """Return when a runner has read an experiment so many times from now on."""
    find, seen, enough = runner.store.experiments.find, [0], asyncio.Event()

    async def counted(name_or_id: str | int) -> Any:
        found = await find(name_or_id)
        seen[0] += 1
        if seen[0] >= times:
            enough.set()
        return found

    runner.store.experiments.find = counted  # type: ignore[method-assign]
    await enough.wait()
    runner.store.experiments.find = find  # type: ignore[method-assign]


class TestClaims:
    @in_loop
    async def test_start_elsewhere_names_the_process_that_runs_it(self, tmp_path: Path) -> None:
        task, experiment = held()
        async with (
            runner_at(tmp_path, HEARTBEAT_SECONDS=0.05) as here,
            runner_at(tmp_path) as there,
        ):
            number = await here.start(experiment)
            await task.until(lambda: task.inside == 1)
            place = rf"process {os.getpid()} on this machine .*experiment show e"
            with pytest.raises(ClaimedElsewhere, match=place) as caught:
                await there.start(experiment)
            assert caught.value.replica == here.replica
            task.go.set()
            await here.wait(number)
        assert set(task.calls.values()) == {1}

    @in_loop
    async def test_run_of_what_runs_elsewhere_sees_its_end_at_once(self, tmp_path: Path) -> None:
        """It waits for no claim to go stale, and reports what is there."""
        task, experiment = held(5)
        async with (
            runner_at(tmp_path, HEARTBEAT_SECONDS=0.02) as here,
            runner_at(tmp_path) as there,
        ):
            number = await here.start(experiment)
            await task.until(lambda: task.inside == 1)
            second = asyncio.create_task(there.run(experiment))
            await looked_at(there, 3)
            assert not second.done()
            task.go.set()
            await here.wait(number)
            assert (await second).complete
        assert set(task.calls.values()) == {1}

    @in_loop
    async def test_run_of_what_runs_elsewhere_goes_on_with_what_is_left(self, tmp_path: Path) -> None:
        """By the same rules as after an end that nobody waited for: what failed is tried again."""
        here_fails = HeldTask(held=True)

        async def fails(row: Any) -> Any:
            await here_fails(row)
            raise KeyError

        mends = HeldTask()
        async with (
            runner_at(tmp_path, HEARTBEAT_SECONDS=0.02) as here,
            runner_at(tmp_path) as there,
        ):
            number = await here.start(Experiment("e", rows(2), fails))
            await here_fails.until(lambda: here_fails.inside == 1)
            second = asyncio.create_task(there.run(Experiment("e", rows(2), mends)))
            await looked_at(there, 2)
            here_fails.go.set()
            assert (await here.wait(number)).answered == 0
            assert (await second).complete
        assert set(mends.calls.values()) == {1}

    @in_loop
    async def test_run_of_what_a_user_stops_elsewhere_is_not_begun(self, tmp_path: Path) -> None:
        task, experiment = held()
        async with (
            runner_at(tmp_path, HEARTBEAT_SECONDS=0.02) as here,
            runner_at(tmp_path) as there,
            runner_at(tmp_path, HEARTBEAT_SECONDS=0.02) as elsewhere,
        ):
            number = await here.start(experiment)
            await task.until(lambda: task.inside == 1)
            second = asyncio.create_task(there.run(experiment))
            starting = asyncio.create_task(elsewhere.start(experiment, follow=True))
            await asyncio.gather(looked_at(there, 3), looked_at(elsewhere, 3))
            assert await here.stop(number) is Toggle.DONE
            assert (await second).status is Status.STOPPED
            with pytest.raises(StoppedElsewhere, match=rf"was stopped by .*process {os.getpid()} on "):
                await starting
            task.go.set()
            await here.wait(number)
        assert len(task.calls) == 1

    @in_loop
    async def test_look_for_orphans_goes_on_while_a_start_waits(self, tmp_path: Path) -> None:
        task, experiment = held()
        async with (
            runner_at(tmp_path, HEARTBEAT_SECONDS=0.02) as here,
            make(tmp_path, restore=lambda spec: experiment) as there,
        ):
            number = await here.start(experiment)
            waiting = asyncio.create_task(there.start(experiment, follow=True))
            await looked_at(there, 1)
            await there._claim_service.claim_orphan(number)
            waiting.cancel()
            task.go.set()
            assert (await here.wait(number)).complete

    @in_loop
    async def test_stop_by_a_user_is_no_lost_claim(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        task, experiment = held()
        async with runner_at(tmp_path) as here, runner_at(tmp_path) as there:
            number = await here.start(experiment)
            await task.until(lambda: task.inside == 1)
            assert await there.stop(number) is Toggle.DONE
            await here._heartbeat.renew_claims()
            task.go.set()
            summary = await here.wait(number)
        assert (summary.status, summary.answered) == (Status.STOPPED, 1)
        assert "stops: a user stopped it" in caplog.text
        assert "claim lost" not in caplog.text

    @in_loop
    async def test_a_replica_that_was_thought_dead_writes_nothing_and_stops(self, tmp_path: Path) -> None:
        late, experiment = held(10)
        task = HeldTask()
        async with runner_at(tmp_path, HEARTBEAT_SECONDS=3000.0, grace=0.0) as paused, runner_at(tmp_path) as alive:
            number = await paused.start(experiment)
            await late.until(lambda: late.inside == 1)
            claim = await alive.store.claims.claim(number, alive.replica, 0.0)
            assert claim is not None
            row = await alive.store.experiments.find(number)
            assert row is not None
            alive._supervisor.start(Experiment("e", rows(10), task), row, claim, retry_failed=False)
            late.go.set()
            await paused.wait(number)
            assert (await alive.wait(number)).complete
            assert [run.output for run in await stored(alive.store, number)] == list(range(10))
        assert set(task.calls) == set(range(10))

    @in_loop
    async def test_a_shutdown_keeps_the_claim_and_what_is_finished(self, tmp_path: Path) -> None:
        task, experiment = held()
        runner = make(tmp_path)
        number = await runner.start(experiment)
        await task.until(lambda: task.inside == 1)
        task.go.set()
        await runner.shutdown()
        async with runner_at(tmp_path, STALE_SECONDS=0.05) as next_one:
            row = await next_one.store.experiments.find(number)
            assert row is not None
            assert (row.status, row.claimed_by) == (Status.RUNNING, runner.replica)
            done = set(task.calls)
            summary = await next_one.run(experiment)
        assert summary.complete
        assert done
        assert set(task.calls.values()) == {1}

    @in_loop
    async def test_a_shutdown_does_not_wait_for_ever_for_a_database_that_is_away(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task, experiment = held(3)
        runner = make(tmp_path, WRITE_GRACE_SECONDS=0.02, grace=0.01)
        number = await runner.start(experiment)
        await task.until(lambda: task.inside == 1)

        async def away(batch: Any) -> frozenset[int]:
            raise StoreError("connection refused", retryable=True)

        monkeypatch.setattr(runner.store, "write", away)
        task.go.set()
        await runner.shutdown()
        async with runner_at(tmp_path, STALE_SECONDS=0.05) as next_one:
            assert (await next_one.run(experiment)).complete
            assert len(await stored(next_one.store, number)) == 3

    @in_loop
    async def test_an_experiment_that_is_started_twice_at_once_runs_once(self, tmp_path: Path) -> None:
        task = HeldTask()
        experiment = Experiment("e", rows(30), task)
        async with runner_at(tmp_path) as runner:
            first, second = await asyncio.gather(runner.run(experiment), runner.run(experiment))
            row = await runner.store.experiments.find("e")
            assert row is not None
            assert row.epoch == 1
        assert first.complete
        assert second.complete
        assert set(task.calls.values()) == {1}

    @in_loop
    async def test_who_waited_for_a_claim_judges_what_was_answered_meanwhile(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task, judge = HeldTask(), HeldTask(held=True)
        experiment = Experiment("e", rows(12), task, [Evaluator(judge, name="judge")])
        async with runner_at(tmp_path, STALE_SECONDS=0.05) as late:
            row = await late.store.experiments.create("e", experiment.spec(), 1, "rows")
            early = make(tmp_path)
            await early.start(experiment)
            await judge.until(lambda: len(judge.calls) > 0 and len(task.calls) == 12)
            await early.shutdown(0.0)

            async def seen_before(*_: Any) -> Any:
                return row

            monkeypatch.setattr(late.store.experiments, "create", seen_before)
            judge.go.set()
            summary = await late.run(experiment)
            assert summary.complete
            runs = await stored(late.store, row.id)
        assert set(task.calls.values()) == {1}
        assert [[each.score for _, each in run.annotations] for run in runs] == [[n] for n in range(12)]

    @in_loop
    async def test_an_experiment_that_was_changed_between_its_runs_is_gone_through_again_for_what_is_new(
        self, tmp_path: Path
    ) -> None:
        task, judge, second = HeldTask(), HeldTask(), HeldTask()
        judges = [Evaluator(judge, name="judge")]
        async with runner_at(tmp_path) as runner:
            assert (await runner.run(Experiment("e", rows(10), task, judges))).complete
            more = Experiment("e", rows(10), task, [*judges, Evaluator(second, name="second")], repetitions=2)
            summary = await runner.run(more)
            assert (summary.complete, summary.answered) == (True, 20)
        assert set(task.calls.values()) == set(judge.calls.values()) == set(second.calls.values()) == {2}

    @in_loop
    async def test_a_repetition_too_many_does_not_stand_for_one_that_failed(self, tmp_path: Path) -> None:
        calls: list[int] = []

        async def answer(row: Any) -> int:
            calls.append(row["n"])
            if len(calls) != 2:
                raise KeyError
            return 1

        async with runner_at(tmp_path, max_concurrency=1) as runner:
            first = await runner.run(Experiment("e", rows(1), answer, repetitions=2))
            assert (first.answered, first.unanswered) == (1, 1)
            again = await runner.run(Experiment("e", rows(1), answer, repetitions=1))
            assert (len(calls), again.complete, again.unanswered) == (3, False, 1)

    @in_loop
    async def test_a_judge_that_is_taken_away_is_not_held_against_the_rest(self, tmp_path: Path) -> None:
        async def bad(row: Any, output: Any) -> float:
            raise KeyError

        good = Evaluator(HeldTask(), name="good")
        async with runner_at(tmp_path) as runner:
            assert not (await runner.run(Experiment("e", rows(3), HeldTask(), [good, bad]))).complete
            assert (await runner.run(Experiment("e", rows(3), HeldTask(), [good]))).complete

    @in_loop
    async def test_a_runner_whose_database_cannot_be_opened_says_so_and_may_be_tried_again(
        self, tmp_path: Path
    ) -> None:
        place = tmp_path / "later"
        runner = make(place)
        with pytest.raises(StoreError):
            async with runner:
                pytest.fail("it was entered")
        place.mkdir()
        async with runner:
            assert (await runner.run(Experiment("e", rows(2), HeldTask()))).complete

    @in_loop
    async def test_a_runner_that_was_shut_down_starts_nothing(self, tmp_path: Path) -> None:
        runner = make(tmp_path)
        await runner.open()
        await runner.shutdown()
        await runner.shutdown()
        with pytest.raises(RuntimeError, match="shut down"):
            await runner.start(Experiment("e", rows(1), HeldTask()))


class TestOrphans:
    async def abandoned(self, path: Path, experiment: Experiment) -> int:
        """An experiment whose replica has died: claimed, and nobody renews it."""
        async with runner_at(path) as dead:
            row = await dead.store.experiments.create(
                experiment.name, experiment.spec(), experiment.repetitions, "rows"
            )
            assert await dead.store.claims.claim(row.id, "dead", 60.0) is not None
            return row.id

    @in_loop
    async def test_a_new_replica_takes_up_what_a_dead_one_has_left(self, tmp_path: Path) -> None:
        task = HeldTask()
        experiment = Experiment("e", rows(5), task)
        number = await self.abandoned(tmp_path, experiment)
        async with make(
            tmp_path, recover=True, restore=lambda spec: experiment, STALE_SECONDS=0.01, ORPHAN_SCAN_SECONDS=0.01
        ) as runner:
            await task.until(lambda: len(task.calls) == 5)
            assert (await runner.wait(number)).complete

    @in_loop
    async def test_one_that_has_been_heard_of_meanwhile_is_left_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task, experiment = held(3)
        async with runner_at(tmp_path) as here, make(tmp_path, restore=lambda spec: experiment) as there:
            number = await here.start(experiment)
            await task.until(lambda: task.inside == 1)
            await there._claim_service.claim_orphan(number)
            row = await there.store.experiments.find(number)
            assert row is not None
            assert (row.claimed_by, row.epoch) == (here.replica, 1)
            task.go.set()
            assert (await here.wait(number)).complete

    @in_loop
    async def test_orphan_whose_code_is_not_here_is_left_to_others(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Its owner may only sleep: without the code nothing is claimed, and nothing is blocked. It is said once."""
        tries: list[int] = []

        def restore(spec: Any) -> Experiment:
            tries.append(1)
            raise CannotLoad("e.py:e", "credentials are missing: OPENAI_API_KEY is not set here")

        number = await self.abandoned(tmp_path, Experiment("e", rows(5), HeldTask()))
        async with make(tmp_path, restore=restore, STALE_SECONDS=1e-9) as runner:
            runner._heartbeat._recover = runner._claim_service.claim_orphan
            for _ in range(8):
                await runner._heartbeat.scan_orphans()
            row = await runner.store.experiments.find(number)
            assert row is not None
            assert (row.status, row.claimed_by, row.epoch, row.last_error) == (Status.RUNNING, "dead", 1, None)
        said = [each for each in caplog.messages if "OPENAI_API_KEY is not set here" in each]
        assert len(said) == 1
        assert said[0].startswith("experiment e not taken up: ")
        assert "; it is left to replicas that have its code" in said[0]
        assert len(tries) == 8

    @in_loop
    async def test_orphan_whose_code_hangs_holds_up_no_other(self, tmp_path: Path) -> None:
        """Orphans that could not be loaded come last in the next look."""
        order: list[str] = []

        def restore(spec: Any) -> Experiment:
            order.append(spec["name"])
            raise CannotLoad("e.py:e", "no such file")

        async with make(tmp_path, restore=restore, STALE_SECONDS=1e-9) as runner:
            runner._heartbeat._recover = runner._claim_service.claim_orphan
            for name in ("first", "second"):
                row = await runner.store.experiments.create(
                    name, Experiment(name, rows(1), HeldTask()).spec(), 1, "rows"
                )
                await runner.store.claims.claim(row.id, "dead", 60.0)
                await runner._heartbeat.scan_orphans()
        assert order == ["first", "second", "first"]
