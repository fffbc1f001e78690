"""Samples of the live runs: the use of each quota within its window, changes, and what a page lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidegate.core.wait_text import wait_text
from tidegate.launch.counter_row import INTEGERS, KeyRow, QuotaRow
from tidegate.launch.runs import ProgramRun
from tidegate.launch.totals import KeyTotal, Totals
from tidegate.ui.limit_history import CHANGES, FORGOTTEN_AFTER, SAMPLES, LimitHistory

KEY = "openai · api.openai.com · gpt-5-mini"
BEGAN = 1000.0


class Scene:
    """A history of one program, whose key makes `rate` calls a second."""

    def __init__(self) -> None:
        self.now = BEGAN
        self.history = LimitHistory(lambda: self.now + 1e9)
        self.counts = dict.fromkeys(INTEGERS, 0) | {"slots": 8, "members": 1, "most_members": 1}
        self.limit, self.window, self.used, self.since, self.stood = 120.0, 60.0, 0.0, BEGAN, 120.0
        self.paused_until = self.stated = 0.0

    def run(self, command: str = "python work.py", elapsed: float | None = None) -> ProgramRun:
        quota = QuotaRow("requests", self.limit, self.window, self.used, self.since, self.stood, level=3.0)
        row = KeyRow(
            KEY, dict(self.counts), self.now, (quota,), looked_at=self.now,
            paused_until=self.paused_until, stated=self.stated, stated_until=self.paused_until,
        )  # fmt: skip
        total = KeyTotal(KEY)
        total.add(row, running=True)
        return ProgramRun(7, command, Totals({KEY: total}, True), self.now - BEGAN if elapsed is None else elapsed)

    def step(self, seconds: int = 1, rate: float = 0.0) -> None:
        for _ in range(seconds):
            self.now += 1.0
            self.used += rate
            self.counts["attempts"] += int(rate)
            self.counts["answered"] += int(rate)
            self.history.take([self.run()], self.now)

    def key(self, since: int = 0) -> dict[str, Any]:
        (run,) = self.history.answer(since)["runs"]
        (key,) = run["keys"]
        return dict(key)

    def used_now(self) -> float | None:
        used: list[float | None] = self.key()["series"]["quotas"][0]["used"]
        return used[-1]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_use_of_a_quota_is_that_of_its_window(scene: Scene) -> None:
    scene.step(100, rate=2.0)
    assert scene.used_now() == 120.0
    scene.step(30, rate=0.0)
    assert scene.used_now() == 60.0
    assert scene.key()["series"]["quotas"][0]["limit"][-1] == 120.0


def test_units_used_before_the_first_reading_count_in_the_first_window(scene: Scene) -> None:
    scene.stood = 100.0
    scene.step(10, rate=1.0)
    assert scene.used_now() == 30.0


def test_use_is_unknown_where_the_window_began_before_the_history(scene: Scene) -> None:
    scene.now += 500.0
    scene.window = 86_400.0
    scene.since = BEGAN - 90_000.0
    scene.step(5, rate=1.0)
    assert scene.used_now() is None


def test_a_page_gets_the_samples_that_it_lacks(scene: Scene) -> None:
    scene.step(5, rate=1.0)
    assert scene.key(since=3)["series"]["number"] == [4, 5]
    assert scene.key(since=5)["series"]["number"] == []
    answer = scene.history.answer(since=77)
    assert (answer["sample"], answer["since"]) == (5, 0)
    assert answer["runs"][0]["keys"][0]["series"]["number"] == [1, 2, 3, 4, 5]


def test_history_is_bounded(scene: Scene) -> None:
    for number in range(SAMPLES + 10):
        scene.limit = 100.0 + 50.0 * (number % 2)
        scene.step()
    assert len(scene.key()["series"]["number"]) == SAMPLES
    assert len(scene.history.answer(0)["changes"]) == CHANGES


def test_changes_are_told_with_their_cause(scene: Scene) -> None:
    scene.step(2)
    scene.limit = 60.0
    scene.counts["refused"] += 3
    scene.counts["slots"] = 4
    scene.step()
    scene.paused_until, scene.stated = scene.now + 31.0, 30.0
    scene.step()
    scene.paused_until = 0.0
    scene.step()
    told = [(each["kind"], each["subject"], each["before"], each["after"], each["cause"])
            for each in scene.history.answer(0)["changes"]]  # fmt: skip
    assert told == [
        ("limit", "requests", 120.0, 60.0, "3 refused"),
        ("slots", "in flight", 8, 4, "3 refused"),
        ("closed", "pause", None, 30.0, "the provider asks for 30 s"),
        ("opened", "pause", None, None, ""),
    ]
    assert scene.history.answer(4)["changes"][0]["kind"] == "opened"


def test_what_blocks_is_said_as_by_status(scene: Scene) -> None:
    scene.counts["waiting"] = 5
    scene.paused_until, scene.stated = scene.now + 31.0, 30.0
    scene.step()
    key = scene.key()
    assert key["blocked"] == wait_text("pause", 30.0, 30.0)
    assert (key["waiting"], key["gate"], key["members"]) == (5, "pause", 1)


def test_an_ended_run_is_shown_for_a_while(scene: Scene) -> None:
    scene.step(3)
    scene.history.take([], scene.now + 1.0)
    assert scene.history.answer(0)["runs"][0]["ended"] is True
    for number in range(FORGOTTEN_AFTER):
        scene.history.take([], scene.now + 2.0 + number)
    assert scene.history.answer(0)["runs"] == []


def test_a_reused_process_number_begins_anew(scene: Scene) -> None:
    scene.step(30, rate=1.0)
    first = scene.key()["id"]
    scene.history.take([scene.run(elapsed=0.5)], scene.now + 1.0)
    assert scene.key()["id"] != first
    assert scene.key()["series"]["number"] == [31]


def test_an_unreadable_run_is_shown_with_its_reason(scene: Scene) -> None:
    unreadable = ProgramRun(0, "run in /tmp/x", Totals({}, False), 0.0, "it has version 1 of the format")
    scene.history.take([unreadable, replace_command(scene.run(), "py\x1b[2Jthon")], scene.now)
    told = {run["command"]: run["unreadable"] for run in scene.history.answer(0)["runs"]}
    assert told["run in /tmp/x"] == "it has version 1 of the format"
    assert not any("\x1b" in command for command in told)


def replace_command(run: ProgramRun, command: str) -> ProgramRun:
    return run._replace(command=command)


def test_a_quota_that_appears_later_moves_no_other(scene: Scene) -> None:
    scene.step(2, rate=1.0)
    run = scene.run()
    total = run.totals.keys[KEY]
    row = total.here[0]
    tokens = QuotaRow("input tokens", 5000.0, 60.0, 40.0, scene.now, 5000.0)
    both = KeyTotal(KEY)
    both.add(row._replace(quotas=(tokens, *row.quotas)), running=True)
    scene.history.take([run._replace(totals=replace(run.totals, keys={KEY: both}))], scene.now + 1.0)
    first, second = scene.key()["series"]["quotas"]
    assert (first["name"], first["limit"]) == ("requests", [120.0, 120.0, 120.0])
    assert (second["name"], second["used"]) == ("input tokens", [None, None, 40.0])
