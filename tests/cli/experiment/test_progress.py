"""What is seen of a run under way: counts from durable results, a rate of late, and why what is ready does not go."""

from __future__ import annotations

import dataclasses
import io
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

import tidegate
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.events import SlotReleased
from tidegate.core.snapshot import RegistrySnapshot
from tidegate.core.token_totals import TokenTotals
from tidegate.core.values import Cause, Key, Kind
from tidegate.experiments import StageProgress, Wait
from tidegate.experiments.commands.common import MEANINGS, Code, code_of
from tidegate.experiments.commands.display import Display, ProgressBoard, ShownCounts, line, refusals, spent_text, waits
from tidegate.experiments.commands.run import last_failures
from tidegate.experiments.engine.progress import Summary
from tidegate.experiments.storage import Failure, ResultCounts, ResultStatus, Status
from tidegate.experiments.storage.records import ExperimentRow

OK, ERROR, PARKED, INVALID = ResultStatus.OK, ResultStatus.ERROR, ResultStatus.PARKED, ResultStatus.INVALID


def task(total: int, wait: Wait | None = None, **done: int) -> StageProgress:
    return StageProgress("task", total, {ResultStatus(name): count for name, count in done.items()}, 0, 5, wait)


def judge(name: str = "judge", wait: Wait | None = None, **done: int) -> StageProgress:
    return dataclasses.replace(task(0, wait, **done), name=name)


def tally(*stages: StageProgress, now: float = 0.0) -> ShownCounts:
    made = ShownCounts()
    made.update(stages, now)
    return made


def test_evaluations_are_expected_of_what_is_answered_or_may_still_be() -> None:
    seen = tally(task(20, ok=4, error=2, parked=1, invalid=1), judge(ok=3, error=1), judge("other", parked=2))
    assert (seen.tasks.done, seen.tasks.total) == (8, 20)
    assert (seen.evals.done, seen.evals.total) == (6, 32)
    assert (seen.failed, seen.parked) == (4, 3)


def test_the_eta_is_told_by_the_slower_of_both_and_by_nobody_before_there_is_a_rate() -> None:
    seen = tally(task(100), judge())
    assert seen.eta is None
    seen.update([task(100, ok=20), judge(ok=10)], 10.0)
    assert seen.eta == pytest.approx(90 / 1.0)
    seen.update([task(100, ok=100), judge(ok=100)], 20.0)
    assert seen.eta == 0.0


def test_the_end_is_told_by_the_limit_and_not_by_the_opening_burst() -> None:
    seen = tally(task(360))
    behind = Wait("quota requests", "openai · m", 0.4)
    seen.update([task(360, behind, ok=130)], 6.0, rest=115.0)
    assert seen.eta == 115.0
    seen.update([task(360, behind, ok=130)], 600.0, rest=700.0)
    assert seen.eta == 700.0
    seen.update([task(360, ok=360)], 900.0, rest=0.0)
    assert seen.eta == 0.0


def test_work_that_no_limit_holds_back_is_told_by_the_slower_of_both() -> None:
    seen = tally(task(100))
    seen.update([task(100, ok=20)], 20.0, rest=5.0)
    assert seen.eta == pytest.approx(80.0)
    seen.update([task(100, ok=20)], 20.0, rest=200.0)
    assert seen.eta == 200.0


def test_the_rate_is_that_of_the_last_minute() -> None:
    seen, done = ShownCounts(), 0
    for second in range(200):
        done += 10 if second < 100 else 1
        seen.update([task(2000, ok=done)], float(second))
    assert seen.eta == pytest.approx(2000 - done, rel=0.02)


def test_rows_that_a_resume_keeps_are_no_work_of_the_last_minute() -> None:
    seen = tally(task(0), judge())
    for quarter in range(13):
        now = 0.5 + quarter / 4
        done = 60 + min(10, 40 * quarter) + int(2 * (now - 0.5))
        seen.update([task(240, ok=done), judge(ok=done)], now)
    assert seen.eta == pytest.approx((240 - seen.tasks.done) / 2, rel=0.2)


def test_stages_behind_one_key_are_told_together_with_the_first_opening() -> None:
    stages = [
        task(9, Wait("quota requests", "openai · m", 0.42)),
        judge("judge", Wait("quota requests", "openai · m", 0.3)),
        judge("free"),
        judge("other", Wait("its first call", "", None)),
        judge("third", Wait("concurrency", "", None)),
    ]
    assert waits(stages, RegistrySnapshot({})) == [
        "task, judge: quota requests used up: next call in 0.3 s · openai · m",
        "other: its first call",
        "third: the maximum of functions is in flight (max_concurrency)",
    ]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("own work", "task: functions are busy outside of calls; more of them would not end sooner"),
        ("memory", "task: the rows in flight fill the memory that they may use"),
        ("descriptors", "task: this process may open no more connections (ulimit -n)"),
        ("functions", "task: this machine carries no more functions at once"),
    ],
)
def test_what_the_runner_itself_holds_back_is_told_in_plain_words(reason: str, text: str) -> None:
    assert waits([task(9, Wait(reason, "", None))], RegistrySnapshot({})) == [text]


def test_pool_that_binds_is_named(registry: RateLimitRegistry) -> None:
    key = tidegate.Key("openai", "https://api.openai.com", "0123456789abcdef", "m")
    permit = registry.try_admit(key)
    assert permit
    registry.note_pool(key, Client(), 1)
    snapshot = registry.snapshot()
    (line,) = waits([task(9, Wait("concurrency", str(key), None))], snapshot)
    assert line.startswith("task: all 1 connections of the client's pool are taken; a client with more goes faster · ")


class Client:
    """What holds a pool."""


def test_calls_that_wait_inside_are_told_from_the_registry(registry: RateLimitRegistry) -> None:
    key = Key("openai", "https://api.openai.com", "m", "", "")
    assert registry.try_admit(key)
    ((key, state),) = registry.snapshot().keys.items()
    assert waits([], RegistrySnapshot({key: state})) == []
    held = dataclasses.replace(state, waiting=3, gate="quota requests", ready_in=0.5, eta=75.0)
    said = f"3 calls: quota requests used up: next call in 0.5 s, ETA 1:15 · {key}"
    assert waits([], RegistrySnapshot({key: held})) == [said]


def test_pause_is_told_by_the_providers_word_for_rows_and_for_calls(registry: RateLimitRegistry) -> None:
    key = Key("openai", "https://api.openai.com", "m", "", "")
    assert registry.try_admit(key)
    ((key, state),) = registry.snapshot().keys.items()
    facts = {"gate": "pause", "ready_in": 118.0, "stated_wait": 600.0, "stated_for": 598.0}
    held = dataclasses.replace(state, waiting=3, eta=602.0, eta_gate="concurrency", **facts)
    said = "paused: provider asks for 10:00, next try in 1:58"
    assert waits([task(9, Wait("pause", str(key), 118.0))], RegistrySnapshot({key: held})) == [
        f"task: {said} · {key}",
        f"3 calls: {said}, ETA 10:02 · {key}",
    ]


@pytest.mark.parametrize(
    ("status", "cause", "said"),
    [
        (500, Cause.NONE, "provider down (status 500)"),
        (None, Cause.OUTAGE, "provider down (no connection)"),
        (None, Cause.NONE, "provider down (no answer in time)"),
    ],
)
def test_a_breaker_is_told_with_the_last_failure_of_its_key(status: int | None, cause: Cause, said: str) -> None:
    key, other = (Key("openai", "https://api.openai.com", name, "", "") for name in ("m", "n"))
    listeners: list[Any] = []
    registry = SimpleNamespace(subscribe=lambda listen: listeners.append(listen) or listeners.clear)
    with last_failures(cast("RateLimitRegistry", registry)) as trouble:
        for event in (
            SlotReleased(key, 1.0, 0.1, 0, Kind.TRANSIENT, cause, status),
            SlotReleased(other, 2.0, 0.1, 0, Kind.OK),
        ):
            listeners[0](event)
    assert not listeners
    stages = [task(9, Wait("breaker", str(key), 1.0)), judge("judge", Wait("breaker", str(other), 1.0))]
    told = waits(stages, RegistrySnapshot({}), trouble)
    assert told == [
        f"task: {said}: next probe in 1.0 s · {key}",
        f"judge: provider down: next probe in 1.0 s · {other}",
    ]


def test_there_is_no_eta_while_rows_are_still_read_or_there_are_none() -> None:
    seen = tally(task(0))
    assert seen.eta is None
    seen.update([task(10, ok=5)], 1.0, all_rows=False)
    assert seen.eta is None
    seen.update([task(10, ok=6)], 2.0, all_rows=True)
    assert seen.eta is not None


def test_more_keys_than_fit_are_counted() -> None:
    many = [judge(f"judge {number}", Wait("pace", f"key {number}", 1.0)) for number in range(9)]
    assert waits(many, RegistrySnapshot({}))[-1] == "3 more waits"


def test_a_line_says_what_there_is_to_say_and_no_more() -> None:
    seen = tally(task(4), judge())
    assert line("x", seen, [], "") == "x: 0/4 tasks, 0/4 evaluations"
    seen.update([task(4, error=1), judge()], 1.0)
    assert line("x", seen, ["task: pace"], "stopping") == (
        "x: 1/4 tasks, 0/3 evaluations, 1 failed, waiting: task: pace (stopping)"
    )


def test_a_board_fits_a_narrow_terminal_and_shows_names_as_they_are() -> None:
    console = Console(file=io.StringIO(), width=60)
    console.print(ProgressBoard("a [red]name[/x]", tally(task(4), judge()), ["task: pace · " + "k" * 200], "[bold]"))
    told = console.file.getvalue() if isinstance(console.file, io.StringIO) else ""
    assert "a [red]name[/x]  [bold]" in told
    assert max(len(each) for each in told.splitlines()) <= 60


def test_where_there_is_no_terminal_a_line_is_printed_every_ten_seconds() -> None:
    file = io.StringIO()
    display, seen = Display("x", Console(file=file)), tally(task(3))
    with display.shown():
        for second in range(25):
            display.update(seen, [], float(second))
    assert file.getvalue().splitlines() == ["x: 0/3 tasks"] * 2


def summary(status: Status, ok: int, **failed: int) -> Summary:
    row = ExperimentRow(1, "x", 1, "list", 3, True, 1, {}, datetime.now(UTC), status, None, None, 1, None)
    runs = {OK: ok, **{ResultStatus(name): count for name, count in failed.items()}}
    return Summary(row, ResultCounts(3, runs), ())


@pytest.mark.parametrize(
    ("told", "failures", "code"),
    [
        (summary(Status.COMPLETED, 3), [], Code.DONE),
        (summary(Status.COMPLETED, 2, parked=1), [Failure(None, PARKED, "rate", 1)], Code.PARKED),
        (summary(Status.COMPLETED, 2, invalid=1), [Failure(None, INVALID, "invalid_row", 1)], Code.ERRORS),
        (summary(Status.COMPLETED, 1, error=1, parked=1), [Failure(None, PARKED, "", 1), Failure(None, ERROR, "", 1)],
         Code.ERRORS),
        (summary(Status.COMPLETED, 3), [Failure("judge", ERROR, "KeyError", 1)], Code.ERRORS),
        (summary(Status.COMPLETED, 3), [Failure("judge", PARKED, "rate", 1)], Code.PARKED),
        (summary(Status.STOPPED, 2), [], Code.STOPPED),
        (summary(Status.ERROR, 2), [], Code.BROKEN_OFF),
        (summary(Status.BLOCKED, 2), [], Code.BLOCKED),
        (summary(Status.RUNNING, 3), [], Code.FAILED),
    ],
)  # fmt: skip
def test_the_exit_code_says_how_it_ended(told: Summary, failures: list[Failure], code: Code) -> None:
    assert code_of(told, failures) is code


def test_every_exit_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(Code)


def test_refusals_are_called_retried_only_where_every_row_was_answered() -> None:
    assert refusals(14, summary(Status.COMPLETED, 3)) == "14 refusals retried"
    assert refusals(1, summary(Status.COMPLETED, 2, parked=1)) == "1 refusal"
    assert refusals(3, summary(Status.STOPPED, 3)) == "3 refusals"


def test_line_and_picture_have_what_is_spent_and_the_budget() -> None:
    tokens = TokenTotals(2, 1200, 340, priced=2, nanodollars=2_100_000)
    assert spent_text(TokenTotals(), "") == ""
    assert spent_text(TokenTotals(), "$5.00") == "nothing yet (budget $5.00)"
    assert spent_text(tokens, "") == "1200 input + 340 output tokens, $0.0021"
    seen = tally(task(4))
    seen.spent = spent_text(tokens, "$5.00 and 2000000 tokens")
    said = "1200 input + 340 output tokens, $0.0021 (budget $5.00 and 2000000 tokens)"
    assert said in line("x", seen, [], "")
    file = io.StringIO()
    Console(file=file, width=120).print(ProgressBoard("x", seen, [], ""))
    assert f"spent  {said}" in file.getvalue()
