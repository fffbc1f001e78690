"""`tidegate doctor`: lines to search without a terminal, a table on one, JSON on request, and the exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli.commands import app
from tidegate.cli.doctor import command
from tidegate.cli.doctor.environment import Finding, Severity


def invoke(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *words])
    return result.exit_code, result.output


@pytest.fixture(autouse=True)
def _defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_SHARE", raising=False)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "my_eval.py"
    path.write_text("import openai\n\nopenai.OpenAI()\n")
    return path


def test_this_environment_is_looked_at_by_default() -> None:
    said = invoke()[1].splitlines()
    assert any(line.startswith("sdk governed openai ") for line in said)
    assert any(line.startswith("stack governed requests ") for line in said)


def test_a_script_that_is_governed_gives_0_and_its_lines(script: Path) -> None:
    code, said = invoke(str(script))
    assert code == 0
    assert said.splitlines()[-1].startswith("script note my_eval.py: does not import tidegate; ")


def test_a_script_that_is_not_gives_1(script: Path) -> None:
    script.write_text("import pycurl\n")
    code, said = invoke(str(script))
    assert code == 1
    assert "stack ungoverned pycurl: cannot be governed; " in said


@pytest.mark.parametrize("verdict", list(Severity))
def test_the_exit_code_is_1_for_what_cannot_be_governed_and_for_nothing_else(
    monkeypatch: pytest.MonkeyPatch, verdict: Severity
) -> None:
    found = [Finding("sdk", Severity.GOVERNED, "a", "b"), Finding("sdk", verdict, "c", "d")]
    monkeypatch.setattr(command, "findings", lambda _: found)
    assert invoke()[0] == (verdict == "ungoverned")


def test_json_has_every_field_of_every_finding(script: Path) -> None:
    code, said = invoke("--json", str(script))
    found = [json.loads(line) for line in said.splitlines()]
    assert code == 0
    assert {tuple(each) for each in found} == {("section", "verdict", "name", "text", "version")}
    assert (found[-1]["verdict"], found[-1]["name"]) == ("note", "my_eval.py")


def test_settings_in_force_come_last(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_MAX_WAIT", "60")
    monkeypatch.setenv("TIDEGATE_DIGEST_KEY", "hunter2-hunter2")
    said = invoke(str(script))[1]
    assert "\nsetting set max_wait: 60.0 (from TIDEGATE_MAX_WAIT)\n" in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "it cannot be read"), ("def (", "it is not Python source (line 1: invalid syntax)")],
)
def test_what_is_no_script_gives_2_and_one_line(tmp_path: Path, content: str | None, complaint: str) -> None:
    path = tmp_path / "x.py"
    if content is not None:
        path.write_text(content)
    code, said = invoke(str(path))
    assert code == 2
    assert said.startswith(f"tidegate: script: '{path}' is not usable: {complaint}")
    assert said.count("\n") == 1


def test_a_folder_is_no_script(tmp_path: Path) -> None:
    code, said = invoke(str(tmp_path))
    assert (code, said.count("\n")) == (2, 1)


def test_a_setting_that_is_not_usable_gives_2_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_FRAMEWORK_CLOCKS", "faster")
    code, said = invoke()
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("tidegate: framework_clocks: 'faster' is not usable: ")


def test_a_file_of_prices_that_is_not_usable_gives_2_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "prices.json"
    path.write_text('{"m": {"input": -1, "output": 2}}')
    monkeypatch.setenv("TIDEGATE_PRICES", str(path))
    code, said = invoke()
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("tidegate: price of m: -1 is not usable: ")


def test_on_a_terminal_it_is_a_table(script: Path) -> None:
    ours, theirs = os.openpty()
    try:
        call = [sys.executable, "-c", "from tidegate.cli.main import main; main()", "doctor", str(script)]
        subprocess.run(
            call, stdout=theirs, check=True, timeout=300, env={**os.environ, "TERM": "dumb", "COLUMNS": "100"}
        )
        shown = os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "does not import tidegate" in " ".join(shown.split())
    assert "script note my_eval.py" not in shown


def test_the_sharing_of_limits_is_named_with_its_place_or_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "private"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("TIDEGATE_SHARE", str(folder))
    assert f"shared by all processes of this user on this machine, through {folder};" in invoke()[1]
    folder.chmod(0o755)
    assert f"sharing trap limits: not shared: {folder} is open to other users (mode 0755)" in invoke()[1]
    monkeypatch.setenv("TIDEGATE_SHARE", "off")
    assert "sharing note limits: not shared: the setting is off" in invoke()[1]


def test_answers_and_a_script_are_not_explained_at_once(script: Path) -> None:
    code, said = invoke("--explain", str(script))
    assert code == 2
    assert "--explain reads standard input, and no script" in said
