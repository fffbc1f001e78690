"""PostgreSQL stopped in the middle of a run: the run goes on, nothing is lost, and nothing is asked twice."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.processes import SOURCE, Scene, durable, everything, status, until
from tests.postgres import Server


@pytest.mark.parametrize(("away", "rows"), [(2.0, 60), pytest.param(10.0, 500, marks=pytest.mark.chaos)])
def test_a_run_goes_on_when_its_database_is_back(
    tmp_path: Path, scene_on_postgresql: Scene, server: Server, away: float, rows: int
) -> None:
    scene, gate = scene_on_postgresql, tmp_path / "gate"
    scene.rows(rows)
    # The second half of the rows is under way until the gate opens: no run comes to its end before.
    with scene.command("run", f"{SOURCE}:e0", GATE=str(gate), GATED=str(rows // 2)) as process:
        until(lambda: any(note.what == "held" for note in scene.noted()), "rows at the gate", process)
        server.stop()
        try:
            stopped_at, before = time.monotonic(), scene.admitted()
            gate.touch()
            until(lambda: scene.admitted() > before, "calls that go on without a database", process)
            # For how long it is away is what is tried here: nothing is waited for.
            time.sleep(max(0.0, stopped_at + away - time.monotonic()))
            assert process.poll() is None, scene.said()
        finally:
            server.start()
        assert process.wait(600) == 0, scene.said()
    assert status(scene.place, "e0") == "COMPLETED"
    assert durable(scene.place, "e0") == Counter(everything(rows))
    assert scene.admitted() == len(everything(rows))
