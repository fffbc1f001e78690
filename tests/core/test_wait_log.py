"""Log records of cooldowns and outages: one for each, another one every five minutes, none for each refusal."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import OK, OUTAGE, REFUSED, refusal
from tidegate.core.values import Cause, Kind, Outcome

pytestmark = pytest.mark.constants(START_CONCURRENCY=20)


@pytest.fixture(autouse=True)
def records(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, logger="tidegate"):
        yield


@pytest.fixture
def scene() -> Scene:
    return Scene()


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    made = [(each.levelname, each.getMessage().partition("key 012345 ")[2]) for each in caplog.records]
    caplog.clear()
    return made


def sent(call: Caller) -> None:
    while call.poll() == "waiting":
        call.scene.clock.advance(1.0)


def test_short_cooldown_is_not_logged(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.call().reply(refusal(2.0))
    assert told(caplog) == []


def test_cooldown_is_one_record_however_many_calls_were_refused(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    calls = [scene.call() for _ in range(9)]
    for each in calls:
        each.reply(refusal(20.0)._replace(status=429))
    assert told(caplog) == [
        ("INFO", "paused: provider asks for 20 s (status 429), next try in 2.0 s; 1 call waits"),
    ]


def test_cooldown_is_one_record_though_calls_sent_before_it_are_still_answered(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [scene.call() for _ in range(9)]
    for number, each in enumerate(calls):
        each.reply(OK if number % 2 else refusal(90.0))
        scene.clock.advance(0.1)
    scene.clock.advance(100.0)
    head = next(each for each in calls if each.poll() == "sent")
    head.reply(refusal(90.0))
    assert [level for level, _ in told(caplog)] == ["WARNING"]


def test_cooldown_of_minutes_is_a_warning_and_is_repeated_every_five_minutes(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    call = scene.call()
    for _ in range(6):
        call.reply(refusal(7200.0 - scene.clock())._replace(status=429))
        scene.clock.advance(120.0)
        assert call.poll() == "sent"
    asked = "paused: provider asks for"
    assert told(caplog) == [
        ("WARNING", f"{asked} 2:00:00 (status 429), next try in 2:00; 1 call waits"),
        ("WARNING", f"{asked} 1:54:00 (status 429), next try in 2:00; 1 call waits, for 6:00 so far"),
    ]


def test_cooldown_after_an_answer_is_another_one(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        call = scene.call()
        sent(call)
        call.reply(refusal(20.0))
        sent(call)
        call.reply(OK)
    assert [level for level, _ in told(caplog)] == ["INFO", "INFO"]


def test_refusals_without_a_time_are_told_when_their_pause_is_long(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    call = scene.call()
    for _ in range(9):
        call.reply(refusal(cause=Cause.OTHERS_CAPACITY)._replace(status=529))
        assert call.until is not None
        scene.clock.advance(call.until - scene.clock())
        assert call.poll() == "sent"
    made = told(caplog)
    assert [level for level, _ in made] == ["INFO", "WARNING"]
    assert made[0][1].startswith("paused after a refusal (status 529): next try in ")


def test_outage_is_told_with_its_cause_and_repeated_while_it_lasts(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.call().reply(OK)
    # The answer is no proof against an outage any more.
    scene.clock.advance(10.0)
    probe = scene.call()
    for _ in range(5):
        scene.call().reply(OUTAGE)
    probe.reply(OUTAGE)
    probe = scene.call()
    assert told(caplog) == []
    while scene.clock() < 700.0:
        scene.clock.advance(1.0)
        if probe.poll() == "sent":
            probe.reply(OUTAGE)
            if probe.state == "ended":
                probe = scene.call()
    made = told(caplog)
    assert [level for level, _ in made] == ["INFO", "WARNING", "WARNING", "WARNING"]
    assert made[0][1].startswith("provider down (no connection): next probe in ")


def test_wait_for_the_days_reset_is_told_to_its_end(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.call().reply(Outcome(Kind.DAILY_LIMIT, Cause.DAY, 1800.0, status=429))
    assert ("WARNING", "quota of the day spent: provider's reset in 30:00; 1 call waits") in told(caplog)


def test_key_that_never_answered_is_told_with_the_wait_and_its_setting(caplog: pytest.LogCaptureFixture) -> None:
    call = Scene(max_wait=600.0).call()
    for _ in range(20):
        call.reply(refusal(1.0))
        sent(call)
    never = "no call of this key was ever answered: 20 refusals"
    then = "a call waits for up to 10:00 (TIDEGATE_MAX_WAIT), then gets its refusal"
    assert ("WARNING", f"has no capacity for this account: {never}; {then}") in told(caplog)


def test_log_off_keeps_it_silent(caplog: pytest.LogCaptureFixture) -> None:
    Scene(log=False).call().reply(refusal(600.0))
    assert told(caplog) == []


def test_quota_that_headers_announce_is_no_cooldown(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.call().reply(REFUSED)
    assert told(caplog) == []


def test_record_that_fails_reaches_no_call(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    def fails(record: logging.LogRecord) -> bool:
        if "paused" in record.getMessage():
            raise RuntimeError
        return True

    logger = logging.getLogger("tidegate")
    logger.addFilter(fails)
    try:
        call = scene.call()
        call.reply(refusal(600.0))
    finally:
        logger.removeFilter(fails)
    assert call.state == "waiting"
    assert "record not written: RuntimeError was raised; the call goes on" in caplog.text
