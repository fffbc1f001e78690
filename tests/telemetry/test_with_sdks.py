"""Real SDKs, a simulated provider, and the user's own span around them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.trace import Tracer

import tidegate
from tests.sdk.asking import MESSAGES, make, request
from tests.telemetry.scene import Providers
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Distribution, Fault, Limit, Scenario, Simulator

SECRET = "sk-a-secret-of-the-tests"
REFUSING = Scenario(limiters=(Limit(limit=600),), faults=(Fault(kind="status", nth=(1, 2), status=429),))
"""Refuses the first two requests, however slowly they come, and tells its limit with the others."""

ONE_SLOT = tidegate.Settings(max_concurrency=1)


@pytest.fixture
def tracer(providers: Providers) -> Tracer:
    return providers.tracers.get_tracer("user")


@pytest.fixture
def told(registry: RateLimitRegistry, providers: Providers) -> RateLimitRegistry:
    providers.instrument(registry)
    return registry


def ask(client: Any, tracer: Tracer) -> None:
    with tracer.start_as_current_span("user"):
        request("openai", client)


def noted(span: Any) -> list[str]:
    return [event.name for event in span.events]


def test_what_happens_to_a_call_is_noted_on_the_users_span(
    told: RateLimitRegistry, providers: Providers, tracer: Tracer
) -> None:
    with Simulator(Scenario()) as simulator, told.wrap(make("openai", simulator.url)) as client:
        ask(client, tracer)
        port = int(simulator.url.rpartition(":")[2])
    (user,) = providers.spans("user")
    assert (noted(user)[0], noted(user)[-1]) == ("tidegate.request.started", "tidegate.request.completed")
    facts = dict(user.events[-1].attributes or {})
    elapsed = facts.pop("tidegate.elapsed")
    assert isinstance(elapsed, float)
    assert facts == {
        "gen_ai.provider.name": "openai",
        "gen_ai.operation.name": "chat",
        "tidegate.key.provider": "compatible",
        "gen_ai.request.model": "gpt-test",
        "server.address": "127.0.0.1",
        "server.port": port,
        "tidegate.attempt.count": 1,
        "http.response.status_code": 200,
    }


def test_where_the_sdk_makes_a_span_of_its_own_it_is_noted_there(told: RateLimitRegistry, providers: Providers) -> None:
    """anthropic 2.11 does (`_tracing.py`), by the same conventions."""
    options = {"open_telemetry": {"tracer_provider": providers.tracers}}
    with (
        Simulator(Scenario(dialect="anthropic")) as simulator,
        told.wrap(make("anthropic", simulator.url, **options)) as client,
        providers.span("user"),
    ):
        request("anthropic", client)
    (own,) = providers.spans("anthropic.messages.create")
    assert noted(own)[-1] == "tidegate.request.completed"
    said, facts = dict(own.attributes or {}), dict(own.events[-1].attributes or {})
    shared = ("gen_ai.provider.name", "gen_ai.operation.name", "gen_ai.request.model", "server.address", "server.port")
    assert [said[name] for name in shared] == [facts[name] for name in shared]


def test_each_of_many_calls_at_once_has_its_own_events_and_waits_on_its_own_span(
    providers: Providers, tracer: Tracer
) -> None:
    registry = RateLimitRegistry(ONE_SLOT)
    providers.instrument(registry)

    async def ask(client: Any, number: int) -> None:
        with tracer.start_as_current_span(f"user {number}"):
            await request("async_openai", client)

    async def main(url: str) -> None:
        async with registry.wrap(make("async_openai", url)) as client:
            await asyncio.gather(*(ask(client, number) for number in range(6)))

    with Simulator(Scenario(latency=Distribution.constant(0.03))) as simulator:
        asyncio.run(main(simulator.url))
    users = [providers.spans(f"user {number}")[0] for number in range(6)]
    for user in users:
        own = [name for name in noted(user) if name.startswith("tidegate.request.")]
        assert own == ["tidegate.request.started", "tidegate.request.completed"]
    waits = {span.parent.span_id: span for span in providers.spans("tidegate.wait") if span.parent is not None}
    assert len(waits) == len(providers.spans("tidegate.wait")) == 5
    assert set(waits) == {user.context.span_id for user in users[1:]}
    for user in users[1:]:
        wait = waits[user.context.span_id]
        assert user.start_time <= wait.start_time < wait.end_time <= user.end_time
        assert wait.attributes["tidegate.gate"] == "concurrency"


def test_the_slots_of_streams_are_measured_to_their_end(
    told: RateLimitRegistry, providers: Providers, tracer: Tracer
) -> None:
    with (
        Simulator(Scenario()) as simulator,
        told.wrap(make("openai", simulator.url)) as client,
        tracer.start_as_current_span("user"),
    ):
        stream = request("openai", client, stream=True)
        assert providers.points("tidegate.attempts") == {}
        assert [*stream]
    assert providers.points("tidegate.attempts", "tidegate.outcome", "http.response.status_code") == {("ok", 200): 1}
    assert "tidegate.request.completed" in providers.noted("user")


@pytest.mark.constants(START_CONCURRENCY=20)
def test_no_credential_no_prompt_and_no_answer_is_told(providers: Providers, tracer: Tracer) -> None:
    told = RateLimitRegistry(tidegate.Settings())
    providers.instrument(told)
    answers = []

    async def ask(client: Any, number: int) -> None:
        with tracer.start_as_current_span("user"):
            answers.append(await request("async_openai", client, user=f"customer-{number}"))

    async def main(url: str) -> None:
        async with told.wrap(make("async_openai", url)) as client:
            await asyncio.gather(*(ask(client, number) for number in range(12)))

    with Simulator(REFUSING) as provider:
        asyncio.run(main(provider.url))
    assert [state.refused for state in told.snapshot().keys.values()] == [2]
    (key,) = told.snapshot().keys
    everything = providers.reader.get_metrics_data().to_json()
    everything += "".join(span.to_json() for span in providers.exporter.get_finished_spans())
    assert "tidegate.rate_limit.hit" in everything
    assert "tidegate.quota.requests.remaining" in everything
    secrets = [SECRET, SECRET[-6:], key.credential, key.credential[:6], MESSAGES[0]["content"], "customer-"]
    secrets += [answer.choices[0].message.content for answer in answers] + [answer.id for answer in answers]
    assert [secret for secret in secrets if secret in everything] == []
