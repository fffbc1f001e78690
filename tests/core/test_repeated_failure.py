"""Calls that fail again and again while others are answered: a key that works is told from a call that never can."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import KEY, OK, OUTAGE, REFUSED, TIMEOUT
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.exchange import Ending
from tidegate.core.repeated_failure import HOLD_SECONDS
from tidegate.core.values import INFINITY, Cost, Outcome
from tidegate.settings import Settings


def answer_another(scene: Scene) -> None:
    other = scene.call()
    assert other.state == "sent", "another call is held"
    scene.clock.advance(0.05)
    other.reply(OK)


def fail_until_ended(scene: Scene, call: Caller, outcome: Outcome, seconds: float, others: bool = True) -> list[int]:
    """Answer each attempt of the call with `outcome`, and another call meanwhile; return attempts and answers."""
    attempts, answers, end, other = 0, 0, scene.clock() + seconds, None
    while call.state != "ended" and scene.clock() < end:
        if call.state == "sent":
            attempts += 1
            call.reply(outcome)
        other = scene.call() if others and other is None else other
        scene.clock.advance(0.05)
        call.poll()
        if other is not None and other.poll() == "sent":
            answers += other.reply(OK) == "ended"
            other = None
    return [attempts, answers]


def test_failure_of_a_key_that_never_answered_is_handed_back_at_once() -> None:
    scene = Scene()
    call = scene.call()
    assert call.reply(OUTAGE) == "ended"
    assert call.ended is not None
    assert call.ended.ending is Ending.HANDED_BACK


def test_failure_of_a_lone_caller_is_handed_back_at_once() -> None:
    """It exceeds no limit of the provider, and its client may have been told to repeat nothing."""
    scene = Scene()
    answer_another(scene)
    call = scene.call()
    assert call.reply(OUTAGE) == "ended"
    assert call.ended is not None
    assert call.ended.ending is Ending.HANDED_BACK


def test_failure_between_answers_is_repeated_here() -> None:
    scene = Scene()
    answer_another(scene)
    assert scene.call().state == "sent"
    call = scene.call()
    assert call.reply(OUTAGE) == "waiting"
    scene.clock.advance(0.2)
    assert call.poll() == "sent"
    assert call.reply(OK) == "ended"
    assert call.ended is not None
    assert call.ended.ending is Ending.ANSWERED


def test_time_limit_of_the_caller_is_never_repeated_here() -> None:
    scene = Scene()
    answer_another(scene)
    assert scene.call().reply(TIMEOUT) == "ended"


def test_call_that_always_fails_is_handed_back_soon() -> None:
    scene = Scene()
    answer_another(scene)
    call = scene.call()
    assert fail_until_ended(scene, call, OUTAGE, 10.0)[0] <= 5
    assert call.ended is not None
    assert call.ended.ending is Ending.HANDED_BACK


@pytest.mark.constants(TRANSIENT_ATTEMPTS=6, FIRST_BACKOFF_SECONDS=0.001, MAX_BACKOFF_SECONDS=0.001)
def test_call_of_a_function_has_all_attempts_of_its_policy_while_others_are_answered() -> None:
    settings = Settings()
    registry, attempts = RateLimitRegistry(settings), []

    def fail() -> None:
        attempts.append(registry.execute(KEY, lambda: None))
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        registry.execute(KEY, fail)
    assert len(attempts) == 6


FAILED_500 = OUTAGE._replace(status=500)


def run_program(scene: Scene, calls: int, fails: Callable[[int, float], bool], seconds: float) -> dict[int, Outcome]:
    """Run calls, eight at a time, each repeated twice as an SDK does; return the last outcome of each that ended."""
    waiting, ended, end = list(range(calls)), dict[int, Outcome](), scene.clock() + seconds
    flying: dict[int, tuple[Caller, int]] = {}
    while len(ended) < calls and scene.clock() < end:
        while waiting and len(flying) < 8:
            flying[waiting.pop(0)] = scene.call(), 2
        for number, (caller, repeats) in list(flying.items()):
            if caller.poll() == "sent":
                caller.reply(FAILED_500 if fails(number, scene.clock()) else OK)
            if caller.state != "ended":
                continue
            result = caller.ended
            assert result is not None
            assert result.attempt is not None
            if result.ending is Ending.HANDED_BACK and repeats:
                flying[number] = scene.call(), repeats - 1
            else:
                ended[number] = result.attempt.outcome
                del flying[number]
        scene.clock.advance(0.1)
    return ended


def test_last_calls_of_a_program_that_fail_by_themselves_have_their_error_within_half_a_minute() -> None:
    ended = run_program(Scene(), 40, lambda number, now: number % 10 == 9, 33.0)
    assert [number for number in range(40) if ended.get(number) is not OK] == [9, 19, 29, 39]
    assert ended[9] == ended[19] == ended[29] == ended[39] == FAILED_500


@pytest.mark.parametrize("flaky", [0, 20])
def test_failures_of_an_outage_of_minutes_are_waited_for_whatever_failed_before_it(flaky: int) -> None:
    scene = Scene()
    began, answered = scene.clock(), set[int]()

    def fails(number: int, now: float) -> bool:
        if 5.0 <= now - began < 125.0:
            return True
        once = flaky > 0 and number % flaky == 3 and number not in answered
        answered.add(number)
        return once

    ended = run_program(scene, 1_000, fails, 300.0)
    assert [ended.get(number) for number in range(1_000)] == [OK] * 1_000


def test_without_answers_between_one_repetition_is_enough() -> None:
    scene = Scene()
    answer_another(scene)
    assert scene.call().state == "sent"
    call = scene.call()
    assert fail_until_ended(scene, call, OUTAGE, 10.0, others=False)[0] == 2
    assert call.state == "ended"


def test_call_that_is_always_refused_holds_no_other_and_ends_within_half_a_minute() -> None:
    scene = Scene()
    for _ in range(20):
        answer_another(scene)
    call = scene.call()
    attempts, answers = fail_until_ended(scene, call, REFUSED, 30.0)
    assert 3 <= attempts <= 15
    assert answers > 200
    assert call.ended is not None
    assert call.ended.ending is Ending.GIVEN_UP


def test_refused_call_without_any_other_waits_for_its_deadline() -> None:
    scene = Scene()
    answer_another(scene)
    call = scene.call()
    fail_until_ended(scene, call, REFUSED, 300.0, others=False)
    assert call.state != "ended"


def test_call_that_is_larger_than_others_is_answered_from_a_hidden_bucket_that_they_drain() -> None:
    """Small calls could use all that flows into the bucket; a large one needs most of what the bucket holds."""
    scene, level, filled_at = Scene(), 60_000.0, 0.0
    callers: list[tuple[Caller, float]] = []
    answered_at: dict[Caller, float] = {}
    large: list[Caller] = []

    def arrives(tokens: float) -> None:
        caller = scene.call(cost=Cost(1.0, tokens, tokens))
        callers.append((caller, tokens))
        if tokens > 1_000.0:
            large.append(caller)

    for _ in range(16):
        arrives(1_000.0)
    while scene.clock() < 400.0:
        scene.clock.advance(0.05)
        if scene.clock() >= 60.0 and not any(each.state != "ended" for each in large):
            arrives(30_000.0)
        for place, (caller, tokens) in enumerate(callers):
            if caller.poll() != "sent":
                continue
            if caller in answered_at:
                if scene.clock() >= answered_at[caller]:
                    caller.reply(OK)
            else:
                level, filled_at = min(60_000.0, level + 2_000.0 * (scene.clock() - filled_at)), scene.clock()
                if level < tokens:
                    caller.reply(REFUSED)
                else:
                    level -= tokens
                    answered_at[caller] = scene.clock() + 0.5
            if caller.state == "ended" and tokens == 1_000.0:
                again = scene.call(cost=Cost(1.0, tokens, tokens))
                callers[place] = (again, tokens)
    *ended, _ = large
    assert len(ended) >= 4
    assert all(each in answered_at for each in ended)


PLAIN_SECONDS = 2.0
"""Seconds after which an SDK alone raises a refusal: its two retries (openai 3.52: after 0.5 and 1 s)."""


def play_workers(latency: float, workers: int, tokens: float, seconds: float) -> tuple[float, int, float]:
    """Play workers whose calls cost 10 tokens and are answered, beside one call that is always refused.

    Return the end of the latter, the number of answers, and the longest time without one.
    """
    scene = Scene()
    ends: dict[Caller, float] = {}
    callers = [scene.call(cost=Cost(1.0, 10.0, 10.0)) for _ in range(workers)]
    answers: list[float] = [scene.clock()]
    refused: Caller | None = None
    began_at, ended_at = 0.0, INFINITY
    end = scene.clock() + seconds
    while scene.clock() < end:
        scene.clock.advance(0.05)
        for place, caller in enumerate(callers):
            if caller.poll() == "sent" and scene.clock() >= ends.setdefault(caller, scene.clock() + latency):
                caller.reply(OK)
                answers.append(scene.clock())
                callers[place] = scene.call(cost=Cost(1.0, 10.0, 10.0))
        if refused is None and len(answers) > workers:
            refused = scene.call(cost=Cost(1.0, tokens, tokens))
            began_at = scene.clock()
        if (
            refused is not None
            and ended_at == INFINITY
            and refused.poll() == "sent"
            and refused.reply(REFUSED) == "ended"
        ):
            ended_at = scene.clock() - began_at
    gaps = [after - before for before, after in pairwise([*answers, scene.clock()])]
    return ended_at, len(answers) - 1, max(gaps)


@pytest.mark.parametrize("tokens", [10.0, 10_000.0])
@pytest.mark.parametrize(("latency", "workers"), [(0.5, 2), (0.5, 8), (1.0, 2), (3.0, 16), (5.0, 8)])
def test_call_that_never_fits_ends_within_half_a_minute(latency: float, workers: int, tokens: float) -> None:
    ended_at, answers, gap = play_workers(latency, workers, tokens, 120.0)
    assert ended_at < PLAIN_SECONDS + 30.0
    assert answers > 0.6 * workers * 120.0 / latency
    assert gap < 2.0 + max(latency, HOLD_SECONDS if tokens > 10.0 else 0.0)


@pytest.mark.parametrize(
    ("latency", "workers", "tokens", "seconds"),
    [
        (8.0, 16, 10.0, 32.0),
        (8.0, 16, 10_000.0, 36.0),
        (10.0, 16, 10.0, 40.0),
        (20.0, 100, 10.0, 60.0),
        (5.0, 2, 10.0, 65.0),
        (5.0, 2, 10_000.0, 65.0),
        (30.0, 8, 10.0, 155.0),
    ],
)
def test_call_that_never_fits_ends_later_where_answers_to_others_do(
    latency: float, workers: int, tokens: float, seconds: float
) -> None:
    """Two calls that were sent after its refusals must be answered, eight where less than one a second is."""
    ended_at, answers, gap = play_workers(latency, workers, tokens, 200.0)
    assert ended_at < seconds
    assert answers > 0.6 * workers * 200.0 / latency
    assert gap < 2.0 + max(latency, HOLD_SECONDS if tokens > 10.0 else 0.0)


def others_go_beside(scene: Scene, large: Caller) -> bool:
    """Refuse a large call twice; return whether another call is answered before it is sent again."""
    for _ in range(2):
        while large.poll() != "sent":
            scene.clock.advance(0.05)
        large.reply(REFUSED)
    other = scene.call()
    while large.poll() != "sent":
        if other.poll() == "sent":
            return other.reply(OK) == "ended"
        scene.clock.advance(0.05)
    return False


def answer_when_sent(scene: Scene, call: Caller) -> None:
    while call.poll() != "sent":
        scene.clock.advance(0.05)
    assert call.reply(OK) == "ended"


def test_size_that_never_fitted_holds_no_other_until_one_is_answered() -> None:
    scene, cost = Scene(), Cost(1.0, 10_000.0, 10_000.0)
    for _ in range(20):
        answer_another(scene)
    first, second = scene.call(cost=cost), scene.call(cost=cost)
    assert not others_go_beside(scene, first)
    fail_until_ended(scene, first, REFUSED, 120.0)
    assert first.state == "ended"
    assert others_go_beside(scene, second)
    answer_when_sent(scene, second)
    answer_when_sent(scene, scene.call())
    assert not others_go_beside(scene, scene.call(cost=cost))
