"""A run on a real terminal: the picture, what signals do to it, and what is left on the screen when it has ended."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator

import pytest

from tests import constants
from tests.cli.experiment.commands import Place
from tests.cli.running import TIDEGATE, environ
from tests.cli.terminal import Terminal
from tidegate.testing import Distribution, Limit, Scenario, Simulator

ASKING = """
import httpx
from tidegate.experiments import Experiment

client = httpx.AsyncClient(base_url={url!r}, headers={{"authorization": "Bearer any"}}, timeout=600)


async def answer(row):
    body = {{"model": "m", "messages": [{{"role": "user", "content": str(row)}}]}}
    made = await client.post("/chat/completions", json=body)
    return made.raise_for_status().json()["choices"][0]["message"]["content"]


experiment = Experiment("asked", [{{"n": n}} for n in range(200)], answer, [lambda row, output: 1])
"""

SLEEPING = """
import asyncio, time
from tidegate.experiments import Experiment


async def answer(row):
    {nap}


experiment = Experiment("asleep", [{{"n": n}} for n in range(200)], answer)
"""

HOLDING = """
import signal, time
from tidegate.experiments import Experiment


async def answer(row):
    hears = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *signalled: (print("interrupted", flush=True), hears(*signalled)))
    print("held up", flush=True)
    time.sleep(3600)


experiment = Experiment("asleep", [{"n": 0}], answer)
"""

Start = Callable[..., Terminal]


@pytest.fixture
def start(place: Place) -> Iterator[Start]:
    opened: list[Terminal] = []

    def begin(code: str, columns: int = 80, **env: str) -> Terminal:
        place.write("my_eval.py", code)
        command = [*TIDEGATE, "experiment", "run", "my_eval.py"]
        opened.append(Terminal(*command, env=environ(**env), cwd=place.path, columns=columns))
        return opened[-1]

    yield begin
    for each in opened:
        each.close()


@pytest.fixture
def provider() -> Iterator[Simulator]:
    scenario = Scenario(limiters=(Limit(limit=10, window=1.0),), dialect="openai", latency=Distribution.parse("0.1"))
    with Simulator(scenario) as provider:
        yield provider


def seen(pattern: str) -> Callable[[Terminal], object]:
    """Whether a row of the screen has it."""
    return lambda terminal: any(re.search(pattern, row) for row in terminal.rows())


def interrupted(terminal: Terminal) -> list[str]:
    """Ctrl-C, as it is typed; what is on the screen when the run has ended."""
    terminal.type(b"\x03")
    assert terminal.to_the_end() == 5
    return [row for row in terminal.everything() if row]


def test_a_run_shows_bars_what_it_waits_for_and_an_eta(start: Start, provider: Simulator) -> None:
    terminal = start(ASKING.format(url=provider.openai_url), columns=140)
    terminal.until(seen(r"^tasks +[━╸╺]{30} +[1-9]\d*/200 +0 +0 +\d+:\d\d$"))
    terminal.until(seen(r"^evaluations +[━╸╺]{30} +[1-9]\d*/200$"))
    terminal.until(seen(r"^waiting  task: (quota requests|pace).* · m( ·|$)"))
    assert terminal.screen.cursor.hidden


def test_an_interrupt_leaves_the_result_on_the_screen_and_no_picture(start: Start, provider: Simulator) -> None:
    terminal = start(ASKING.format(url=provider.openai_url))
    terminal.until(seen(r"^tasks .* [1-9]\d*/200"))
    rows = interrupted(terminal)
    assert rows[0].startswith("asked: STOPPED: 200 rows, ")
    assert rows[-1] == "`tidegate experiment run asked` continues it"
    assert not any("━━━━ " in row or "^C" in row or "waiting" in row for row in rows), rows
    assert not terminal.screen.cursor.hidden


def test_what_is_stopping_foresees_no_end(start: Start) -> None:
    terminal = start(SLEEPING.format(nap="await asyncio.sleep(3600 if row['n'] % 2 else 0.1 * row['n'])"), columns=100)
    terminal.until(seen(r"^tasks .* \d+:\d\d$"))
    terminal.type(b"\x03")
    terminal.until(seen(r"^asleep  stopping: work in flight has 30 s to finish; Ctrl-C again cancels it$"))
    terminal.until(seen(r"^tasks .* \d+/200 +0 +0$"))
    terminal.type(b"\x03")
    assert terminal.to_the_end() == 5


def test_a_termination_is_shown_until_what_is_under_way_has_ended(start: Start) -> None:
    nap = "print('under way', flush=True); await asyncio.sleep(3600)"
    terminal = start(SLEEPING.format(nap=nap), columns=100)
    terminal.until(lambda terminal: b"under way" in terminal.raw)
    terminal.process.send_signal(signal.SIGTERM)
    terminal.until(seen(r"^asleep  ending: work in flight has 30 s to finish; the claim is kept"))
    terminal.type(b"\x03")
    terminal.until(seen("Ctrl-C again cancels it"))
    terminal.type(b"\x03")
    assert terminal.to_the_end() == 143
    assert not terminal.screen.cursor.hidden


def test_a_third_interrupt_ends_even_what_holds_the_loop_up_and_gives_the_cursor_back(start: Start) -> None:
    terminal = start(HOLDING)
    terminal.until(seen("held up"))
    terminal.until(lambda terminal: terminal.screen.cursor.hidden)
    for number in (1, 2):
        # Two that come before the process has looked are one to it: each is typed when the last was heard.
        terminal.type(b"\x03")
        terminal.until(lambda terminal, heard=number: terminal.raw.count(b"interrupted") >= heard)
    terminal.type(b"\x03")
    assert terminal.to_the_end() == -signal.SIGINT
    assert not terminal.screen.cursor.hidden


def test_a_breaker_is_told_with_what_is_behind_it(start: Start) -> None:
    # Nobody listens there (RFC 863: discard).
    terminal = start(ASKING.format(url="http://127.0.0.1:9/v1"), columns=120)
    terminal.until(seen(r"^waiting  task: provider down \(no connection\): next probe in"))
    assert any(row.startswith("asked: STOPPED: ") for row in interrupted(terminal))


@pytest.mark.parametrize("columns", [40, 200])
def test_a_picture_has_the_width_of_its_terminal(start: Start, provider: Simulator, columns: int) -> None:
    terminal = start(ASKING.format(url=provider.openai_url), columns=columns)
    terminal.until(seen(r"^tasks .*[1-9]\d*/200 .*\d:\d\d$"))
    terminal.until(seen("^waiting  task: "))
    rows = [row for row in terminal.rows() if row]
    assert [row.split()[0] for row in rows[:4]] == ["asked", "failed", "tasks", "evaluations"], rows
    assert any("━" in row for row in rows) is (columns == 200)
    below = [row.split()[0] for row in rows[4:]]
    assert below.count("spent") <= 1
    assert set(below) <= {"spent", "waiting"}, rows
    assert below == sorted(below), rows
    interrupted(terminal)


def test_no_color_means_no_color(start: Start, provider: Simulator) -> None:
    terminal = start(ASKING.format(url=provider.openai_url), NO_COLOR="1")
    terminal.until(seen(r"^tasks .* [1-9]\d*/200"))
    interrupted(terminal)
    assert not re.search(rb"\x1b\[[\d;]*\b(3[0-7]|9[0-7])m", terminal.raw)


def test_a_dumb_terminal_gets_plain_lines(start: Start, provider: Simulator) -> None:
    terminal = start(ASKING.format(url=provider.openai_url), TERM="dumb", **constants.environ(LINE_SECONDS=0.2))
    terminal.until(seen(r"^asked: \d+/200 tasks, \d+/200 evaluations, ETA 0:\d\d"))
    terminal.type(b"\x03")
    assert terminal.to_the_end() == 5
    assert b"\x1b" not in terminal.raw
    assert "asked: stopping: work in flight has 30 s to finish; Ctrl-C again cancels it" in terminal.raw.decode()


def test_a_terminal_that_is_closed_ends_the_run_as_a_termination_does(
    start: Start, place: Place, provider: Simulator
) -> None:
    terminal = start(ASKING.format(url=provider.openai_url))
    terminal.until(seen(r"^tasks .* [1-9]\d*/200"))
    assert terminal.hang_up() == 143
    told = place.shown("asked")
    assert (told["status"], told["runs"]["error"]) == ("RUNNING", 0)


def test_a_run_is_shown_from_elsewhere_with_what_its_keys_do(start: Start, place: Place, provider: Simulator) -> None:
    terminal = start(ASKING.format(url=provider.openai_url))
    terminal.until(seen(r"^tasks .* [1-9]\d*/200"))
    shown = place.run("show", "asked").out
    assert re.search(r"^run by replica [\w-]+, last heartbeat \d+ s ago$", shown, re.MULTILINE)
    # Whether a call waits at this instant is chance.
    assert re.search(r"^  .*127\.0\.0\.1.* · m( · key \w+)?: \d+ of at most \d+ in flight, ", shown, re.MULTILINE)
    (key,) = place.shown("asked")["keys"]
    assert key["key"] in shown
    assert key["limit"] >= 4
    interrupted(terminal)


def test_an_interrupt_before_it_began_is_no_traceback(start: Start, place: Place) -> None:
    text = SLEEPING.format(nap="await asyncio.sleep(3600)")
    first = start(text)
    first.until(seen("^tasks .* 0/200"))
    second = start(text)
    second.until(seen("^asleep not started yet: it is run by"))
    second.type(b"\x03")
    assert second.to_the_end() == 130
    assert b"Traceback" not in second.raw
    assert place.shown("asleep")["status"] == "RUNNING", "it is the first one's"
