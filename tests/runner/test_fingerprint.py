"""A change of code or prompt is noticed, and nothing else is."""

from __future__ import annotations

import importlib
import logging
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.runner.scene import in_loop, rows, runner_at
from tidegate.experiments import Experiment, load
from tidegate.experiments.engine.fingerprint import fingerprint

PROGRAM = """
import json
from dataclasses import dataclass

import prompts
from prompts import SYSTEM

PROMPT = "What is {n}?"
TEMPERATURE = 0.2
OPTIONS = {"top_p": 1}
SECRET = "sk-proj-0123456789abcdefghijklmnopqrstuv"
unused = 1
count = 0
seen = []


@dataclass
class Client:
    model: str

    def ask(self, text):
        return text.upper()


client = Client("gpt-5")


def shaped(text):
    return text.strip()


def task(row):
    global count
    count += 1
    seen.append(row)
    text = shaped(PROMPT.format(**row)) + SYSTEM + prompts.EXAMPLES
    return client.ask(json.dumps([text, TEMPERATURE, OPTIONS, SECRET]))


def unrelated(row):
    return unused


from tidegate.experiments import Experiment

experiment = Experiment("e", [{"n": 1}], task)
"""

PROMPTS = 'SYSTEM = "Be brief."\nEXAMPLES = "2 is two."\nOTHER = "not used"\n'


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the fingerprint of the task of a program, with a text replaced in one of its files."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    folders = iter(range(1000))

    def of(old: str = "", new: str = "") -> Any:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        assert not old or PROGRAM.count(old) + PROMPTS.count(old) == 1
        (folder / "my_eval.py").write_text(PROGRAM.replace(old, new) if old else PROGRAM)
        (folder / "prompts.py").write_text(PROMPTS.replace(old, new) if old else PROMPTS)
        sys.modules.pop("prompts", None)
        sys.path.insert(0, str(folder))
        importlib.invalidate_caches()
        return load(f"{folder}/my_eval.py:experiment")

    yield of
    sys.modules.pop("prompts", None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("What is {n}?", "What was {n}?"),
        ("TEMPERATURE = 0.2", "TEMPERATURE = 0.3"),
        ('"top_p": 1', '"top_p": 2'),
        ("text.strip()", "text.rstrip()"),
        ("text.upper()", "text.lower()"),
        ('Client("gpt-5")', 'Client("gpt-5-mini")'),
        ("Be brief.", "Be long."),
        ("2 is two.", "3 is three."),
        ("json.dumps([text,", "json.dumps([2 * text,"),
    ],
)
def test_change_of_what_the_task_uses_is_noticed(program: Any, old: str, new: str) -> None:
    before = program().code["task"]
    assert before is not None
    assert program(old, new).code["task"] not in (before, None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("unused = 1", "unused = 2"),
        ("not used", "not needed"),
        ("return unused", "return unused + 1"),
        ("    return text.strip()", "    # As short as it is.\n\n    return text.strip()  # the text"),
        ("0123456789abcdef", "fedcba9876543210"),
        ("seen = []", "seen = []\nmore = []"),
    ],
)
def test_change_of_anything_else_is_not(program: Any, old: str, new: str) -> None:
    assert program(old, new).code["task"] == program().code["task"]


def test_calls_change_nothing(program: Any) -> None:
    experiment = program()
    before = experiment.code
    experiment.task({"n": 1})
    assert Experiment("e", [], experiment.task).code == before == program().code


def made(suffix: str, times: int = 1) -> Any:
    def task(row: Any) -> str:
        return str(row) * times + suffix

    return task


class Task:
    """A callable object."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.calls = 0

    def __call__(self, row: Any) -> str:
        self.calls += 1
        return self.model


def joined(suffix: str, row: Any) -> str:
    return str(row) + suffix


def test_settings_of_closures_objects_and_partials_count() -> None:
    for make in (made, Task, lambda suffix: partial(joined, suffix), lambda suffix: Task(suffix).__call__):
        one = make("a")
        before = fingerprint(one)
        assert before is not None
        one("row")
        assert fingerprint(one) == fingerprint(make("a")) == before != fingerprint(make("b"))
    assert fingerprint(made("a", 1)) != fingerprint(made("a", 2))
    plain = lambda row: row  # noqa: E731
    twice = lambda row: 2 * row  # noqa: E731
    assert fingerprint(plain) != fingerprint(twice)


def test_function_without_a_source_has_none() -> None:
    scope: dict[str, Any] = {}
    exec("def task(row): return row", scope)
    assert fingerprint(scope["task"]) is None
    assert fingerprint(str) is None


@in_loop
async def test_runner_warns_once_of_changed_code_that_has_left_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with runner_at(tmp_path) as runner:
        await runner.run(Experiment("e", rows(2), made("a")))
        await runner.run(Experiment("e", rows(2), made("a")))
        assert not caplog.records
        with caplog.at_level(logging.WARNING, "tidegate"):
            for _ in range(2):
                await runner.run(Experiment("e", rows(2), made("b")))
        (warning,) = caplog.records
        assert warning.getMessage() == (
            "experiment e changed: the kept answers were made with another task; --fresh, or a new name, asks all again"
        )
        lines = await runner.store.reports.last_logs(1, 100)
    assert [each.detail["parts"] for each in lines if each.detail["type"] == "changed"] == [["task"]]
