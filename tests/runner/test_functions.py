"""Where functions run: in contexts and threads of their own, of which nothing reaches another, nor holds the end up."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.chaos.runners import registry as registry_in_virtual_time
from tests.chaos.virtual_time import in_virtual_time
from tests.runner.scene import HeldTask, in_loop, ran, rows, runner_at, settings, statuses, stored
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.limiter_state import Permit
from tidegate.experiments import Evaluator, Experiment, emit
from tidegate.experiments.storage import ResultStatus, Status
from tidegate.pool import threads
from tidegate.pool.threads import in_thread

OK, ERROR = ResultStatus.OK, ResultStatus.ERROR
KEY = tidegate.Key("p", "https://p.test")
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


class TestContexts:
    @pytest.mark.parametrize("synchronous", [False, True])
    @in_loop
    async def test_what_a_function_sets_reaches_no_other_call_nor_experiment(
        self, tmp_path: Path, synchronous: bool
    ) -> None:
        registry, seen = RateLimitRegistry(tidegate.Settings(max_concurrency=2)), []

        async def answer(row: Any, output: Any = None) -> Any:
            seen.append(tenant.get())
            tenant.set(f"row {row['n']}")
            return await registry.aexecute(KEY, lambda: asyncio.sleep(0, 1))

        def blocking(row: Any, output: Any = None) -> Any:
            seen.append(tenant.get())
            tenant.set(f"row {row['n']}")
            return registry.execute(KEY, lambda: 1)

        function = blocking if synchronous else answer
        async with runner_at(tmp_path, registry=registry, max_concurrency=4) as runner:
            for name in ("one", "other"):
                tenant.set(name)
                await runner.start(Experiment(name, rows(40), function, [Evaluator(function, name="judge")]))
            tenant.set("later")
            await runner.wait("one")
            await runner.wait("other")
        assert sorted(seen) == ["one"] * 80 + ["other"] * 80

    @in_loop
    async def test_a_nested_call_that_frees_a_key_does_not_hide_the_next_rows_calls_from_it(
        self, tmp_path: Path
    ) -> None:
        registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
        other = tidegate.Key("q", "https://q.test")

        async def answer(row: Any) -> Any:
            async def inner() -> Any:
                task = asyncio.get_running_loop().create_task(registry.aexecute(other, lambda: asyncio.sleep(0)))
                await task
                return 1

            return await registry.aexecute(KEY, inner)

        async with runner_at(tmp_path, registry=registry) as runner:
            assert (await runner.run(Experiment("e", rows(20), answer))).complete
        assert registry.snapshot().keys[KEY].attempts == 20

    @in_loop
    async def test_a_loop_whose_tasks_begin_at_once_runs_them_all_the_same(self, tmp_path: Path) -> None:
        if sys.version_info < (3, 12):
            pytest.skip("Python 3.12 has eager tasks")
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        task, judge = HeldTask(), HeldTask()

        async def at_once(row: Any) -> Any:
            return row["n"]

        async with runner_at(tmp_path, max_concurrency=3) as runner:
            experiments = [
                Experiment("e", rows(300), task, [Evaluator(judge, name="judge")]),
                Experiment("at once", rows(300), at_once, [Evaluator(HeldTask(), name="judge")]),
            ]
            for summary in await asyncio.gather(*map(runner.run, experiments)):
                assert summary.complete
        assert set(task.calls.values()) == set(judge.calls.values()) == {1}
        assert task.most <= 3


class TestThreads:
    @in_loop
    async def test_a_thread_is_used_again_with_what_it_keeps(self) -> None:
        local, made = threading.local(), []

        def call() -> None:
            if not hasattr(local, "client"):
                local.client = object()
                made.append(local.client)

        for _ in range(20):
            await in_thread(call)
        assert len(made) == 1

    @in_loop
    async def test_what_is_raised_in_a_thread_is_raised_here(self) -> None:
        def stop() -> None:
            raise StopIteration(3)

        with pytest.raises(RuntimeError, match="StopIteration"):
            await in_thread(stop)
        with pytest.raises(SystemExit):
            await in_thread(sys.exit)

    @in_loop
    async def test_a_function_that_always_hangs_fills_no_process_with_threads_but_stops_its_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(threads, "MAX_ABANDONED_THREADS", 3)
        release, hung = threading.Event(), []

        def hang(row: Any) -> Any:
            hung.append(row["n"])
            release.wait(300)

        async with runner_at(tmp_path, max_concurrency=1, attempts=1, task_timeout=0.01) as runner:
            summary = await runner.run(Experiment("e", rows(100), hang))
            release.set()
        assert len(hung) == 3
        assert (summary.status, "TooManyHang" in (summary.last_error or "")) == (Status.ERROR, True)
        while threads._abandoned:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert await in_thread(lambda: "again") == "again"

    def test_a_thread_that_was_left_behind_may_still_emit_and_ask_when_its_loop_is_gone(self, tmp_path: Path) -> None:
        registry = RateLimitRegistry(tidegate.Settings())
        late, told, gone = threading.Event(), [], threading.Event()

        def answer(row: Any) -> Any:
            try:
                late.wait(300)
                emit("too late")
                told.append(registry.execute(KEY, lambda: "asked"))
            except BaseException as error:
                told.append(error)
            finally:
                gone.set()

        @in_loop
        async def run() -> None:
            given = settings(attempts=1, task_timeout=0.02)
            async with runner_at(tmp_path, registry=registry, **given.model_dump()) as runner:
                watching = runner.subscribe("e")
                summary = await runner.run(Experiment("e", rows(1), answer))
                assert await statuses(runner.store, summary.experiment.id) == {ERROR: 1}
                watching.close()
                # Somebody listens to the last.
                runner.subscribe("e")
                runner._hub.end_all = lambda: None  # type: ignore[method-assign]

        run()
        late.set()
        assert gone.wait(300)
        assert told == ["asked"]

    def test_a_function_that_hangs_does_not_hold_up_the_end_of_the_process(self, tmp_path: Path) -> None:
        script = tmp_path / "hangs.py"
        script.write_text(
            "import threading\n"
            "from tidegate.experiments import Experiment, ExperimentRunner, RunnerSettings\n"
            "import asyncio\n"
            "def hang(row):\n"
            "    threading.Event().wait()\n"
            "async def main():\n"
            "    given = RunnerSettings(task_timeout=0.05, attempts=1)\n"
            f"    async with ExperimentRunner({str(tmp_path / 'h.db')!r}, settings=given, recover=False) as runner:\n"
            "        summary = await runner.run(Experiment('e', [1, 2], hang))\n"
            "        print(summary.status, summary.counts.runs)\n"
            "asyncio.run(main())\n"
        )
        ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=False)
        assert (ended.returncode, ended.stdout.split()[0]) == (0, "COMPLETED"), ended.stderr


class TestTime:
    @in_loop
    async def test_a_function_that_blocks_the_loop_for_longer_than_its_time_has_answered_all_the_same(
        self, tmp_path: Path
    ) -> None:
        # The loop that would have cancelled it stood still: the answer is there, and was paid for.
        async def answer(row: Any) -> Any:
            threading.Event().wait(0.05)
            return "there"

        summary, _ = await ran(tmp_path, Experiment("e", rows(3), answer), task_timeout=0.01)
        assert summary.complete

    @in_loop
    async def test_a_function_that_answers_its_cancellation_with_an_answer_has_answered(self, tmp_path: Path) -> None:
        async def answer(row: Any) -> Any:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "what there was"

        _, (run,) = await ran(tmp_path, Experiment("e", rows(1), answer), task_timeout=0.01, attempts=1)
        assert (run.status, run.output) == (OK, "what there was")

    @in_virtual_time
    async def test_a_hung_call_is_cut_off_though_an_earlier_one_of_the_same_row_had_to_wait(
        self, tmp_path: Path
    ) -> None:
        registry = registry_in_virtual_time(max_concurrency=1)
        permit = registry.try_admit(KEY)
        assert isinstance(permit, Permit)
        waiting, hung = asyncio.Event(), []

        async def answer(row: Any) -> Any:
            waiting.set()
            await registry.aexecute(KEY, lambda: asyncio.sleep(0))
            hung.append(row["n"])
            await registry.aexecute(KEY, lambda: asyncio.Event().wait())

        async with runner_at(tmp_path, registry=registry, task_timeout=0.05, attempts=1) as runner:
            running = asyncio.create_task(runner.run(Experiment("e", rows(1), answer)))
            await waiting.wait()
            await asyncio.sleep(0.15)
            assert hung == []
            registry.settle(permit, tidegate.core.values.Outcome(tidegate.core.values.OK))
            summary = await running
            (run,) = await stored(runner.store, summary.experiment.id)
        assert (hung, run.status, run.error_kind) == ([0], ERROR, "timeout")
        assert registry.snapshot().keys[KEY].in_flight == 0


@in_loop
async def test_calls_wait_for_a_free_thread_where_the_system_starts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_idle", deque())
    monkeypatch.setattr(threads, "_threads", set())
    started, begin = [0], threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "tidegate function":
            started[0] += 1
            if started[0] > 3:
                raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    inside, most, lock = [0], [0], threading.Lock()

    def work(number: int) -> int:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.001)
        with lock:
            inside[0] -= 1
        return number

    assert await asyncio.gather(*(threads.in_thread(partial(work, n)) for n in range(50))) == list(range(50))
    assert most[0] <= 3
    monkeypatch.setattr(threads, "_idle", deque())
    monkeypatch.setattr(threads, "_threads", set())
    with pytest.raises(RuntimeError, match="start new thread"):
        await threads.in_thread(partial(work, 1))
