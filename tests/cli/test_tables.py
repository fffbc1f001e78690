"""Every command that prints a table, at three widths of a terminal: what it prints is in `tables/`.

`WRITE_TABLES=1 python -m pytest tests/cli/test_tables.py` writes the files; read their difference before it is
committed. Digits of instants and durations are 0 there.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.experiment.commands import Place
from tests.cli.runs import OfARun, used_at
from tidegate.cli import simulate
from tidegate.cli.commands import app
from tidegate.cli.doctor import answers, command
from tidegate.cli.doctor.environment import Finding, Severity
from tidegate.testing import Counts, Truth
from tidegate.testing import demo as providers
from tidegate.testing.demo import DemoRun

TABLES = Path(__file__).with_name("tables")
WIDTHS = (48, 80, 140)
TIMES = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?|\b\d+:\d\d(:\d\d)?\b|\b\d+\.\d\d? s\b|(?<= )\d\.\d\d(?= *$)", re.MULTILINE
)
"""Instants and durations, whose digits differ from run to run."""

EVAL = """
from tidegate.experiments import Evaluator, Experiment


def answer(row):
    if row["n"] == 3:
        raise ValueError("the answer of this row is no number, and so it cannot be read")
    return row["n"]


def correct(row, output):
    return 1 / 3


def judged_quality(row, output):
    if row["n"] > 4:
        raise KeyError("a_missing_column_of_the_dataset")
    return {"score": 2 / 3, "label": "high" if row["n"] % 2 else "low"}


def of(name):
    return Experiment(name, "rows.jsonl", answer, [correct, judged_quality])


short, long = of("capitals"), of("capitals-of-the-world-with-a-very-long-prompt")
"""

Show = Callable[..., dict[int, str]]


@pytest.fixture
def show() -> Show:
    """Prints a command at each width."""

    def shown(*words: str, given: str | None = None) -> dict[int, str]:
        said = {}
        for width in WIDTHS:
            done = CliRunner().invoke(app, words, input=given, env={"COLUMNS": str(width), "NO_COLOR": "1"})
            assert done.exit_code in (0, 1), done.output
            text = TIMES.sub(lambda match: re.sub(r"\d", "0", match[0]), done.stdout)
            said[width] = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
        return said

    return shown


def check(name: str, said: dict[int, str]) -> None:
    """Compare with the files of a command. Only a text at the end of a line may be cut, as an example of an error."""
    for width, text in said.items():
        path = TABLES / f"{name}-{width}.txt"
        if os.environ.get("WRITE_TABLES"):
            path.write_text(text)
        assert text == path.read_text(), f"{path.name} differs"
        assert not any(re.search(r"…\s*\S", line) for line in text.splitlines()), path.name


@pytest.fixture
def experiments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experiments whose rows and evaluations have failed in part; one of them was stopped by its limit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("TIDEGATE_DB", raising=False)
    place = Place(tmp_path)
    place.rows(8)
    place.write("table_eval.py", EVAL)
    assert place.run("run", "table_eval.py:short", "--max-concurrency", "1").code == 3
    assert place.run("run", "table_eval.py:long", "--max-concurrency", "1", "--limit", "6").code == 3


LONG = "capitals-of-the-world-with-a-very-long-prompt"


@pytest.mark.usefixtures("experiments")
def test_list_of_experiments(show: Show) -> None:
    check("experiment-list", show("experiment", "show"))


@pytest.mark.usefixtures("experiments")
def test_one_experiment_with_its_failures(show: Show) -> None:
    check("experiment-show", show("experiment", "show", LONG, "--lines", "0"))


@pytest.mark.usefixtures("experiments")
def test_comparison_of_experiments(show: Show) -> None:
    check("experiment-compare", show("experiment", "compare", "capitals", LONG))


def test_programs_and_their_keys(show: Show, of_a_run: OfARun) -> None:
    used_at(of_a_run(11, "python my_eval.py --rows 80"), "gpt-5-mini-2026-08-07", 1.0, waiting=240)
    paused = of_a_run(12, "pytest -n 4")
    used_at(paused, "claude-haiku-4-5", 1.0, waiting=20, closed_for=600.0)
    used_at(paused, "claude-opus-4-5", 120.0)
    check("status", show("status"))


def test_truth_of_a_simulator(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = Counts(received=276, answered=0, refused={"requests": 264, "input_tokens": 12}, peak_in_flight=31)
    keys = {"gpt-4o-mini-2026 297afcc1": counts, "gpt-5-mini 297afcc1": counts}
    truth = Truth(elapsed=1.0, total=counts, keys=keys, order=(), admitted_at=())
    monkeypatch.setattr(simulate, "serve", lambda *_, **__: truth)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        check("simulate", show("simulate"))
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_results_of_the_demonstration(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(found: Any, phases: Any, on_look: Any) -> tuple[DemoRun, ...]:
        return tuple(
            DemoRun(track, phase, len(track.rows), len(track.rows), seconds=2 * track.ideal)
            for phase in phases
            for track in found
        )

    monkeypatch.setattr(providers, "run", run)
    check("demo", show("demo"))


class OnTerminal:
    """The module `sys` whose output is a terminal, and whose input is none."""

    stdout = SimpleNamespace(isatty=lambda: True)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


FOUND = (
    Finding("sdk", Severity.GOVERNED, "openai", "sends through httpx2 2.16.2", "3.52.0"),
    Finding("stack", Severity.GOVERNED, "httpx2", "patched at Client.send, AsyncClient.send", "2.16.2"),
    Finding("stack", Severity.UNGOVERNED, "a_client_of_its_own", "cannot be governed: it sends by itself"),
)


def test_findings_of_the_doctor(show: Show, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "sys", OnTerminal())
    monkeypatch.setattr(command, "findings", lambda script: iter(FOUND))
    check("doctor", show("doctor", str(tmp_path)))


def test_explanation_of_an_answer(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "sys", OnTerminal())
    answer = (
        '{"provider": "openai", "url": "https://api.openai.com/v1/chat/completions", "model": "gpt-5-mini-2026-08-07", '
        '"status": 429, "headers": {"retry-after": "12", "x-ratelimit-limit-requests": "500"}}'
    )
    check("doctor-explain", show("doctor", "--explain", given=answer))
