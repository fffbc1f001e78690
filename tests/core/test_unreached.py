"""A key that was never reached: its calls wait for a start-up, and then see what they would see without a breaker."""

from __future__ import annotations

import logging

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import INVALID, OK, OUTAGE
from tidegate.core.exchange import Ending
from tidegate.core.values import Outcome

pytestmark = pytest.mark.constants(START_CONCURRENCY=5)

REFUSED_CONNECTION = OUTAGE._replace(error="ConnectError: [Errno 111] Connection refused")
ANSWERS = [OK, INVALID._replace(status=401), OUTAGE._replace(status=500)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def open_breaker(scene: Scene) -> None:
    """Five calls fail at once: their errors go back, and the breaker opens."""
    calls = [scene.call() for _ in range(5)]
    for each in calls:
        assert each.reply(REFUSED_CONNECTION) == "ended"


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


def test_a_server_that_was_never_reached_gives_its_error_to_each_call(scene: Scene) -> None:
    open_breaker(scene)
    calls = [scene.call() for _ in range(40)]
    play(scene, calls, REFUSED_CONNECTION, 29.0)
    assert "ended" not in {each.state for each in calls}
    play(scene, calls, REFUSED_CONNECTION, 2.0)
    for each in calls:
        assert each.ended is not None
        assert each.ended.ending is Ending.HANDED_BACK
        assert each.ended.attempt is not None
        assert each.ended.attempt.outcome.error == REFUSED_CONNECTION.error


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
def test_any_answer_shows_that_the_server_exists(scene: Scene, answer: Outcome) -> None:
    first = scene.call(max_wait=0.5)
    first.reply(answer)
    scene.clock.advance(5.0)
    first.poll()
    open_breaker(scene)
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
