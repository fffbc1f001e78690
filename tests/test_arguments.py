"""Wrong arguments are refused where they are written, and poison nobody's key."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import pytest

import tidegate
from tests.core.values import PricedWaiter
from tidegate import Key, Settings
from tidegate.admission.callers import ReadyCallback
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.values import Cost, Kind, Outcome, QuotaReading
from tidegate.errors import ConfigurationError
from tidegate.experiments import Evaluator, Experiment, RunnerSettings

KEY = Key("custom", "k")
NAN, INFINITY = float("nan"), float("inf")

BAD_AMOUNTS: list[Any] = [NAN, INFINITY, -INFINITY, -1.0, -50, 10**400, True, "7", None, 1e300]
BAD_WAITS = [-1, NAN, -INFINITY, "5", True, [1]]
BAD_PRIORITIES = ["x", 1.5, True, None, NAN]
BAD_KEYS = [None, "", "  ", 7, ("a", "b"), b"k"]


def ask(registry: RateLimitRegistry, door: str, **options: Any) -> object:
    key = options.pop("key", KEY)
    if door == "execute":
        return registry.execute(key, lambda: "ok", **options)
    if door == "try_admit":
        return registry.try_admit(key, **options)

    async def answer() -> str:
        return "ok"

    return asyncio.run(registry.aexecute(key, answer, **options))


@pytest.mark.parametrize("door", ["execute", "aexecute", "try_admit"])
@pytest.mark.parametrize("field", Cost._fields)
def test_cost_with_unusable_amount_is_refused_at_every_door(door: str, field: str) -> None:
    registry = RateLimitRegistry(Settings())
    for amount in BAD_AMOUNTS:
        with pytest.raises(ConfigurationError) as caught:
            ask(registry, door, cost=Cost(**{field: amount}))
        assert caught.value.field == f"cost.{field}"
    assert not registry.snapshot().attempts


@pytest.mark.parametrize("door", ["execute", "aexecute", "try_admit"])
@pytest.mark.parametrize("cost", ["x", 5, (1.0,), {"tokens": 5}], ids=repr)
def test_cost_that_is_no_cost_is_refused(door: str, cost: Any) -> None:
    with pytest.raises(ConfigurationError, match="a Cost"):
        ask(RateLimitRegistry(Settings()), door, cost=cost)


def test_cost_without_weight_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        ask(RateLimitRegistry(Settings()), "execute", cost=Cost(weight=0.0))
    assert caught.value.field == "cost.weight"


@pytest.mark.parametrize("door", ["execute", "aexecute"])
@pytest.mark.parametrize(
    ("field", "values"), [("max_wait", BAD_WAITS), ("priority", BAD_PRIORITIES), ("key", BAD_KEYS)]
)
def test_call_with_unusable_option_is_refused(door: str, field: str, values: list[Any]) -> None:
    registry = RateLimitRegistry(Settings())
    for value in values:
        if field == "max_wait" and value is None:
            continue
        with pytest.raises(ConfigurationError) as caught:
            ask(registry, door, **{field: value})
        assert caught.value.field == field
    assert not registry.snapshot().keys


def test_max_wait_infinite_is_accepted() -> None:
    assert ask(RateLimitRegistry(Settings()), "execute", max_wait=INFINITY) == "ok"
    tidegate.wrap(httpx.Client(), max_wait=INFINITY)


@pytest.mark.parametrize("options", [{"max_wait": True}, {"max_wait": NAN}, {"priority": True}, {"priority": 1.5}])
def test_wrap_with_unusable_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        tidegate.wrap(httpx.Client(), **options)


def test_priority_of_another_type_harms_no_other_call() -> None:
    registry = RateLimitRegistry(Settings(max_concurrency=1))
    permit = registry.try_admit(KEY)
    answers: list[object] = []

    def call(priority: Any) -> None:
        try:
            answers.append(registry.execute(KEY, lambda: "ok", priority=priority))
        except ConfigurationError as error:
            answers.append(error.field)

    threads = [threading.Thread(target=call, args=(each,)) for each in (0, "x", 0)]
    for thread in threads:
        thread.start()
    registry.settle(permit, Outcome(Kind.OK))  # type: ignore[arg-type]
    for thread in threads:
        thread.join(30)
    assert sorted(answers) == ["ok", "ok", "priority"]  # type: ignore[type-var]


REFUSED_THEN_ANSWERED: list[Callable[[], Any]] = [
    lambda: "5",
    lambda: "soon",
    lambda: True,
    lambda: [1],
    lambda: NAN,
    lambda: INFINITY,
    lambda: -1,
    lambda: {}["missing"],
]


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.001, MAX_PAUSE_SECONDS=0.001)
@pytest.mark.parametrize("hint", REFUSED_THEN_ANSWERED)
def test_retry_after_that_is_no_number_counts_as_none(
    hint: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    registry = RateLimitRegistry(Settings())
    left = iter([429, 429, 200])

    def retry_after(result: Any, error: Any) -> Any:
        return hint()

    with caplog.at_level(logging.WARNING, logger="tidegate"):
        answer = registry.execute(
            KEY,
            lambda: next(left),
            is_rate_limited=lambda result, error: result == 429,
            get_retry_after=retry_after,
        )
    assert answer == 200
    assert registry.snapshot().keys[KEY].refused == 2


def test_unusable_getter_is_logged_once_and_loses_no_result(caplog: pytest.LogCaptureFixture) -> None:
    registry = RateLimitRegistry(Settings())

    def broken(*facts: Any) -> Any:
        raise ValueError("a mistake in the caller's code")

    with caplog.at_level(logging.WARNING, logger="tidegate"):
        for _ in range(3):
            assert registry.execute(KEY, lambda: 1, is_rate_limited=broken, get_headers=broken) == 1
    assert sum("result of is_rate_limited unusable" in each.getMessage() for each in caplog.records) == 1
    assert registry.snapshot().in_flight == 0


def test_headers_that_are_no_mapping_lose_no_result() -> None:
    registry = RateLimitRegistry(Settings())
    headers: Any = lambda result: 5  # noqa: E731
    assert registry.execute(KEY, lambda: 1, get_headers=headers) == 1
    assert registry.snapshot().in_flight == 0


class Unreadable(Mapping[str, str]):
    """Headers of a response that was closed."""

    def __getitem__(self, name: str) -> str:
        raise RuntimeError("the response is closed")

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


class Undecided:
    """As an array: it has no truth."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def test_answer_of_a_getter_that_cannot_be_read_costs_no_result() -> None:
    registry = RateLimitRegistry(Settings())
    assert registry.execute(KEY, lambda: 1, get_headers=lambda result: Unreadable()) == 1
    undecided: Any = Undecided()
    assert registry.execute(KEY, lambda: 1, is_rate_limited=lambda result, error: undecided) == 1


@pytest.mark.parametrize("kind", [Settings, RunnerSettings])
def test_settings_boolean_is_no_number(kind: Any) -> None:
    for name, field in kind.model_fields.items():
        if field.annotation in (int, float):
            with pytest.raises(ConfigurationError, match=name):
                kind(**{name: True})


@pytest.mark.parametrize("options", [{"repetitions": True}, {"max_concurrency": True}, {"task_timeout": True}])
def test_experiment_boolean_is_no_number(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Experiment("e", [], lambda row: row, **options)
    with pytest.raises(ConfigurationError):
        Evaluator(lambda row, output: 1, timeout=True)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.constants(START_CONCURRENCY=1000)
@pytest.mark.parametrize("amount", [NAN, INFINITY, -50.0])
def test_price_that_is_unusable_closes_and_opens_no_quota(amount: float) -> None:
    """A provider's own table prices calls too, and those never pass the door for arguments."""
    clock = Clock()
    registry = RateLimitRegistry(Settings(), clock=clock)

    def read(remaining: float) -> Outcome:
        return Outcome(
            Kind.OK, readings=(QuotaReading("requests", "requests", "continuous", 10, remaining, None, 60.0),)
        )

    registry.settle(registry.try_admit(KEY), read(3))  # type: ignore[arg-type]
    permit = registry.enter(
        PricedWaiter(lambda: ReadyCallback(lambda: None), price=lambda estimate: Cost(requests=amount, tokens=amount)),
        KEY,
        60.0,
    )
    assert permit is not None
    registry.settle(permit, Outcome(Kind.OK))
    admitted = 0
    while admitted < 100 and registry.try_admit(KEY):
        admitted += 1
    assert admitted <= 3
    clock.now += 3600.0
    assert registry.try_admit(KEY)
