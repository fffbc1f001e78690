"""Start of `tidegate run`: it reads a command line as typer does, and loads little code before the program."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.running import PYTHON, environ
from tidegate.cli import run as command
from tidegate.cli.commands import app
from tidegate.cli.run_begin import begin
from tidegate.cli.run_request import RunRequest, RunSettings, read, settings_in
from tidegate.errors import ConfigurationError
from tidegate.settings import Settings

MOST_OWN = 41
"""Modules of tidegate that a run loads at most. Raising it makes each program under `tidegate run` start later."""

MOST_OTHERS = 120
"""Other modules that it loads at most, beside those of the interpreter itself."""

HEAVY = (
    "pydantic",
    "typer",
    "rich",
    "httpx",
    "httpx2",
    "wrapt",
    "openai",
    "dataclasses",
    "inspect",
    "logging",
    "asyncio",
)
"""Modules that take longer to load than all of a run."""

REGISTRY = ("tidegate.admission.registry", "tidegate.providers", "tidegate.core.admission_controller")
"""Modules of calls, which the run itself never makes."""


def test_a_run_loads_few_modules_and_none_that_takes_long() -> None:
    code = """
import sys
bare = set(sys.modules)
import atexit
atexit.register(lambda: print(*set(sys.modules) - bare))
from tidegate.cli.main import main
main()
"""
    words = [PYTHON, "-c", code, "run", PYTHON, "-c", "pass"]
    done = subprocess.run(words, env=environ(), capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    own = [name for name in loaded if name.partition(".")[0] == "tidegate"]
    assert "tidegate.cli.command_run" in own
    assert [name for name in (*HEAVY, *REGISTRY) if name in loaded] == []
    assert len(own) <= MOST_OWN
    assert len(loaded) - len(own) <= MOST_OTHERS


READ = [
    "python -c pass",
    "-- python --help",
    "-- -x",
    "--state f python --state g",
    "--state=f --report r --strict python",
    "--report=a=b --report c python",
    "--gateway --no-gateway python",
    "--no-gateway --gateway -- python -- --strict",
    "--strict --strict python -h",
]
"""Command lines that `read` reads."""

LEFT = [
    "",
    "- x",
    "--",
    "--strict",
    "--help",
    "-h python",
    "--state",
    "--state=",
    "--state --strict python",
    "--stat f python",
    "--strict=1 python",
    "--unknown python",
]
"""Command lines that it leaves to typer."""


@pytest.mark.parametrize("line", READ)
def test_a_command_line_is_read_as_typer_reads_it(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[RunRequest] = []
    monkeypatch.setattr(command, "begin", lambda request: begun.append(request) or 0)
    assert CliRunner().invoke(app, ["run", *line.split()]).exit_code == 0
    assert begun == [read(line.split())]


@pytest.mark.parametrize("line", LEFT)
def test_an_unusual_command_line_is_left_to_typer(line: str) -> None:
    assert read(line.split()) is None


def test_an_empty_word_is_a_command() -> None:
    assert read(["", "x"]) == RunRequest(["", "x"])


def test_a_run_without_variables_follows_the_default_settings() -> None:
    default = Settings()
    assert settings_in({"HOME": "/"}) == RunSettings() == (default.log, default.disabled, default.prices, ())


def test_a_run_follows_its_variables_and_refuses_those_that_are_not_usable(tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    given = {"TIDEGATE_LOG": "off", "TIDEGATE_PRICES": str(prices), "TIDEGATE_DISABLED": " "}
    assert settings_in(given) == RunSettings(False, False, prices)
    with pytest.raises(ConfigurationError, match="max_wait"):
        settings_in({"TIDEGATE_MAX_WAIT": "soon"})


def test_an_interrupt_before_the_command_begins_is_told_by_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(environ: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("tidegate.launch.environment.runs_inside", interrupted)
    assert begin(RunRequest(["true"])) == 130
