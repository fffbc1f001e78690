"""Samples of the live runs: the use of each quota within its window, changes, and what a page lacks."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tidegate.core.values import Cause, Source
from tidegate.core.wait_text import wait_text
from tidegate.launch.counter_row import INTEGERS, RING_BYTES, SOURCE_CODES, ChangeRing, KeyRow, QuotaRow
from tidegate.launch.runs import ProgramRun
from tidegate.launch.totals import KeyTotal, Totals
from tidegate.server.limit_history import FINISHED_PROGRAMS, FORGOTTEN_SAMPLES, KEPT_CHANGES, KEPT_SAMPLES, LimitHistory

KEY = "openai · api.openai.com · gpt-5-mini"
BEGAN = 1000.0


class Changes(ChangeRing):
    """A ring in memory of its own."""

    def __init__(self) -> None:
        self.memory = bytearray(RING_BYTES)
        super().__init__(memoryview(self.memory).cast("d"))


class Scene:
    """A history of one program, whose key makes `rate` calls a second."""

    def __init__(self) -> None:
        self.now = BEGAN
        self.history = LimitHistory(lambda: self.now + 1e9)
        self.counts = dict.fromkeys(INTEGERS, 0) | {"slots": 8, "members": 1, "most_members": 1}
        self.limit, self.window, self.used, self.since, self.stood = 120.0, 60.0, 0.0, BEGAN, 120.0
        self.level = self.back_at = 0.0
        self.paused_until = self.stated = self.broken_until = self.known_at = 0.0
        self.origin = Source.DEFAULT
        self.changes = Changes()

    def run(self, command: str = "python work.py", elapsed: float | None = None) -> ProgramRun:
        quota = QuotaRow(
            "requests",
            self.limit,
            self.window,
            self.used,
            self.since,
            self.stood,
            level=self.level,
            back_at=self.back_at,
            origin=SOURCE_CODES[self.origin],
            known_at=self.known_at,
        )
        row = KeyRow(
            KEY,
            dict(self.counts),
            self.now,
            (quota,),
            looked_at=self.now,
            paused_until=self.paused_until,
            stated=self.stated,
            stated_until=self.paused_until,
            broken_until=self.broken_until,
            latency=2.0,
            latency_p50=1.5,
            latency_p99=9.0,
            ring=bytes(self.changes.memory),
        )
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


def test_a_burst_that_a_continuous_refill_gives_back_is_in_use_no_more(scene: Scene) -> None:
    scene.level = 60.0
    scene.step(1, rate=60.0)
    scene.level = 3.0
    scene.step(50, rate=3.0)
    assert scene.used_now() == 117.0
    scene.level = 20.0
    scene.step(1, rate=0.0)
    assert scene.used_now() == 100.0
    scene.back_at = scene.now + 9.0
    scene.step(1, rate=0.0)
    assert scene.used_now() == 210.0


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
    for number in range(KEPT_SAMPLES + 10):
        scene.changes.add(scene.now, "limit", 100.0, float(number))
        scene.step()
    assert len(scene.key()["series"]["number"]) == KEPT_SAMPLES
    assert len(scene.history.answer(0)["changes"]) == KEPT_CHANGES


def test_changes_of_the_ring_are_told_once_with_their_cause(scene: Scene) -> None:
    scene.step(2)
    scene.changes.add(scene.now + 0.5, "limit", 120.0, 60.0, Cause.RATE, Source.HEADERS)
    scene.step(3)
    scene.changes.add(scene.now + 0.5, "cooldown", 30.0, 31.0, Cause.OVERLOAD, Source.RETRY_AFTER)
    scene.step()
    told = [
        (each["number"], each["kind"], each["subject"], each["window"], each["before"], each["after"], each["cause"])
        for each in scene.history.answer(0)["changes"]
    ]
    assert told == [
        (3, "limit", "requests", 60, 120, 60, "rate"),
        (6, "cooldown", "", None, 30, 31, "overload"),
    ]
    assert scene.history.answer(0)["changes"][0]["at"] == BEGAN + 2.5 + 1e9
    assert [each["kind"] for each in scene.history.answer(3)["changes"]] == ["cooldown"]


def test_one_change_of_several_processes_is_told_once(scene: Scene) -> None:
    other = Changes()
    scene.changes.add(scene.now, "limit", 120.0, 60.0, Cause.RATE, Source.HEADERS)
    for after in (0.4, 60.0):
        other.add(scene.now + after, "limit", 120.0, 60.0, Cause.RATE, Source.HEADERS)
    run = scene.run()
    (total,) = run.totals.keys.values()
    total.add(total.here[0]._replace(ring=bytes(other.memory)), running=True)
    scene.history.take([run], scene.now)
    assert [each["at"] - 1e9 - BEGAN for each in scene.history.answer(0)["changes"]] == [0.0, 60.0]


def test_origins_and_ages_of_the_limits_are_told(scene: Scene) -> None:
    facts = {
        "stated": (Source.HEADERS, 5.0),
        "inferred": (Source.ANSWERS, 5.0),
        "assumed": (Source.DEFAULT, None),
        "saved": (Source.EARLIER_RUN, None),
    }
    for badge, (origin, age) in facts.items():
        scene.origin = origin
        scene.known_at = scene.now + 1.0 - age if age is not None else 0.0
        scene.step()
        known = scene.key()["quotas"][0]["from"]
        assert known == {"badge": badge, "origin": origin.value, "age": age, "old": False}
    scene.origin, scene.known_at = Source.HEADERS, scene.now - 100.0
    scene.step()
    assert scene.key()["quotas"][0]["from"]["old"] is True


def test_refusals_breaker_latencies_and_sharing_are_told(scene: Scene) -> None:
    scene.counts |= {"absorbed_rate": 3, "given_up_day": 1, "breaker": 1, "members": 2, "carrier": 1}
    scene.broken_until = scene.now + 21.0
    scene.step()
    key = scene.key()
    assert key["refusals"]["absorbed"]["rate"] == 3
    assert key["refusals"]["given_up"] == {"rate": 0, "overload": 0, "elsewhere": 0, "day": 1, "money": 0}
    assert key["breaker"] == {"state": "open", "probe_in": 20}
    assert key["latency"] == {"mean": 2, "p50": 1.5, "p99": 9}
    assert (key["members"], key["carrier"]) == (2, "file")


def test_damaged_numbers_take_no_other_program_from_the_page(scene: Scene) -> None:
    damaged = scene.run("damaged")
    (total,) = damaged.totals.keys.values()
    total.here = [total.here[0]._replace(latency=math.nan, quotas=(total.here[0].quotas[0]._replace(window=0.0),))]
    scene.history.take([damaged, scene.run()], scene.now)
    told = {run["command"]: (run["unreadable"], len(run["keys"])) for run in scene.history.answer(0)["runs"]}
    assert told == {"damaged": ("its counts are damaged (ZeroDivisionError)", 0), "python work.py": ("", 1)}
    json.dumps(scene.history.answer(0), allow_nan=False)


def test_numbers_that_are_none_are_sent_as_unknown(scene: Scene) -> None:
    scene.used, scene.stood = math.nan, math.inf
    scene.step(3)
    assert scene.used_now() is None
    json.dumps(scene.history.answer(0), allow_nan=False)


def test_lost_counts_of_a_process_are_told(scene: Scene) -> None:
    run = scene.run()
    lost = run._replace(totals=Totals(run.totals.keys, True, {9: "it has version 3 of the format"}))
    scene.history.take([lost], scene.now)
    assert scene.history.answer(0)["runs"][0]["lost"] == [{"pid": 9, "why": "it has version 3 of the format"}]


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
    for number in range(FORGOTTEN_SAMPLES):
        scene.history.take([], scene.now + 2.0 + number)
    assert scene.history.answer(0)["runs"] == []


def test_totals_of_all_runs_never_fall(scene: Scene) -> None:
    scene.step(5, rate=2.0)
    assert scene.history.answer(0)["totals"] == {"calls": 10, "answered": 10, "retried": 0, "given_up": 0}
    # A process of the run ends, and its counter file is gone.
    scene.counts |= {"attempts": 3, "answered": 3}
    scene.step()
    scene.step(2, rate=1.0)
    scene.history.take([], scene.now + 1.0)
    assert scene.history.answer(0)["totals"]["answered"] == 12
    for number in range(FORGOTTEN_SAMPLES):
        scene.history.take([], scene.now + 2.0 + number)
    scene.history.take([scene.run(command="python other.py", elapsed=0.5)], scene.now + 100.0)
    assert scene.history.answer(0)["totals"]["answered"] == 12 + 5


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
    scene.history.take([run._replace(totals=Totals({KEY: both}, True))], scene.now + 1.0)
    first, second = scene.key()["series"]["quotas"]
    assert (first["name"], first["limit"]) == ("requests", [120.0, 120.0, 120.0])
    assert (second["name"], second["used"]) == ("input tokens", [None, None, 40.0])


def test_attempts_are_told_by_the_second_with_the_learned_rate(scene: Scene) -> None:
    scene.step(3, rate=4.0)
    scene.counts |= {"refused": 2, "attempts": scene.counts["attempts"] + 2}
    scene.step()
    series = scene.key()["series"]
    assert series["sent"] == [4, 4, 4, 2]
    assert series["refused"] == [0, 0, 0, 2]
    assert series["pace"] == [None] * 4


def test_attempts_before_the_first_look_are_in_no_second(scene: Scene) -> None:
    scene.now += 100.0
    scene.counts["attempts"] = scene.counts["answered"] = 500
    scene.step(2, rate=3.0)
    assert scene.key()["series"]["sent"] == [0, 3]


def test_a_finished_program_keeps_its_counts_after_its_keys_are_gone(scene: Scene) -> None:
    scene.step(30, rate=2.0)
    assert scene.history.answer(0)["finished"] == []
    ended_at = scene.now + 1e9
    for _ in range(FORGOTTEN_SAMPLES + 1):
        scene.history.take([], scene.now)
    answer = scene.history.answer(0)
    assert answer["runs"] == []
    (end,) = answer["finished"]
    assert (end["pid"], end["command"], end["at"]) == (7, "python work.py", ended_at)
    assert (end["counts"]["calls"], end["counts"]["answered"], end["counts"]["given_up"]) == (60, 60, 0)
    assert (end["binding"]["name"], end["binding"]["limit"]) == ("requests", 120)
    assert 0.3 < end["binding"]["share"] < 0.5


def test_a_program_that_is_missed_for_a_moment_has_not_finished(scene: Scene) -> None:
    scene.step(3, rate=1.0)
    scene.history.take([], scene.now)
    assert len(scene.history.answer(0)["finished"]) == 1
    scene.step()
    assert scene.history.answer(0)["finished"] == []


def test_the_newest_finished_programs_are_kept(scene: Scene) -> None:
    scene.step(1, rate=1.0)
    for number in range(FINISHED_PROGRAMS + 5):
        scene.history.take([scene.run(f"python work.py {number}")], scene.now)
    scene.history.take([], scene.now)
    told = [end["command"] for end in scene.history.answer(0)["finished"]]
    assert len(told) == FINISHED_PROGRAMS
    assert told[0] == f"python work.py {FINISHED_PROGRAMS + 4}"
