"""What models and people put into rows, answers, labels and names: both databases take it alike, each for itself."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from tests.effort import effort
from tests.storage.places import Place, PostgreSQL, SQLite
from tests.storage.values import ERROR, OK, claimed, experiment, failure, judged, rows, run
from tidegate.errors import NotStorable
from tidegate.experiments.storage import (
    Annotation,
    Category,
    Claim,
    LogLevel,
    LogLine,
    NewRow,
    PendingTask,
    RunResult,
    Store,
    bulk,
    encoded,
)
from tidegate.experiments.storage.stored_forms import MAX_DEPTH, MAX_NAME_BYTES, canonical, shortened

pytestmark = pytest.mark.anyio

LARGE = 5_000_000
LONG = "row " * 1000


@dataclass(frozen=True)
class Deep:
    """A list in a list in a list."""

    levels: int

    def made(self) -> Any:
        value: Any = "bottom"
        for _ in range(self.levels):
            value = [value]
        return value


@dataclass(frozen=True)
class Huge:
    """A number that Python does not show any more from 4300 digits on."""

    digits: int

    def made(self) -> Any:
        return [10**self.digits]


def made(value: Any) -> Any:
    """The value that is meant, which a failing test could not show."""
    return value.made() if isinstance(value, Deep | Huge) else value


hostile = st.characters() | st.sampled_from(
    ["\x00", "\ud800", "\udfff", "\ufffd", "\uffff", "\U0010ffff", '"', "\\", "["]
)
texts = st.text(hostile, max_size=6) | st.sampled_from(["", LONG, "\x00" * 3000, "😀" * 700])
numbers = st.integers() | st.floats() | st.sampled_from([2**63, -(2**63) - 1, 1e308, 5e-324, -0.0])
scalars = st.none() | st.booleans() | numbers | texts
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
special = [
    Deep(MAX_DEPTH),
    Deep(MAX_DEPTH + 1),
    Deep(2 * MAX_DEPTH),
    Huge(400),
    Huge(4000),
    Huge(5000),
    {1, 2},
    {1: 0, "b": 0},
]
bodies = values | st.sampled_from(special)

BOUNDED = settings(
    max_examples=effort(6, 20),
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def said(value: Any, by: Callable[[object], str] = encoded) -> str | None:
    """The value as JSON text; None where it has none."""
    try:
        return by(value)
    except NotStorable:
        return None


def named(place: Place, dataset_id: int) -> list[str]:
    """What the rows of a dataset are called, in their order."""
    found = place.sql(f"SELECT name FROM tidegate_dataset_rows WHERE dataset_id = {dataset_id} ORDER BY ordinal")
    return [name for (name,) in found]


async def kept_rows(place: Place, name: str, new: Sequence[NewRow]) -> tuple[list[PendingTask], list[str]]:
    """The rows as a database gives them back, and what they are called there."""
    store = await Store.open(place.url)
    try:
        made = await store.experiments.create(name, {}, 1, "\x00 a list \ud800")
        await store.datasets.add_rows(made.dataset_id, new)
        await store.datasets.add_rows(made.dataset_id, new)
        kept = await store.pending.tasks(made.id, after=None, limit=100, retry_failed=False)
        return kept, named(place, made.dataset_id)
    finally:
        await store.close()


@BOUNDED
@given(st.lists(st.tuples(texts, bodies), max_size=4, unique_by=lambda row: row[0]))
@example([(LONG + "1", {"x": 1}), (LONG + "2", {"x": 2}), ("\x00", 1), ("\ufffd", 2), ("\ud800", 3), ("\ud801", 4)])
@example([("deep", Deep(MAX_DEPTH)), ("deeper", Deep(MAX_DEPTH + 1)), ("nan", [float("nan")]), ("huge", Huge(5000))])
def test_any_row_is_kept_as_it_is_or_as_invalid_and_never_at_the_cost_of_others(
    sqlite: SQLite, postgresql: PostgreSQL, numbered: Iterator[int], given_rows: list[tuple[str, Any]]
) -> None:
    number = next(numbered)
    new = [NewRow(n, name, made(body)) for n, (name, body) in enumerate([*given_rows, ("last", {"good": True})])]
    kept, names = asyncio.run(kept_rows(sqlite, f"rows {number}", new))
    assert repr(asyncio.run(kept_rows(postgresql, f"rows {number}", new))) == repr((kept, names))
    assert [row.ordinal for row in kept] == list(range(len(new)))
    assert len(set(names)) == len(new)
    for before, after in zip(new, kept, strict=True):
        assert (after.invalid is None) is (said(before.body, canonical) is not None)
        assert after.invalid is not None or said(after.row, canonical) == said(before.body, canonical)


async def kept_results(place: Place, name: str, words: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """What a database gives back of one batch that has these words and values in every place there is."""
    store = await Store.open(place.url)
    try:
        claim = await claimed(store, (await experiment(store, 3, name=name)).id)
        batch = [run(claim, 0), *(hostile_results(claim, words, values))]
        assert await store.write(batch) == frozenset()
        lines = [(line.level, line.detail) for line in await store.reports.last_logs(claim.experiment_id, 1000)]
        scores = await store.reports.scores(claim.experiment_id)
        found = await store.reports.results(claim.experiment_id, after=None, limit=10)
        pending = await store.pending.evals(
            claim.experiment_id, words[1], tuple(words), after=None, limit=10, retry_failed=True
        )
        return [lines, scores, pending, [(one.status, one.output, one.error, one.annotations) for one in found]]
    finally:
        await store.close()


def hostile_results(claim: Claim, words: Sequence[str], values: Sequence[Any]) -> list[Any]:
    answers = [text for text in map(said, values) if text is not None]
    failed = RunResult(claim.experiment_id, claim.epoch, 1, 1, ERROR, None, words[0], words[1], 1, 0.5)
    good = RunResult(claim.experiment_id, claim.epoch, 2, 1, OK, answers[0] if answers else None, attempts=1)
    outputs = [Annotation(word, label=words[0], value=answers[-1] if answers else None) for word in words]
    scores = [Annotation(f"score {n}", score=n * 1.7e308) for n in (-1, 1)]
    return [
        failed,
        good,
        judged(claim, 0, words[1], annotations=[*outputs, *scores]),
        judged(claim, 2, words[1], annotations=[*outputs, *scores]),
        judged(claim, 2, "other", annotations=[failure(words[0])]),
        LogLine(claim.experiment_id, claim.epoch, LogLevel.WARN, Category.TASK, {words[0]: values}),  # type: ignore[dict-item]
    ]


@BOUNDED
@given(st.lists(texts, min_size=2, max_size=3, unique=True), st.lists(bodies, min_size=1, max_size=2))
@example([LONG + "1", LONG + "2", "\x00", "\ufffd"], [Deep(MAX_DEPTH + 1), float("inf")])
@example(["😀" * 700, "é" * 1400], [Huge(4000), "\ud800\x00"])
def test_any_answer_label_name_or_reason_is_written_with_its_batch(
    sqlite: SQLite, postgresql: PostgreSQL, numbered: Iterator[int], words: list[str], values: list[Any]
) -> None:
    number = next(numbered)
    values = [made(value) for value in values]
    kept = asyncio.run(kept_results(sqlite, f"results {number}", words, values))
    assert repr(asyncio.run(kept_results(postgresql, f"results {number}", words, values))) == repr(kept)
    lines, scores, pending, found = kept
    assert len(lines) == 1
    assert [status for status, *_ in found] == [OK, ERROR, OK]
    assert {score.output for score in scores if score.evaluator != "other"} >= {shortened(word) for word in words}
    assert pending == []


@pytest.fixture
def numbered() -> Iterator[int]:
    """Another number for each example."""
    return itertools.count()


async def test_scores_of_any_size_have_a_mean(store: Store) -> None:
    claim = await claimed(store, (await experiment(store, 4)).id)
    scores = [1.7e308, 1.7e308, -1.7e308, 1.7e308]
    await store.write([run(claim, n) for n in range(4)])
    await store.write([judged(claim, n, annotations=[Annotation("x", score=one)]) for n, one in enumerate(scores)])
    (score,) = await store.reports.scores(claim.experiment_id)
    assert score.mean == pytest.approx(0.85e308)


async def test_a_row_answer_label_and_reason_of_megabytes_come_back_whole(store: Store) -> None:
    long = "é\\" * (LARGE // 2)
    made = await store.experiments.create("large", {}, 1, "")
    await store.datasets.add_rows(made.dataset_id, [NewRow(0, "0", {"text": long}), NewRow(1, "1", invalid=long)])
    claim = await claimed(store, made.id)
    # Pages are bounded by bytes, which a database counts in its own way.
    first, *more = await store.pending.tasks(made.id, after=None, limit=2, retry_failed=False)
    (second,) = more or await store.pending.tasks(made.id, after=first.cursor, limit=2, retry_failed=False)
    assert (first.row, second.invalid) == ({"text": long}, long)
    await store.write([run(claim, 0, output=long), judged(claim, 0, annotations=[Annotation("x", label=long)])])
    (found,) = await store.reports.results(made.id, after=None, limit=2)
    assert (found.output, found.annotations[0][1].label) == (long, long)


async def test_more_than_one_statement_can_hold_is_written_by_several_in_one_transaction(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_CHARACTERS", 100)
    made = await experiment(store, 50)
    claim = await claimed(store, made.id)
    assert len(await store.pending.tasks(made.id, after=None, limit=100, retry_failed=False)) == made.rows + 50
    await store.write([run(claim, n, output="x" * (n * 7)) for n in range(50)])
    found = await store.reports.results(made.id, after=None, limit=100)
    assert [one.output for one in found] == ["x" * (n * 7) for n in range(50)]
    with pytest.raises(Exception, match=r"(?i)foreign key"):
        await store.write([*(run(claim, n, output="later") for n in range(50)), judged(claim, 77)])
    assert await store.reports.results(made.id, after=None, limit=100) == found


async def test_a_statement_has_no_more_than_it_can_hold(
    postgresql: PostgreSQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_CHARACTERS", 1000)
    store = await Store.open(postgresql.url)
    claim = await claimed(store, (await experiment(store)).id)
    held: list[int] = []

    def note(connection: Any, cursor: Any, statement: str, given: Any, context: Any, many: bool) -> None:
        if "INSERT INTO tidegate_runs" in statement:
            held.append(sum(len(output) for output in given["output"]))

    event.listen(store.database._engine.sync_engine, "before_cursor_execute", note)
    sizes = [300, 300, 300, 5000, 10, 700, 10]
    await store.write([run(claim, n, output="x" * (size - 2)) for n, size in enumerate(sizes)])
    assert sum(held) == sum(sizes)
    assert all(size <= 1000 or size == 5000 for size in held)
    assert len(held) <= 4
    await store.close()


@pytest.mark.parametrize("length", [MAX_NAME_BYTES, MAX_NAME_BYTES + 1, 1_000_000])
async def test_a_row_may_be_called_by_a_text_of_any_length(store: Store, place: Place, length: int) -> None:
    made = await store.experiments.create("capitals", {}, 1, "")
    # Nothing that a database could make smaller.
    name = "".join(chr(0x4E00 + n * 7919 % 20000) for n in range(length // 3)) + "x" * (length % 3)
    assert len(name.encode()) == length
    await store.datasets.add_rows(made.dataset_id, [NewRow(0, name, {"id": name}), *rows(2, start=1)])
    first, *_ = await store.pending.tasks(made.id, after=None, limit=10, retry_failed=False)
    assert first.row == {"id": name}
    kept, *others = named(place, made.dataset_id)
    assert (kept == name) is (length <= MAX_NAME_BYTES)
    assert kept.startswith(name[:100])
    assert others == ["1", "2"]


async def test_a_log_keeps_its_last_lines_and_those_of_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.experiments.storage.results.KEPT_LINES", 7)
    one = await claimed(store, (await experiment(store, name="one")).id)
    other = await claimed(store, (await experiment(store, name="other")).id)

    def line(claim: Claim, n: int) -> LogLine:
        return LogLine(claim.experiment_id, claim.epoch, LogLevel.INFO, Category.TASK, {"n": n})

    await store.write([line(other, n) for n in range(3)])
    for first in range(0, 20, 5):
        await store.write([line(one, n) for n in range(first, first + 5)])
    assert [each.detail["n"] for each in await store.reports.last_logs(one.experiment_id, 1000)] == list(range(13, 20))
    assert [each.detail["n"] for each in await store.reports.last_logs(one.experiment_id, 2)] == [18, 19]
    assert len(await store.reports.last_logs(other.experiment_id, 1000)) == 3
