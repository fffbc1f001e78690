"""Refusals at random cost little; where a provider then refuses for a reason, the key notices and slows down."""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Callable

import pytest

from tests.core.scene import Caller, Scene
from tests.core.values import KEY, OK, bucket
from tests.effort import effort
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Cost, Kind, Outcome
from tidegate.settings import Settings

REFUSAL = Outcome(Kind.RATE_LIMIT, Cause.RATE, status=429)
OVERLOADED = Outcome(Kind.OVERLOADED, Cause.OVERLOAD, status=529)
UNAVAILABLE = Outcome(Kind.OVERLOADED, Cause.UNAVAILABLE, status=503)
BEGINS = 20.0
"""Instant at which the provider begins to refuse for a reason."""


def refused_by_tens(
    admits: Callable[[float], bool], until: float, callers: int
) -> tuple[list[int], AdmissionController]:
    """Return the refusals of each ten seconds; of the calls before `BEGINS`, 30 % are refused at random."""
    drawn, now, ended = random.Random(1), 0.0, list[tuple[float, int, Permit, Outcome]]()
    key = AdmissionController(KEY, Settings(), 60.0, 0.0)
    counts = [0] * int(until // 10 + 1)
    while now < until:
        ready, _ = key.ready_at(Cost(), now)
        if ready <= now and len(ended) < callers:
            permit = key.admit(Cost(), now, 1.0, None)
            good = drawn.random() >= 0.3 if now < BEGINS else admits(now)
            counts[int(now // 10)] += not good
            assert counts[-1] < 20_000, "the key resends without end"
            after = drawn.uniform(0.4, 0.6) if good else 0.05 * (1 + 0.2 * drawn.random())
            heapq.heappush(ended, (now + after, permit.order, permit, OK if good else REFUSAL))
            continue
        now = max(now, min([each[0] for each in ended[:1]] + [ready] * (len(ended) < callers)))
        while ended and ended[0][0] <= now:
            _, _, permit, outcome = heapq.heappop(ended)
            key.settle(permit, outcome, now, drawn.random(), None)
    return counts, key


@pytest.mark.parametrize("callers", [4, 50])
def test_refusals_that_are_no_longer_random_slow_the_key_down(callers: int) -> None:
    counts, _ = refused_by_tens(lambda now: False, 50.0, callers)
    assert counts[3] <= 20
    assert counts[4] <= 20


def test_bucket_after_random_refusals_is_paced() -> None:
    level, at = 5.0, BEGINS

    def admits(now: float) -> bool:
        nonlocal level, at
        level, at = min(5.0, level + 5.0 * (now - at)), now
        if level < 1.0:
            return False
        level -= 1.0
        return True

    counts, _ = refused_by_tens(admits, 60.0, 50)
    assert max(counts[3:6]) <= 30


AMPLE = (bucket(10_000.0, 9_990.0),)


def answered_in_half_a_minute(share: float, refusal: Outcome, ample: bool, seconds: float, seed: int) -> float:
    """Return the part of the answers to 32 callers that are left where a `share` is refused after `seconds`."""
    drawn, now, ended, answers = random.Random(seed), 0.0, list[tuple[float, int, Permit, Outcome]](), 0
    key = AdmissionController(KEY, Settings(), 60.0, 0.0)
    while now < 30.0:
        ready, _ = key.ready_at(Cost(), now)
        if ready <= now and len(ended) < 32:
            permit = key.admit(Cost(), now, 0.0, None)
            good = drawn.random() >= share
            outcome = (OK if good else refusal)._replace(readings=AMPLE if ample else ())
            after = drawn.uniform(0.4, 0.6) * (1.0 if good else seconds / 0.5)
            heapq.heappush(ended, (now + after, permit.order, permit, outcome))
            continue
        now = max(now, min([each[0] for each in ended[:1]] + [ready] * (len(ended) < 32)))
        while ended and ended[0][0] <= now:
            _, _, permit, outcome = heapq.heappop(ended)
            answers += outcome.kind is Kind.OK
            key.settle(permit, outcome, now, drawn.random(), None)
    return answers / (32 * 30 / (0.5 + share / (1.0 - share) * seconds))


NAMED = [refusal._replace(retry_after=1.0) for refusal in (OVERLOADED, UNAVAILABLE)]


@pytest.mark.parametrize("refusal", [OVERLOADED, UNAVAILABLE, *NAMED], ids=["529", "503", "529 named", "503 named"])
@pytest.mark.parametrize("seconds", [0.05, 0.15, 0.5], ids=["refused at once", "refused soon", "refused late"])
@pytest.mark.parametrize("ample", [True, False], ids=["ample", "silent"])
@pytest.mark.parametrize("share", [0.03, 0.1])
def test_overloads_at_random_cost_little_more_than_their_repetition(
    share: float, ample: bool, seconds: float, refusal: Outcome
) -> None:
    """Of six runs, one had 0.4 of the answers while clusters of random refusals were taken for a limit."""
    runs = [answered_in_half_a_minute(share, refusal, ample, seconds, seed) for seed in range(effort(6, 30))]
    assert statistics.mean(runs) >= (1.0 / 1.05 if share < 0.05 else 1.0 / 1.15)
    assert min(runs) >= 0.8


@pytest.mark.parametrize("share", [0.03, 0.1])
def test_a_429_far_from_the_announced_quota_may_be_random(share: float) -> None:
    runs = [answered_in_half_a_minute(share, REFUSAL, True, 0.5, seed) for seed in range(effort(2, 10))]
    assert min(runs) >= 0.9


def refused_by_slots(slots: int, callers: int, seed: int, refusal: Outcome = OVERLOADED) -> tuple[int, int]:
    """Return the refusals and the answers in 20 seconds where calls beyond some slots are overloads."""
    drawn, now, ended = random.Random(seed), 0.0, list[tuple[float, int, Permit, Outcome]]()
    key = AdmissionController(KEY, Settings(), 60.0, 0.0)
    running = refused = answers = 0
    while now < 20.0:
        ready, _ = key.ready_at(Cost(), now)
        if ready <= now and len(ended) < callers:
            permit = key.admit(Cost(), now, 0.0, None)
            good = running < slots
            running, refused = running + good, refused + (not good)
            after = drawn.uniform(0.4, 0.6) if good else drawn.uniform(0.02, 0.04)
            heapq.heappush(ended, (now + after, permit.order, permit, OK if good else refusal))
            continue
        now = max(now, min([each[0] for each in ended[:1]] + [ready] * (len(ended) < callers)))
        while ended and ended[0][0] <= now:
            _, _, permit, outcome = heapq.heappop(ended)
            good = outcome.kind is Kind.OK
            running, answers = running - good, answers + good
            key.settle(permit, outcome, now, drawn.random(), None)
    return refused, answers


def test_overloads_of_calls_in_flight_together_show_slots() -> None:
    """Medians; 44 calls were refused and 0.68 of the slots used while only the first of a wave counted."""
    runs = [refused_by_slots(40, 64, seed) for seed in range(effort(4, 8))]
    assert statistics.median(refused for refused, _ in runs) <= 25
    assert statistics.median(answers for _, answers in runs) >= 0.85 * 40 * 20.0 / 0.5


@pytest.mark.parametrize("refusal", NAMED, ids=["529", "503"])
def test_overloads_of_slots_that_name_a_time_keep_their_bounds(refusal: Outcome) -> None:
    """Medians; while each named time bound the key, 10 calls were refused and 0.57 of the slots used."""
    runs = [refused_by_slots(40, 64, seed, refusal) for seed in range(effort(4, 8))]
    assert statistics.median(refused for refused, _ in runs) <= 20
    assert statistics.median(answers for _, answers in runs) >= 0.55 * 40 * 20.0 / 0.5


def served(scene: Scene, calls: int) -> list[Caller]:
    """Return the calls of a key that has just answered one."""
    scene.call().reply(OK)
    return [scene.call() for _ in range(calls)]


@pytest.mark.parametrize("refusal", NAMED, ids=["529", "503"])
def test_a_time_named_for_a_load_binds_the_refused_call_alone(refusal: Outcome) -> None:
    scene = Scene()
    refused, other = served(scene, 2)
    assert refused.reply(refusal) == "waiting"
    scene.clock.advance(0.1)
    assert other.reply(OK) == "ended"
    assert scene.call().state == "sent"
    scene.clock.advance(0.8)
    assert refused.poll() == "waiting"
    scene.clock.advance(0.1)
    assert refused.poll() == "sent"


@pytest.mark.parametrize("refusal", [*NAMED, REFUSAL._replace(retry_after=1.0)], ids=["529", "503", "429"])
def test_a_time_binds_the_key_where_nothing_is_answered_or_a_quota_is_spoken_of(refusal: Outcome) -> None:
    scene = Scene()
    refused, _ = served(scene, 2)
    if refusal.status != 429:
        scene.clock.advance(10.0)
    refused.reply(refusal)
    assert scene.call().state == "waiting"


def refused_by_an_outage(refusal: Outcome) -> int:
    """Return the refusals of 20 seconds that answer nothing, at 32 callers."""
    drawn, now, ended, refused = random.Random(1), 0.0, list[tuple[float, int, Permit, Outcome]](), 0
    key = AdmissionController(KEY, Settings(), 60.0, 0.0)
    while now < 30.0:
        ready, _ = key.ready_at(Cost(), now)
        if ready <= now and len(ended) < 32:
            permit = key.admit(Cost(), now, 0.0, None)
            good = not 5.0 <= now < 25.0
            refused += not good
            after = drawn.uniform(0.4, 0.6) if good else 0.02
            heapq.heappush(ended, (now + after, permit.order, permit, OK if good else refusal))
            continue
        now = max(now, min([each[0] for each in ended[:1]] + [ready] * (len(ended) < 32)))
        while ended and ended[0][0] <= now:
            _, _, permit, outcome = heapq.heappop(ended)
            key.settle(permit, outcome, now, drawn.random(), None)
    return refused


@pytest.mark.parametrize("refusal", NAMED, ids=["529", "503"])
def test_an_outage_that_names_a_time_meets_fewer_requests_than_one_that_does_not(refusal: Outcome) -> None:
    """25 instead of 32 (529), and 16 instead of 27 (503); 11 while each named time bound the key."""
    assert refused_by_an_outage(refusal) < refused_by_an_outage(refusal._replace(retry_after=None))
