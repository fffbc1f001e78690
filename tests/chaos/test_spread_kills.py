"""`kill -9` of replicas that run one experiment together: each row once, and no more than open chunks paid again."""

from __future__ import annotations

import random
import signal
from collections import Counter
from contextlib import ExitStack

import pytest

from tests import constants
from tests.chaos.processes import REPETITIONS, Replica, Scene, durable, everything, kept, status, until

# No replica is stale because the machine is slow: a test makes the claims of killed ones old.
SETTINGS = {
    "SPREAD": "1",
    **constants.environ(HEARTBEAT_SECONDS=1.0, STALE_SECONDS=600.0, ORPHAN_SCAN_SECONDS=0.5),
    "TIDEGATE_EXPERIMENTS_MAX_CONCURRENCY": "8",
}


class Replicas:
    """Replicas of one experiment; one that is killed has a successor at once."""

    def __init__(self, scene: Scene, count: int, stack: ExitStack) -> None:
        self._scene, self._stack = scene, stack
        self.living = [self._started() for _ in range(count)]
        self.killed: list[Replica] = []
        self.open_rows = Counter[int]()

    def _started(self) -> Replica:
        return self._stack.enter_context(self._scene.replica(**SETTINGS))

    def owner(self) -> str:
        query = "SELECT claimed_by FROM tidegate_execution_configs WHERE status = 'RUNNING'"
        return str((self._scene.place.sql(query) or [("",)])[0][0])

    def at_work(self) -> bool:
        begun = {note.pid for note in self._scene.noted()}
        return all(each.process.pid in begun for each in self.living)

    def kill(self, replica: Replica) -> None:
        """Kills one, and keeps the rows of the chunks that it held."""
        replica.send(signal.SIGKILL)
        replica.process.wait()
        held = f"SELECT first, \"end\" FROM tidegate_chunks WHERE NOT done AND claimed_by = '{replica.name}'"
        for first, end in self._scene.place.sql(held):
            self.open_rows.update(range(int(first), int(end)))
        for table, more in (("chunks", " AND NOT done"), ("execution_configs", "")):
            old = f"claimed_at = {self._scene.place.ago(900.0)}"
            self._scene.place.sql(f"UPDATE tidegate_{table} SET {old} WHERE claimed_by = '{replica.name}'{more}")
        self.living.remove(replica)
        self.killed.append(replica)
        self.living.append(self._started())


@pytest.mark.parametrize(
    ("count", "kills", "rows"),
    [(2, 2, 64), pytest.param(4, 16, 960, marks=pytest.mark.chaos)],
)
def test_replicas_that_are_killed_leave_each_row_once_and_only_their_chunks_are_paid_again(
    scene_on_postgresql: Scene, count: int, kills: int, rows: int
) -> None:
    scene = scene_on_postgresql
    scene.rows(rows)
    drawn = random.Random(f"{kills} kills of {count} replicas")
    whole = len(everything(rows))
    after = sorted(drawn.sample(range(1, int(0.6 * whole)), kills))
    with ExitStack() as stack:
        replicas = Replicas(scene, count, stack)
        replicas.living[0].order("start", "e0")
        replicas.living[0].hears("e0 started")
        until(replicas.at_work, "all at work")
        for number, results in enumerate(after):
            until(lambda least=results: kept(scene.place) >= least, f"{results} results")
            # The owner is one of them at least; it may be between two claims.
            owners = [each for each in replicas.living if each.name == replicas.owner()]
            replicas.kill(drawn.choice(owners if owners and number == 0 else replicas.living))
        until(lambda: status(scene.place, "e0") != "RUNNING", "the end", *[each.process for each in replicas.living])
        assert status(scene.place, "e0") == "COMPLETED", scene.said()
    assert durable(scene.place, "e0") == Counter(everything(rows))
    begun = Counter(note.row for note in scene.noted() if note.what == "begin" and note.stage == "task")
    again = {row: times - REPETITIONS for row, times in begun.items() if times > REPETITIONS}
    assert set(begun) == set(range(rows))
    assert again.keys() <= replicas.open_rows.keys(), "a row was paid again whose chunk nobody lost"
    for row, times in again.items():
        assert times <= REPETITIONS * replicas.open_rows[row]
    if rows >= 960:
        # With chunks this large, a slow database delays fewer results than a chunk has.
        assert sum(again.values()) <= kills * REPETITIONS * (rows // 64)
