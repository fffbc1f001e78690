"""A permit that a scheduler asked for is spent by the first attempt below it, and a refusal comes straight back."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

import tidegate
from tests.sdk.asking import KINDS, Script, at_rest, failures, make, mocked, ok, only, refusal, request
from tidegate.admission.handoff import PermitHandoff, hand_off
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core import events
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Key, Kind, Outcome
from tidegate.errors import PermitMisuse
from tidegate.testing import Distribution, OutageSpan, Scenario, Simulator

ONE = tidegate.Settings(max_concurrency=1, max_wait=60.0)
PLAIN = tidegate.Key("p", "https://p.test")


def outcome_of(kind: str, client: Any, **fields: Any) -> Any:
    async def answered() -> Any:
        return await request(kind, client, **fields)

    try:
        return asyncio.run(answered()) if kind.startswith("async") else request(kind, client, **fields)
    except Exception as error:
        return error


def learned_key(registry: RateLimitRegistry, kind: str, client: Any) -> Key:
    """The key that a question asks for, as one question tells it."""
    with hand_off(registry) as hand:
        assert failures([outcome_of(kind, client)]) == []
    (key,) = hand.keys
    return key


def permit_of(registry: RateLimitRegistry, key: Key) -> Permit:
    permit = registry.try_admit(key)
    assert isinstance(permit, Permit)
    return permit


@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize("kind", KINDS)
class TestHandedDown:
    def start(self, kind: str, listening: bool, *answers: Any) -> tuple[RateLimitRegistry, Any, Script, Key]:
        registry = RateLimitRegistry(ONE)
        script = Script(kind, ok(kind), *answers)
        client = registry.wrap(mocked(kind, script))
        key = learned_key(registry, kind, client)
        if listening:
            registry.subscribe(lambda event: None)
        return registry, client, script, key

    def test_the_first_attempt_goes_out_under_it_though_nobody_else_may(self, kind: str, listening: bool) -> None:
        registry, client, script, key = self.start(kind, listening, ok(kind))
        with hand_off(registry, permit_of(registry, key)) as hand:
            assert not registry.try_admit(key)
            assert failures([outcome_of(kind, client)]) == []
        assert (len(script.requests), only(registry).attempts, at_rest(registry)) == (2, 2, True)
        assert hand.outcome is not None
        assert hand.outcome.kind is Kind.OK

    def test_a_refusal_comes_straight_back_and_is_not_repeated(self, kind: str, listening: bool) -> None:
        registry, client, script, key = self.start(kind, listening, refusal(kind, retry_after="30"))
        with hand_off(registry, permit_of(registry, key)) as hand:
            error = outcome_of(kind, client)
        assert type(error).__name__ == "RateLimitError"
        assert len(script.requests) == 2
        assert hand.refused is not None
        assert (hand.refused.kind, hand.refused.retry_after, hand.refused_at) == (Kind.RATE_LIMIT, 30.0, key)
        assert registry.try_admit(key).gate == "pause"  # type: ignore[union-attr]
        assert at_rest(registry)

    def test_who_repeats_the_refused_attempt_is_not_made_to_wait(self, kind: str, listening: bool) -> None:
        registry, client, script, key = self.start(kind, listening, refusal(kind, retry_after="30"))
        with hand_off(registry, permit_of(registry, key)):
            outcome_of(kind, client)
            again = outcome_of(kind, client)
        assert type(again).__name__ == "RateLimitError"
        assert len(script.requests) == 2

    def test_the_second_attempt_stands_in_the_queue_as_always(self, kind: str, listening: bool) -> None:
        registry, client, script, key = self.start(
            kind, listening, ok(kind), refusal(kind, retry_after="0.01"), ok(kind)
        )
        with hand_off(registry, permit_of(registry, key)) as hand:
            assert failures([outcome_of(kind, client), outcome_of(kind, client)]) == []
        assert len(script.requests) == 4
        assert hand.refused is None

    def test_a_permit_of_another_key_stays(self, kind: str, listening: bool) -> None:
        registry, client, _, _ = self.start(kind, listening, ok(kind))
        with hand_off(registry, permit_of(registry, PLAIN)):
            assert failures([outcome_of(kind, client)]) == []
            assert registry.snapshot().keys[PLAIN].in_flight == 1
        assert at_rest(registry)


def test_an_unused_permit_teaches_nothing_and_gives_its_slot_back(registry: RateLimitRegistry) -> None:
    with hand_off(registry, permit_of(registry, PLAIN)) as hand:
        pass
    hand.close()
    assert (only(registry).attempts, only(registry).abandoned, at_rest(registry)) == (0, 0, True)


def test_a_permit_that_was_withdrawn_cannot_be_settled(registry: RateLimitRegistry) -> None:
    permit = permit_of(registry, PLAIN)
    registry.withdraw(permit)
    with pytest.raises(PermitMisuse):
        registry.settle(permit, Outcome(Kind.OK))
    with pytest.raises(PermitMisuse):
        registry.withdraw(permit)


def test_work_in_a_thread_of_the_same_context_spends_it(registry: RateLimitRegistry) -> None:
    with hand_off(registry, permit_of(registry, PLAIN)) as hand:
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: context.run(registry.execute, PLAIN, lambda: None))
        thread.start()
        thread.join(300)
    assert only(registry).attempts == 1
    assert list(hand.keys) == [PLAIN]


def test_a_permit_is_spent_once_by_two_calls_at_once() -> None:
    registry = RateLimitRegistry(ONE)
    running = threading.Barrier(2)
    most, now, lock = [0], [0], threading.Lock()

    def call() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        with lock:
            now[0] -= 1

    def work() -> None:
        running.wait(300)
        registry.execute(PLAIN, call)

    with hand_off(registry, permit_of(registry, PLAIN)):
        contexts = [contextvars.copy_context() for _ in range(2)]
        threads = [threading.Thread(target=context.run, args=(work,)) for context in contexts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
    assert (most[0], only(registry).attempts, at_rest(registry)) == (1, 2, True)


@pytest.mark.constants(OUTAGE_FAILURES=1, FIRST_COOLDOWN_SECONDS=0.01)
def test_the_failure_of_a_probe_comes_straight_back_and_is_nobodys_attempt() -> None:
    """An open breaker lets one probe out; its failure must not hold the scheduler's slot for the cool-down."""
    scenario = Scenario(outages=(OutageSpan(start=0.0, end=3600.0, status=500),), latency=Distribution.constant(0.001))
    with Simulator(scenario) as provider:
        registry = RateLimitRegistry(tidegate.Settings())
        with registry.wrap(make("openai", provider.url, max_retries=0)) as client, hand_off(registry) as hand:
            outcome_of("openai", client)
        (key,) = hand.keys
        asked = threading.Event()
        while not (permit := registry.try_admit(key)):
            asked.wait(0.005)
        assert isinstance(permit, Permit)
        assert permit.probe
        with registry.wrap(make("openai", provider.url, max_retries=2)) as client, hand_off(registry, permit) as hand:
            error = outcome_of("openai", client)
        truth = provider.truth()
    assert type(error).__name__ == "InternalServerError"
    assert hand.refused is not None
    assert (hand.refused.kind, hand.refused.cause) == (Kind.TRANSIENT, Cause.OUTAGE)
    assert truth.total.refused["outage"] == 2


class TestAsking:
    def test_who_was_told_not_now_is_told_once_when_a_permit_is_settled(self) -> None:
        registry = RateLimitRegistry(ONE)
        permit = permit_of(registry, PLAIN)
        told: list[str] = []

        def wake() -> None:
            told.append("now")

        for _ in range(3):
            assert registry.try_admit(PLAIN, wake=wake).ready_at == float("inf")  # type: ignore[union-attr]
        assert told == []
        registry.settle(permit, Outcome(Kind.OK))
        assert told == ["now"]
        registry.withdraw(permit_of(registry, PLAIN))
        assert told == ["now"]

    def test_who_gets_a_permit_is_not_told(self) -> None:
        registry = RateLimitRegistry(ONE)
        told: list[str] = []
        permit = registry.try_admit(PLAIN, wake=lambda: told.append("now"))
        assert isinstance(permit, Permit)
        registry.settle(permit, Outcome(Kind.OK))
        assert told == []

    def test_a_withdrawn_permit_is_news(self) -> None:
        registry = RateLimitRegistry(ONE)
        permit = permit_of(registry, PLAIN)
        told: list[str] = []
        registry.try_admit(PLAIN, wake=lambda: told.append("now"))
        registry.withdraw(permit)
        assert told == ["now"]

    def test_who_stands_in_the_line_goes_first(self) -> None:
        registry = RateLimitRegistry(ONE)
        permit = permit_of(registry, PLAIN)
        order: list[str] = []
        joined = threading.Event()
        registry.subscribe(lambda event: joined.set() if isinstance(event, events.SlotAcquired) else None)
        caller = threading.Thread(target=lambda: registry.execute(PLAIN, lambda: order.append("stood")))
        caller.start()
        while registry.snapshot().waiting != 1:
            joined.wait(0.001)
        asked = registry.try_admit(PLAIN, wake=lambda: order.append("asked"))
        assert not asked
        registry.settle(permit, Outcome(Kind.OK))
        caller.join(300)
        assert order == ["stood", "asked"]

    def test_a_hand_remembers_no_more_than_the_first_keys(self, registry: RateLimitRegistry) -> None:
        with hand_off(registry) as hand:
            for number in range(40):
                registry.execute(f"key {number}", lambda: None)
        assert isinstance(hand, PermitHandoff)
        assert len(hand.keys) == 16
        assert next(iter(hand.keys)).base_url == "key 0"
