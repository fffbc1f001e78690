"""What holds for the clients of every further SDK: groq, together, mistralai, cohere, ollama, huggingface_hub."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tidegate
from tests.other_sdks.giving import ONCE, TIGHT, at_rest, giving_up, hurried, one, refusals, spend, tallied, together
from tests.other_sdks.kinds import ANSWER, KINDS, Kind
from tidegate.testing import Fault, Scenario, Simulator

pytestmark = pytest.mark.constants(FIRST_PAUSE_SECONDS=0.02, MAX_PAUSE_SECONDS=0.2)


@pytest.fixture(params=KINDS.values(), ids=list(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def uninstalled() -> Iterator[None]:
    yield
    tidegate.uninstall()


def test_refused_calls_of_a_wrapped_client_are_answered_after_all(kind: Kind) -> None:
    registry = hurried()
    with Simulator(TIGHT) as provider:
        client = kind.make(provider.url)
        assert registry.wrap(client) is client
        assert together(kind.asking(client), 8) == [ANSWER] * 8
        assert tallied(registry, provider) == (11, 11)
    assert at_rest(registry)


@pytest.mark.usefixtures("uninstalled")
def test_refused_calls_of_a_client_made_before_install_are_answered_after_all(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = hurried()
    with Simulator(TIGHT) as provider:
        client = kind.make(provider.url)
        if kind.variable:
            monkeypatch.setenv(kind.variable, provider.url.removeprefix("http:"))
        tidegate.install(registry)
        assert together(kind.asking(client), 8) == [ANSWER] * 8
        assert tallied(registry, provider) == (11, 11)


def test_an_unknown_host_speaks_the_dialect_of_the_sdks_own_provider(kind: Kind) -> None:
    registry = hurried()
    with Simulator() as provider:
        assert one(kind.asking(registry.wrap(kind.make(provider.url)))) == ANSWER
    (key,) = registry.snapshot().keys
    assert key.provider == kind.table


def test_a_call_that_was_given_up_on_is_one_request_and_the_sdks_own_error(kind: Kind) -> None:
    registry = giving_up()
    with Simulator(ONCE) as provider:
        spend(provider)
        error = one(kind.asking(registry.wrap(kind.make(provider.url))))
        assert (registry.snapshot().attempts, refusals(provider)) == (1, 1)
    assert isinstance(error, kind.error)


def test_a_client_that_was_not_wrapped_passes_beside_one_that_was(kind: Kind) -> None:
    registry = hurried()
    with Simulator() as provider:
        registry.wrap(kind.make(provider.url))
        assert one(kind.asking(kind.make(provider.url))) == ANSWER
    assert registry.snapshot().attempts == 0


@pytest.mark.parametrize("name", ["groq", "async groq", "cohere", "async cohere"])
def test_a_transient_failure_stays_the_sdks_to_repeat_each_time_through_the_queue(name: str) -> None:
    registry = hurried()
    with Simulator(Scenario(faults=(Fault(kind="status", nth=(1,), status=500),))) as provider:
        assert one(KINDS[name].asking(registry.wrap(KINDS[name].make(provider.url)))) == ANSWER
        assert tallied(registry, provider) == (2, 2)


def test_what_cannot_be_wrapped_is_told_what_can() -> None:
    with pytest.raises(TypeError, match=r"google\.genai\.Client; .*cohere\.Client, .*httpx\.Client"):
        tidegate.wrap(object())
