"""`kill -9` at any moment: what was durable is there once and is not asked again; what was not is."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import time
from collections import Counter

import pytest

from tests import constants
from tests.chaos.processes import SOURCE, Note, Scene, durable, everything, kept, known, status, until
from tests.storage.values import count_again
from tidegate.experiments.storage import Store

SLOTS = 20
"""Functions that may run at once; without it, as many as the key admits."""

UNWRITTEN = 100
"""Answers that wait to be written from which no more work begins. A slow database makes them wait."""

LIMITS = {"TIDEGATE_EXPERIMENTS_MAX_CONCURRENCY": str(SLOTS), **constants.environ(UNWRITTEN_RESULTS=UNWRITTEN)}
"""What the killed process is told."""


def moments(kills: int, rows: int) -> list[tuple[int, float]]:
    """When to kill: after so many durable results and so many seconds more; the first as soon as there are tables."""
    drawn = random.Random(f"{kills} kills of {rows} rows")
    after = sorted(drawn.sample(range(1, int(0.95 * len(everything(rows)))), kills - 1))
    return [(each, drawn.uniform(0.0, 0.15)) for each in [0, *after]]


def missing(scene: Scene, rows: int) -> Counter[tuple[str, int]]:
    """How often each row of each stage is not durable yet."""
    whole = Counter((stage, row) for stage, row, _ in everything(rows))
    there = durable(scene.place, "e0") if known(scene.place, "e0") else Counter()
    return whole - Counter((stage, row) for stage, row, _ in there)


def words(scene: Scene) -> tuple[str, str]:
    """What a fresh process is told: to resume, where the one before came far enough to be resumed."""
    return ("run", "e0") if known(scene.place, "e0") else ("run", f"{SOURCE}:e0")


def count(notes: list[Note], what: str) -> Counter[tuple[str, int]]:
    return Counter((note.stage, note.row) for note in notes if note.what == what)


async def tallies(url: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the number of items of each stage as the tally has it, and as a new build counts it."""
    store = await Store.open(url)
    found = []
    for _ in range(2):
        kept = (await store.tallies.of([1]))[1]
        found.append({name: stage.items for name, stage in kept.items()})
        await count_again(store, 1)
    await store.close()
    return found[0], found[1]


def killed(scene: Scene, process: subprocess.Popen[bytes], after: int, seconds: float) -> None:
    """Kills the process when so much is durable, or, at 0, when there are tables."""
    until(lambda: known(scene.place, "e0") and kept(scene.place) >= after, f"{after} results", process)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(
    ("place", "kills", "rows"),
    [
        ("sqlite", 2, 40),
        pytest.param("postgresql", 2, 40, marks=pytest.mark.chaos),
        pytest.param("sqlite", 20, 500, marks=pytest.mark.chaos),
        pytest.param("postgresql", 20, 500, marks=pytest.mark.chaos),
    ],
    indirect=["place"],
)
def test_a_run_that_is_killed_and_resumed_has_one_row_of_each_identity_and_asks_only_what_was_in_flight_again(
    scene: Scene, kills: int, rows: int
) -> None:
    scene.rows(rows)
    in_flight = 0
    for after, seconds in moments(kills, rows):
        lacking, seen = missing(scene, rows), scene.lines()
        with scene.command(*words(scene), **LIMITS) as process:
            killed(scene, process, after, seconds)
        notes = scene.noted()[seen:]
        begun, ended = count(notes, "begin"), count(notes, "end")
        assert begun <= lacking, "what was durable has been asked again"
        assert (begun - ended).total() <= SLOTS, "more was under way than there are slots"
        kept_of_it = (lacking - missing(scene, rows)).total()
        assert ended.total() - kept_of_it <= UNWRITTEN + SLOTS, "work began though answers waited"
        in_flight += begun.total() - kept_of_it
    lacking, seen = missing(scene, rows), scene.lines()
    with scene.command(*words(scene), **LIMITS) as process:
        assert process.wait(600) == 0, scene.said()
    assert count(scene.noted()[seen:], "begin") == lacking, "the last one has asked for more than was missing"
    assert status(scene.place, "e0") == "COMPLETED"
    assert durable(scene.place, "e0") == Counter(everything(rows))
    tally, built = asyncio.run(tallies(scene.place.url))
    assert tally == built, "a kill has left a tally that is not that of the results"
    repeated = scene.admitted() - len(everything(rows))
    assert 0 <= repeated <= in_flight
