"""The store on SQLite, the store on PostgreSQL and a few dictionaries: the same answers to the same history."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.storage.places import Place, PostgreSQL, SQLite
from tests.storage.values import ERROR, INVALID, OK, PARKED, STALE, failure, judged, rows, run
from tidegate.experiments.storage import Annotation, Claim, ExperimentRow, Status, Store, Toggle, claims

ROWS, REPETITIONS = 4, 2
REPLICAS = ("a", "b")
EVALUATORS: dict[str, tuple[str, ...]] = {"judge": (), "strict": ("x", "y")}

ordinals, repetitions = st.integers(0, ROWS - 1), st.integers(1, REPETITIONS)
endings = st.sampled_from([OK, OK, ERROR, PARKED, INVALID])
replicas = st.sampled_from(REPLICAS)
steps = st.one_of(
    st.tuples(st.just("claim"), replicas),
    st.tuples(st.just("age")),
    st.tuples(st.just("cool")),
    st.tuples(st.just("renew"), replicas),
    st.tuples(st.just("release"), replicas, st.sampled_from([Status.COMPLETED, Status.ERROR, Status.BLOCKED])),
    st.tuples(st.just("stop")),
    st.tuples(st.just("resume"), replicas),
    st.tuples(st.just("orphans")),
    st.tuples(
        st.just("run"),
        replicas,
        st.lists(st.tuples(ordinals, repetitions, endings), min_size=1, max_size=4),
    ),
    st.tuples(st.just("judge"), replicas, ordinals, repetitions, st.sampled_from(list(EVALUATORS)), st.integers(0, 3)),
    st.tuples(st.just("pending"), st.booleans(), st.integers(1, 5)),
)  # fmt: skip
histories = st.lists(steps, min_size=5, max_size=25)

VERDICTS: dict[tuple[str, int], tuple[Annotation, ...]] = {
    ("judge", 0): (Annotation("score", score=0.5),),
    ("judge", 1): (failure(""),),
    ("judge", 2): (Annotation("label", label="good"), Annotation("score", score=1.0)),
    ("judge", 3): (failure("", PARKED),),
    ("strict", 0): (Annotation("x", score=0.5), Annotation("y", score=0.5)),
    ("strict", 1): (failure("x"), failure("y")),
    ("strict", 2): (Annotation("x", score=1.0), Annotation("undeclared", score=1.0)),
    ("strict", 3): (Annotation("x", score=1.0), failure("y", PARKED)),
}


UNEVEN: list[tuple[Any, ...]] = [
    ("claim", "a"),
    ("run", "a", [(0, 1, OK), (0, 2, OK), (1, 1, ERROR), (2, 1, PARKED), (3, 1, INVALID), (3, 2, OK)]),
    ("judge", "a", 0, 1, "strict", 2),
    ("judge", "a", 0, 2, "strict", 3),
    ("judge", "a", 3, 2, "strict", 0),
    ("judge", "a", 0, 1, "judge", 1),
    ("judge", "a", 0, 2, "judge", 2),
    *(("pending", again, limit) for again in (False, True) for limit in (1, 2, 5)),
    ("age",),
    ("orphans",),
    ("claim", "b"),
    ("renew", "a"),
    ("run", "a", [(1, 2, OK)]),
    ("stop",),
    ("run", "b", [(1, 2, OK)]),
    ("resume", "a"),
    ("cool",),
    ("resume", "a"),
    # The end of a run clears the cooldown that its resume began.
    ("release", "a", Status.COMPLETED),
    ("resume", "b"),
]
"""A history with items and claims in every state, of which drawn ones reach few."""


@dataclass
class Model:
    """What an experiment should be, kept in dictionaries."""

    status: Status = Status.READY
    owner: str | None = None
    epoch: int = 0
    stale: bool = False
    cooling: bool = False
    runs: dict[tuple[int, int], Any] = field(default_factory=dict)
    notes: dict[tuple[int, int, str], dict[str, Any]] = field(default_factory=dict)

    def take(self, replica: str) -> int:
        self.status, self.owner, self.stale = Status.RUNNING, replica, False
        self.epoch += 1
        return self.epoch

    def free(self, status: Status) -> None:
        self.status, self.owner, self.stale = status, None, False

    def tasks(self, again: bool) -> list[tuple[int, int]]:
        wanted = (None, ERROR, PARKED) if again else (None,)
        items = [(n, r) for n in range(ROWS) for r in range(1, REPETITIONS + 1)]
        return [item for item in items if self.runs.get(item) in wanted]

    def evals(self, again: bool) -> list[tuple[int, int, str]]:
        return [
            (*item, name)
            for item in sorted(self.runs)
            for name in sorted(EVALUATORS)
            if self.runs[item] is OK and self.lacking(item, name, again)
        ]

    def lacking(self, item: tuple[int, int], name: str, again: bool) -> bool:
        said = self.notes.get((*item, name), {})
        counted = {output for output, status in said.items() if not again or status is OK}
        return not counted.issuperset(EVALUATORS[name]) or not counted


class World:
    """One history, told to a store and to the model; every answer of the store is what the model says."""

    def __init__(self, store: Store, place: Place, made: ExperimentRow) -> None:
        self.store, self.place, self.made = store, place, made
        self.model = Model()
        self.claims: dict[str, Claim] = {}

    def held(self, replica: str) -> Claim:
        return self.claims.get(replica, Claim(self.made.id, replica, epoch=0))

    def current(self, replica: str) -> bool:
        return self.model.owner == replica and self.model.epoch == self.held(replica).epoch

    async def claim(self, replica: str) -> None:
        model = self.model
        may = model.status is Status.READY or model.owner == replica or model.stale
        got = await self.store.claims.claim(self.made.id, replica, STALE)
        assert got == (Claim(self.made.id, replica, model.take(replica)) if may else None)
        if got is not None:
            self.claims[replica] = got

    async def age(self) -> None:
        if self.model.status is Status.RUNNING:
            self.place.age(self.made.id, STALE + 1)
            self.model.stale = True

    async def cool(self) -> None:
        self.place.cool(self.made.id)
        self.model.cooling = False

    async def renew(self, replica: str) -> None:
        mine = self.current(replica)
        kept = await self.store.claims.renew(replica, {self.made.id: self.held(replica).epoch})
        assert kept == ({self.made.id} if mine else set())
        if mine:
            self.model.stale = False

    async def release(self, replica: str, status: Status) -> None:
        mine = self.current(replica)
        assert await self.store.claims.release(self.held(replica), status, "because") is mine
        if mine:
            self.model.free(status)
            self.model.cooling = False

    async def stop(self) -> None:
        model = self.model
        live = model.status in (Status.READY, Status.RUNNING)
        told = Toggle.ALREADY if not live else Toggle.COOLING if model.cooling else Toggle.DONE
        assert await self.store.claims.stop(self.made.id) is told
        if told is Toggle.DONE:
            model.free(Status.STOPPED)
            model.cooling = True

    async def resume(self, replica: str) -> None:
        model = self.model
        got = await self.store.claims.resume(self.made.id, replica)
        if model.status is Status.RUNNING:
            assert got is Toggle.ALREADY
        elif model.cooling:
            assert got is Toggle.COOLING
        else:
            assert got == Claim(self.made.id, replica, model.take(replica))
            self.claims[replica] = got
            model.cooling = True

    async def orphans(self) -> None:
        assert await self.store.claims.orphans(STALE, 10) == ([self.made.id] if self.model.stale else [])

    async def run(self, replica: str, items: list[tuple[int, int, Any]]) -> None:
        claim = self.held(replica)
        fresh = claim.epoch == self.model.epoch
        lost = await self.store.write([run(claim, ordinal, again, status) for ordinal, again, status in items])
        assert lost == (set() if fresh else {self.made.id})
        for ordinal, again, status in items if fresh else ():
            if self.model.runs.get((ordinal, again)) is not OK or status is OK:
                self.model.runs[ordinal, again] = status

    async def judge(self, replica: str, ordinal: int, again: int, name: str, verdict: int) -> None:
        claim = self.held(replica)
        if self.model.runs.get((ordinal, again)) is not OK:
            return
        said = VERDICTS[name, verdict]
        fresh = claim.epoch == self.model.epoch
        lost = await self.store.write([judged(claim, ordinal, name, again, said)])
        assert lost == (set() if fresh else {self.made.id})
        if fresh:
            notes = self.model.notes.setdefault((ordinal, again, name), {})
            for output in [output for output, status in notes.items() if status is not OK]:
                del notes[output]
            for one in said:
                if notes.get(one.output) is not OK:
                    notes[one.output] = one.status

    async def pending(self, again: bool, limit: int) -> None:
        tasks: list[Any] = []
        while page := await self.store.pending.tasks(
            self.made.id, after=tasks[-1].cursor if tasks else None, limit=limit, retry_failed=again
        ):
            tasks += page
        evals: list[Any] = []
        for name, outputs in EVALUATORS.items():
            after = None
            while page_of_evals := await self.store.pending.evals(
                self.made.id, name, outputs, after=after, limit=limit, retry_failed=again
            ):
                evals += [(*item.cursor, name) for item in page_of_evals]
                after = page_of_evals[-1].cursor
        assert [item.cursor for item in tasks] == self.model.tasks(again)
        assert sorted(evals) == self.model.evals(again)

    async def end(self) -> None:
        """The whole of it, at the end of the history."""
        for again in (False, True):
            await self.pending(again, 100)
        stored = await self.store.reports.results(self.made.id, after=None, limit=100)
        assert {one.cursor: one.status for one in stored} == self.model.runs
        notes = {(*one.cursor, name, said.output): said.status for one in stored for name, said in one.annotations}
        assert notes == {
            (*item, output): status for item, said in self.model.notes.items() for output, status in said.items()
        }
        found = await self.store.experiments.find(self.made.id)
        assert found is not None
        assert (found.status, found.claimed_by, found.epoch) == (
            self.model.status,
            self.model.owner,
            self.model.epoch,
        )


async def played(place: Place, name: str, history: list[tuple[Any, ...]]) -> None:
    store = await Store.open(place.url)
    try:
        made = await store.experiments.create(name, {}, REPETITIONS, "")
        await store.datasets.add_rows(made.dataset_id, [replace(row, line=None) for row in rows(ROWS)])
        world = World(store, place, made)
        for step, *given_to in history:
            act: Callable[..., Awaitable[None]] = getattr(world, step)
            await act(*given_to)
        await world.end()
        if await store.claims.stop(made.id) is Toggle.COOLING:
            place.cool(made.id)
            await store.claims.stop(made.id)
    finally:
        await store.close()


@pytest.fixture
def names() -> list[str]:
    return []


@pytest.fixture(autouse=True)
def long_cool_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow a history is played, a cool-down ends by its word alone."""
    monkeypatch.setattr(claims, "COOLDOWN_SECONDS", 3600.0)


BOUNDED = settings(
    max_examples=effort(12, 24),
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@BOUNDED
@example(UNEVEN)
@given(histories)
def test_sqlite_answers_as_the_model_does(sqlite: SQLite, names: list[str], history: list[tuple[Any, ...]]) -> None:
    names.append("")
    asyncio.run(played(sqlite, f"history {len(names)}", history))


@BOUNDED
@example(UNEVEN)
@given(histories)
def test_postgresql_answers_as_the_model_does(
    postgresql: PostgreSQL, names: list[str], history: list[tuple[Any, ...]]
) -> None:
    names.append("")
    asyncio.run(played(postgresql, f"history {len(names)}", history))
