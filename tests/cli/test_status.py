"""`tidegate status`: what every run under way does, told from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.asking import ASK
from tests.cli.running import PYTHON, RUN, TIDEGATE, environ
from tests.cli.runs import OfARun, held, used_at
from tests.cli.terminal import COLUMNS, Terminal
from tests.core.values import KEY, answer, bucket, refusal
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.wait_queue import Waiter
from tidegate.cli.commands import app
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.snapshot import Sharing
from tidegate.core.values import Cost
from tidegate.launch.counter_file import SUFFIX
from tidegate.launch.process_counters import ProcessCounters
from tidegate.launch.runs import COMMAND, PREFIX, run_folder, write_command
from tidegate.settings import Settings
from tidegate.shared_file import HEADER, MAGIC, VERSION, FileKind, packed
from tidegate.testing import Limit, Scenario, Simulator

PATIENCE = 300.0
"""Seconds after which a run that does not show fails the test."""

PROGRAM = """
from concurrent.futures import ThreadPoolExecutor
from ask import ask
with ThreadPoolExecutor(40) as threads:
    list(threads.map(ask, range(4000)))
"""


class SharedQueue(KeyQueue):
    """A queue of a key that three processes share."""

    sharing = Sharing(3)


def waiting_at(folder: Path, count: int, kind: type[KeyQueue] = KeyQueue) -> None:
    slots = kind(AdmissionController(KEY, Settings(), 60.0, time.monotonic()))
    ProcessCounters(str(folder)).track(slots)
    for _ in range(count):
        slots.waiting.enqueue(Waiter(lambda: pytest.fail("nobody waits here"), 0))
    now = time.monotonic()
    permit = slots.admission.admit(Cost(), now - 0.5, 0.0, None)
    slots.admission.settle(permit, answer(bucket(60.0, 0.0, window=6000.0)), now, 0.5, None)


def status(*options: str, columns: int | None = None) -> str:
    done = CliRunner().invoke(app, ["status", *options], env={"COLUMNS": str(columns) if columns else None})
    assert done.exit_code == 0, done.output
    return done.output


def test_without_a_run_it_says_so(temporary: Path) -> None:
    assert status().startswith("no active program found")
    assert status("--json") == ""


@pytest.fixture
def frozen_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes between what is written and what is said of it."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)


@pytest.mark.usefixtures("frozen_time")
def test_it_tells_the_gate_the_level_and_the_end_of_each_key(of_a_run: OfARun) -> None:
    waiting_at(of_a_run(os.getpid()), 6)
    said = status().splitlines()
    assert said[0] == f"python (pid {os.getpid()}, running for 3:12)"
    assert said[1] == f"  {KEY}"
    assert said[2] == "    quota requests used up: next call in 2:30"
    assert said[3] == "    0 of at most 4 in flight · 6 waiting · ETA 10:50"
    assert said[4] == "    0 of 60 requests/6000 s left"


@pytest.mark.usefixtures("frozen_time")
def test_the_eta_of_a_shared_key_counts_the_calls_that_other_processes_send_before(of_a_run: OfARun) -> None:
    waiting_at(of_a_run(os.getpid(), "short"), 6, SharedQueue)
    waiting_at(of_a_run(1, "long"), 100, SharedQueue)
    told = {each["command"]: each for each in map(json.loads, status("--json").splitlines())}
    # One call goes each 100 s. The processes take turns, so six calls of the long queue go before the sixth here.
    assert round(told["short"]["eta"], -1) == 1250.0
    assert round(told["long"]["eta"], -1) == 10_650.0
    assert {each["eta_without"] for each in told.values()} == {1}
    said = status()
    assert " 6 waiting · ETA 20:" in said
    assert " without 1 other process · shared by 3 processes" in said


@pytest.mark.usefixtures("frozen_time")
def test_it_tells_a_long_pause_to_its_real_end_and_the_next_try_before(of_a_run: OfARun) -> None:
    slots = KeyQueue(AdmissionController(KEY, Settings(), 60.0, time.monotonic()))
    ProcessCounters(str(of_a_run(os.getpid()))).track(slots)
    now = time.monotonic()
    permit = slots.admission.admit(Cost(), now - 0.5, 0.0, None)
    slots.admission.settle(permit, refusal(7200.0), now, 0.5, None)
    for _ in range(50):
        slots.waiting.enqueue(Waiter(lambda: pytest.fail("nobody waits here"), 0))
    said = status().splitlines()
    assert said[2] == "    paused: provider asks for 2:00:00, next try in 2:00"
    told = json.loads(status("--json"))
    assert (told["gate"], told["stated_wait"], round(told["next_in"], -1)) == ("pause", 7200.0, 120.0)
    assert (told["eta"], told["eta_gate"]) == (None, "concurrency")


def test_watched_it_is_drawn_until_ctrl_c(of_a_run: OfARun, tmp_path: Path) -> None:
    waiting_at(of_a_run(os.getpid(), "my eval.py"), 6)
    terminal = Terminal(
        *TIDEGATE, "status", "--watch", env=environ(TMPDIR=str(tmp_path), TERM="xterm"), cwd=tmp_path, columns=COLUMNS
    )
    try:
        terminal.until(lambda shown: any("answered" in row for row in shown.rows()))
        seen = terminal.rows()
        assert re.fullmatch(r"tidegate status · \d\d:\d\d:\d\d · Ctrl-C ends", seen[0])
        assert re.fullmatch(rf"my eval\.py \(pid {os.getpid()}, running for \d:\d\d\)", seen[1])
        assert seen[2] == f"  {KEY}"
        assert seen[3].startswith("    quota requests used up: next call in ")
        assert seen[4].startswith("    0 of at most 4 in flight · 6 waiting · ETA ")
        assert seen[5] == "    0 of 60 requests/6000 s left"
        assert seen[6] == "    1 of 1 call answered"
        first = seen[0]
        terminal.until(lambda shown: shown.rows()[0] not in ("", first))
        terminal.type(b"\x03")
        assert terminal.to_the_end() == 0
    finally:
        terminal.close()


@pytest.fixture
def busy(of_a_run: OfARun) -> None:
    """Three programs: one at rest, one whose calls wait, and one whose key is paused."""
    calm, waits, paused = (of_a_run(pid, f"{name}.py") for pid, name in ((11, "calm"), (12, "waits"), (13, "paused")))
    for number in range(3):
        used_at(calm, f"calm-{number}", 120.0)
    used_at(waits, "small", 1.0, waiting=2)
    used_at(waits, "large", 1.0, waiting=9)
    used_at(waits, "other", 120.0)
    used_at(paused, "down", 1.0, waiting=1, closed_for=600.0)


def names(said: str) -> list[str]:
    """Return the programs and the models of what was printed, in its order."""
    return re.findall(r"^(\w+)\.py|^  .* · (small|large|other|down|calm-\d) ·", said, re.MULTILINE)


def named(*options: str) -> list[str]:
    return ["".join(each) for each in names(status(*options))]


@pytest.mark.usefixtures("busy")
def test_the_worst_is_first_and_idle_keys_are_counted() -> None:
    assert named() == ["paused", "down", "waits", "large", "small", "calm"]
    said = status().splitlines()
    assert said[said.index(next(each for each in said if each.startswith("calm.py"))) + 1 :] == [
        "  3 idle keys",
        "idle: no call for a minute; `tidegate status --all` shows these keys",
    ]
    assert "  1 idle key" in said


@pytest.mark.usefixtures("busy")
def test_every_key_is_shown_where_all_are_asked_for() -> None:
    assert named("--all") == [
        "paused", "down", "waits", "large", "small", "other", "calm", "calm-0", "calm-1", "calm-2",
    ]  # fmt: skip
    assert "idle" not in status("--all")
    told = [json.loads(line) for line in status("--json").splitlines()]
    assert [each["idle"] for each in told] == [False, False, False, True, True, True, True]


@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("wanted", "shown"),
    [
        ("12", ["waits", "large", "small"]),
        ("Waits.py", ["waits", "large", "small"]),
        ("large", ["waits", "large"]),
        ("calm-1", ["calm", "calm-1"]),
        ("nobody", []),
    ],
)
def test_programs_and_keys_are_shown_by_name_process_or_model(wanted: str, shown: list[str]) -> None:
    assert named(wanted) == shown
    told = {json.loads(line)["pid"] for line in status(wanted, "--json").splitlines()}
    assert len(told) == len(shown[:1])


def test_a_name_that_nothing_has_is_told(of_a_run: OfARun) -> None:
    waiting_at(of_a_run(os.getpid()), 6)
    assert status("nobody") == "no active program or key has 'nobody' in its name\n"


def test_a_program_without_a_call_says_so(of_a_run: OfARun) -> None:
    of_a_run(os.getpid(), "pytest -n 4")
    assert status().splitlines()[1:] == ["  no call yet"]


@pytest.mark.usefixtures("frozen_time", "busy")
@pytest.mark.parametrize("columns", [48, 80])
def test_a_narrow_terminal_folds_lines_and_loses_nothing(columns: int) -> None:
    narrow = status(columns=columns)
    assert max(map(len, narrow.splitlines())) <= columns
    assert re.sub(r"[\d.:]+", "", " ".join(narrow.split())) == re.sub(r"[\d.:]+", "", " ".join(status().split()))


@pytest.mark.usefixtures("busy")
def test_watched_it_says_how_much_does_not_fit(tmp_path: Path) -> None:
    env = environ(TMPDIR=str(tmp_path), TERM="xterm")
    terminal = Terminal(*TIDEGATE, "status", "--watch", env=env, cwd=tmp_path, columns=COLUMNS)
    try:
        terminal.until(lambda shown: "more lines" in shown.rows()[-1])
        seen = terminal.rows()
        assert seen[1].startswith("paused.py (pid 13")
        assert re.fullmatch(r"… \d+ more lines: `tidegate status NAME` shows less", seen[-1])
        terminal.type(b"\x03")
        assert terminal.to_the_end() == 0
    finally:
        terminal.close()


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_it_is_watched_on_a_terminal_only(options: tuple[str, ...], temporary: Path) -> None:
    done = CliRunner().invoke(app, ["status", "--watch", *options])
    assert done.exit_code == 1
    assert "cannot be combined" in done.output if options else "no terminal" in done.output


@pytest.mark.usefixtures("frozen_time")
def test_programs_read_it_as_json(of_a_run: OfARun) -> None:
    waiting_at(of_a_run(os.getpid(), "my eval.py"), 6)
    (line,) = status("--json").splitlines()
    told = json.loads(line)
    assert [told[name] for name in ("answered", "given_up", "failed", "abandoned", "refused", "retried")] == [
        1, 0, 0, 0, 0, 0,
    ]  # fmt: skip
    assert (told["pid"], told["command"], told["key"]) == (os.getpid(), "my eval.py", str(KEY))
    assert (told["waiting"], told["gate"], round(told["eta"], -1)) == (6, "quota requests", 650.0)
    assert [quota["limit"] for quota in told["quotas"]] == [60.0]


def test_a_run_that_has_ended_or_is_no_run_is_left_out(temporary: Path, of_a_run: OfARun) -> None:
    waiting_at(of_a_run(os.getpid(), under_way=False), 1)
    (temporary / f"{PREFIX}empty").mkdir()
    assert status().startswith("no active program found")


def test_file_of_another_version_is_unreadable_and_others_are_shown(temporary: Path, of_a_run: OfARun) -> None:
    folder = of_a_run(os.getpid(), "python new.py")
    waiting_at(folder, 6)
    for name, content in (
        ("1-0", b"\0" * 999),
        ("2-0", HEADER.pack(MAGIC, 99, FileKind.COUNTERS, 0)),
        ("3-0", packed(FileKind.COUNTERS, b"x" * 9)[:-1]),
        ("4-0", packed(FileKind.COMMAND, b"x" * 9)),
    ):
        (folder / f"{name}{SUFFIX}").write_bytes(content)
    old = temporary / f"{PREFIX}old"
    old.mkdir()
    (old / COMMAND).write_text(f"{os.getpid()} python\n")
    gone = temporary / f"{PREFIX}gone"
    gone.mkdir()
    (gone / COMMAND).write_text(f"{os.getpid()} python\n")
    with held(old):
        said = status()
    assert f"run in {old} unreadable: it was written by another version of tidegate; " in said
    assert "python new.py (pid" in said
    assert "  counts of process 1 unreadable: it was written by another version of tidegate; they are not shown" in said
    unknown = f"it has version 99 of the format, and this tidegate reads version {VERSION}"
    assert f"  counts of process 2 unreadable: {unknown}" in said
    assert "  counts of process 3 unreadable: it has 8 of " in said
    assert "  counts of process 4 unreadable: it has content of another kind" in said
    assert "6 waiting" in said
    assert "gone" not in said


def test_command_line_is_shown_without_its_credentials(temporary: Path) -> None:
    with run_folder() as folder:
        write_command(Path(folder), "python my_eval.py --api-key sk-proj-0123456789abcdefghijklmnopqrstuv --rows 80")
        said = status()
    assert said.startswith("python my_eval.py --api-key ")
    assert "--rows 80" in said
    assert "0123456789" not in said


def test_a_run_under_way_shows_what_its_processes_wait_for(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(ASK)
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    with Simulator(Scenario(limiters=(Limit(limit=8, window=8.0),), dialect="openai")) as provider:
        env = environ(URL=provider.url, TMPDIR=str(tmp_path))
        with (
            (tmp_path / "said").open("wb") as said,
            subprocess.Popen([*RUN, PYTHON, "program.py"], env=env, cwd=tmp_path, stderr=said) as run,
        ):
            told: list[dict[str, object]] = []
            end = time.monotonic() + PATIENCE
            # Until later answers confirm the window, the provider's usual one is shown, and a longer time to the end.
            while not any(each["waiting"] and each["gate"] == "quota requests" and each["eta"] < 60.0 for each in told):
                assert time.monotonic() < end
                assert run.poll() is None, (tmp_path / "said").read_text()
                done = subprocess.run(
                    [*TIDEGATE, "status", "--json"], env=env, capture_output=True, text=True, check=True
                )
                told = [json.loads(line) for line in done.stdout.splitlines()]
            run.terminate()
    (seen,) = told
    assert (seen["pid"], seen["gate"]) == (run.pid, "quota requests")
    assert seen["eta"] > 0.0
