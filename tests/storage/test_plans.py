"""How the databases go about what is asked often: by an index with a bound, never through a whole table."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest
from sqlalchemy import Connection, event

from tests.storage.places import Place
from tests.storage.values import ERROR, PARKED, STALE, claimed, experiment, failure, judged, rows, run
from tidegate.experiments.storage import Annotation, Category, Claim, LogLevel, LogLine, Status, Store

pytestmark = pytest.mark.anyio

MANY = 1000
GREAT = {"tidegate_dataset_rows", "tidegate_runs", "tidegate_annotations"}
EVALUATORS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("judge", ()), ("second", ()), ("judge", ("score",)), ("second", ("a", "b")),
)  # fmt: skip


class Plans:
    """Explains every statement of a store as it is run, with its parameters and before its effects."""

    def __init__(self, store: Store, place: Place, generic: bool) -> None:
        self.explained = 0
        self.scans: list[str] = []
        self._sqlite = place.on_sqlite
        self._generic = generic and not place.on_sqlite
        database = store.database
        thread = [database._writer] if database._writer is not None else []
        self._engines = [database._engine.sync_engine, *thread]
        for engine in self._engines:
            event.listen(engine, "before_cursor_execute", self._explain)

    def end(self) -> None:
        for engine in self._engines:
            event.remove(engine, "before_cursor_execute", self._explain)

    def _explain(
        self, connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        if "EXPLAIN" in statement or statement.startswith("BEGIN"):
            return
        self.explained += 1
        given = parameters[0] if many else parameters
        explain = "EXPLAIN QUERY PLAN " if self._sqlite else "EXPLAIN (FORMAT JSON) "
        if self._generic:
            numbers = {name: f"${n}" for n, name in enumerate(given, 1)}
            statement = re.sub(r"%\((\w+)\)s", lambda name: numbers[name[1]], statement)
            explain, given = f"/* {self.explained} */ EXPLAIN (GENERIC_PLAN, FORMAT JSON) ", ()
        # On a cursor of its own: what is being explained would be run on the other.
        aside = connection.connection.cursor()
        aside.execute(explain + statement, given)
        answer = aside.fetchall()
        aside.close()
        found = sqlite_scans(row[3] for row in answer) if self._sqlite else postgresql_scans(answer[0][0][0]["Plan"])
        # The last row of a dataset is at the end of its index, for which SQLite has no other words.
        self.scans += [f"{scan} in {statement}" for scan in found if "max(" not in statement]


VERSION = "tidegate_version"
"""Table of one row: the version of the schema."""


def bounded(table: str, condition: str) -> bool:
    """Whether the condition of an index is a bound: of the great tables a whole experiment is none."""
    return table not in GREAT or "ordinal" in condition or "name" in condition


def sqlite_scans(steps: Iterable[str]) -> Iterator[str]:
    """The steps that go through a table from its beginning to its end, or through an experiment's part of it."""
    for step in steps:
        verb, _, rest = step.partition(" ")
        table, _, condition = rest.partition(" ")
        search = (verb == "SEARCH" and bounded(table, condition)) or table == VERSION
        if table.startswith("tidegate_") and not search and "INDEX tidegate_execution_configs_running" not in step:
            yield step


def postgresql_scans(plan: dict[str, Any]) -> Iterator[str]:
    """The nodes that go through a table from its beginning to its end, or through an experiment's part of it."""
    table, condition = plan.get("Relation Name", ""), plan.get("Index Cond") or plan.get("Recheck Cond")
    few = plan.get("Index Name") == "tidegate_execution_configs_running"
    search = few or plan["Node Type"] == "ModifyTable" or (condition is not None and bounded(table, condition))
    if table not in ("", VERSION) and not search:
        yield f"{plan['Node Type']} of {table} by {condition}"
    for inner in plan.get("Plans", []):
        yield from postgresql_scans(inner)


@pytest.fixture(params=["analysed", "unknown", "generic"])
def known(request: pytest.FixtureRequest) -> str:
    """What the database knows: all, nothing, or no parameter; with `old`, all but the experiment of the claim."""
    return str(request.param)


@pytest.fixture
async def claim(store: Store, place: Place, known: str) -> AsyncIterator[Claim]:
    """An experiment of many rows, most of which are done and judged, beside another one and many without rows."""
    beside = await claimed(store, (await experiment(store, MANY, name="beside")).id)
    claim = await claimed(store, (await experiment(store, MANY)).id)
    for one in (beside, claim):
        if known == "old" and one is claim:
            place.sql("ANALYZE")
        await store.write([run(one, n, status=ERROR if n % 100 == 7 else run(one, n).status) for n in range(MANY - 50)])
        await store.write(
            [judged(one, n, annotations=[failure("score", PARKED) if n % 100 == 9 else Annotation("score", score=1.0)])
             for n in range(MANY - 50) if n % 100 != 7]
        )  # fmt: skip
    place.many_experiments("b")
    if known == "analysed":
        place.sql("ANALYZE")
    if known in ("analysed", "old"):
        await _disconnected(store)
    yield claim
    if known in ("analysed", "old") and not place.on_sqlite:
        place.sql("DELETE FROM pg_statistic")


@pytest.fixture
def plans(store: Store, place: Place, claim: Claim, known: str) -> Iterator[Plans]:
    """The plans of the store's statements."""
    plans = Plans(store, place, generic=known == "generic")
    yield plans
    plans.end()


async def _disconnected(store: Store) -> None:
    database = store.database
    await database._engine.dispose()
    if database._writer is not None:
        database._writer.dispose()


async def test_what_is_left_to_do_is_found_by_its_index(store: Store, claim: Claim, plans: Plans) -> None:
    for again in (False, True):
        for after in (None, (40, 1)):
            tasks = await store.pending.tasks(claim.experiment_id, after=after, limit=20, retry_failed=again)
            assert len(tasks) == 20
            for judge in EVALUATORS:
                evals = await store.pending.evals(
                    claim.experiment_id, *judge, after=after, limit=20, retry_failed=again
                )
                assert len(evals) == 20 or "judge" in judge
    assert plans.explained > 10
    assert plans.scans == []


class Beside(Plans):
    """The answers of the database to another statement with each of a store: `before` and that statement."""

    def __init__(self, store: Store, place: Place, before: str) -> None:
        self.answers: list[Any] = []
        self._before = before
        super().__init__(store, place, generic=False)

    def _explain(
        self, connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> None:
        if "EXPLAIN" not in statement and not statement.startswith("BEGIN"):
            aside = connection.connection.cursor()
            aside.execute(f"{self._before} {statement}", parameters)
            self.answers.append(aside.fetchall())
            aside.close()


def visited(plan: dict[str, Any]) -> int:
    """The rows that a plan's nodes give and leave out."""
    names = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter")
    rows = sum(plan.get(name, 0) for name in names) * plan["Actual Loops"]
    return int(rows) + sum(map(visited, plan.get("Plans", [])))


@pytest.mark.parametrize("known", ["old"], indirect=True)
async def test_a_page_visits_few_rows_of_an_experiment_that_no_statistics_know(
    store: Store, claim: Claim, place: Place
) -> None:
    if place.on_sqlite:
        pytest.skip("SQLite joins in the order of its query, whatever its statistics")
    work = Beside(store, place, "EXPLAIN (ANALYZE, FORMAT JSON)")
    assert len(await store.pending.tasks(claim.experiment_id, after=None, limit=20, retry_failed=True)) == 20
    for judge in EVALUATORS:
        evals = await store.pending.evals(claim.experiment_id, *judge, after=None, limit=20, retry_failed=True)
        assert len(evals) == 20 or "judge" in judge
    work.end()
    # All rows beside all rows would be MANY * MANY.
    assert sum(visited(answer[0][0][0]["Plan"]) for answer in work.answers) < 0.2 * MANY * MANY


async def test_results_are_written_by_their_keys(store: Store, claim: Claim, plans: Plans) -> None:
    line = LogLine(claim.experiment_id, claim.epoch, LogLevel.INFO, Category.TASK, {})
    await store.write([run(claim, MANY - 1), judged(claim, MANY - 1), line])
    assert plans.explained >= 5
    assert plans.scans == []


async def test_claims_are_taken_and_kept_by_their_keys(store: Store, claim: Claim, plans: Plans) -> None:
    assert await store.claims.renew("a", {claim.experiment_id: claim.epoch})
    assert len(await store.claims.orphans(STALE, 10)) == 10
    await store.claims.release(claim, Status.ERROR, "because")
    await store.claims.resume(claim.experiment_id, "b")
    await store.claims.stop(claim.experiment_id)
    await store.experiments.find(claim.experiment_id)
    assert plans.explained >= 6
    assert plans.scans == []


async def test_rows_are_stored_and_exported_by_their_keys(store: Store, claim: Claim, plans: Plans) -> None:
    made = await store.experiments.find(claim.experiment_id)
    assert made is not None
    await store.datasets.add_rows(made.dataset_id, rows(10, start=MANY - 5))
    assert len(await store.reports.results(claim.experiment_id, after=(40, 1), limit=20)) == 20
    assert plans.explained >= 5
    assert plans.scans == []


async def test_counts_by_choice_look_only_at_results_of_fallbacks(store: Store, place: Place, claim: Claim) -> None:
    plans = Beside(store, place, "EXPLAIN QUERY PLAN" if place.on_sqlite else "EXPLAIN")
    assert await store.reports.choices(claim.experiment_id) == []
    plans.end()
    tasks, judgements = map(str, plans.answers)
    assert "tidegate_runs_answered_by" in tasks
    assert "tidegate_annotations_answered_by" in judgements
