"""Text of a model, a server or a dataset can move no cursor and forge no line, wherever people read it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.text import Text

import tidegate
from tests.core.values import answer, bucket
from tests.transports.answering import Server
from tidegate.admission.registry import RateLimitRegistry
from tidegate.cli import common
from tidegate.cli.status_list import lines
from tidegate.cli.status_text import StatusText
from tidegate.core.safe_text import json_line, printable
from tidegate.core.values import Key, Kind, Outcome
from tidegate.errors import DeadlineExceeded
from tidegate.experiments.commands.display import Printer, table, waits
from tidegate.launch.process_counters import ProcessCounters
from tidegate.launch.totals import Folder

EVIL = "gpt\r\nERROR forged\n\x1b[2J\x1b]0;pwn\x07\x9b31m\x7f\u202etxt\u2066\u2028\u200b\ud800"
SEEN = r"gpt\r\nERROR forged\n\x1b[2J\x1b]0;pwn\x07\x9b31m\x7f\u202etxt\u2066\u2028\u200b\ud800"
KEY = Key("openai", "https://api.openai.com", "0123456789abcdef", EVIL, "family\x1b[0m")


def test_control_characters_are_shown_as_they_are_written_in_python() -> None:
    assert printable(EVIL) == SEEN
    assert printable(SEEN) == SEEN
    assert printable("a\n\tb\x1b", lines=True) == "a\n\tb\\x1b"


def test_key_is_one_printable_line() -> None:
    assert str(KEY) == rf"openai · api.openai.com · {SEEN} · family\x1b[0m · key 012345"


def test_json_line_says_the_same_in_printable_characters() -> None:
    told = json_line({"é": EVIL})
    assert told.isprintable()
    assert json.loads(told) == {"é": EVIL}


def test_messages_about_a_key_are_printable() -> None:
    error = DeadlineExceeded(key=KEY, waited=1.0, max_wait=1.0, gate="pace")
    assert str(error).isprintable()
    assert error.key is KEY


def test_refusal_of_a_call_is_printable() -> None:
    import httpx

    registry = RateLimitRegistry(tidegate.Settings(max_wait=0.05, telemetry=False, max_concurrency=1))
    good = b'{"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}'
    with Server(lambda number, path: (200, {}, good)) as server, registry.wrap(httpx.Client()) as client:
        client.post(server.chat, json={"model": EVIL[:-1], "messages": []})
        (key,) = registry.snapshot().keys
        held = registry.try_admit(key)
        refused = client.post(server.chat, json={"model": EVIL[:-1], "messages": []})
        registry.settle(held, Outcome(Kind.ABANDONED))  # type: ignore[arg-type]
    assert refused.status_code == 429
    assert refused.json()["error"]["message"].isprintable()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The counts of a process whose key, and one of whose quotas, have control characters in their names."""
    from tidegate.admission.key_queue import KeyQueue
    from tidegate.core.admission_controller import AdmissionController
    from tidegate.core.values import Cost
    from tidegate.settings import Settings

    slots = KeyQueue(AdmissionController(KEY, Settings(), 60.0, 0.0))
    ProcessCounters(str(tmp_path)).track(slots)
    reading = bucket(60.0, 10.0)._replace(name="requests\x1b[2J")
    slots.admission.settle(slots.admission.admit(Cost(), 0.0, 0.0, None), answer(reading), 1.0, 0.5, None)
    return tmp_path


def test_status_and_last_row_are_printable(folder: Path) -> None:
    totals = Folder(folder).totals()
    (key,) = totals.keys.values()
    said = [*lines(key, 1.0), StatusText().line(totals, 1.0)]
    assert all(each.isprintable() for each in said), said


def test_sheet_that_somebody_else_wrote_is_read_as_printable(folder: Path) -> None:
    (sheet,) = folder.iterdir()
    sheet.write_bytes(sheet.read_bytes().replace(b"openai", b"op\x1b[2J"))
    (key,) = Folder(folder).totals().keys.values()
    assert key.key.isprintable()


def test_complaint_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    common.stop(f"it failed: {EVIL[:-1]}")
    assert capsys.readouterr().err.rstrip("\n").isprintable()


@pytest.mark.parametrize("terminal", [True, False])
def test_tables_and_lines_of_experiments_are_printable(terminal: bool) -> None:
    file = io.StringIO()
    console = Printer(file=file, force_terminal=terminal, width=200, highlight=False, color_system=None)
    made = table("evaluator")
    made.add_row(Text(f"a{EVIL[:-1]}"))
    console.print(made)
    console.print(f"experiment {EVIL[:-1]}", markup=False, soft_wrap=True)
    shown = file.getvalue()
    assert all(line.isprintable() for line in shown.split("\n")), shown
    assert len([line for line in shown.split("\n") if "experiment" in line and "forged" in line]) == 1


def test_waits_of_a_run_are_printable() -> None:
    registry = RateLimitRegistry(tidegate.Settings(telemetry=False))
    registry.try_admit(KEY)
    assert all(line.isprintable() for line in waits([], registry.snapshot()))
