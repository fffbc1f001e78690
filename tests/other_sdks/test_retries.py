"""The retries of cohere, mistralai and replicate: stopped where we gave up, the SDK's own everywhere else."""

from __future__ import annotations

from typing import Any

import cohere
import pytest
import replicate
from cohere.core import http_client
from mistralai.client import Mistral
from mistralai.client.utils import BackoffStrategy, RetryConfig, retries

import tidegate
from tests.other_sdks.giving import ONCE, RepeatedQuestion, giving_up, hurried, one, refusals, spend, tallied
from tests.other_sdks.kinds import ANSWER, KINDS, MESSAGES
from tests.transports.answering import Server
from tidegate.testing import Fault, Scenario, Simulator

pytestmark = pytest.mark.constants(FIRST_PAUSE_SECONDS=0.02, MAX_PAUSE_SECONDS=0.2)

EAGER = RetryConfig("backoff", BackoffStrategy(1, 2, 1.0, 400, jitter_ms=0), False)
"""Repeats every few milliseconds, for the better part of a second."""

PATIENT = RetryConfig("backoff", BackoffStrategy(1, 2, 1.0, 600_000, jitter_ms=0), False)
"""Repeats for longer than any of these takes."""

REFUSED = b'{"title": "Too Many Requests", "detail": "Request was throttled.", "status": 429}'
PREDICTION = b"""{"id": "p", "version": "v", "status": "succeeded", "input": {}, "output": "High.", "logs": "",
"model": "a/b", "urls": {}, "created_at": "2026-01-01T00:00:00Z"}"""


def repeating(name: str, url: str, config: RetryConfig) -> tuple[Mistral, RepeatedQuestion]:
    client = Mistral(api_key="k", server_url=url, retry_config=config)
    return client, KINDS[name].asking(client)


@pytest.mark.parametrize("name", ["mistral", "async mistral"])
def test_a_retry_config_of_mistrals_ends_where_we_gave_up(name: str) -> None:
    registry = giving_up()
    with Simulator(ONCE) as provider:
        spend(provider)
        client, asking = repeating(name, provider.url, EAGER)
        registry.wrap(client)
        error = one(asking)
        assert (registry.snapshot().attempts, refusals(provider)) == (1, 1)
    assert isinstance(error, KINDS[name].error)


@pytest.mark.parametrize("name", ["mistral", "async mistral"])
def test_a_transient_failure_is_still_repeated_as_the_retry_config_says(name: str) -> None:
    registry = hurried()
    with Simulator(Scenario(faults=(Fault(kind="status", nth=(1, 2), status=500),))) as provider:
        client, asking = repeating(name, provider.url, PATIENT)
        registry.wrap(client)
        assert one(asking) == ANSWER
        assert tallied(registry, provider) == (3, 3)


def test_a_stream_of_coheres_that_was_given_up_on_is_one_request() -> None:
    registry = giving_up()
    with Simulator(ONCE) as provider, cohere.ClientV2(api_key="k", base_url=provider.url) as client:
        spend(provider)
        registry.wrap(client)
        with pytest.raises(cohere.TooManyRequestsError):
            list(client.chat_stream(model="m", messages=MESSAGES))
        assert (registry.snapshot().attempts, refusals(provider)) == (1, 1)


def test_every_attempt_of_replicates_has_its_own_permit_though_its_transport_repeats_too() -> None:
    registry = hurried()

    def reply(number: int, path: str) -> tuple[int, dict[str, str], bytes]:
        kind = {"content-type": "application/json"}
        return (429, kind, REFUSED) if number <= 3 else (201, kind, PREDICTION)

    with Server(reply) as server:
        client: Any = registry.wrap(replicate.Client(api_token="k", base_url=server.chat.partition("/v1")[0]))
        assert client.predictions.create(version="v", input={}).output == "High."
        assert server.seen == ["/v1/predictions"] * 4
        client._client.close()
    (key,) = registry.snapshot().keys.values()
    assert (key.key.provider, key.attempts, key.refused) == ("replicate", 4, 3)


def test_uninstalling_takes_the_functions_of_both_back_and_later_imports_stay_as_they_are() -> None:
    functions = [(http_client, "_should_retry"), (retries, "retry_with_backoff"), (retries, "retry_with_backoff_async")]

    def wrapped() -> list[bool]:
        return [hasattr(getattr(module, name), "__wrapped__") for module, name in functions]

    tidegate.install()
    assert all(wrapped())
    tidegate.uninstall()
    assert not any(wrapped())
