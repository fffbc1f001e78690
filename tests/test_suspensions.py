"""Suspensions that workers share, the number of workers to start, and the requeue rules of users' own queues."""

from __future__ import annotations

import functools
import logging
import sqlite3
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate.core.values import INFINITY, Kind
from tidegate.suspensions import MAX_REASON_CHARACTERS, Action

SECRET = "sk-proj-" + "abcdefghijklmnopqrstuvwxyz0123456789"
TARGET = "cerebras/zai-glm-4.7"
OTHER = "cerebras/llama-4"
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Calendar:
    """Time of one process, which only the test moves."""

    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> datetime:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "suspensions.sqlite"


@pytest.fixture
def calendar() -> Calendar:
    return Calendar()


@pytest.fixture
def suspensions(path: Path, calendar: Calendar) -> tidegate.Suspensions:
    return tidegate.Suspensions(path, calendar=calendar)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("Cerebras/ZAI-GLM-4.7", TARGET),
        ("openrouter/meta/llama-4", "openrouter/meta/llama-4"),
        ("cerebras/*", "cerebras/*"),
        ("cerebras", ""),
        ("/model", ""),
        ("", ""),
        (None, ""),
        (3, ""),
    ],
)
def test_target_is_a_provider_and_a_model(suspensions: tidegate.Suspensions, target: Any, name: str) -> None:
    found = suspensions.suspend(target, seconds=1)
    assert (found.target if found else "") == name
    assert (suspensions.suspended(target) is not None) is bool(name)


def test_only_the_suspended_model_gets_no_workers(suspensions: tidegate.Suspensions) -> None:
    suspensions.suspend(TARGET, seconds=60, reason="day")
    assert suspensions.suspended(TARGET) == (TARGET, BEGIN + timedelta(seconds=60), "day")
    assert suspensions.workers_to_start(TARGET, wanted=8) == 0
    assert suspensions.workers_to_start(OTHER, wanted=8) == 8
    suspensions.suspend("cerebras/*", seconds=30)
    assert suspensions.workers_to_start(OTHER, wanted=8) == 0
    assert suspensions.workers_to_start("groq/llama-4", wanted=8) == 8
    assert [each.target for each in suspensions.all()] == ["cerebras/*", TARGET]


def test_workers_to_start_are_what_is_left_of_what_is_wanted(suspensions: tidegate.Suspensions) -> None:
    assert suspensions.workers_to_start(TARGET, wanted=8, active=3) == 5
    assert suspensions.workers_to_start(TARGET, wanted=8, active=3, most=4) == 1
    assert suspensions.workers_to_start(TARGET, wanted=2, active=3) == 0


def test_suspension_only_ever_becomes_longer(path: Path) -> None:
    one, other = tidegate.Suspensions(path, calendar=Calendar()), tidegate.Suspensions(path, calendar=Calendar())
    long = one.suspend(TARGET, seconds=600, reason="long")
    assert long == (TARGET, BEGIN + timedelta(seconds=600), "long")
    assert other.suspend(TARGET, seconds=60, reason="short") == long
    assert one.suspended(TARGET) == other.suspended(TARGET) == long
    later = other.suspend(TARGET, seconds=601, reason="longer")
    assert one.suspended(TARGET) == later != long


def test_suspension_ends_in_time_or_by_a_resume(suspensions: tidegate.Suspensions, calendar: Calendar) -> None:
    suspensions.suspend(TARGET, seconds=60)
    calendar.passes(60)
    assert suspensions.suspended(TARGET) is None
    assert suspensions.all() == []
    assert not suspensions.resume(TARGET)
    suspensions.suspend(TARGET, seconds=60)
    assert suspensions.resume(TARGET.upper())
    assert suspensions.suspended(TARGET) is None
    assert not suspensions.resume(TARGET)


@pytest.mark.parametrize("content", [b"no database, whatever its name says", b""])
def test_file_that_cannot_be_used_is_logged_once_and_suspends_nothing(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    if content:
        path.write_bytes(content * 100)
    else:
        path.mkdir()
    suspensions = tidegate.Suspensions(path)
    for _ in range(3):
        decision = tidegate.after_failure("HTTP 429", attempts=0, target=TARGET, suspensions=suspensions)
        assert decision.action is Action.REQUEUE
        assert suspensions.workers_to_start(TARGET, wanted=8) == 8
    assert len([each for each in caplog.records if "as if no model was suspended" in each.message]) == 1


def test_file_of_another_version_is_left_alone(suspensions: tidegate.Suspensions, path: Path) -> None:
    suspensions.suspend(TARGET, seconds=600)
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 9")
    suspensions.suspend("groq/x", seconds=600)
    assert suspensions.all() == []
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT target FROM suspensions").fetchall() == [(TARGET,)]


def test_rows_that_are_no_times_reach_no_worker(suspensions: tidegate.Suspensions, path: Path) -> None:
    suspensions.suspend(TARGET, seconds=600)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE suspensions SET until = 1e300")
    assert suspensions.workers_to_start(TARGET, wanted=8) == 8


def test_processes_may_find_the_file_new_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connect = sqlite3.connect
    other = threading.Thread(target=lambda: tidegate.Suspensions(path).suspend("groq/x", seconds=600))

    class Overtaken(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if sql == "PRAGMA user_version" and other.ident is None:
                monkeypatch.setattr(sqlite3, "connect", connect)
                other.start()
                # The other process ends now, or waits until this one has read the file.
                other.join(1.0)
            return super().execute(sql, *args)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(connect, factory=Overtaken))
    suspensions = tidegate.Suspensions(path)
    with caplog.at_level(logging.WARNING):
        suspensions.suspend(TARGET, seconds=600)
        other.join()
    assert caplog.records == []
    assert [each.target for each in suspensions.all()] == [TARGET, "groq/x"]


def test_key_until_and_reason_are_logged(suspensions: tidegate.Suspensions, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        suspensions.suspend(TARGET, seconds=600, reason="tokens of the day")
    (text,) = [each.getMessage() for each in caplog.records]
    assert text == (f"{TARGET} suspended: tokens of the day; no worker is to start before 2026-01-01T00:10:00+00:00")


def test_reason_is_written_without_credentials(suspensions: tidegate.Suspensions, path: Path) -> None:
    suspensions.suspend(TARGET, seconds=60, reason=f"wrong key {SECRET}; ask the owner" + "." * 300)
    with sqlite3.connect(path) as file:
        ((reason,),) = file.execute("SELECT reason FROM suspensions").fetchall()
    assert SECRET not in reason
    assert reason.startswith("wrong key ")
    assert len(reason) <= MAX_REASON_CHARACTERS


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda it: it.workers_to_start(TARGET, wanted=-1), "wanted"),
        (lambda it: it.workers_to_start(TARGET, wanted=True), "wanted"),
        (lambda it: it.workers_to_start(TARGET, wanted=1, active=1.5), "active"),
        (lambda it: it.workers_to_start(TARGET, wanted=1, most=-1), "most"),
        (lambda it: it.suspend(TARGET, seconds=0), "seconds"),
        (lambda it: it.suspend(TARGET, seconds=INFINITY), "seconds"),
        (lambda it: it.suspend(TARGET, seconds="60"), "seconds"),
        (lambda it: it.suspend(TARGET, seconds=1, reason=3), "reason"),
        (lambda it: tidegate.Suspensions(""), "path"),
        (lambda it: tidegate.Suspensions(None), "path"),
        (lambda it: tidegate.Suspensions("any", models=("cerebras",)), "models"),
        (lambda it: tidegate.after_failure("429", attempts=1, target=TARGET, suspensions="process"), "suspensions"),
        (lambda it: tidegate.after_failure("x", attempts=-1), "attempts"),
        (lambda it: tidegate.after_failure("x", attempts=1, max_attempts=0), "max_attempts"),
    ],
)
def test_bad_input_is_refused(suspensions: tidegate.Suspensions, call: Any, field: str) -> None:
    with pytest.raises(tidegate.ConfigurationError) as raised:
        call(suspensions)
    assert raised.value.field == field


RATE = {"last_error": "Rate limit reached: 200 requests per minute", "last_error_type": "openai.RateLimitError"}


@pytest.mark.parametrize(
    ("error", "kind", "window"),
    [
        (RATE, Kind.RATE_LIMIT, "minute"),
        ("Error code: 429 - requests per day (RPD): Limit 200 per minute", Kind.DAILY_LIMIT, "day"),
        ({"analysis_result": {"error": "HTTP 429"}}, Kind.RATE_LIMIT, ""),
        ("429", Kind.RATE_LIMIT, ""),
        ("arXiv 2503.10298 not found", Kind.PERMANENT, ""),
        ("req-429a failed", Kind.PERMANENT, ""),
        ("row 429 is empty", Kind.PERMANENT, ""),
        ("invalid api key; rate limit reached", Kind.PERMANENT, ""),
        (None, Kind.PERMANENT, ""),
        ({"last_error": 3, "error": None}, Kind.PERMANENT, ""),
    ],
)
def test_failure_is_classified_by_status_type_and_whole_words(error: object, kind: Kind, window: str) -> None:
    found = tidegate.classify(error)
    assert (found.kind, found.window) == (kind, window)


@pytest.mark.parametrize(
    ("error", "action", "attempts"),
    [
        (RATE, Action.REQUEUE, 1),
        ("Error code: 529 - overloaded_error", Action.REQUEUE, 1),
        ("Error code: 500 - internal", Action.RETRY, 2),
        ("invalid api key", Action.POISON, 1),
        ("insufficient_quota", Action.POISON, 1),
        ("maximum context length is 8192 tokens", Action.POISON, 1),
        (ValueError("of the caller"), Action.POISON, 1),
    ],
)
def test_lack_of_capacity_never_costs_an_attempt(error: object, action: Action, attempts: int) -> None:
    decision = tidegate.after_failure(error, attempts=1)
    assert (decision.action, decision.attempts) == (action, attempts)


def test_passing_failure_is_poison_after_its_last_attempt() -> None:
    decision = tidegate.after_failure("HTTP 500", attempts=2, max_attempts=3)
    assert (decision.action, decision.attempts) == (Action.POISON, 3)
    assert decision.reason == "transient: outage, read from text; attempt 3 of 3"


def test_spent_day_waits_for_its_end() -> None:
    decision = tidegate.after_failure("HTTP 429: requests per day limit", attempts=0)
    assert decision.action is Action.REQUEUE
    assert decision.not_before is not None
    assert decision.not_before.hour == 0
    assert decision.suspension is None


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (RATE, 60),
        ("HTTP 429: tokens per day limit exceeded", 86_400),
        ("Error code: 529 - overloaded_error", 900),
        ("Rate limit reached, please try again in 20s", 20),
        ("Error code: 500 - internal", None),
        ("invalid api key", None),
    ],
)
def test_lack_of_capacity_suspends_the_target_for_the_other_workers(
    suspensions: tidegate.Suspensions, error: object, seconds: float | None
) -> None:
    decision = tidegate.after_failure(error, attempts=0, target=TARGET, suspensions=suspensions)
    assert decision.suspension == suspensions.suspended(TARGET)
    held = decision.suspension
    assert (None if held is None else (held.until - BEGIN).total_seconds()) == seconds


@pytest.mark.parametrize(
    ("models", "suspended"),
    [
        ("", False),
        ((), False),
        ("openai/gpt-4o, Cerebras/ZAI-GLM-4.7", True),
        (["cerebras/*"], True),
        ("*", True),
        ("groq/* " + OTHER, False),
    ],
)
def test_only_allowed_targets_are_suspended_by_a_failure(path: Path, models: Any, suspended: bool) -> None:
    suspensions = tidegate.Suspensions(path, models=models)
    decision = tidegate.after_failure(RATE, attempts=1, target=TARGET, suspensions=suspensions)
    assert (decision.action, decision.attempts) == (Action.REQUEUE, 1)
    assert (decision.suspension is not None) is suspended
    assert tidegate.after_failure(RATE, attempts=1, target="", suspensions=suspensions).suspension is None
