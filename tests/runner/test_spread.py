"""One experiment over several replicas: on real PostgreSQL, with chunks that each of them claims."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tests.postgres import served
from tests.runner.scene import in_loop, rows, runner_at, settings
from tests.storage.places import PATIENCE, PostgreSQL
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.token_totals import TokenTotals
from tidegate.errors import ConfigurationError
from tidegate.experiments import Experiment, ExperimentRunner
from tidegate.experiments.engine.feeder import ChunkFeeder
from tidegate.experiments.storage import ItemAttempts, NewRow, ResultStatus, RunResult, Status, Store, row_ranges
from tidegate.experiments.storage.records import ItemUsage, RowChunk


@pytest.fixture(scope="module")
def place() -> Iterator[PostgreSQL]:
    with served() as server:
        made = PostgreSQL.made(server)
        yield made
        made.drop()


class Shared:
    """What the replicas of a test do: the calls of each row, and by whom."""

    def __init__(self, held: bool = True) -> None:
        self.calls: Counter[int] = Counter()
        self.by: dict[str, set[int]] = {}
        self.judged: Counter[int] = Counter()
        self.go = asyncio.Event()
        self._moved = asyncio.Event()
        if not held:
            self.go.set()

    def experiment(self, name: str, count: int, by: str, **fields: Any) -> Experiment:
        async def task(row: Any) -> Any:
            self.calls[row["n"]] += 1
            self.by.setdefault(by, set()).add(row["n"])
            self._moved.set()
            await self.go.wait()
            return row["n"]

        async def same(row: Any, output: Any) -> bool:
            self.judged[row["n"]] += 1
            return bool(row["n"] == output)

        return Experiment(name, rows(count), task, [same], spread=True, max_concurrency=10, **fields)

    async def until_called(self, by: str, count: int = 1) -> None:
        while len(self.by.get(by, ())) < count:
            self._moved.clear()
            if len(self.by.get(by, ())) < count:
                await self._moved.wait()


def replica(
    place: PostgreSQL, experiment: Experiment | None = None, recover: bool = False, **changes: Any
) -> ExperimentRunner:
    changes = {"HEARTBEAT_SECONDS": 0.05, "STALE_SECONDS": 30.0, "ORPHAN_SCAN_SECONDS": 0.05, **changes}
    given: dict[str, Any] = {} if experiment is None else {"restore": lambda spec: experiment}
    return ExperimentRunner(
        place.url,
        registry=RateLimitRegistry(tidegate.Settings()),
        settings=settings(**changes),
        recover=recover,
        **given,
    )


@in_loop
async def test_two_replicas_share_the_rows_and_the_owner_judges_all(place: PostgreSQL) -> None:
    shared = Shared()
    here, there = (shared.experiment("two", 200, by) for by in ("here", "there"))
    async with replica(place) as owner, replica(place, there) as other:
        number = await owner.start(here)
        await shared.until_called("here")
        assert await other.join("two")
        await shared.until_called("there")
        assert await owner.store.chunks.workers(number, 30.0) == 2
        shared.go.set()
        summary = await owner.wait(number)
        await other.wait(number)
    assert (summary.status, summary.answered, summary.complete) == (Status.COMPLETED, 200, True)
    assert shared.calls == Counter(range(200))
    assert shared.judged == Counter(range(200))
    assert len(shared.by["there"]) > 1


@in_loop
async def test_progress_of_the_owner_has_the_rows_of_all_replicas(place: PostgreSQL) -> None:
    """The owner's first rows stay in flight while another replica answers the rest."""
    held, free = Shared(), Shared(held=False)
    here, there = held.experiment("counted", 300, "here"), free.experiment("counted", 300, "there")
    async with replica(place) as owner, replica(place, there) as other:
        number = await owner.start(here)
        await held.until_called("here")
        await other.join(number)
        async with asyncio.timeout(PATIENCE):
            while not (seen := owner.progress(number)) or not seen.stages[0].finished:  # noqa: ASYNC110
                await asyncio.sleep(0)
        # The owner has answered none of them.
        assert seen.stages[0].finished <= len(free.calls)
        assert seen.stages[0].total == 300
        held.go.set()
        summary = await owner.wait(number)
        await other.wait(number)
    assert (summary.status, summary.answered) == (Status.COMPLETED, 300)
    assert len(free.calls) > 100


@in_loop
async def test_stop_by_a_user_reaches_contributors_with_a_heartbeat(place: PostgreSQL) -> None:
    shared = Shared()
    here, there = (shared.experiment("stopped", 300, by) for by in ("here", "there"))
    async with replica(place) as owner, replica(place, there) as other:
        number = await owner.start(here)
        await shared.until_called("here")
        await other.join(number)
        await shared.until_called("there")
        await owner.stop(number)
        await other._heartbeat.renew_claims()
        called = set(shared.calls)
        shared.go.set()
        await other.wait(number)
        summary = await owner.wait(number)
        # What was in flight anywhere is kept, and nothing began later.
        assert (summary.status, summary.answered) == (Status.STOPPED, len(called))
        assert set(shared.calls) == called


@in_loop
async def test_chunk_of_a_dead_contributor_is_run_by_another_replica(place: PostgreSQL) -> None:
    shared = Shared()
    here, there = (shared.experiment("killed", 130, by) for by in ("here", "there"))
    async with replica(place) as owner:
        number = await owner.start(here)
        await shared.until_called("here")
        other = replica(place, there)
        await other.join(number)
        await shared.until_called("there")
        run = other._runs[number]
        lost = set(shared.by["there"])
        # As a kill -9: its claims stay, and nobody renews them. Its late results are refused.
        await other._heartbeat.stop()
        run.on_claim_lost()
        # In a thread: a transaction of the owner may hold these rows, and goes on in this loop.
        await asyncio.to_thread(
            place.sql,
            "UPDATE tidegate_chunks SET claimed_at = claimed_at - interval '1 hour', claimed_by = 'dead'"
            f" WHERE claimed_by = '{other.replica}' AND NOT done",
        )
        shared.go.set()
        summary = await owner.wait(number)
        await other.shutdown(0.0)
    assert (summary.status, summary.answered, summary.complete) == (Status.COMPLETED, 130, True)
    again = {row for row, count in shared.calls.items() if count > 1}
    assert again <= lost
    assert len(shared.calls) == 130


@in_loop
async def test_chunk_whose_claim_this_replica_never_heard_of_is_run(place: PostgreSQL) -> None:
    """A connection may break after a claim was stored, and a run may end while one is under way."""
    shared = Shared()
    async with replica(place, STALE_SECONDS=1.0) as owner:
        number = await owner.start(shared.experiment("unheard", 200, "here"))
        await shared.until_called("here")
        await asyncio.to_thread(
            place.sql,
            f"UPDATE tidegate_chunks SET claimed_by = '{owner.replica}', epoch = epoch + 1,"
            " claimed_at = (SELECT max(claimed_at) FROM tidegate_chunks)"
            " WHERE first = (SELECT max(first) FROM tidegate_chunks WHERE claimed_by IS NULL)",
        )
        shared.go.set()
        async with asyncio.timeout(PATIENCE):
            summary = await owner.wait(number)
    # A replica that the machine holds up for a second loses its other chunks as well, and runs their rows again.
    assert (summary.status, summary.answered, summary.complete) == (Status.COMPLETED, 200, True)
    assert set(shared.calls) == set(range(200))


@in_loop
async def test_contributor_takes_over_the_experiment_of_a_dead_owner(place: PostgreSQL) -> None:
    shared = Shared()
    here, there = (shared.experiment("orphan", 130, by) for by in ("here", "there"))
    owner = replica(place)
    number = await owner.start(here)
    await shared.until_called("here")
    async with replica(place, there, recover=True, ORPHAN_SCAN_SECONDS=3000.0) as other:
        # It joins by itself: the scan for orphans finds chunks that nobody has.
        await shared.until_called("there")
        await owner._heartbeat.stop()
        await asyncio.to_thread(place.age, number, 3600.0)
        await asyncio.to_thread(
            place.sql,
            "UPDATE tidegate_chunks SET claimed_at = claimed_at - interval '1 hour'"
            f" WHERE claimed_by = '{owner.replica}' AND NOT done",
        )
        shared.go.set()
        await other._heartbeat.scan_orphans()
        summary = await other.wait(number)
    await owner.shutdown(0.0)
    assert (summary.status, summary.answered, summary.complete) == (Status.COMPLETED, 130, True)
    assert set(shared.judged) == set(range(130))


@in_loop
async def test_failing_contributor_leaves_and_the_owner_goes_on(place: PostgreSQL) -> None:
    shared = Shared()
    here = shared.experiment("guard", 130, "here")

    async def broken(row: Any) -> Any:
        raise FileNotFoundError("a file is missing on this machine")

    there = Experiment("guard", rows(130), broken, spread=True, max_concurrency=1)
    async with replica(place) as owner, replica(place, there) as other:
        number = await owner.start(here)
        await shared.until_called("here")
        await other.join(number)
        await other.wait(number)
        shared.go.set()
        summary = await owner.wait(number)
    assert summary.status is Status.COMPLETED
    assert (summary.answered, dict(summary.counts.runs)) == (125, {"ok": 125, "error": 5})


@in_loop
async def test_limit_is_that_of_the_experiment(place: PostgreSQL) -> None:
    shared = Shared()
    here, there = (shared.experiment("limit", 300, by) for by in ("here", "there"))
    async with replica(place) as owner, replica(place, there) as other:
        number = await owner.start(here, limit=70)
        await shared.until_called("here")
        await other.join(number)
        await shared.until_called("there")
        shared.go.set()
        summary = await owner.wait(number)
        assert (summary.status, summary.answered) == (Status.STOPPED, 70)
        assert shared.calls == Counter(range(70))


@in_loop
async def test_rows_that_are_stored_during_a_load_are_run(place: PostgreSQL, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared(False)
    finish = ChunkFeeder._finish_chunks

    async def slow(feeder: ChunkFeeder) -> None:
        # The whole dataset is stored after the first look at it, and before the look at the chunks.
        while not feeder._run.tally.all_rows:  # noqa: ASYNC110 - the tally has no event
            await asyncio.sleep(0.001)
        await finish(feeder)

    monkeypatch.setattr(ChunkFeeder, "_finish_chunks", slow)
    async with replica(place) as owner:
        summary = await owner.run(shared.experiment("late", 30, "here"))
    assert (summary.status, summary.answered) == (Status.COMPLETED, 30)


@in_loop
async def test_sqlite_refuses_to_spread(tmp_path: Path) -> None:
    async with runner_at(tmp_path) as runner:
        with pytest.raises(ConfigurationError, match="PostgreSQL is needed"):
            await runner.run(Shared(False).experiment("e", 3, "here"))


@in_loop
async def test_results_of_a_chunk_that_another_replica_holds_are_refused(place: PostgreSQL) -> None:
    store = await Store.open(place.url)
    try:
        row = await store.experiments.create("fenced", {"spread": True}, 1, "list")
        assert await store.claims.claim(row.id, "owner", 30.0) is not None
        await store.chunks.add(row.id, 2)
        first = await store.chunks.claim(row.id, "one", 30.0)
        assert first is not None

        def result(by: str) -> RunResult:
            return RunResult(row.id, 1, first.first, 1, ResultStatus.OK, "1", contributor=by)

        assert await store.write([result("two")]) == {row.id}
        assert await store.write([result("one")]) == frozenset()
        place.sql("UPDATE tidegate_chunks SET claimed_at = claimed_at - interval '1 hour' WHERE claimed_by = 'one'")
        assert (await store.chunks.claim(row.id, "two", 30.0)) is not None
        assert await store.write([result("one")]) == {row.id}
    finally:
        await store.close()


BUDGETED = {"spread": True, "budget": {"usd": 1.0}}


@in_loop
async def test_replicas_that_claim_at_once_divide_a_chunk_one_after_the_other(place: PostgreSQL) -> None:
    stores = [await Store.open(place.url) for _ in range(4)]
    try:
        for round_ in range(8):
            row = await stores[0].experiments.create(f"at once {round_}", BUDGETED, 1, "list")
            assert await stores[0].claims.claim(row.id, "owner", 30.0) is not None
            await stores[0].chunks.add(row.id, 4000)
            taken = await asyncio.gather(
                *(one.chunks.claim(row.id, f"replica {n}", 30.0) for n, one in enumerate(stores))
            )
            claimed = [chunk for chunk in taken if isinstance(chunk, RowChunk)]
            assert claimed
            assert len({chunk.first for chunk in claimed}) == len(claimed)
            stored = await stores[0].chunks.of(row.id)
            assert [chunk.first for chunk in stored[1:]] == [chunk.end for chunk in stored[:-1]]
    finally:
        for one in stores:
            await one.close()


@in_loop
async def test_a_chunk_that_becomes_free_meanwhile_is_not_claimed_beyond_the_budget(
    place: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await Store.open(place.url)
    try:
        row = await store.experiments.create("freed", BUDGETED, 1, "list")
        assert await store.claims.claim(row.id, "owner", 30.0) is not None
        await store.chunks.add(row.id, 4000)
        place.sql("UPDATE tidegate_chunks SET claimed_by = 'one', done = true WHERE first = 0")
        whole = (await store.chunks.of(row.id))[0]
        fit = row_ranges.fit

        def freed(*given: Any) -> Any:
            found = fit(*given)
            place.sql("UPDATE tidegate_chunks SET claimed_by = NULL, done = false WHERE first = 0")
            return found

        monkeypatch.setattr(row_ranges, "fit", freed)
        taken = await store.chunks.claim(row.id, "two", 30.0)
        assert whole.end - whole.first > 1
        assert taken is None or (isinstance(taken, RowChunk) and taken.first != 0)
        monkeypatch.undo()
        taken = await store.chunks.claim(row.id, "two", 30.0)
        assert isinstance(taken, RowChunk)
    finally:
        await store.close()


def outdated(place: PostgreSQL, experiment_id: int) -> None:
    """Make the claim of the first chunk as old as that of a dead replica."""
    place.sql(
        "UPDATE tidegate_chunks SET claimed_at = claimed_at - interval '1 hour' "
        f"WHERE first = 0 AND experiment_id = {experiment_id}"
    )


def used(tokens: int) -> ItemUsage:
    return ItemUsage(TokenTotals(1, tokens, 0, 0, 0, 0, 1, tokens), "m", "stop", "r", 0.0)


@in_loop
async def test_what_a_dead_replica_spent_on_a_row_stays_counted(place: PostgreSQL) -> None:
    store = await Store.open(place.url)
    try:
        row = await store.experiments.create("spent twice", {"spread": True}, 1, "list")
        await store.datasets.add_rows(row.dataset_id, [NewRow(n, f"row {n}", "{}") for n in range(4000)])
        await store.datasets.complete(row.dataset_id, 4000)
        assert await store.claims.claim(row.id, "owner", 30.0) is not None
        await store.chunks.add(row.id, 4000)
        for turn, tokens in enumerate((100, 60, 30), start=1):
            taken = await store.chunks.claim(row.id, f"replica {turn}", 30.0)
            assert isinstance(taken, RowChunk)
            assert (taken.first, taken.epoch) == (0, turn)
            mine = {"usage": used(tokens), "contributor": f"replica {turn}"}
            await store.write([ItemAttempts(row.id, 1, 0, 1, (), stage="task", **mine)])
            if turn < 3:
                outdated(place, row.id)
        await store.write([RunResult(row.id, 1, 0, 1, ResultStatus.OK, "1", usage=used(40), contributor="replica 3")])
        assert (await store.usages.spends([row.id]))[row.id]["task"].input_tokens == 100 + 60 + 40
    finally:
        await store.close()


@in_loop
async def test_both_parts_of_a_divided_chunk_know_that_it_was_claimed_before(place: PostgreSQL) -> None:
    store = await Store.open(place.url)
    try:
        row = await store.experiments.create("divided", {"spread": True}, 1, "list")
        assert await store.claims.claim(row.id, "owner", 30.0) is not None
        await store.chunks.add(row.id, 4000)
        whole = await store.chunks.claim(row.id, "one", 30.0)
        assert isinstance(whole, RowChunk)
        outdated(place, row.id)
        place.sql(
            """UPDATE tidegate_experiments SET spec = '{"spread": true, "budget": {"usd": 1.0}}' """
            f"WHERE id = {row.id}"
        )
        part = await store.chunks.claim(row.id, "two", 30.0)
        assert isinstance(part, RowChunk)
        assert part.end < whole.end
        rest = (await store.chunks.of(row.id))[1]
        assert (part.epoch, rest.first, rest.epoch) == (2, part.end, 1)
    finally:
        await store.close()
