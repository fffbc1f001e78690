"""`tidegate run --report FILE --strict`: the end of a run for programs."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.asking import ASK
from tests.cli.running import PYTHON, RUN, environ, run
from tests.cli.test_run_lines import key, limited, totals
from tests.transports.answering import Server
from tidegate.cli.command_run import EndedRun, RunReport, facts
from tidegate.errors import ConfigurationError
from tidegate.launch.runs import Ungoverned

ONE = """
import sys
sys.path.insert(0, {here!r})
from ask import shared, body
print(shared().post("/chat/completions", json=body(1)).status_code)
raise SystemExit({code})
"""


def ended(status: int = 0) -> EndedRun:
    busy = limited(key("a", answered=90, attempts=107, resent=10, absorbed=10, given_up=4, unsent=3, failed=2), 300.0)
    missed = Ungoverned(Counter({"b.example": 2}), processes=("py: no",))
    secret = "sk-proj-0123456789abcdefghijklmnopqrstuv"
    command = ["python", "x.py", "--api-key", secret, "--password", "hunter2hunter2", "--db-secret=plainwords", "-v"]
    return EndedRun(command, status, 12.3456, totals(busy, key("b", answered=1), failures={"status 500": 3}), missed)


def test_report_has_the_totals_the_keys_and_what_was_not_governed() -> None:
    told = facts(ended())
    assert (told["version"], told["exit_code"], told["signal"], told["seconds"]) == (1, 0, None, 12.346)
    assert (told["calls"], told["answered"], told["given_up"], told["refusals_retried"]) == (101, 91, 4, 10)
    first, second = told["keys"]
    assert (first["key"], first["calls"], first["given_up"], second["key"]) == ("a", 100, 4, "b")
    assert first["quotas"][0] | {"share_used": None} == {
        "name": "requests",
        "limit": 120.0,
        "window": 60.0,
        "used": 300.0,
        "share_used": None,
    }
    assert told["not_governed"] == {
        "calls": 2,
        "hosts": {"b.example": 2},
        "websocket_sessions": {},
        "processes": ["py: no"],
    }
    written = json.dumps(told)
    assert not any(secret in written for secret in ("0123456789", "hunter2", "plainwords"))
    assert told["command"][-1] == "-v"


def test_counts_of_the_report_add_up() -> None:
    cut = key("a", answered=7, attempts=10, unsent=1, left=1, abandoned=1)
    told = facts(EndedRun(["x"], 0, 1.0, totals(cut), Ungoverned(Counter())))
    parts = ("answered", "given_up", "failed_calls", "abandoned", "in_flight", "waiting")
    assert told["abandoned"] > 0
    for each in (told, *told["keys"]):
        assert each["calls"] == sum(each[part] for part in parts)


def test_report_names_the_signal_that_ended_the_command() -> None:
    told = facts(ended(signal.SIGTERM))
    assert (told["exit_code"], told["signal"]) == (None, signal.SIGTERM)


def test_report_replaces_an_earlier_one_and_leaves_no_other_file(tmp_path: Path) -> None:
    for _ in range(2):
        RunReport(tmp_path / "out.json").write(ended())
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]
    with pytest.raises(ConfigurationError, match=r"--report: .* its folder does not exist"):
        RunReport(tmp_path / "no" / "out.json")


@pytest.mark.parametrize(("code", "strict", "came_to"), [(0, True, 75), (3, True, 3), (0, False, 0)])
def test_given_up_calls_fail_a_strict_run_that_succeeded(tmp_path: Path, code: int, strict: bool, came_to: int) -> None:
    (tmp_path / "ask.py").write_text(ASK)
    (tmp_path / "one.py").write_text(ONE.format(here=str(tmp_path), code=code))
    report = tmp_path / "out.json"
    with Server(lambda number, path: (429, {"retry-after": "600"}, b"{}")) as server:
        url = server.chat.removesuffix("/v1/chat/completions")
        options = ["--report", str(report), *(["--strict"] if strict else [])]
        done = run(*options, PYTHON, str(tmp_path / "one.py"), env=environ(URL=url, TIDEGATE_MAX_WAIT="5"))
    assert (done.code, done.out) == (came_to, "429\n")
    told = json.loads(report.read_text())
    assert (told["calls"], told["given_up"], told["exit_code"]) == (1, 1, code)


def test_report_is_written_where_nothing_is_shown_and_a_run_inside_leaves_it_to_the_outer_one(tmp_path: Path) -> None:
    outer, inner = tmp_path / "outer.json", tmp_path / "inner.json"
    env = environ(TIDEGATE_LOG="off")
    done = run("--report", str(outer), *RUN, "--report", str(inner), PYTHON, "-c", "print(1)", env=env)
    assert (done.code, done.out, done.lines) == (0, "1\n", [])
    assert json.loads(outer.read_text())["calls"] == 0
    assert not inner.exists()
    assert list(tmp_path.iterdir()) == [outer]
