"""`tidegate experiment run` whose database file is deleted meanwhile: the command names the copy that it left."""

from __future__ import annotations

import pytest

from tests.cli.experiment.commands import Place

CLEANING = """
from pathlib import Path
from tidegate.experiments import Experiment


def answer(row):
    if row["n"] == 3:
        for path in Path().glob("tidegate.db*"):
            path.unlink(missing_ok=True)
    return row["n"]


experiment = Experiment("cleaning", "rows.jsonl", answer)
"""


@pytest.mark.parametrize("in_process", [True, False])
def test_run_whose_file_is_deleted_names_the_copy_it_left(place: Place, in_process: bool) -> None:
    place.rows(6)
    place.write("my_eval.py", CLEANING)
    done = (place.run if in_process else place.process)("run", "my_eval.py")
    saved = place.path / "tidegate.saved.db"
    assert done.code == 7
    assert f"everything that it held is saved in {saved}" in done.out.splitlines()[0]
    assert f"`tidegate experiment run cleaning --db {saved}` continues it" in done.out
    assert not (place.path / "tidegate.db").exists()
    listed = place.run("show", "cleaning", "--json", "--db", str(saved))
    assert '"ok": 6' in listed.out
    assert "Traceback" not in done.err
