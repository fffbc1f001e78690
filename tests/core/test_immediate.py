"""Calls that do not wait (`max_wait=0`), calls with little time, and calls that could only wait in vain."""

from __future__ import annotations

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import OK, OUTAGE, REFUSED, answer, bucket, fixed, refusal
from tidegate.core.events import Event, QueueDeadline
from tidegate.core.exchange import Ending
from tidegate.core.values import Cause, QuotaReading


def day_quota(remaining: float, reset: float = 14_400.0) -> QuotaReading:
    return fixed(100.0, remaining, name="requests-day", window=86_400.0, reset_after=reset)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def ending(caller: Caller) -> Ending | None:
    return caller.ended.ending if caller.ended is not None else None


def test_fifty_immediate_calls_on_a_fresh_key_are_all_sent(scene: Scene) -> None:
    calls = [scene.call(max_wait=0) for _ in range(50)]
    assert {each.state for each in calls} == {"sent"}
    for each in calls:
        each.reply(OK)
    assert (scene.seen.answered, scene.seen.in_flight) == (50, 0)


def test_immediate_calls_keep_the_bound_on_calls_in_flight() -> None:
    scene = Scene(max_concurrency=8)
    calls = [scene.call(max_wait=0) for _ in range(20)]
    assert [each.state for each in calls] == ["sent"] * 8 + ["ended"] * 12
    assert {ending(each) for each in calls[8:]} == {Ending.EXPIRED}


def test_immediate_call_is_not_sent_without_quota(scene: Scene) -> None:
    scene.call().reply(answer(bucket(10.0, 2.0)))
    calls = [scene.call(max_wait=0) for _ in range(5)]
    assert [each.state for each in calls].count("sent") <= 2
    assert ending(calls[-1]) is Ending.EXPIRED
    assert calls[-1].ended is not None
    assert calls[-1].ended.gate == "quota requests"


def test_immediate_call_in_a_cooldown_is_told_its_end_and_not_sent(scene: Scene) -> None:
    first = scene.call(max_wait=0)
    first.reply(refusal(30.0), "own")
    assert first.ended is not None
    assert first.ended.attempt is not None
    assert first.ended.attempt.response == "own"
    second = scene.call(max_wait=0)
    assert ending(second) is Ending.EXPIRED
    assert second.ended is not None
    assert (second.ended.attempt, second.ended.opens_in) == (None, 30.0)
    assert scene.seen.attempts == 1


@pytest.mark.constants(OUTAGE_FAILURES=1)
def test_immediate_call_behind_an_open_breaker_is_not_sent() -> None:
    scene = Scene()
    scene.call().reply(OUTAGE)
    call = scene.call(max_wait=0)
    assert call.ended is not None
    assert (ending(call), call.ended.gate) == (Ending.EXPIRED, "breaker")


def test_immediate_call_overtakes_a_line_that_only_slots_hold(scene: Scene) -> None:
    under_way = [scene.call() for _ in range(4)]
    waiting = scene.call()
    assert (len(under_way), waiting.state) == (4, "waiting")
    assert scene.call(max_wait=0).state == "sent"


def test_refusals_of_immediate_calls_cut_nothing(scene: Scene) -> None:
    """Calls sent beyond the learned slots teach nothing about the calls that wait."""
    ordinary = [scene.call() for _ in range(4)]
    before = scene.seen.limit
    beyond = [scene.call(max_wait=0) for _ in range(40)]
    for each in beyond:
        each.reply(REFUSED)
    seen = scene.seen
    assert (seen.refused, seen.limit, seen.paused_for) == (40, before, 0.0)
    for each in ordinary:
        each.reply(OK)
    assert [scene.call().state for _ in range(4)] == ["sent"] * 4


def test_time_that_a_refusal_of_an_immediate_call_names_holds_for_all(scene: Scene) -> None:
    under_way = [scene.call() for _ in range(4)]
    beyond = scene.call(max_wait=0)
    beyond.reply(refusal(5.0))
    assert scene.seen.paused_for == 5.0
    assert len(under_way) == 4


def test_call_with_little_time_is_sent_where_nothing_was_ever_refused(scene: Scene) -> None:
    under_way = [scene.call() for _ in range(4)]
    hurried = [scene.call(max_wait=0.001) for _ in range(30)]
    assert {each.state for each in (*under_way, *hurried)} == {"sent", "waiting"}
    scene.clock.advance(0.001)
    assert {each.poll() for each in hurried} == {"sent"}


def test_call_with_little_time_is_given_up_at_a_known_ceiling(scene: Scene) -> None:
    under_way = [scene.call() for _ in range(4)]
    under_way.pop().reply(refusal(cause=Cause.CONCURRENCY))
    hurried = [scene.call(max_wait=0.001) for _ in range(5)]
    scene.clock.advance(0.001)
    assert {each.poll() for each in hurried} == {"ended"}


@pytest.mark.parametrize("max_wait", [2.0, 3600.0])
def test_call_behind_a_spent_day_quota_ends_at_once(scene: Scene, max_wait: float) -> None:
    told: list[Event] = []
    scene.registry.subscribe(told.append)
    scene.call().reply(answer(day_quota(0.0)))
    call = scene.call(max_wait=max_wait)
    assert ending(call) is Ending.EXPIRED
    assert call.ended is not None
    assert call.ended.gate == "quota requests-day"
    assert call.ended.opens_in == pytest.approx(14_400.0, abs=1.0)
    assert [each.gate for each in told if isinstance(each, QueueDeadline)] == ["quota requests-day"]
    assert scene.seen.waiting == 0


def test_call_with_time_waits_for_a_spent_day_quota(scene: Scene) -> None:
    scene.call().reply(answer(day_quota(0.0)))
    assert scene.call(max_wait=20_000.0).state == "waiting"
    assert ending(scene.call(max_wait=3600.0)) is Ending.EXPIRED


def test_call_does_not_leave_while_one_under_way_may_return_its_charge(scene: Scene) -> None:
    scene.call().reply(answer(day_quota(1.0)))
    under_way = scene.call()
    assert under_way.state == "sent"
    call = scene.call()
    assert call.state == "waiting"
    under_way.reply(answer(day_quota(0.0)))
    assert call.poll() == "ended"


def test_cooldown_beyond_the_deadline_ends_a_call_at_once(scene: Scene) -> None:
    first = scene.call(max_wait=2.0)
    first.reply(refusal(100.0), "own")
    assert first.ended is not None
    assert (first.ended.ending, first.ended.gate, first.ended.opens_in) == (Ending.GIVEN_UP, "pause", 100.0)
    assert ending(scene.call(max_wait=2.0)) is Ending.EXPIRED


@pytest.mark.parametrize("hint", [7200.0, 86_400.0])
def test_long_hint_of_a_rate_limit_is_probed_after_a_pause(scene: Scene, hint: float) -> None:
    """`retry-after: 86400` beside a quota of a minute is no day quota."""
    first = scene.call()
    first.reply(refusal(hint))
    assert first.state == "waiting"
    assert scene.call().state == "waiting"
    scene.clock.advance(120.0)
    assert first.poll() == "sent"
