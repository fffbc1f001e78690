"""Databases of older schemas and a state file of version 0.1: later versions read them and go on with what they hold.

The fixtures hold two experiments of 12 rows, 2 repetitions and the evaluators below. `whole` is complete; `part` was
stopped after row 6. Row 3 cannot be answered, the judgement of row 5 by `correct` failed. From schema 0002 on, every
attempt was kept.
"""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import inspect

import tidegate
from tests.effort import some
from tests.storage.places import Place
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.saved_state import LearnedState
from tidegate.errors import StoreError
from tidegate.experiments import Experiment, ExperimentRunner
from tidegate.experiments.storage import Status, Store, claims
from tidegate.experiments.storage.database import parsed, plain_engine
from tidegate.experiments.storage.schema import HEAD, VERSION_TABLE, metadata
from tidegate.experiments.storage.store import LIVE_SECONDS
from tidegate.settings import Settings

pytestmark = pytest.mark.anyio

FIXTURES = Path(__file__).parents[1] / "fixtures"
ROWS = [{"id": n, "question": f"Wie groß ist {n} × 2? 数", "answer": 2 * n} for n in range(12)]


def doubled(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] == 3:
        raise ValueError("row 3 cannot be answered")
    return {"answer": row["id"] * 2, "words": ["it", "is"]}


def correct(row: dict[str, Any], output: dict[str, Any]) -> bool:
    return bool(output["answer"] == row["answer"])


def length(row: dict[str, Any], output: dict[str, Any]) -> dict[str, Any]:
    return {"score": 0.1 * row["id"], "label": "short", "explanation": "two words"}


SCHEMAS = some(["0001", "0009"], ["0002", "0003", "0004", "0005", "0006", "0007", "0008"])
"""Older schemas. The oldest one passes every migration."""


@pytest.fixture(params=SCHEMAS)
def schema(request: pytest.FixtureRequest) -> str:
    """The older schemas, each in turn."""
    return str(request.param)


@pytest.fixture
def older(bare_place: Place, schema: str) -> Place:
    """A database at an older schema."""
    if bare_place.on_sqlite:
        packed = FIXTURES / f"schema_{schema}.sqlite.gz"
        Path(bare_place.url).write_bytes(gzip.decompress(packed.read_bytes()))
    else:
        script = gzip.decompress((FIXTURES / f"schema_{schema}.postgresql.sql.gz").read_bytes())
        with psycopg.connect(bare_place.url, autocommit=True) as connection:
            connection.execute(script)
    return bare_place


async def test_experiment_of_an_older_version_is_shown_as_it_was(older: Place) -> None:
    async with ExperimentRunner(older.url) as runner:
        whole, part = await runner.summary("whole"), await runner.summary("part")
    assert str(whole).splitlines() == [
        "whole: COMPLETED: 12 rows × 2, 22 answered, 2 failed",
        "correct: 1.000 of 20",
        "length.score: 0.573 of 22",
    ]
    assert str(part).splitlines() == [
        "part: STOPPED: 12 rows × 2, 12 answered, 2 failed, 10 not tried",
        "correct: 1.000 of 10",
        "length.score: 0.300 of 12",
    ]


def made_of(url: str) -> dict[str, Any]:
    """What each table has."""
    engine = plain_engine(parsed(url))
    known = inspect(engine)
    found = {}
    for name in metadata.tables:
        columns = {each["name"]: (str(each["type"]), each["nullable"]) for each in known.get_columns(name)}
        keys = [known.get_pk_constraint(name), *known.get_foreign_keys(name)]
        indexes = {each["name"]: each["column_names"] for each in known.get_indexes(name)}
        unique = {each["name"]: each["column_names"] for each in known.get_unique_constraints(name)}
        checks = {each["sqltext"] for each in known.get_check_constraints(name)}
        found[name] = columns, [each["constrained_columns"] for each in keys], indexes, unique, checks
    engine.dispose()
    return found


async def test_upgrade_makes_the_schema_of_a_new_database(older: Place, sqlite: Place, postgresql: Place) -> None:
    await (await Store.open(older.url)).close()
    assert made_of(older.url) == made_of((sqlite if older.on_sqlite else postgresql).url)


async def test_database_is_upgraded_once_and_keeps_what_an_audit_records(older: Place, schema: str) -> None:
    audited = schema >= "0002"
    for _ in range(2):
        store = await Store.open(older.url)
        assert older.sql(f"SELECT version_num FROM {VERSION_TABLE}") == [(HEAD,)]
        assert await store.reports.attempt_counts(1) == ({"failure": 4, "success": 64} if audited else {})
        assert [each["submitted"] for each in await store.reports.claim_stats(1)] == ([68] if audited else [])
        assert await store.reports.choices(1) == []
        await store.close()


@pytest.mark.parametrize("counted", [True, False])
async def test_upgrade_counts_the_results(older: Place, schema: str, counted: bool) -> None:
    """Version 0009 made the tallies of older experiments when they were first asked for, so they may be missing."""
    if not counted and schema >= "0009":
        older.sql("DELETE FROM tidegate_tallies")
    store = await Store.open(older.url)
    for number, answered in ((1, 22), (2, 12)):
        tally = (await store.tallies.of([number]))[number]
        assert tally["task"].counts == {"ok": answered, "error": 2}
        assert tally["correct"].counts == {"ok": answered - 2, "error": 2}
        assert tally["length"].outputs["label"].labels == {"short": answered}
        means = {one.title: one.mean for one in await store.reports.scores(number)}
        assert tally["length"].outputs["score"].mean == pytest.approx(means["length.score"], rel=1e-9)
    await store.close()


async def test_database_is_not_upgraded_while_an_older_version_runs_an_experiment(older: Place, schema: str) -> None:
    older.sql(older.claimed(1, "an-older-replica"))
    with pytest.raises(StoreError, match="replica an-older-replica") as told:
        await Store.open(older.url)
    assert not told.value.retryable
    assert older.sql(f"SELECT version_num FROM {VERSION_TABLE}") == [(schema,)]
    older.age(1, 2 * LIVE_SECONDS)
    await (await Store.open(older.url)).close()
    assert older.sql(f"SELECT version_num FROM {VERSION_TABLE}") == [(HEAD,)]


async def test_experiment_of_an_older_version_goes_on_with_what_is_missing(
    older: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "COOLDOWN_SECONDS", 0.0)
    asked: list[int] = []

    def task(row: dict[str, Any]) -> dict[str, Any]:
        asked.append(row["id"])
        return doubled(row)

    experiment = Experiment("part", ROWS, task, [correct, length], repetitions=2)
    async with ExperimentRunner(older.url, recover=False, restore=lambda spec: experiment) as runner:
        await runner.resume("part")
        summary = await runner.wait("part")
    store = await Store.open(older.url)
    tally = (await store.tallies.of([summary.experiment.id]))[summary.experiment.id]
    await store.close()
    assert tally["task"].counts == {"ok": 22, "error": 2}
    assert tally["correct"].outputs["correct"].scored == 22
    # A resume tries again what failed: row 3, and the judgements of row 5, which need no new answer.
    assert sorted(asked) == [3, 3, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11]
    assert summary.status is Status.COMPLETED
    assert str(summary).splitlines() == [
        "part: COMPLETED: 12 rows × 2, 22 answered, 2 failed",
        "correct: 1.000 of 22",
        "length.score: 0.573 of 22",
    ]


def test_state_file_of_an_older_version_is_begun_with() -> None:
    state = LearnedState.read(FIXTURES / "learned_state_0_1.json")
    registry = RateLimitRegistry(
        Settings(initial_state=state),
        clock=lambda: 7.0,
        calendar=lambda: datetime(2026, 11, 21, 12, 0, 30, tzinfo=UTC),
    )
    requests = tidegate.Key("openai", "https://api.openai.com", "", "gpt-4o-mini")
    paced = tidegate.Key("gemini", "https://generativelanguage.googleapis.com", "", "gemini-2.5-flash")
    for key in (requests, paced):
        assert registry.try_admit(key)
    (quota,) = registry.snapshot().keys[requests].quotas
    assert (quota.name, quota.limit, quota.window) == ("requests", 60.0, 60.0)
    held = registry.snapshot().keys[paced]
    assert (held.gate, held.ready_in) == ("pace", pytest.approx(1 / 2.853, rel=0.01))
