"""`show` and `export` of a database that may only be read: they need to write nothing."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.experiment.commands import Place
from tests.cli.running import SRC, environ
from tests.effort import some

READ = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
os.chdir(sys.argv[2])
from typer.testing import CliRunner
from tidegate.cli.commands import app
warm, read, *commands = sys.argv[3:]
def done(command, db):
    result = CliRunner().invoke(app, ["experiment", *command.split(), "--db", db])
    return result.exit_code, result.stdout, result.stderr
for command in commands:
    # Whatever is imported late is imported while that may be read.
    assert done(command, warm)[0] == 0
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps([done(command, read) for command in commands]))
"""


@pytest.fixture
def folder(place: Place) -> Iterator[Path]:
    """A folder that anybody may enter, with a database of three answers: whoever is root becomes somebody else."""
    place.doubles(3)
    assert place.run("run", "my_eval.py").code == 0
    with tempfile.TemporaryDirectory(prefix="tidegate-") as name:
        shutil.copy(place.path / "tidegate.db", name)
        Path(name).chmod(0o755)
        yield Path(name)
        Path(name).chmod(0o755)


def read(place: Place, folder: Path, db: str, *commands: str) -> list[list[Any]]:
    """Exit code, output and complaints of commands of a user who may write nothing in a folder."""
    warm = str(place.path / "tidegate.db")
    done = subprocess.run(
        [sys.executable, "-c", READ, SRC, str(folder), warm, db, *commands],
        env=environ(COLUMNS="200", HOME=str(folder)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: list[list[Any]] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize(("of_file", "of_folder"), some([(0o444, 0o555)], [(0o644, 0o555), (0o444, 0o755)]))
def test_reading_commands_read_what_may_only_be_read(place: Place, folder: Path, of_file: int, of_folder: int) -> None:
    (folder / "tidegate.db").chmod(of_file)
    folder.chmod(of_folder)
    before = sorted(path.name for path in folder.iterdir())
    listed, shown, exported = read(place, folder, "tidegate.db", "show", "show doubles", "export doubles")
    for done, said in [
        (listed, "doubles"),
        (shown, "doubles: COMPLETED: 3 rows × 2, 6 answered"),
        (exported, '"output": 4'),
    ]:
        assert (done[0], done[2]) == (0, "")
        assert said in done[1]
    assert sorted(path.name for path in folder.iterdir()) == before


def test_reading_commands_read_what_only_the_log_has(place: Place, folder: Path) -> None:
    """A killed run leaves its newest answers in the -wal file: a copy is read, as nobody may recover it here."""
    path = folder / "tidegate.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("UPDATE tidegate_experiments SET name = 'in_the_log'")
        for end in ("", "-wal"):
            shutil.copy(f"{path}{end}", folder / f"copy.db{end}")
    assert (folder / "copy.db-wal").stat().st_size
    for each in folder.iterdir():
        each.chmod(0o444)
    folder.chmod(0o555)
    (done,) = read(place, folder, "copy.db", "show")
    assert (done[0], done[2]) == (0, "")
    assert "in_the_log" in done[1]


def test_reading_commands_leave_nothing_beside_the_file(place: Place) -> None:
    place.doubles(2)
    assert place.run("run", "my_eval.py").code == 0
    before = sorted(path.name for path in place.path.iterdir())
    assert place.run("show").code == place.run("show", "doubles").code == 0
    assert sorted(path.name for path in place.path.iterdir()) == before
