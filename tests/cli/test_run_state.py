"""`tidegate run --state FILE`: one run begins with what the last one learned."""

from __future__ import annotations

import json
import subprocess
import textwrap
from pathlib import Path

import pytest

from tests.cli.asking import ASK
from tests.cli.running import PYTHON, RUN, Done, environ
from tidegate.admission.saved_state import LearnedState
from tidegate.launch import bootstrap, environment
from tidegate.testing import Limit, Scenario, Simulator

PROGRAM = """
import tidegate
from ask import ask_all
print(sorted(each.scope for each in getattr(tidegate.registry().settings.initial_state, "keys", ())))
ask_all(range(4))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "ask.py").write_text(ASK)
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    return tmp_path


@pytest.fixture
def url():
    with Simulator(Scenario(limiters=(Limit(limit=50, window=60.0),), dialect="openai")) as provider:
        yield provider.url


def run(folder: Path, *command: str, **env: str) -> Done:
    done = subprocess.run(
        [*RUN, "--state", "limits.json", *command],
        env=environ(**env),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return Done(done.returncode, done.stdout, done.stderr.splitlines())


def test_the_second_run_begins_with_what_the_first_one_learned(folder: Path, url: str) -> None:
    first = run(folder, PYTHON, "program.py", URL=url)
    assert (first.code, first.out) == (0, "[]\n"), first.lines
    (key,) = LearnedState.read(folder / "limits.json").keys
    assert (key.scope, [(quota.name, quota.limit) for quota in key.quotas]) == ("m", [("requests", 50.0)])
    second = run(folder, PYTHON, "program.py", URL=url)
    assert (second.code, second.out) == (0, "['m']\n"), second.lines
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".json") == ["limits.json"]


def test_no_secret_and_no_digest_that_another_run_could_use_is_in_the_file(folder: Path, url: str) -> None:
    def digests(**variables: str) -> str:
        run(folder, PYTHON, "program.py", URL=url, **variables)
        return str(json.loads((folder / "limits.json").read_text())["digests"])

    # Processes that share limits have a secret in common, and write no digest under it.
    assert digests() == ""
    assert "" != digests(TIDEGATE_SHARE="off") != digests(TIDEGATE_SHARE="off")


def test_quietly_as_well(folder: Path, url: str) -> None:
    done = run(folder, PYTHON, "program.py", URL=url, TIDEGATE_LOG="off")
    assert (done.code, done.lines) == (0, [])
    assert LearnedState.read(folder / "limits.json").keys


def test_a_run_that_learned_nothing_leaves_the_file_as_it_was(folder: Path) -> None:
    assert run(folder, PYTHON, "-c", "import httpx").code == 0
    assert not (folder / "limits.json").exists()


def test_the_exit_code_is_the_commands(folder: Path) -> None:
    assert run(folder, PYTHON, "-c", "raise SystemExit(7)").code == 7


@pytest.mark.parametrize("content", ["{", '{"keys": 1}'])
def test_a_file_with_something_else_in_it_stops_the_run_in_one_line(folder: Path, content: str) -> None:
    (folder / "limits.json").write_text(content)
    done = run(folder, PYTHON, "-c", "print(1)")
    assert (done.code, done.out, len(done.lines)) == (2, "", 1)
    assert done.last.startswith("tidegate: --state: 'limits.json' is not usable: ")
    assert (folder / "limits.json").read_text() == content


def test_a_folder_that_is_not_there_stops_it_too(folder: Path) -> None:
    done = subprocess.run(
        [*RUN, "--state", "gone/limits.json", PYTHON, "-c", "1"], env=environ(), cwd=folder, capture_output=True
    )
    assert done.returncode == 2


def test_a_file_of_another_version_is_told_and_written_anew(folder: Path, url: str) -> None:
    (folder / "limits.json").write_text('{"version": 99}')
    done = run(folder, PYTHON, "program.py", URL=url)
    assert (done.code, done.out) == (0, "[]\n")
    assert "another version" in done.lines[0]
    assert LearnedState.read(folder / "limits.json").version == 1


def test_both_sides_name_the_folder_alike() -> None:
    assert bootstrap.STATE_DIR == environment.STATE_DIR
