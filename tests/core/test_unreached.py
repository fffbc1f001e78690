"""A key at which no server has worked: its calls wait for a start-up, and then get the errors of their attempts."""

from __future__ import annotations

import logging

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import INVALID, OK, OUTAGE, REFUSED, UNAVAILABLE
from tidegate.core.exchange import Ending
from tidegate.core.values import Cause, Kind, Outcome

pytestmark = pytest.mark.constants(START_CONCURRENCY=5)

REFUSED_CONNECTION = OUTAGE._replace(error="ConnectError: [Errno 111] Connection refused")
NOT_READY = Outcome(Kind.OVERLOADED, Cause.NOT_READY, status=503)
ANSWERS = [OK, INVALID._replace(status=401), REFUSED._replace(status=429), NOT_READY]
FAILURES = [REFUSED_CONNECTION, OUTAGE._replace(status=500), OUTAGE._replace(status=502), UNAVAILABLE]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def open_breaker(scene: Scene, failure: Outcome = REFUSED_CONNECTION) -> None:
    """Five calls fail at once, and the breaker opens. The errors of outages go back."""
    calls = [scene.call() for _ in range(5)]
    for each in calls:
        assert each.reply(failure) == ("waiting" if failure is UNAVAILABLE else "ended")


def play(scene: Scene, calls: list[Caller], outcome: Outcome, seconds: float) -> None:
    """Every attempt comes to `outcome`, for so many seconds."""
    end = scene.clock() + seconds
    while scene.clock() < end and any(each.state != "ended" for each in calls):
        for each in calls:
            if each.poll() == "sent":
                each.reply(outcome)
        scene.clock.advance(0.25)


def test_calls_wait_for_a_server_that_starts_late(scene: Scene) -> None:
    open_breaker(scene)
    calls = [scene.call() for _ in range(40)]
    play(scene, calls, REFUSED_CONNECTION, 12.0)
    assert {each.state for each in calls} <= {"waiting", "sent"}
    play(scene, calls, OK, 60.0)
    assert all(each.ended is not None and each.ended.attempt.outcome is OK for each in calls)  # type: ignore[union-attr]


@pytest.mark.parametrize("failure", FAILURES, ids=str)
def test_a_key_at_which_no_server_has_worked_gives_its_error_to_each_call(scene: Scene, failure: Outcome) -> None:
    open_breaker(scene, failure)
    calls = [scene.call() for _ in range(40)]
    play(scene, calls, failure, 29.0)
    assert "ended" not in {each.state for each in calls}
    play(scene, calls, failure, 2.0)
    for each in calls:
        assert each.ended is not None
        assert each.ended.ending is (Ending.GIVEN_UP if failure is UNAVAILABLE else Ending.HANDED_BACK)
        assert each.ended.attempt is not None
        assert each.ended.attempt.outcome.error == failure.error


def test_later_calls_are_sent_at_once_and_the_first_answer_ends_it(scene: Scene) -> None:
    open_breaker(scene)
    scene.clock.advance(31.0)
    for _ in range(3):
        call = scene.call()
        assert call.state == "sent"
        call.reply(REFUSED_CONNECTION)
        assert call.ended is not None
    assert scene.call().reply(OK) == "ended"
    assert scene.seen.breaker == "closed"
    # The answer is no proof against an outage any more.
    scene.clock.advance(10.0)
    open_breaker(scene)
    calls = [scene.call() for _ in range(3)]
    play(scene, calls, REFUSED_CONNECTION, 120.0)
    assert "ended" not in {each.state for each in calls}, "a server that was reached is down, and comes back"


@pytest.mark.parametrize("answer", ANSWERS, ids=str)
def test_an_answer_that_no_proxy_makes_shows_that_a_server_works(scene: Scene, answer: Outcome) -> None:
    first = scene.call(max_wait=0.5)
    first.reply(answer)
    scene.clock.advance(5.0)
    first.poll()
    # Until the breaker opens, each call gets its error.
    play(scene, [scene.call() for _ in range(10)], REFUSED_CONNECTION, 60.0)
    calls = [scene.call() for _ in range(3)]
    play(scene, calls, REFUSED_CONNECTION, 120.0)
    assert "ended" not in {each.state for each in calls}


def test_a_server_that_knows_no_path_is_not_reached(scene: Scene) -> None:
    scene.call().reply(INVALID._replace(status=404))
    open_breaker(scene)
    calls = [scene.call() for _ in range(3)]
    play(scene, calls, REFUSED_CONNECTION, 31.0)
    assert {each.state for each in calls} == {"ended"}


@pytest.mark.constants(START_CONCURRENCY=5)
def test_max_unreached_of_zero_never_holds_a_call(scene: Scene) -> None:
    scene = Scene(max_unreached=0.0)
    open_breaker(scene)
    call = scene.call()
    assert call.state == "sent"
    assert call.reply(REFUSED_CONNECTION) == "ended"


def test_limits_of_the_user_hold_calls_of_a_server_that_was_never_reached() -> None:
    scene = Scene(max_concurrency=2)
    calls = [scene.call() for _ in range(20)]
    play(scene, calls, REFUSED_CONNECTION, 20.0)
    scene.clock.advance(20.0)
    assert sum(each.poll() == "sent" for each in calls) == 2


@pytest.mark.parametrize("waiting", [0, 40])
def test_warning_comes_within_two_seconds_of_the_opening(scene: Scene, waiting: int) -> None:
    told: list[float] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: told.append(scene.clock())  # type: ignore[method-assign]
    logging.getLogger("tidegate").addHandler(handler)
    try:
        calls = [scene.call() for _ in range(5 + waiting)]
        for each in calls[:5]:
            scene.clock.advance(3.0)
            assert not told
            each.reply(REFUSED_CONNECTION)
        opened_at = scene.clock()
        play(scene, calls[5:] or [scene.call()], REFUSED_CONNECTION, 10.0)
    finally:
        logging.getLogger("tidegate").removeHandler(handler)
    assert [opened_at <= each <= opened_at + 2.0 for each in told] == [True]


def test_one_warning_names_the_error_when_the_breaker_opens(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="tidegate"):
        open_breaker(scene)
        calls = [scene.call() for _ in range(3)]
        play(scene, calls, REFUSED_CONNECTION, 28.0)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "provider.test" in warnings[0]
    assert "never reached: ConnectError: [Errno 111] Connection refused; is the address right?" in warnings[0]


def test_warning_names_the_status_of_a_server_that_only_fails(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    failure = OUTAGE._replace(status=502)
    with caplog.at_level(logging.DEBUG, logger="tidegate"):
        open_breaker(scene, failure)
        play(scene, [scene.call() for _ in range(3)], failure, 28.0)
    [warning] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert "no answer of a working server yet: status 502; is the address right?" in warning
