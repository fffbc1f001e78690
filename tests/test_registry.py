"""The registry itself: permits, executed callables, events, memory."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import tracemalloc
from contextvars import ContextVar
from typing import Any
from unittest.mock import MagicMock

import openai
import pytest

import tidegate
from tidegate.admission.registry import NotReady, RateLimitRegistry
from tidegate.admission.wait_queue import Waiter
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Key, Kind, Outcome
from tidegate.errors import PermitMisuse
from tidegate.testing import VirtualClock

KEY = tidegate.Key("p", "https://p.test", "abc", "m")
OK = Outcome(Kind.OK)


def make(**settings: Any) -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings(**settings))


class ProviderError(Exception):
    """What an SDK raises for a status."""

    def __init__(self, status: int, text: str = "") -> None:
        super().__init__(text or f"status {status}")
        self.status_code = status


class TestPermits:
    def test_try_admit_gives_permits_up_to_the_limit_and_then_says_when(self) -> None:
        registry = make(max_concurrency=2)
        permits = [registry.try_admit(KEY), registry.try_admit(KEY)]
        assert all(isinstance(permit, Permit) for permit in permits)
        refused = registry.try_admit(KEY)
        assert isinstance(refused, NotReady)
        assert not refused
        assert (refused.ready_at, refused.gate) == (float("inf"), "concurrency")

    def test_a_permit_settled_twice_is_misuse(self) -> None:
        registry = make()
        permit = registry.try_admit(KEY)
        registry.settle(permit, OK)  # type: ignore[arg-type]
        with pytest.raises(PermitMisuse, match="settled before"):
            registry.settle(permit, OK)  # type: ignore[arg-type]
        assert registry.snapshot().in_flight == 0

    def test_a_thread_keeps_its_deadline_behind_a_head_that_never_runs(self) -> None:
        """The head alone has a timer; where it is a task of the loop that this very thread blocks, it never looks."""
        registry = make(max_concurrency=1)
        assert registry.try_admit(KEY)
        stuck = Waiter(lambda: MagicMock(blocks=False), 0)
        stuck.deadline = float("inf")
        assert registry.enqueue(stuck, KEY, 60.0) is None
        with pytest.raises(tidegate.DeadlineExceeded):
            registry.execute(KEY, lambda: None, max_wait=0.05)
        assert registry.snapshot().waiting == 1


class TestExecute:
    def test_a_permanent_failure_is_raised_at_once_and_unchanged(self) -> None:
        calls: list[int] = []

        def call() -> None:
            calls.append(1)
            raise ProviderError(400)

        with pytest.raises(ProviderError, match="400"):
            make().execute("k", call)
        assert len(calls) == 1

    @pytest.mark.constants(FIRST_BACKOFF_SECONDS=0.001)
    def test_a_transient_failure_gets_three_attempts(self) -> None:
        registry, calls = make(), []

        def call() -> None:
            calls.append(1)
            raise ProviderError(500)

        with pytest.raises(ProviderError, match="500"):
            registry.execute("k", call)
        assert len(calls) == 3

    @pytest.mark.constants(FIRST_BACKOFF_SECONDS=0.001)
    @pytest.mark.parametrize("error", [ConnectionResetError("reset"), TimeoutError("late")])
    def test_connection_errors_and_timeouts_are_transient(self, error: Exception) -> None:
        registry = make()
        answers = iter([error, error, "answer"])
        assert registry.execute("k", lambda: raise_or_return(next(answers))) == "answer"

    @pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001, TRANSIENT_ATTEMPTS=1)
    def test_a_refusal_costs_no_attempt(self) -> None:
        registry = make()
        answers = iter([ProviderError(429)] * 6 + ["answer"])
        assert registry.execute("k", lambda: raise_or_return(next(answers))) == "answer"

    @pytest.mark.constants(FIRST_PAUSE_SECONDS=0.01, MAX_PAUSE_SECONDS=0.02)
    def test_at_the_deadline_the_last_refusal_is_raised(self) -> None:
        registry = make()
        with pytest.raises(ProviderError, match="429"):
            registry.execute("k", lambda: raise_or_return(ProviderError(429)), max_wait=0.1)

    def test_a_call_that_never_got_its_turn_raises_deadline_exceeded_with_the_facts(self) -> None:
        registry = make(max_concurrency=1)
        registry.try_admit(KEY)
        with pytest.raises(tidegate.DeadlineExceeded) as caught:
            registry.execute(KEY, lambda: 1, max_wait=0.02)
        assert (caught.value.key, caught.value.max_wait, caught.value.gate) == (KEY, 0.02, "concurrency")
        assert caught.value.waited >= 0.02
        assert isinstance(caught.value, TimeoutError)

    @pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001)
    def test_the_callers_own_predicates_decide(self) -> None:
        registry = make()
        answers = iter([{"error": "busy", "after": 0.001}, {"answer": 1}])
        result = registry.execute(
            "k",
            lambda: next(answers),
            is_rate_limited=lambda result, error: bool(result and "error" in result),
            get_retry_after=lambda result, error: result["after"] if result else None,
        )
        assert result == {"answer": 1}
        (key,) = registry.snapshot().keys.values()
        assert key.refused == 1

    def test_a_predicate_that_says_no_overrules_the_status(self) -> None:
        with pytest.raises(ProviderError):
            make().execute(
                "k", lambda: raise_or_return(ProviderError(429)), is_rate_limited=lambda result, error: False
            )

    def test_headers_of_a_result_teach_the_mirror(self) -> None:
        registry = make()
        headers = {
            "x-ratelimit-limit-requests": "60",
            "x-ratelimit-remaining-requests": "59",
            "x-ratelimit-reset-requests": "1s",
        }
        registry.execute("k", lambda: "x", get_headers=lambda result: headers)
        (key,) = registry.snapshot().keys.values()
        assert (key.quotas[0].limit, key.quotas[0].window) == (60, 60)

    def test_headers_that_cannot_be_had_are_no_error(self) -> None:
        assert make().execute("k", lambda: "x", get_headers=lambda result: None) == "x"

    @pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001)
    def test_an_async_callable_is_awaited(self) -> None:
        async def main() -> int:
            registry = make()
            answers = iter([ProviderError(429), 7])

            async def call() -> int:
                return raise_or_return(next(answers))

            return await registry.aexecute("k", call)

        assert asyncio.run(main()) == 7

    def test_a_keyboard_interrupt_goes_through_and_gives_the_slot_back(self) -> None:
        registry = make()

        def call() -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            registry.execute("k", call)
        assert registry.snapshot().in_flight == 0


def raise_or_return(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


class TestEvents:
    def test_a_call_is_told_from_its_slot_to_its_end(self) -> None:
        registry, heard = make(), []
        registry.subscribe(heard.append)
        registry.execute("k", lambda: 1)
        assert [type(event).__name__ for event in heard] == [
            "SlotAcquired",
            "RequestStarted",
            "AttemptEnded",
            "SlotReleased",
            "RequestCompleted",
        ]

    def test_what_a_finalizer_gave_back_is_told_by_whoever_comes_next_and_in_nobodys_context(self) -> None:
        """A finalizer runs in the middle of anything, where a listener might wait for a lock of its own for ever."""
        registry, heard, here = make(), [], ContextVar("here", default="nowhere")
        permit = registry.try_admit(KEY)
        registry.subscribe(lambda event: heard.append((type(event).__name__, here.get())))
        here.set("somewhere")
        registry.drop(permit)
        assert heard == []
        registry.try_admit(KEY)
        assert heard == [("SlotReleased", "nowhere"), ("SlotAcquired", "somewhere")]

    def test_what_nobody_comes_to_tell_is_told_with_the_next_snapshot(self) -> None:
        registry, heard = make(), []
        permit = registry.try_admit(KEY)
        registry.subscribe(heard.append)
        registry.drop(permit)
        registry.snapshot()
        assert [type(event).__name__ for event in heard] == ["SlotReleased"]

    def test_a_listener_may_use_the_registry(self) -> None:
        registry, seen = make(), []
        registry.subscribe(lambda event: seen.append(registry.snapshot().in_flight))
        registry.execute("k", lambda: 1)
        assert len(seen) == 5


class TestMemory:
    @pytest.mark.constants(MAX_REGISTRY_KEYS=64)
    def test_keys_beyond_the_bound_are_forgotten_with_their_memory(self) -> None:
        """Ten thousand keys of 4 kB each would hold 40 MB; 64 are kept."""
        registry = make()

        def use(count: int, name: str) -> None:
            for number in range(count):
                permit = registry.try_admit(tidegate.Key("p", f"https://{name}{number}.test"))
                registry.settle(permit, OK)  # type: ignore[arg-type]

        use(9_000, "warm")
        gc.collect()
        tracemalloc.start()
        use(1_000, "cold")
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(registry.snapshot().keys) <= 64
        assert grown < 500_000

    @pytest.mark.constants(MAX_REGISTRY_KEYS=4)
    def test_a_key_in_use_is_never_forgotten(self) -> None:
        registry = make()
        permit = registry.try_admit(KEY)
        for number in range(50):
            other = registry.try_admit(tidegate.Key("p", f"https://{number}.test"))
            registry.settle(other, OK)  # type: ignore[arg-type]
        assert registry.snapshot().keys[KEY].in_flight == 1
        registry.settle(permit, OK)  # type: ignore[arg-type]


def test_a_snapshot_lets_other_calls_in_between_any_two_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    free: list[str] = []

    class Lock:
        def __init__(self) -> None:
            self._lock = real()

        def __enter__(self) -> None:
            self._lock.acquire()

        def __exit__(self, *error: object) -> None:
            self._lock.release()
            free.append("free")

    real = threading.RLock
    monkeypatch.setattr(threading, "RLock", Lock)
    reads: list[int] = []
    clock = VirtualClock()

    def read() -> float:
        reads.append(len(free))
        return clock()

    registry = RateLimitRegistry(tidegate.Settings(), clock=read)
    for number in range(5):
        registry.try_admit(tidegate.Key("p", f"https://{number}.test"))
    reads.clear()
    assert len(registry.snapshot().keys) == 5
    assert len(reads) == 5
    assert len(set(reads)) == 5, "two keys were read while the lock was held"


def test_the_default_registry_is_one_and_the_same() -> None:
    assert tidegate.registry() is tidegate.registry()


@pytest.mark.parametrize("step", ["resent", "gave_up", "seat"])
def test_a_permit_that_is_dropped_inside_any_step_goes_back_at_its_end(step: str) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    key = Key("openai", "https://provider.test", "", "m", "")
    permit = registry.try_admit(key)
    assert permit

    class Dropping(Waiter):
        @property
        def queue(self) -> Any:
            registry.drop(permit)
            return registry._queues[key]

        def bind_queue(self, queue: object) -> None:
            registry.drop(permit)

    waiter = Dropping.__new__(Dropping)
    {
        "resent": lambda: registry.count(waiter, lambda counts: counts.note_resent(Outcome(Kind.RATE_LIMIT), True)),
        "gave_up": lambda: registry.count(waiter, lambda counts: counts.note_given_up(None)),
        "seat": lambda: registry.bind_waiter(waiter, key, 60.0),
    }[step]()
    assert permit.settled


@pytest.mark.parametrize("stand_in", [None, MagicMock()], ids=["forbidden", "mocked"])
def test_a_stack_whose_import_is_forbidden_or_mocked_is_nobodys_error(
    monkeypatch: pytest.MonkeyPatch, registry: RateLimitRegistry, stand_in: Any
) -> None:
    monkeypatch.setitem(sys.modules, "requests", stand_in)
    with openai.OpenAI(api_key="sk-test") as client:
        assert registry.wrap(client) is client
    try:
        assert "httpx" in tidegate.install(registry)
    finally:
        tidegate.uninstall()
