"""Transient failures stay the SDK's, an outage is the breaker's, and the two never multiply."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import tidegate
from tests.effort import some
from tests.sdk.asking import KINDS, Script, ask, at_rest, failures, http_of, make, mocked, ok, only
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.concurrency_limit import START_CONCURRENCY
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Kind, Outcome
from tidegate.testing import Distribution, OutageSpan, Scenario, Simulator

ERROR_500 = (500, {}, {"error": {"message": "The server had an error", "type": "server_error", "code": None}})


@pytest.mark.parametrize("kind", KINDS)
def test_max_retries_0_sees_its_first_500_at_once(kind: str, registry: RateLimitRegistry) -> None:
    script = Script(kind, ERROR_500, ok(kind))
    (error,) = ask(kind, registry.wrap(mocked(kind, script, max_retries=0)))
    assert type(error).__name__ == "InternalServerError"
    assert len(script.requests) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_an_sdk_repeats_transients_as_often_as_it_was_told_and_no_more(kind: str, registry: RateLimitRegistry) -> None:
    script = Script(kind, ERROR_500)
    (error,) = ask(kind, registry.wrap(mocked(kind, script, max_retries=1)))
    assert type(error).__name__ == "InternalServerError"
    assert len(script.requests) == 2
    assert [each.headers["x-stainless-retry-count"] for each in script.requests] == ["0", "1"]
    assert "x-should-retry" not in error.response.headers


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_error_stays_native_and_teaches_only_the_breaker(kind: str, registry: RateLimitRegistry) -> None:
    def refuse(request: Any) -> Any:
        raise http_of(kind).ConnectError("refused", request=request)

    (error,) = ask(kind, registry.wrap(mocked(kind, refuse, max_retries=0)))
    assert type(error).__name__ == "APIConnectionError"
    assert only(registry).limit == START_CONCURRENCY
    assert at_rest(registry)


@pytest.mark.parametrize("kind", KINDS)
def test_the_wait_in_the_queue_does_not_eat_the_timeout(kind: str) -> None:
    """A mocked transport heeds no timeout, so any wait in the queue may be longer than this one."""
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
    script = Script(kind, ok(kind))
    assert failures(ask(kind, registry.wrap(mocked(kind, script)))) == []
    permit = registry.try_admit(only(registry).key)
    assert isinstance(permit, Permit)

    def release() -> None:
        while registry.snapshot().waiting == 0:
            threading.Event().wait(0.001)
        threading.Event().wait(0.05)
        registry.settle(permit, Outcome(Kind.OK))

    releasing = threading.Thread(target=release)
    releasing.start()
    results = ask(kind, registry.wrap(mocked(kind, script, timeout=0.01, max_retries=0)))
    releasing.join()
    assert failures(results) == []
    assert set(script.requests[1].extensions["timeout"].values()) == {0.01}


@pytest.mark.parametrize("kind", KINDS)
def test_a_timeout_stays_native(kind: str, registry: RateLimitRegistry) -> None:
    with Simulator(Scenario(latency=Distribution.constant(60.0))) as provider:
        (error,) = ask(kind, registry.wrap(make(kind, provider.url, timeout=0.1, max_retries=0)))
    assert type(error).__name__ == "APITimeoutError"
    assert at_rest(registry)


@pytest.mark.parametrize("kind", some(["async_anthropic"], ["openai"]))
def test_a_five_second_outage_under_sdk_defaults_loses_no_call(kind: str, registry: RateLimitRegistry) -> None:
    scenario = Scenario(outages=(OutageSpan(start=0.0, end=5.0, status=500),), latency=Distribution.constant(0.02))
    with Simulator(scenario) as provider:
        results = ask(kind, registry.wrap(make(kind, provider.url)), count=30)
        truth = provider.truth()
    assert failures(results) == []
    assert truth.total.answered == 30
    # The first round opens while nothing comes back: on a busy machine that may be all of it.
    first_round = 30
    assert truth.total.refused.get("outage", 0) <= first_round + 15, "the breaker let more than probes through"
    assert only(registry).breaker == "closed"


@pytest.mark.constants(OUTAGE_FAILURES=2, FIRST_COOLDOWN_SECONDS=0.01)
def test_a_failed_probe_is_not_handed_back() -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    script = Script("async_openai", *[ERROR_500] * 6, ok("async_openai"))

    async def main() -> list[str]:
        seen: list[str] = []
        async with registry.wrap(mocked("async_openai", script, max_retries=0)) as client:
            for _ in range(3):
                try:
                    await client.chat.completions.create(model="m", messages=[])
                    seen.append("answered")
                except Exception as error:
                    seen.append(type(error).__name__)
        return seen

    # Two failures open the breaker and are handed back; the third call is the probe, four times refused, then answered.
    assert asyncio.run(main()) == ["InternalServerError", "InternalServerError", "answered"]
    assert len(script.requests) == 7
