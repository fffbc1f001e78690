"""Replicas that die, that sleep past their time and wake, and whose clocks are wrong: one writer for each result."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests import constants
from tests.chaos.auditing import audited, writes
from tests.chaos.processes import Replica, Scene, durable, everything, status, until

NAMES = tuple(f"e{number}" for number in range(6))
ROWS = 12
GATED = 6
"""The rows from here on are under way until the gate opens."""

# No replica is stale because the machine is slow: a test makes claims old.
STALE = constants.environ(HEARTBEAT_SECONDS=0.5, FOLLOW_SECONDS=0.5, STALE_SECONDS=600.0, ORPHAN_SCAN_SECONDS=0.5)


ON_BOTH = pytest.mark.parametrize(
    "place", ["postgresql", pytest.param("sqlite", marks=pytest.mark.chaos)], indirect=True
)
"""Replicas share a PostgreSQL database nearly always."""


@pytest.fixture
def audited_scene(scene: Scene) -> Scene:
    """A scene in which every write is written down."""
    audited(scene.place)
    scene.rows(ROWS)
    return scene


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "gate"


@contextmanager
def replicas(scene: Scene, gate: Path, *clocks: float) -> Iterator[list[Replica]]:
    with ExitStack() as stack:
        yield [stack.enter_context(scene.replica(hours, GATE=str(gate), GATED=str(GATED), **STALE)) for hours in clocks]


def owners(scene: Scene) -> dict[str, str]:
    query = (
        "SELECT name, claimed_by FROM tidegate_experiments JOIN tidegate_execution_configs ON experiment_id = id "
        "WHERE status = 'RUNNING'"
    )
    return dict(scene.place.sql(query))


def forget(scene: Scene, *lost: Replica) -> None:
    """Make the last heartbeats of replicas old, as after a long silence."""
    names = ", ".join(f"'{replica.name}'" for replica in lost)
    old = f"UPDATE tidegate_execution_configs SET claimed_at = {scene.place.ago(900.0)} WHERE claimed_by IN ({names})"
    with scene.place.begun(old) as transaction:
        transaction.commit()


def under_way(scene: Scene, replica: Replica, name: str) -> int:
    notes = [note for note in scene.noted() if note.pid == replica.process.pid and note.experiment == name]
    return sum({"begin": 1, "end": -1}.get(note.what, 0) for note in notes)


def held(scene: Scene, replica: Replica, name: str) -> int:
    return sum(
        note.pid == replica.process.pid and note.experiment == name and note.what == "held" for note in scene.noted()
    )


def ended(scene: Scene, replica: Replica, name: str) -> int:
    return sum(
        note.pid == replica.process.pid and note.experiment == name and note.what == "end" for note in scene.noted()
    )


@ON_BOTH
def test_one_that_dies_and_one_that_sleeps_past_its_time_lose_and_double_nothing_whatever_their_clocks_say(
    audited_scene: Scene, gate: Path
) -> None:
    scene = audited_scene
    with replicas(scene, gate, -1.0, 1.0, 0.0) as three:
        dying, sleeping, living = three
        for name, replica in zip(NAMES, [each for each in three for _ in range(2)], strict=True):
            replica.order("start", name)
            replica.hears(f"{name} started")
        until(
            lambda: all(under_way(scene, replica, name) >= 4 for replica, name in zip(three, NAMES[::2], strict=True)),
            "rows under way everywhere",
        )
        # What is not durable when it sleeps is refused when it wakes, and ends its run before its rows have answered.
        until(
            lambda: all(durable(scene.place, name).total() == len(everything(GATED)) for name in NAMES[2:4]),
            "all durable that is not held",
        )
        # A function whose request is unanswered when the replica sleeps is cancelled when it wakes.
        until(lambda: all(held(scene, sleeping, name) for name in NAMES[2:4]), "rows at the gate")
        first = owners(scene)
        dying.send(signal.SIGKILL)
        sleeping.sleep(scene.place)
        forget(scene, dying, sleeping)
        until(lambda: set(owners(scene).values()) == {living.name}, "all taken over by the one left", living.process)
        before = {name: ended(scene, sleeping, name) for name in NAMES[2:4]}
        # The gate opens first: a replica that learns of its lost claim cancels what still waits at the gate.
        gate.touch()
        sleeping.send(signal.SIGCONT)
        until(
            lambda: all(ended(scene, sleeping, name) > before[name] for name in before),
            "late answers of the one that slept",
            sleeping.process,
        )
        until(lambda: all(status(scene.place, name) == "COMPLETED" for name in NAMES), "all complete", living.process)

    # Wrong clocks alone have moved no claim: whose claim is of now seems an hour old, or an hour ahead, to another.
    assert [first[name] for name in NAMES] == [each.name for each in three for _ in range(2)]
    for name in NAMES:
        assert durable(scene.place, name) == Counter(everything(ROWS))
    written = writes(scene.place)
    assert set(Counter(each.identity for each in written).values()) == {1}, "an identity had two writers"
    assert all(each.epoch == each.newest for each in written), "a result was written under an old epoch"
    for name in NAMES[2:4]:
        # It had more answers than it could write: those that came late were refused.
        assert ended(scene, sleeping, name) > sum(each.experiment == name and each.epoch == 1 for each in written)


@ON_BOTH
def test_a_stop_said_at_one_replica_ends_the_run_at_another(audited_scene: Scene, gate: Path) -> None:
    scene = audited_scene
    with replicas(scene, gate, 1.0, -1.0) as (here, there):
        here.order("start", "e0")
        here.hears("e0 started")
        until(lambda: under_way(scene, here, "e0") >= 4, "rows under way", here.process)
        there.order("stop", "e0")
        assert there.hears("e0 stop") == "e0 stop done"
        gate.touch()
        assert here.hears("e0 ended") == "e0 ended STOPPED"
    assert status(scene.place, "e0") == "STOPPED"
    # What was under way has been kept: its epoch was still the newest.
    assert durable(scene.place, "e0").total() == ended(scene, here, "e0")
