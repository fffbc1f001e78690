"""What becomes of a refusal under real SDK clients: waited out, or handed back as the provider's own error."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

import tidegate
from tests.effort import some
from tests.relief import relieved_after
from tests.sdk.asking import (
    KINDS,
    OPENAI_KINDS,
    Script,
    ask,
    at_rest,
    failures,
    make,
    mocked,
    ok,
    only,
    refusal,
)
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.concurrency_limit import START_CONCURRENCY
from tidegate.testing import Distribution, Limit, Scenario, Simulator

RATE_LIMIT_ERRORS = (openai.RateLimitError, anthropic.RateLimitError)


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.02, MAX_PAUSE_SECONDS=0.2)
@pytest.mark.parametrize("retry_after", some(["absurd", "none"], ["exact", "late"]))
@pytest.mark.parametrize("kind", KINDS)
def test_a_storm_of_429s_loses_no_call_whatever_the_provider_says_of_the_time(kind: str, retry_after: Any) -> None:
    """The provider admits 30 calls and refuses all others until it has refused three."""
    scenario = Scenario(
        limiters=(Limit(limit=30, window=3600.0),),
        headers=False,
        retry_after=retry_after,
        latency=Distribution.constant(0.01),
    )
    registry = RateLimitRegistry(tidegate.Settings())
    with Simulator(scenario) as provider, relieved_after(3, provider, Limit(limit=30, window=0.3)):
        results = ask(kind, registry.wrap(make(kind, provider.url)), count=60)
        truth = provider.truth()
    assert failures(results) == []
    assert truth.total.answered == 60
    assert truth.total.refusals >= 3
    assert at_rest(registry)


@pytest.mark.parametrize("kind", KINDS)
def test_with_headers_the_limit_is_kept_almost_without_429s(kind: str, registry: RateLimitRegistry) -> None:
    """The first answer tells the limit, and the calls after it keep it, however slowly they come."""
    scenario = Scenario(limiters=(Limit(limit=40, window=1.0),), latency=Distribution.constant(0.02))
    with Simulator(scenario) as provider:
        results = ask(kind, registry.wrap(make(kind, provider.url)))
        results += ask(kind, registry.wrap(make(kind, provider.url)), count=80)
        truth = provider.truth()
    assert failures(results) == []
    assert truth.total.refusals <= 20


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_storm_without_tidegate_loses_calls(kind: str) -> None:
    scenario = Scenario(limiters=(Limit(limit=5, window=30.0),), headers=False, retry_after="none")
    with Simulator(scenario) as provider:
        results = ask(kind, make(kind, provider.url, max_retries=1), count=20)
    assert len(failures(results)) > 0


NO_MONEY = refusal("openai", "insufficient_quota", "You exceeded your current quota, please check your plan.")
NEVER = {
    "too large": refusal("openai", message="Request too large for gpt-test: Limit 30000, Requested 32042"),
}


@pytest.mark.parametrize("answer", NEVER.values(), ids=NEVER)
@pytest.mark.parametrize("kind", OPENAI_KINDS)
def test_what_no_waiting_can_mend_costs_one_request_and_is_the_native_error(
    kind: str, answer: Any, registry: RateLimitRegistry
) -> None:
    script = Script(kind, answer)
    (error,) = ask(kind, registry.wrap(mocked(kind, script)))
    assert len(script.requests) == 1
    assert type(error) is openai.RateLimitError
    assert error.body["message"] == answer[2]["error"]["message"]
    assert only(registry).limit == START_CONCURRENCY, "it taught something"


@pytest.mark.parametrize("kind", OPENAI_KINDS)
def test_an_account_without_money_is_asked_as_often_as_by_the_sdk_alone(kind: str, registry: RateLimitRegistry) -> None:
    """A provider's servers may differ for a while after a payment."""
    script = Script(kind, NO_MONEY)
    (error,) = ask(kind, registry.wrap(mocked(kind, script, max_retries=2)))
    assert len(script.requests) == 3
    assert type(error) is openai.RateLimitError
    assert error.code == "insufficient_quota"
    flapping = Script(kind, NO_MONEY, NO_MONEY, ok(kind))
    assert failures(ask(kind, registry.wrap(mocked(kind, flapping, max_retries=2)))) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_key_costs_one_request_and_is_the_native_error(kind: str, registry: RateLimitRegistry) -> None:
    body = {
        "type": "error",
        "error": {"type": "authentication_error", "message": "invalid key", "code": "invalid_api_key"},
    }
    script = Script(kind, (401, {}, body))
    (error,) = ask(kind, registry.wrap(mocked(kind, script)))
    assert len(script.requests) == 1
    assert type(error).__name__ == "AuthenticationError"
    assert "x-should-retry" not in error.response.headers


def test_an_anthropic_spend_cap_is_not_waited_for(registry: RateLimitRegistry) -> None:
    details = {"error_code": "enforced_spend_limit_reached"}
    error = {"type": "rate_limit_error", "message": "You have reached your API usage limits.", "details": details}
    script = Script("anthropic", (429, {}, {"type": "error", "error": error}))
    (caught,) = ask("anthropic", registry.wrap(mocked("anthropic", script, max_retries=1)))
    assert len(script.requests) == 2
    assert isinstance(caught, anthropic.RateLimitError)


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_call_goes_on_and_the_caller_never_sees_it(kind: str, registry: RateLimitRegistry) -> None:
    script = Script(kind, refusal(kind, retry_after="0.01"), refusal(kind, retry_after="0.01"), ok(kind))
    results = ask(kind, registry.wrap(mocked(kind, script, max_retries=0)))
    assert failures(results) == []
    assert len(script.requests) == 3
    assert only(registry).refused == 2


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.02, MAX_PAUSE_SECONDS=0.05)
@pytest.mark.parametrize("kind", KINDS)
def test_at_the_deadline_the_providers_own_last_refusal_is_handed_back_once(kind: str) -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_wait=1.0))
    # How many there are until the deadline depends on how fast the machine is.
    script = Script(kind, *(refusal(kind, message=f"Rate limit reached the {n}. time;") for n in range(1, 100)))
    (error,) = ask(kind, registry.wrap(mocked(kind, script)))
    assert isinstance(error, RATE_LIMIT_ERRORS)
    assert f"Rate limit reached the {len(script.requests)}. time;" in str(error)
    assert error.response.headers["x-should-retry"] == "false"
    assert at_rest(registry)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_was_never_sent_gets_a_429_of_its_own_http_library(kind: str) -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
    with Simulator() as provider:
        assert failures(ask(kind, registry.wrap(make(kind, provider.url)))) == []
        assert registry.try_admit(only(registry).key)
        (error,) = ask(kind, registry.wrap(make(kind, provider.url), max_wait=0.05))
        truth = provider.truth()
    assert isinstance(error, RATE_LIMIT_ERRORS)
    assert truth.total.received == 1
    assert error.response.headers["x-should-retry"] == "false"
    assert "max_wait = 0.05 s" in str(error)
    assert "concurrency" in str(error)
    assert "secret" not in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_max_wait_0_hands_the_refusal_back_at_once(kind: str, registry: RateLimitRegistry) -> None:
    script = Script(kind, refusal(kind))
    (error,) = ask(kind, registry.wrap(mocked(kind, script), max_wait=0))
    assert isinstance(error, RATE_LIMIT_ERRORS)
    assert len(script.requests) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_retry_after_on_a_success_is_ignored(kind: str, registry: RateLimitRegistry) -> None:
    script = Script(kind, ok(kind, retry_after="3600"))
    client = registry.wrap(mocked(kind, script, max_retries=0), max_wait=1)
    assert failures(ask(kind, client, count=30)) == []
    assert only(registry).paused_for == 0


def test_a_body_that_can_be_sent_once_is_handed_back_for_the_sdk_to_rebuild(
    registry: RateLimitRegistry,
) -> None:
    from tests.sdk.asking import http

    script = Script("openai", refusal("openai", retry_after="0"))
    client = registry.wrap(http.Client(transport=http.MockTransport(script)))
    response = client.post("https://provider.test/v1/chat/completions", content=iter([b"{}"]))
    assert response.status_code == 429
    assert "x-should-retry" not in response.headers
    assert len(script.requests) == 1
