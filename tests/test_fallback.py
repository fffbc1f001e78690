"""Calls that several models or deployments may answer; waits are in virtual time."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import tidegate
from tidegate import fallbacks
from tidegate.admission import drive
from tidegate.admission.handoff import hand_off
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Kind, Outcome
from tidegate.fallbacks import Answered, Choice, Fallback, fallback
from tidegate.testing import Limit, Scenario, Simulator

pytestmark = pytest.mark.constants(TRANSIENT_ATTEMPTS=1)


class ProviderError(Exception):
    def __init__(self, status: int, body: Any = None, headers: dict[str, str] | None = None) -> None:
        super().__init__(f"status {status}")
        self.response = httpx.Response(status, json=body, headers=headers)
        self.status_code = status


NO_MONEY = 429, {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}
DAY = (
    429,
    {"error": {"message": "Rate limit reached on requests per day (RPD): Limit 200", "code": "rate_limit_exceeded"}},
)


class Model:
    """Model whose answers are drawn from a list: a status of 200 returns the name, any other is raised."""

    def __init__(self, name: str, *answers: Any) -> None:
        self.name = name
        self.answers = list(answers)
        self.calls = 0

    def __call__(self, row: int) -> str:
        self.calls += 1
        answer = self.answers.pop(0) if self.answers else 200
        if answer == 200:
            return f"{self.name} {row}"
        raise ProviderError(*answer) if isinstance(answer, tuple) else ProviderError(answer)


class VirtualWaits:
    """Interpreter of one call in virtual time: a wait moves the clock, unless a wake came before."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.woken = False
        self.runs = True
        self.registry = RateLimitRegistry(tidegate.Settings(), clock=lambda: self.now, draw=lambda: 1.0)

    def wake(self) -> bool:
        self.woken = True
        return self.runs

    def arm(self, until: float) -> bool:
        return self.wake()

    def wait(self, until: float | None, call: object) -> None:
        if not self.woken:
            assert until is not None, "it would wait for ever"
            self.now = max(self.now, until)
        self.woken = False

    def fallback(self, *models: Model, **options: Any) -> Fallback[str]:
        return fallback([Choice(each.name, each) for each in models], registry=self.registry, **options)


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> VirtualWaits:
    waits = VirtualWaits()
    monkeypatch.setattr(drive, "ThreadWaker", lambda: waits)
    return waits


def reasons(answered: Answered[Any]) -> list[tuple[str, str]]:
    return [(each.choice.split(" · ")[-1], each.reason) for each in answered.passed_over]


@pytest.mark.parametrize(("refusal", "reason"), [(NO_MONEY, "money"), (DAY, "day"), ((500,), "outage")])
def test_refusal_for_a_listed_reason_goes_to_the_next_choice(virtual: VirtualWaits, refusal: Any, reason: str) -> None:
    first, second = Model("a", refusal), Model("b")
    answered = virtual.fallback(first, second).execute(7)
    assert (answered.value, first.calls, second.calls) == ("b 7", 1, 1)
    assert answered.key == tidegate.Key("custom", "b")
    assert reasons(answered) == [("a", reason)]


def test_money_is_not_asked_again_while_its_key_is_rejected(virtual: VirtualWaits) -> None:
    first, second = Model("a", NO_MONEY, NO_MONEY), Model("b")
    judge = virtual.fallback(first, second)
    judge.execute(0)
    judge.execute(1)
    answered = judge.execute(2)
    assert (answered.value, first.calls) == ("b 2", 2)
    assert reasons(answered) == [("a", "money")]
    assert answered.passed_over[0].until is None


def test_any_other_failure_is_the_answer_and_raised_unchanged(virtual: VirtualWaits) -> None:
    first, second = Model("a", 401), Model("b")
    with pytest.raises(ProviderError, match="status 401"):
        virtual.fallback(first, second).execute(1)
    assert second.calls == 0
    exhausted = ValueError("of the caller")

    def broken(row: int) -> str:
        raise exhausted

    with pytest.raises(ValueError, match="of the caller") as raised:
        fallback([Choice("c", broken), Choice("b", second)], registry=virtual.registry).execute(1)
    assert raised.value is exhausted


def limited(seconds: int) -> Any:
    return 429, {"error": {"message": "slow down"}}, {"retry-after": str(seconds)}


def test_all_closed_waits_for_the_one_that_opens_first(virtual: VirtualWaits) -> None:
    first, second = Model("a", limited(100)), Model("b", limited(40))
    answered = virtual.fallback(first, second, on=["rate"]).execute(1)
    assert (answered.value, first.calls, second.calls) == ("b 1", 1, 2)
    assert 1040 <= virtual.now < 1100
    assert reasons(answered) == [("a", "rate")]


def test_rate_that_is_not_listed_is_waited_for_at_the_first_choice() -> None:
    first, second = Model("a", (429, {}, {"retry-after": "0.01"})), Model("b")
    judge = fallback([Choice("a", first), Choice("b", second)], registry=RateLimitRegistry())
    assert judge.execute(1).value == "a 1"
    assert (first.calls, second.calls) == (2, 0)


def test_when_none_opens_in_time_the_first_choices_own_refusal_is_raised(virtual: VirtualWaits) -> None:
    first, second = Model("a", limited(100)), Model("b", limited(40))
    with pytest.raises(ProviderError) as raised:
        virtual.fallback(first, second, on=["rate"]).execute(1, max_wait=5.0)
    assert raised.value.response.headers["retry-after"] == "100"
    assert raised.value.__notes__[-1].endswith("no choice opens in time; passed over a: rate, b: rate")
    assert virtual.now <= 1005


def test_without_money_anywhere_nothing_is_waited_for(virtual: VirtualWaits) -> None:
    """The first one is asked again, since nothing else can answer: it may work again."""
    first, second = Model("a", *[NO_MONEY] * 3), Model("b", NO_MONEY, NO_MONEY)
    judge = virtual.fallback(first, second)
    for _ in range(3):
        with pytest.raises((ProviderError, tidegate.Error), match="status 429"):
            judge.execute(1)
    assert (first.calls, second.calls, virtual.now) == (3, 2, 1000.0)
    assert judge.execute(2).value == "a 2"


@pytest.mark.parametrize(("patience", "chosen"), [(30.0, "a"), (10.0, "b")])
def test_patience_waits_for_a_better_choice_that_opens_soon(
    virtual: VirtualWaits, patience: float, chosen: str
) -> None:
    virtual.registry.try_admit(tidegate.Key("custom", "a"))
    first, second = Model("a", limited(20)), Model("b")
    judge = virtual.fallback(first, second, on=["rate"], patience=patience)
    assert judge.execute(1).value == "b 1"
    assert judge.execute(2).value == f"{chosen} 2"


def test_first_ready_spreads_over_deployments_and_passes_over_a_full_one(virtual: VirtualWaits) -> None:
    first, second = Model("a", 200, limited(50)), Model("b")
    judge = virtual.fallback(first, second, order="first_ready")
    assert [judge.execute(row).value for row in range(5)] == ["a 0", "b 1", "b 2", "b 3", "b 4"]
    virtual.now += 60
    assert {judge.execute(row).choice for row in (5, 6)} == {"a", "b"}


def test_first_ready_begins_each_call_with_the_next_deployment(virtual: VirtualWaits) -> None:
    judge = virtual.fallback(Model("a"), Model("b"), Model("c"), order="first_ready")
    assert [judge.execute(row).value for row in range(5)] == ["a 0", "b 1", "c 2", "a 3", "b 4"]


def test_line_is_first_come_first_served() -> None:
    line = fallbacks.WaitingLine()
    calls = [VirtualWaits() for _ in range(3)]
    for each in calls:
        line.join(each)
    assert [line.may_ask(each) for each in calls] == [True, False, False]
    line.leave(calls[1])
    assert not calls[2].woken
    line.leave(calls[0])
    assert calls[2].woken
    assert line.may_ask(calls[2])


def test_call_of_a_closed_loop_is_taken_out_of_the_line() -> None:
    line = fallbacks.WaitingLine()
    first, closed, last = (VirtualWaits() for _ in range(3))
    closed.runs = False
    for each in (first, closed, last):
        line.join(each)
    line.leave(first)
    assert last.woken
    assert line.may_ask(last)


def test_awaited_choices_and_a_cancelled_call_gives_its_permit_back() -> None:
    registry = RateLimitRegistry()

    async def refuses(row: int) -> str:
        raise ProviderError(*NO_MONEY)

    async def answers(row: int) -> str:
        return f"b {row}"

    async def main() -> None:
        entered = asyncio.Event()

        async def never(row: int) -> str:
            entered.set()
            await asyncio.Event().wait()
            return ""

        judge = fallback([Choice("a", refuses), Choice("b", answers)], registry=registry)
        assert (await judge.aexecute(3)).value == "b 3"
        task = asyncio.create_task(fallback([Choice("c", never)], registry=registry).aexecute(1))
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert registry.snapshot().in_flight == 0


SLOT = Scenario(limiters=(Limit(kind="slots", limit=1),))


def test_governed_clients_learn_their_keys_and_none_is_refused_twice() -> None:
    registry = RateLimitRegistry()
    with Simulator(SLOT) as one, Simulator(SLOT) as other, httpx.Client() as bare:
        client = registry.wrap(bare)

        def asks(simulator: Simulator) -> Callable[[int], httpx.Response]:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            return lambda row: client.post(f"{simulator.url}/v1/chat/completions", json=body)

        judge = fallback([Choice(None, asks(one)), Choice(None, asks(other))], order="first_ready", registry=registry)
        answers: list[Answered[httpx.Response]] = []
        threads = [threading.Thread(target=lambda row=row: answers.append(judge.execute(row))) for row in range(40)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert [each.value.status_code for each in answers] == [200] * 40
    by_key = {each.key: each.choice for each in answers}
    assert sorted(by_key.values()) == ["choice 1", "choice 2"]


@pytest.mark.parametrize(
    ("field", "choices", "options"),
    [
        ("choices", [], {}),
        ("choices", Choice("a", len), {}),
        ("choices", 3, {}),
        ("choices[0]", ["a"], {}),
        ("choices[0].name", [Choice("a", len, name=3)], {}),  # type: ignore[arg-type]
        ("choices[0].call", [Choice("a", None)], {}),  # type: ignore[arg-type]
        ("choices[1].key", [Choice("a", len), Choice("a", len, name="b")], {}),
        ("choices[1].name", [Choice("a", len, name="x"), Choice("b", len, name="x")], {}),
        ("key", [Choice(3, len)], {}),  # type: ignore[arg-type]
        ("cost", [Choice("a", len, cost=3)], {}),  # type: ignore[arg-type]
        ("choices[0].model", [Choice("a", len, model=3)], {}),  # type: ignore[arg-type]
        ("on", [Choice("a", len)], {"on": ["weather"]}),
        ("on", [Choice("a", len)], {"on": "day"}),
        ("on", [Choice("a", len)], {"on": 3}),
        ("registry", [Choice("a", len)], {"registry": "process"}),
        ("order", [Choice("a", len)], {"order": "random"}),
        ("patience", [Choice("a", len)], {"patience": float("nan")}),
        ("patience", [Choice("a", len)], {"patience": -1}),
        ("patience", [Choice("a", len)], {"patience": True}),
    ],
)
def test_bad_input_is_refused_at_once(field: str, choices: Any, options: dict[str, Any]) -> None:
    with pytest.raises(tidegate.ConfigurationError) as raised:
        fallback(choices, **options)
    assert raised.value.field == field


def test_key_that_direct_calls_queue_for_serves_the_fallback_in_turn() -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
    order: list[str] = []
    waiting, free = threading.Event(), threading.Event()
    key = tidegate.Key("custom", "a")

    def named(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    def first() -> None:
        waiting.set()
        free.wait(30)

    def direct(name: str) -> None:
        registry.execute("a", named(name))

    def through(row: str) -> None:
        order.append(row)

    judge = fallback([Choice("a", through)], registry=registry, on=["rate"])
    threads = [threading.Thread(target=lambda: registry.execute("a", first))]
    threads[0].start()
    waiting.wait(30)
    for target, name in ((direct, "before"), (judge.execute, "fallback"), (direct, "after")):
        threads.append(threading.Thread(target=target, args=(name,)))
        threads[-1].start()
        while registry.snapshot().keys[key].waiting < len(threads) - 1:
            pass
    free.set()
    for each in threads:
        each.join()
    assert order == ["before", "fallback", "after"]


def test_closed_choice_keeps_one_callback_however_many_calls_pass_it_over(virtual: VirtualWaits) -> None:
    first, second = Model("a", DAY, DAY), Model("b")
    judge = virtual.fallback(first, second)
    for row in range(50):
        assert judge.execute(row).choice.endswith("b")
    (queue,) = [each for key, each in virtual.registry._queues.items() if key.base_url == "a"]
    assert len(queue.ready_callbacks) <= 1


def test_max_wait_holds_for_a_client_that_is_governed_itself() -> None:
    registry = RateLimitRegistry()
    key = tidegate.Key("custom", "inner")
    permit = registry.try_admit(key)
    assert isinstance(permit, Permit)
    registry.settle(permit, Outcome(Kind.RATE_LIMIT, Cause.RATE, 3600.0))
    judge = fallback(
        [Choice(None, lambda row: registry.execute(key, lambda: row), name="inner")], registry=registry, on=["day"]
    )
    with pytest.raises(tidegate.DeadlineExceeded):
        judge.execute(1, max_wait=0.0)


def test_part_of_a_scheduled_work_tells_its_scheduler_of_keys_and_waits() -> None:
    registry = RateLimitRegistry()
    a, b = tidegate.Key("custom", "a"), tidegate.Key("custom", "b")
    permit = registry.try_admit(a)
    assert isinstance(permit, Permit)
    judge = fallback([Choice("a", Model("a", NO_MONEY)), Choice("b", Model("b"))], registry=registry)
    with hand_off(registry, permit) as work:
        assert judge.execute(1).value == "b 1"
    assert list(work.keys) == [a, b]
    assert (work.refused, work.outcome_at) == (None, b)
    assert registry.snapshot().keys[a].calls == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_child_of_a_fork_does_not_wait_for_the_line_of_its_parent() -> None:
    line = fallbacks.WaitingLine()
    line.join(VirtualWaits())
    child = os.fork()
    if child == 0:
        waker = VirtualWaits()
        line.join(waker)
        os._exit(0 if line.may_ask(waker) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
