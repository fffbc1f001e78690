"""Suspensions, advice for spawning workers, and the requeue rules of users' own queues."""

from __future__ import annotations

import functools
import json
import logging
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import tidegate
from tidegate.admission.registry import NotReady, RateLimitRegistry
from tidegate.admission.suspensions import BRIEF, MAX_REASON, covers, normalised
from tidegate.classification import Evidence
from tidegate.cli.main import app
from tidegate.core.limiter_state import Permit
from tidegate.core.values import INFINITY, Cause, Kind
from tidegate.requeue import Action

SECRET = "sk-proj-" + "abcdefghijklmnopqrstuvwxyz0123456789"
TARGET = "cerebras/zai-glm-4.7"
KEY = tidegate.Key("cerebras", "api.cerebras.ai/v1", "", "zai-glm-4.7")
OTHER = tidegate.Key("cerebras", "api.cerebras.ai/v1", "", "llama-4")


class Process:
    """One process with its own registry, whose time only the test moves."""

    def __init__(self, path: Path | None = None, **settings: Any) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.begin = self.now
        self.registry = RateLimitRegistry(
            tidegate.Settings(suspensions=path, **settings),
            clock=lambda: (self.now - self.begin).total_seconds(),
            calendar=lambda: self.now,
        )

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "suspensions.sqlite"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("Cerebras/ZAI-GLM-4.7", TARGET),
        (KEY, TARGET),
        ("openrouter/meta/llama-4", "openrouter/meta/llama-4"),
        ("cerebras/*", "cerebras/*"),
        ("cerebras", ""),
        ("/model", ""),
        ("", ""),
        (None, ""),
        (3, ""),
    ],
)
def test_target_is_a_provider_and_a_model(target: Any, name: str) -> None:
    assert normalised(target) == name
    found = Process().registry.suspend(target, seconds=1)
    assert (found.target if found else "") == name


def test_target_names_its_keys_only() -> None:
    assert covers(TARGET, KEY)
    assert covers("cerebras/*", OTHER)
    assert not covers(TARGET, OTHER)
    assert not covers("groq/*", KEY)


LONG = tidegate.Key("openrouter", "openrouter.ai/api/v1", "", "meta-llama/llama-4")
LONG_NAMES = ("openrouter/meta-llama/llama-4", "openrouter/llama-4", LONG)


@pytest.mark.parametrize("asked", LONG_NAMES, ids=str)
@pytest.mark.parametrize("suspended", LONG_NAMES, ids=str)
def test_model_with_a_slash_is_one_target_under_each_of_its_names(path: Path, suspended: Any, asked: Any) -> None:
    for file in (None, path):
        process = Process(file)
        registry = process.registry
        assert registry.try_admit(LONG)
        registry.suspend(suspended, seconds=60)
        assert registry.suspended(asked) is not None
        assert registry.advise(asked, wanted=3).throttled
        assert not registry.try_admit(LONG)
        assert registry.suspended("openrouter/qwen/llama-5") is None
        assert registry.resume(asked)
        assert registry.suspensions() == []
        assert registry.try_admit(LONG)
        assert not registry.resume(asked)


@pytest.mark.parametrize("asked", LONG_NAMES, ids=str)
@pytest.mark.parametrize("allowed", [*LONG_NAMES[:2], "OpenRouter/*", "*"])
def test_refusal_of_a_model_with_a_slash_suspends_it_under_each_of_its_names(allowed: str, asked: Any) -> None:
    process = Process(suspend_models=(allowed, "groq/other"))
    permit = process.registry.try_admit(LONG)
    assert isinstance(permit, Permit)
    process.registry.settle(permit, tidegate.core.values.Outcome(Kind.RATE_LIMIT, Cause.RATE, 30.0))
    found = process.registry.suspended(asked)
    assert found is not None
    assert found.target == "openrouter/meta-llama/llama-4"


def test_vendors_of_models_with_one_last_name_are_told_apart() -> None:
    process = Process()
    process.registry.suspend("openrouter/meta/llama-4", seconds=60)
    assert process.registry.suspended("openrouter/other/llama-4") is None
    assert process.registry.suspended("groq/llama-4") is None


def test_key_of_the_programs_own_is_suspended_alone() -> None:
    process = Process()
    judge, drafts, other = (tidegate.Key("custom", name) for name in ("Judge", "drafts", "https://host.test/judge"))
    process.registry.suspend(judge, seconds=60)
    assert not process.registry.try_admit(judge)
    assert process.registry.try_admit(drafts)
    assert process.registry.try_admit(other)
    assert process.registry.suspended("custom/judge") is not None
    assert process.registry.suspended("custom/drafts") is None
    assert process.registry.resume("custom/judge")
    assert process.registry.try_admit(judge)


def test_suspended_keys_admit_nothing_until_the_end_or_a_resume() -> None:
    process = Process()
    registry = process.registry
    registry.suspend(TARGET, seconds=60, reason="weekly maintenance")
    refused = registry.try_admit(KEY)
    assert isinstance(refused, NotReady)
    assert (refused.gate, refused.ready_at) == ("suspended", 60.0)
    assert registry.try_admit(OTHER)
    process.passes(60)
    permit = registry.try_admit(KEY)
    assert isinstance(permit, Permit)
    registry.suspend("cerebras/*", seconds=60)
    assert not registry.try_admit(KEY)
    woken: list[int] = []
    registry.try_admit(KEY, wake=lambda: woken.append(1))
    assert registry.resume("cerebras/*")
    assert woken == [1]
    assert registry.try_admit(KEY)
    assert not registry.resume("cerebras/*")


def test_suspension_only_ever_becomes_longer(path: Path) -> None:
    one, other = Process(path), Process(path)
    one.registry.suspend(TARGET, seconds=600, reason="long")
    other.registry.suspend(TARGET, seconds=60, reason="short")
    for process in (one, other):
        process.passes(2)
        held = process.registry.suspended(TARGET)
        assert held is not None
        assert (held.reason, (held.until - process.now).total_seconds()) == ("long", 598.0)


def test_suspension_of_another_process_is_advice_and_closes_nothing(path: Path) -> None:
    one, other = Process(path), Process(path)
    one.registry.suspend(TARGET, seconds=600)
    assert other.registry.suspended(KEY) is not None
    assert other.registry.try_admit(KEY)
    other.registry.resume(TARGET)
    one.passes(2)
    assert one.registry.suspensions() == []


def test_suspension_outlives_its_process_and_ends_in_time(path: Path) -> None:
    Process(path).registry.suspend(TARGET, seconds=600)
    later = Process(path)
    assert [each.target for each in later.registry.suspensions()] == [TARGET]
    later.passes(601)
    assert later.registry.suspended(TARGET) is None
    later.registry.suspend("groq/x", seconds=1)
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT target FROM suspensions").fetchall() == [("groq/x",)]


@pytest.mark.parametrize("content", [b"no database, whatever its name says", b""])
def test_unusable_file_leaves_the_suspensions_of_the_process(
    path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    if content:
        path.write_bytes(content * 100)
    else:
        path.mkdir()
    process = Process(path)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            process.registry.suspend(TARGET, seconds=60)
            process.passes(2)
            assert process.registry.suspended(TARGET) is not None
    assert len([each for each in caplog.records if "those of this process hold alone" in each.message]) == 1


def test_file_of_another_version_is_left_alone(path: Path) -> None:
    Process(path).registry.suspend(TARGET, seconds=600)
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 9")
    Process(path).registry.suspend("groq/x", seconds=600)
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT target FROM suspensions").fetchall() == [(TARGET,)]


def test_processes_may_find_the_file_new_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connect = sqlite3.connect
    other = threading.Thread(target=lambda: Process(path).registry.suspend("groq/x", seconds=600))

    class Overtaken(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            if sql == "PRAGMA application_id" and other.ident is None:
                monkeypatch.setattr(sqlite3, "connect", connect)
                other.start()
                # The other process ends now, or waits until this one has read the file.
                other.join(1.0)
            return super().execute(sql, *args)

    monkeypatch.setattr(sqlite3, "connect", functools.partial(connect, factory=Overtaken))
    process = Process(path)
    with caplog.at_level(logging.WARNING):
        process.registry.suspend(TARGET, seconds=600)
        other.join()
    assert caplog.records == []
    process.passes(2.0)
    assert [each.target for each in process.registry.suspensions()] == [TARGET, "groq/x"]


def test_only_allowed_targets_are_suspended_by_refusals(path: Path) -> None:
    def refuse(**settings: Any) -> list[tuple[str, float]]:
        process = Process(path, **settings)
        for key, kind, hint in ((KEY, Kind.RATE_LIMIT, None), (OTHER, Kind.DAILY_LIMIT, 7200.0)):
            permit = process.registry.try_admit(key)
            assert isinstance(permit, Permit)
            process.registry.settle(permit, tidegate.core.values.Outcome(kind, retry_after=hint))
        process.passes(2)
        return [(each.target, (each.until - process.begin).total_seconds()) for each in process.registry.suspensions()]

    assert refuse() == []
    assert refuse(suspend_models=(TARGET,)) == [(TARGET, 60.0)]
    assert refuse(suspend_models=("*",), suspend_rate=90) == [("cerebras/llama-4", 7200.0), (TARGET, 90.0)]


def test_refusal_that_suspends_for_others_closes_nothing_here() -> None:
    process = Process(suspend_models=("*",), suspend_day=86_400)
    permit = process.registry.try_admit(KEY)
    assert isinstance(permit, Permit)
    process.registry.settle(permit, tidegate.core.values.Outcome(Kind.RATE_LIMIT, Cause.RATE, 1.0))
    assert process.registry.suspended(KEY) is not None
    process.passes(3)
    assert process.registry.try_admit(KEY)


def refuse(process: Process, retry_after: float = 600.0) -> None:
    """End an attempt of the process with a refusal."""
    permit = process.registry.try_admit(KEY)
    assert isinstance(permit, Permit)
    process.registry.settle(permit, tidegate.core.values.Outcome(Kind.RATE_LIMIT, Cause.RATE, retry_after))


def test_refusals_write_only_an_end_that_is_noticeably_later(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(path, suspend_models=("*",))
    waits: list[float] = []
    connect = sqlite3.connect

    def connected(*args: Any, timeout: float, **named: Any) -> sqlite3.Connection:
        waits.append(timeout)
        return connect(*args, timeout=timeout, **named)

    monkeypatch.setattr(sqlite3, "connect", connected)
    table, refusal = process.registry.suspension_table, tidegate.core.values.Outcome(Kind.RATE_LIMIT)
    for _ in range(9):
        table.note_refusal(KEY, refusal)
    assert waits == [BRIEF]
    process.passes(5.0)
    table.note_refusal(KEY, refusal)
    with sqlite3.connect(path, timeout=0.0) as file:
        assert file.execute("SELECT until FROM suspensions").fetchall() == [(process.begin.timestamp() + 60.0,)]
    process.passes(2.0)
    table.note_refusal(KEY, refusal)
    with sqlite3.connect(path, timeout=0.0) as file:
        assert file.execute("SELECT until FROM suspensions").fetchall() == [(process.begin.timestamp() + 67.0,)]


def test_suspension_that_another_process_has_resumed_is_written_again_by_a_refusal(path: Path) -> None:
    one, other = Process(path, suspend_models=("*",)), Process(path)
    one.registry.suspend(KEY, seconds=600)
    other.registry.resume(KEY)
    one.passes(2.0)
    table = one.registry.suspension_table
    assert table.note_refusal(KEY, tidegate.core.values.Outcome(Kind.RATE_LIMIT, Cause.RATE, 60.0)) is not None
    other.passes(2.0)
    assert other.registry.suspended(KEY) is not None


def test_changes_at_a_locked_file_are_written_once_it_is_free(path: Path) -> None:
    one, other = Process(path, suspend_models=("*",)), Process(path)
    table = one.registry.suspension_table
    one.registry.suspend("groq/x", seconds=600)
    one.registry.suspend("groq/y", seconds=600)
    with closing(sqlite3.connect(path, isolation_level=None)) as locked:
        locked.execute("BEGIN IMMEDIATE")
        refuse(one)
        with table._file_lock:
            # The file lock of another thread is as good as a locked file.
            table._changes["groq/x"] = None
    one.passes(2.0)
    other.passes(2.0)
    for process in (one, other):
        assert [each.target for each in process.registry.suspensions()] == [TARGET, "groq/y"]


def test_rows_that_are_no_times_reach_no_call(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = Process(path, suspend_models=("*",))
    process.registry.suspend("groq/x", seconds=600)
    with sqlite3.connect(path) as file:
        file.execute("UPDATE suspensions SET until = 1e300")
    process.passes(2.0)
    with caplog.at_level(logging.WARNING):
        refuse(process)
        assert process.registry.suspended(KEY) is not None
    assert "those of this process hold alone" in caplog.text
    assert process.registry.resume("groq/x")
    process.passes(2.0)
    assert [each.target for each in process.registry.suspensions()] == [TARGET]


def test_record_that_fails_reaches_no_call(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(suspend_models=("*",))

    def fails(*facts: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(process.registry.suspension_table, "note_refusal", fails)
    refuse(process)
    assert "record not written: RuntimeError was raised; the call goes on" in caplog.text


def test_forked_child_waits_for_no_lock_of_a_thread_that_it_has_not(path: Path) -> None:
    registry = Process(path).registry
    table = registry.suspension_table
    with table._lock, table._file_lock:
        held = table._lock, table._file_lock
        registry.after_fork_in_child()
        assert not {*held} & {table._lock, table._file_lock}
        assert registry.suspend(TARGET, seconds=1) is not None


def test_reason_is_written_without_credentials(path: Path) -> None:
    Process(path).registry.suspend(TARGET, seconds=60, reason=f"wrong key {SECRET}; ask the owner" + "." * 300)
    with sqlite3.connect(path) as file:
        ((reason,),) = file.execute("SELECT reason FROM suspensions").fetchall()
    assert SECRET not in reason
    assert reason.startswith("wrong key ")
    assert len(reason) <= MAX_REASON


def test_resume_tells_of_a_suspension_that_was_not_read_yet(path: Path) -> None:
    one, other = Process(path), Process(path)
    assert one.registry.suspended(TARGET) is None
    other.registry.suspend(TARGET, seconds=60)
    assert one.registry.resume(TARGET)
    assert not other.registry.resume(TARGET)


@pytest.mark.parametrize("early", [True, False])
def test_suspended_keys_are_told_in_the_log(early: bool, caplog: pytest.LogCaptureFixture) -> None:
    process = Process()
    with caplog.at_level(logging.INFO):
        if early:
            assert process.registry.try_admit(KEY)
        process.registry.suspend(TARGET, seconds=600)
        if not early:
            assert not process.registry.try_admit(KEY)
    (text,) = [each.getMessage() for each in caplog.records]
    assert f"{KEY} suspended by the program: next call in 10:00" in text


def test_advice_is_what_is_left_of_what_is_wanted() -> None:
    process = Process()
    advise = process.registry.advise
    assert advise(TARGET, wanted=8, active=3).workers == 5
    assert advise(TARGET, wanted=8, active=3, most=4).workers == 1
    assert advise(TARGET, wanted=2, active=3).workers == 0
    process.registry.suspend(TARGET, seconds=60, reason="day")
    advice = advise(KEY, wanted=8)
    assert (advice.workers, advice.throttled, advice.ready_in) == (0, True, 60.0)
    assert json.loads(advice.to_json())["throttle_until"] == "2026-01-01T00:01:00+00:00"
    assert advise(OTHER, wanted=8).workers == 8
    assert json.loads(advise(OTHER, wanted=8).to_json()) == {
        "workers": 8, "throttled": False, "throttle_until": "", "reason": "", "ready_in": None,
    }  # fmt: skip


def test_advice_leaves_room_for_the_calls_that_the_key_has_been_found_to_admit() -> None:
    process = Process()
    registry = process.registry
    permits = [registry.try_admit(KEY) for _ in range(4)]
    assert registry.advise(TARGET, wanted=8).workers == 8
    refused = tidegate.core.values.Outcome(Kind.RATE_LIMIT, Cause.CONCURRENCY)
    for permit, outcome in zip(permits, [*[tidegate.core.values.Outcome(Kind.OK)] * 3, refused], strict=True):
        assert isinstance(permit, Permit)
        registry.settle(permit, outcome)
    process.passes(60)
    found = int(registry.snapshot([KEY]).keys[KEY].limit)
    assert 1 < found < 8
    assert registry.advise(TARGET, wanted=8).workers == found
    assert registry.advise(TARGET, wanted=8, active=1).workers == found - 1
    assert registry.advise(OTHER, wanted=8).workers == 8


def test_advice_is_none_while_the_key_is_paused() -> None:
    process = Process()
    permit = process.registry.try_admit(KEY)
    assert isinstance(permit, Permit)
    process.registry.settle(permit, tidegate.core.values.Outcome(Kind.RATE_LIMIT, Cause.RATE, 30.0))
    advice = process.registry.advise(TARGET, wanted=8)
    assert (advice.workers, advice.throttled, advice.reason) == (0, True, "the end of a pause")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda it: it.advise(TARGET, wanted=-1), "wanted"),
        (lambda it: it.advise(TARGET, wanted=True), "wanted"),
        (lambda it: it.advise(TARGET, wanted=1, active=1.5), "active"),
        (lambda it: it.advise(TARGET, wanted=1, most=-1), "most"),
        (lambda it: it.suspend(TARGET), "seconds"),
        (lambda it: it.suspend(TARGET, seconds=1, until=datetime.now(UTC)), "seconds"),
        (lambda it: it.suspend(TARGET, seconds=0), "seconds"),
        (lambda it: it.suspend(TARGET, seconds=INFINITY), "seconds"),
        (lambda it: it.suspend(TARGET, until=datetime(2026, 1, 1)), "until"),
        (lambda it: it.suspend(TARGET, until=datetime.max.replace(tzinfo=UTC)), "until"),
        (lambda it: it.suspend(TARGET, seconds=1, reason=3), "reason"),
        (lambda it: Process(suspend_models=("cerebras",)), "suspend_models"),
        (lambda it: tidegate.after_failure("429", attempts=1, target=TARGET, registry="process"), "registry"),
        (lambda it: tidegate.after_failure("x", attempts=-1), "attempts"),
        (lambda it: tidegate.after_failure("x", attempts=1, max_attempts=0), "max_attempts"),
    ],
)
def test_bad_input_is_refused(call: Any, field: str) -> None:
    with pytest.raises(tidegate.ConfigurationError) as raised:
        call(Process().registry)
    assert raised.value.field == field


def test_command_prints_the_advice_and_ends_with_75_while_throttled(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_SUSPENSIONS", str(path))
    run = CliRunner().invoke
    free = run(app, ["advise", TARGET, "--wanted", "8", "--active", "3"])
    assert (free.stdout, free.exit_code) == ("5 further workers for cerebras/zai-glm-4.7\n", 0)
    RateLimitRegistry().suspend(TARGET, seconds=3600, reason="day")
    held = run(app, ["advise", TARGET, "--wanted", "8"])
    assert held.exit_code == 75
    assert held.stdout.startswith("no worker for cerebras/zai-glm-4.7: suspended: day; ready in ")
    assert json.loads(run(app, ["advise", TARGET, "--wanted", "8", "--json"]).stdout)["workers"] == 0
    assert run(app, ["advise", "cerebras/llama-4", "--wanted", "8"]).exit_code == 0
    assert run(app, ["advise", TARGET, "--wanted", "-1"]).exit_code == 2


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


def test_status_decides_before_words() -> None:
    found = tidegate.classify("try again later", status=401, provider="openai")
    assert (found.kind, found.cause, found.evidence) == (Kind.PERMANENT, Cause.AUTH, Evidence.STATUS)


@given(st.recursive(st.none() | st.text() | st.integers(), lambda it: st.dictionaries(st.text(), it)))
def test_classification_never_raises(error: object) -> None:
    for failure in (error, {"last_error": error, "last_error_type": error, "analysis_result": error}):
        assert tidegate.classify(failure).kind in Kind


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


def test_spent_day_waits_for_its_end_and_suspends_the_target() -> None:
    process = Process(suspend_models=("*",))
    decision = tidegate.after_failure(
        "HTTP 429: requests per day limit", attempts=0, target=TARGET, registry=process.registry
    )
    assert decision.action is Action.REQUEUE
    assert decision.not_before is not None
    assert decision.not_before.hour == 0
    assert decision.suspension is not None
    assert decision.suspension.until == process.now + timedelta(days=1)
