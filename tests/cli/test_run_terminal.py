"""`tidegate run` on a terminal: the status line keeps to the last row, and the program's output is as it was."""

from __future__ import annotations

import os
import re
import signal
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.asking import ASK
from tests.cli.running import PYTHON, RUN, environ
from tests.cli.terminal import COLUMNS, ROWS, Terminal
from tests.effort import some
from tidegate.testing import Distribution, Limit, Scenario, Simulator


@pytest.fixture
def provider() -> Iterator[Simulator]:
    scenario = Scenario(limiters=(Limit(limit=15, window=1.0),), dialect="openai", latency=Distribution.parse("0.3"))
    with Simulator(scenario) as provider:
        yield provider


@pytest.fixture
def enough(tmp_path: Path) -> Path:
    """The file whose being there ends a program that goes on calling."""
    return tmp_path / "enough"


@pytest.fixture
def start(tmp_path: Path, provider: Simulator) -> Iterator[Callable[..., Terminal]]:
    (tmp_path / "ask.py").write_text(ASK)
    opened: list[Terminal] = []

    def begin(program: str, columns: int = COLUMNS, **env: str) -> Terminal:
        (tmp_path / "program.py").write_text(textwrap.dedent(program))
        command = [*RUN, PYTHON, "program.py"]
        opened.append(Terminal(*command, env=environ(URL=provider.url, **env), cwd=tmp_path, columns=columns))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()


TALKS = """
import os
from concurrent.futures import ThreadPoolExecutor
from ask import ask
with ThreadPoolExecutor(60) as threads:
    for number, _ in enumerate(threads.map(ask, range(60))):
        print(f"line {number:03}", "." * 60, flush=True)
    while not os.path.exists("enough"):
        list(threads.map(ask, range(60)))
"""
"""A program that calls until a test has seen enough, however late it sees it."""

ALL_ANSWERED = re.compile(r"tidegate: (\d+) calls, \1 answered, 0 given up, ")
"""The beginning of the last line, which may need two rows."""

STATUS = re.compile(
    r"tidegate  (\d+) of 15 requests/s · (\d+) in flight · (\d+) waiting(?: for [a-z ]+)?( · ETA \d+:\d\d)?"
    r" · compatible · 127\.0\.0\.1:\d+/v1 · m · key \w{6}$"
)


def shows_status(terminal: Terminal) -> bool:
    return STATUS.match(terminal.rows()[-1]) is not None


def test_the_last_row_says_what_goes_on_and_the_output_is_whole(start: Callable[..., Terminal], enough: Path) -> None:
    terminal = start(TALKS)
    looks: list[re.Match[str]] = []

    def seen(it: Terminal) -> bool:
        if (said := STATUS.match(it.rows()[-1])) is not None:
            looks.append(said)
        flew = any(int(said[2]) > 0 for said in looks)
        return flew and any(int(said[3]) > 0 and said[4] for said in looks)

    terminal.until(seen)
    enough.touch()
    assert terminal.to_the_end() == 0
    lines = [line for line in terminal.everything() if line]
    assert lines[:60] == [f"line {number:03} " + "." * 60 for number in range(60)]
    assert ALL_ANSWERED.match(lines[60])


def test_at_the_end_the_whole_screen_is_the_terminals_again(start: Callable[..., Terminal], enough: Path) -> None:
    terminal = start(TALKS)
    terminal.until(shows_status)
    assert terminal.screen.margins is not None
    enough.touch()
    assert terminal.to_the_end() == 0
    assert terminal.screen.margins in (None, (0, ROWS - 1))
    rows = [row for row in terminal.rows() if row]
    assert any(ALL_ANSWERED.match(row) for row in rows)
    assert not [row for row in rows if STATUS.match(row)]
    assert (terminal.screen.cursor.x, terminal.rows()[terminal.screen.cursor.y]) == (0, "")


def test_output_that_ends_in_the_middle_of_a_row_stays(start: Callable[..., Terminal]) -> None:
    terminal = start("print('x', end='', flush=True)")
    assert terminal.to_the_end() == 0
    first, second = (row for row in terminal.rows() if row)
    assert first == "x"
    assert second.startswith("tidegate: no LLM call was seen")


def test_without_a_call_nothing_is_drawn(start: Callable[..., Terminal]) -> None:
    terminal = start("import time; print(1); time.sleep(1.2); print(2)")
    assert terminal.to_the_end() == 0
    assert [row for row in terminal.rows() if row][:2] == ["1", "2"]
    assert b"\x1b7" not in terminal.raw


def test_a_new_size_moves_the_line(start: Callable[..., Terminal], enough: Path) -> None:
    terminal = start(TALKS)
    terminal.until(shows_status)
    terminal.resize(ROWS + 5, COLUMNS)
    terminal.until(lambda it: len(it.rows()) == ROWS + 5 and shows_status(it))
    assert len([row for row in terminal.rows() if STATUS.match(row)]) == 1
    enough.touch()
    assert terminal.to_the_end() == 0


def test_narrow_terminal_keeps_who_waits_and_why(start: Callable[..., Terminal]) -> None:
    terminal = start(TALKS, columns=40)
    terminal.until(lambda it: re.match(r"tidegate  (?:\d+ of 15 requests/s · )?\d+ waiting", it.rows()[-1]))
    assert len(terminal.rows()[-1]) < 40


@pytest.mark.parametrize("env", some([{"TERM": "dumb"}], [{"TIDEGATE_LOG": "off"}]), ids=str)
def test_where_nothing_can_or_shall_be_drawn_nothing_is(
    start: Callable[..., Terminal], enough: Path, env: dict[str, str]
) -> None:
    enough.touch()
    terminal = start(TALKS, **env)
    assert terminal.to_the_end() == 0
    assert b"\x1b" not in terminal.raw
    assert (b"tidegate" in terminal.raw) == ("TIDEGATE_LOG" not in env)


@pytest.mark.parametrize("env", [{}, {"NO_COLOR": "1"}], ids=str)
def test_the_line_is_dim_unless_colours_are_unwanted(start: Callable[..., Terminal], env: dict[str, str]) -> None:
    terminal = start(TALKS, **env)
    terminal.until(shows_status)
    assert (b"\x1b[2m" in terminal.raw) == (not env)


def test_a_program_that_draws_its_own_screen_is_left_alone(start: Callable[..., Terminal], enough: Path) -> None:
    terminal = start("import sys, tty; tty.setcbreak(0); print('raw', flush=True)\n" + TALKS)
    terminal.until(lambda it: b"raw" in it.raw)
    enough.touch()
    assert terminal.to_the_end() == 0
    assert b"\x1b7" not in terminal.raw


INTERRUPTED = """
import signal, time
from ask import ask
count = 0
def interrupted(number, frame):
    global count
    count += 1
signal.signal(signal.SIGINT, interrupted)
ask(0)
print("ready", flush=True)
end = time.monotonic() + 60
while not count and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(1.0)
print("interrupted", count)
"""


def test_ctrl_c_reaches_the_program_once(start: Callable[..., Terminal]) -> None:
    terminal = start(INTERRUPTED)
    terminal.until(lambda it: b"ready" in it.raw)
    terminal.type(b"\x03")
    assert terminal.to_the_end() == 0
    assert [row for row in terminal.everything() if row.endswith("interrupted 1")]


def test_an_interrupt_that_is_sent_to_us_on_a_terminal_is_passed_on(start: Callable[..., Terminal]) -> None:
    terminal = start(INTERRUPTED)
    terminal.until(lambda it: b"ready" in it.raw)
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.to_the_end() == 0
    assert [row for row in terminal.everything() if row.endswith("interrupted 1")]


def test_a_program_that_ctrl_c_ends_ends_us_with_a_clean_screen(start: Callable[..., Terminal]) -> None:
    terminal = start("from ask import ask\nask(0)\nprint('ready', flush=True)\nimport signal; signal.pause()")
    terminal.until(lambda it: b"ready" in it.raw and it.rows()[-1].startswith("tidegate  "))
    terminal.type(b"\x03")
    assert terminal.to_the_end() == -signal.SIGINT
    assert not [row for row in terminal.rows() if row.startswith("tidegate  ")]
    assert [row for row in terminal.rows() if row][-1].startswith("tidegate: 1 call, 1 answered")


def test_ctrl_z_stops_us_with_a_clean_screen_and_both_go_on(start: Callable[..., Terminal], enough: Path) -> None:
    terminal = start(TALKS)
    terminal.until(shows_status)
    terminal.process.send_signal(signal.SIGTSTP)
    terminal.until(lambda it: not it.rows()[-1].startswith("tidegate  "))
    _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    terminal.process.send_signal(signal.SIGCONT)
    enough.touch()
    assert terminal.to_the_end() == 0
    assert any(ALL_ANSWERED.match(row) for row in terminal.rows())
