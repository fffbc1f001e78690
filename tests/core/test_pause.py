from __future__ import annotations

import itertools
from random import Random

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import OK, refusal
from tidegate.core.backoff import Pause
from tidegate.core.values import Cause


@pytest.fixture
def pause() -> Pause:
    return Pause()


def close(pause: Pause, now: float, hint: float | None = None, *, alone: bool = True, new_wave: bool = True) -> float:
    return pause.close(now, hint, alone, 1.0, new_wave)


def test_a_hint_closes_it_for_as_long(pause: Pause) -> None:
    assert close(pause, 10.0, 5.0) == 15.0
    assert pause.opens_at(11.0) == 15.0
    assert pause.opens_at(16.0) == 16.0


def test_a_hint_is_capped(pause: Pause) -> None:
    assert close(pause, 10.0, 5000.0) == 130.0


def test_a_shorter_hint_does_not_shorten_it(pause: Pause) -> None:
    close(pause, 0.0, 30.0)
    assert close(pause, 1.0, 2.0, new_wave=False) == 30.0


def test_without_a_hint_it_doubles_with_each_wave(pause: Pause) -> None:
    assert [close(pause, at) - at for at in (0.0, 10.0, 20.0)] == [0.5, 1.0, 2.0]


def test_an_answer_makes_the_next_delay_short_again(pause: Pause) -> None:
    for at in range(5):
        close(pause, float(at))
    pause.answered()
    assert close(pause, 100.0) == 100.5


def test_it_reopens_with_a_single_attempt(pause: Pause) -> None:
    close(pause, 0.0, 5.0)
    pause.sent(5.0)
    grace = pause.opens_at(5.0) - 5.0
    assert 0.0 < grace < 5.0
    pause.sent(5.0 + grace / 4)
    assert pause.opens_at(5.0 + grace / 2) == pytest.approx(5.0 + grace)


def test_an_answer_opens_it_for_everybody(pause: Pause) -> None:
    close(pause, 0.0, 5.0)
    pause.answered()
    pause.sent(6.0)
    assert pause.opens_at(6.0) == 6.0


def test_where_a_quota_paces_it_reopens_at_once(pause: Pause) -> None:
    close(pause, 0.0, 5.0, alone=False)
    pause.sent(5.0)
    assert pause.opens_at(5.0) == 5.0


def test_refusals_that_repeat_right_after_the_time_that_they_name_wait_longer_each_time(pause: Pause) -> None:
    now, waits = 0.0, []
    for _ in range(6):
        pause.repeated(3)
        until = close(pause, now, 0.001, alone=False)
        waits.append(until - now)
        now = until
    assert waits[0] == pytest.approx(0.001)
    assert all(later >= 1.99 * earlier for earlier, later in itertools.pairwise(waits))
    assert pause.alone
    assert pause.is_unanswerable


def test_refusals_of_one_call_wait_at_most_twice_the_time_that_they_name(pause: Pause) -> None:
    now = 0.0
    for number in range(12):
        pause.refused_within(0.1)
        pause.repeated(0, again=number > 0)
        until = close(pause, now, 1.0, alone=False)
        assert until - now <= 2.0
        now = until
    pause.repeated(0)
    assert close(pause, now, 1.0, alone=False) - now <= 2.0


def test_refusals_of_calls_in_flight_together_count_as_one() -> None:
    """Each of them takes longer to come, and asks for a second: the first has said when the next call goes."""
    pause, now = Pause(), 0.0
    for _ in range(6):
        pause.refused_within(0.2)
        pause.repeated(0)
        now = pause.close(now, 1.0, False, 0.5, True)
    pause.repeated(0)
    until = pause.close(now, 1.0, False, 0.5, True)
    for late in range(1, 6):
        pause.refused_within(0.5)
        assert pause.close(now + 0.2 * late, 1.0, False, 0.5, False) <= max(until, now + 0.2 * late + 2.0)


def test_further_refusals_of_a_wave_make_no_later_delay_longer() -> None:
    delays = []
    for together in (1, 6):
        pause = Pause()
        for number in range(together):
            close(pause, 0.1 * number, new_wave=number == 0)
        delays.append([pause.until, close(pause, 10.0), close(pause, 20.0)])
    assert delays[0] == delays[1]


def send(scene: Scene, number: int) -> list[Caller]:
    """Send calls as soon as they may go, and wait for each."""
    calls = [scene.call() for _ in range(number)]
    while not all(each.poll() == "sent" for each in calls):
        scene.clock.advance(0.05)
    return calls


@pytest.mark.constants(START_CONCURRENCY=50)
@pytest.mark.parametrize("seed", range(20))
def test_a_pause_is_at_most_twice_what_was_asked_for_unless_a_later_call_is_refused_too(seed: int) -> None:
    """Waves of calls that are in flight together are refused within a second; between them calls are answered."""
    scene, draw = Scene(), Random(seed)
    for _ in range(6):
        calls = send(scene, draw.randint(6, 10))
        scene.clock.advance(0.1)
        for each in calls:
            each.reply(OK)
        most = 0.0
        for each in send(scene, draw.randint(1, 8)):
            asked = draw.choice([1.0, 2.0, draw.uniform(0.2, 5.0)])
            most = max(most, scene.clock() + 2.0 * asked)
            each.reply(refusal(asked, cause=Cause.OTHERS_CAPACITY))
            assert scene.clock() + scene.seen.paused_for <= most
            scene.clock.advance(draw.uniform(0.0, 0.12))


@pytest.mark.constants(START_CONCURRENCY=50)
@pytest.mark.parametrize("hint", [None, 1.0])
@pytest.mark.parametrize("cause", [Cause.OTHERS_CAPACITY, Cause.RATE])
def test_six_refusals_of_one_second_close_a_key_as_one_does(cause: Cause, hint: float | None) -> None:
    """A named time counts from the newest refusal on; nothing else of a pause depends on their number."""
    pauses = []
    for together in (1, 6):
        scene, paused = Scene(), list[float]()
        for _ in range(3):
            first, *others = send(scene, together)
            first.reply(refusal(hint, cause=cause))
            for each in others:
                scene.clock.advance(0.01)
                each.reply(refusal(hint, cause=cause))
            scene.clock.advance(0.01 * (6 - together))
            paused.append(round(scene.seen.paused_for, 6))
        pauses.append(paused)
    late = 0.051 if hint else 0.0
    assert all(six <= one + late for one, six in zip(*pauses, strict=True))


def sent_groups(pause: Pause, now: float, limit: float, number: int) -> list[int]:
    """Send as many attempts as may go at once, `number` times, each time at the next opening; return how many went."""
    groups = []
    for _ in range(number):
        now, group = pause.opens_at(now), 0
        while pause.opens_at(now) == now and group < 100:
            pause.sent(now, limit)
            group += 1
        groups.append(group)
    return groups


def test_after_a_hold_groups_go_that_double(pause: Pause) -> None:
    pause.hold(10.0)
    assert pause.opens_at(10.0) > 10.0
    assert sent_groups(pause, 10.0, 1000.0, 4) == [1, 2, 4, 8]


def test_groups_end_where_all_slots_may_be_taken(pause: Pause) -> None:
    pause.hold(10.0)
    assert sent_groups(pause, 10.0, 4.0, 3) == [1, 2, 100]


def test_a_refusal_ends_the_groups_and_tells_whether_the_first_attempt_met_it(pause: Pause) -> None:
    pause.hold(10.0)
    sent_groups(pause, 10.0, 1000.0, 1)
    assert pause.end_hold()
    assert sent_groups(pause, 11.0, 1000.0, 1) == [100]
    pause.hold(20.0)
    sent_groups(pause, 20.0, 1000.0, 2)
    assert not pause.end_hold()


def test_a_first_attempt_that_was_never_sent_is_made_again_alone(pause: Pause) -> None:
    pause.hold(10.0)
    opens = pause.opens_at(10.0)
    pause.sent(opens)
    pause.withdrawn(opens)
    assert not pause.end_hold()
    pause.hold(20.0)
    opens = pause.opens_at(20.0)
    pause.sent(opens)
    pause.withdrawn(opens)
    assert sent_groups(pause, opens, 1000.0, 2) == [1, 2]


def test_groups_end_where_the_key_was_idle(pause: Pause) -> None:
    pause.hold(10.0)
    sent_groups(pause, 10.0, 1000.0, 2)
    assert sent_groups(pause, 3600.0, 1000.0, 1) == [100]
