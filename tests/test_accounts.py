"""Models of one account in one registry: what they share, by tables and `Settings.scopes`, and all that shows it."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from datetime import UTC, datetime

import httpx2
import pytest

import tidegate
from tests.core.values import answer, bucket, refusal
from tidegate import providers
from tidegate.admission.accounts import shared_by
from tidegate.admission.registry import NotReady, RateLimitRegistry
from tidegate.admission.saved_state import LearnedState
from tidegate.core import events
from tidegate.core.admission_controller import ModelController
from tidegate.core.quota import SharedNames
from tidegate.core.values import Key, Kind, Outcome, RequestFacts
from tidegate.errors import ConfigurationError
from tidegate.providers.anthropic import ANTHROPIC
from tidegate.providers.openai import OPENAI
from tidegate.settings import Settings

pytestmark = pytest.mark.constants(START_CONCURRENCY=100)

TODAY = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SCOPES = {"openai": {"requests": "account"}}
A, B, C = (Key("openai", "https://api.openai.com", "0123456789abcdef", model) for model in "abc")
ACCOUNT = A._replace(scope="", family="shared")


class Clock:
    """Time that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def registry(clock: Clock | None = None, **settings: object) -> RateLimitRegistry:
    given = Settings(**{"scopes": SCOPES, **settings})
    return RateLimitRegistry(given, clock=clock or Clock(), calendar=lambda: TODAY)


def teach(one: RateLimitRegistry, key: Key, left: float) -> None:
    one.settle(one.try_admit(key), answer(bucket(60.0, left)))


def test_calls_of_one_model_are_charged_to_the_other() -> None:
    one = registry()
    teach(one, A, 3.5)
    assert [bool(one.try_admit(key)) for key in (A, B, C, A)] == [True, True, True, False]
    refused = one.try_admit(B)
    assert isinstance(refused, NotReady)
    assert (refused.gate, refused.stated) == ("quota requests", True)


def test_other_providers_and_models_without_an_account_share_nothing() -> None:
    one = registry(scopes={})
    teach(one, A, 0.0)
    assert one.try_admit(B)
    assert one.snapshot().accounts == {}
    assert not any(isinstance(queue.admission, ModelController) for queue in one._queues.values())


def test_one_credential_and_address_is_one_account() -> None:
    one = registry()
    teach(one, A, 0.0)
    assert one.try_admit(B._replace(credential="fedcba9876543210"))
    assert one.try_admit(B._replace(base_url="https://eu.api.openai.com"))
    assert not one.try_admit(B)


def test_asker_outside_the_queue_is_called_when_the_shared_quota_opens_earlier_than_said() -> None:
    clock, called = Clock(), list[float]()
    one = registry(clock)
    teach(one, A, 1.5)
    permit = one.try_admit(A)
    told = one.try_admit(B, wake=lambda: called.append(clock.now))
    assert isinstance(told, NotReady)
    one.settle(permit, refusal(None, bucket(60.0, 30.0)))
    assert called == [100.0]
    assert one.try_admit(B)


def test_asker_is_not_called_where_nothing_opened() -> None:
    one, called = registry(), []
    teach(one, A, 1.5)
    permit = one.try_admit(A)
    assert not one.try_admit(B, wake=lambda: called.append(1))
    one.settle(permit, answer(bucket(60.0, 0.0)))
    assert called == []


@pytest.mark.constants(START_CONCURRENCY=100)
def test_calls_wait_in_order_of_arrival_over_models_and_loops() -> None:
    order: list[int] = []

    async def main() -> None:
        one = RateLimitRegistry(Settings(scopes=SCOPES))
        rate = bucket(1200.0, 0.0)
        one.settle(one.try_admit(A), answer(rate))

        async def call(number: int, key: Key) -> None:
            async def send() -> None:
                order.append(number)

            await one.aexecute(key, send)

        async with asyncio.TaskGroup() as group:
            for number, key in zip(range(30), itertools.cycle((B, A, C, B, B)), strict=False):
                group.create_task(call(number, key))
                await asyncio.sleep(0)

    asyncio.run(main())
    assert order == list(range(30))


def test_state_file_carries_both_levels() -> None:
    first = registry()
    tokens = bucket(1000.0, 400.0, name="tokens", unit="tokens")
    first.settle(first.try_admit(A), answer(bucket(60.0, 20.0), tokens))
    state = LearnedState.from_json(first.export_state().to_json())
    assert {(each.scope, each.family): [quota.name for quota in each.quotas] for each in state.keys} == {
        ("a", ""): ["tokens"],
        ("", "shared"): ["requests"],
    }
    second = registry(initial_state=state)
    second.settle(second.try_admit(B), Outcome(Kind.ABANDONED))
    (quota,) = second.snapshot().keys[B].quotas
    assert (quota.name, quota.level) == ("requests", pytest.approx(19.0, abs=1.0))


def test_state_of_one_level_acts_on_two() -> None:
    first = registry(scopes={})
    teach(first, A, 20.0)
    second = registry(initial_state=first.export_state())
    second.settle(second.try_admit(A), Outcome(Kind.ABANDONED))
    (quota,) = second.snapshot().accounts[ACCOUNT].quotas
    assert quota.level == pytest.approx(19.0, abs=1.0)


def test_snapshot_has_the_account() -> None:
    one = registry()
    teach(one, A, 0.0)
    assert not one.try_admit(B)
    seen = one.snapshot()
    account = seen.accounts[ACCOUNT]
    assert str(account.key) == "openai · api.openai.com · shared · key 012345"
    assert account.models == (A, B)
    assert [each.name for each in account.quotas] == ["requests"]
    assert seen.attempts == 1
    assert seen.keys[B].gate == "quota requests"


def test_events_name_the_level_that_has_the_quota() -> None:
    one, seen = registry(), []
    one.subscribe(seen.append)
    teach(one, A, 5.0)
    assert [each.key for each in seen if isinstance(each, events.RateLimitLearned)] == [ACCOUNT]


@pytest.mark.constants(KEY_IDLE_SECONDS=10.0)
def test_forgotten_models_leave_the_account() -> None:
    clock = Clock()
    one = registry(clock)
    for key in (A, B):
        teach(one, key, 50.0)
    clock.now += 100.0
    teach(one, C, 50.0)
    assert one.snapshot().accounts[ACCOUNT].models == (C,)


def test_fork_leaves_no_call_of_the_parent_in_the_order() -> None:
    one = registry()
    teach(one, A, 1.5)
    assert one.try_admit(A)
    one.before_fork()
    one.after_fork_in_child()
    assert one.snapshot().accounts[ACCOUNT].in_flight == 0
    assert not one.try_admit(B)


@pytest.mark.parametrize(
    ("scopes", "found"),
    [
        ({}, None),
        ({"openai": "model"}, None),
        ({"openai": "account"}, None),
        ({"anthropic": {"requests": "account"}}, None),
        ({"openai": {"requests": "model"}}, None),
        ({"openai": {"requests": "account"}}, ("", SharedNames(frozenset({"requests"})))),
        (
            {"openai": {"*": "account", "tokens": "model"}},
            ("", SharedNames(frozenset({"*"}), frozenset({"tokens"}))),
        ),
        ({"openai": {"*": "gpt-4o*"}}, ("gpt-4o*", SharedNames(frozenset({"*"})))),
        ({"openai": {"*": "gpt-5*"}}, None),
    ],
)
def test_setting_says_what_is_shared(scopes: dict[str, object], found: object) -> None:
    assert shared_by(A._replace(scope="gpt-4o-mini"), Settings(scopes=scopes)) == found


def test_variable_has_the_same_scopes() -> None:
    text = "anthropic=account, openai.requests=account,openai.tokens=model"
    settings = Settings.from_environment({"TIDEGATE_SCOPES": text})
    assert settings.scopes == {"anthropic": "account", "openai": {"requests": "account", "tokens": "model"}}
    assert settings.level_of("anthropic") == "account"
    assert settings.level_of("openai") == "model"
    assert settings.level_of("groq") == ""


@pytest.mark.parametrize(
    "scopes",
    [
        {"openai": "planet"},
        {"openai": "gpt-*"},
        {"": "account"},
        {"openai": {}},
        {"openai": {"requests": "planet"}},
        {"openai": {"": "account"}},
        {"openai": {"requests": "account", "tokens": "gpt-*"}},
    ],
)
def test_unusable_scopes_are_refused(scopes: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="scopes"):
        Settings(scopes=scopes)


@pytest.mark.parametrize("text", ["openai", "openai=account,openai.requests=model", "=account", "openai.=account"])
def test_unusable_variable_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="scopes"):
        Settings.from_environment({"TIDEGATE_SCOPES": text})


def test_settings_keep_a_copy() -> None:
    scopes = {"openai": {"requests": "account"}}
    settings = Settings(scopes=scopes)
    scopes["openai"]["requests"] = "model"
    assert settings.scopes == SCOPES
    assert tidegate.Settings.model_validate(settings.model_dump()).scopes == SCOPES


@pytest.mark.parametrize(("level", "scope"), [("", "gpt-4o"), ("model", "gpt-4o"), ("account", "")])
def test_level_of_a_provider_replaces_the_table_s(level: str, scope: str) -> None:
    facts = RequestFacts("gpt-4o")
    assert providers.scope(OPENAI, facts, "api.openai.com", "/v1/chat/completions", level) == scope


async def _answer(request: httpx2.Request) -> httpx2.Response:
    headers = {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "30",
        "x-ratelimit-reset-requests": "30s",
    }
    return httpx2.Response(200, headers=headers, json={"choices": []})


@pytest.mark.parametrize(
    ("scopes", "names", "shared"),
    [
        ({}, ["gpt-4o", "gpt-5"], []),
        ({"openai": "account"}, [""], []),
        (SCOPES, ["gpt-4o", "gpt-5"], [("", ["requests"])]),
    ],
)
def test_requests_of_a_client_get_keys_by_the_setting(
    scopes: dict[str, object], names: list[str], shared: list[object]
) -> None:
    one = RateLimitRegistry(Settings(scopes=scopes))

    async def main() -> None:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(_answer)) as client:
            one.wrap(client)
            for model in ("gpt-4o", "gpt-5"):
                url = "https://api.openai.com/v1/chat/completions"
                response = await client.post(url, headers={"authorization": "Bearer sk-x"}, json={"model": model})
                assert response.status_code == 200

    asyncio.run(main())
    seen = one.snapshot()
    assert sorted(key.scope for key in seen.keys) == names
    assert [(key.scope, [each.name for each in account.quotas]) for key, account in seen.accounts.items()] == shared


@pytest.mark.parametrize(
    ("provider", "model", "group"),
    [
        ("anthropic", "claude-opus-4-5-20251101", "claude-opus-4"),
        ("anthropic", "claude-opus-4-8", "claude-opus-4"),
        ("anthropic", "claude-sonnet-4-6", "claude-sonnet-4"),
        ("anthropic", "claude-opus-5", ""),
        ("anthropic", "claude-sonnet-4-20250514", ""),
        ("anthropic-compatible", "claude-opus-4-5", ""),
        ("openai", "gpt-5", ""),
    ],
)
def test_table_names_the_models_that_share(provider: str, model: str, group: str) -> None:
    found = shared_by(Key(provider, "https://api.test", "", model), Settings())
    assert (found[0] if found is not None else "") == group
    if found is not None:
        assert all(found[1].covers(row.name, row.unit) for row in ANTHROPIC.headers)


@pytest.mark.parametrize(
    "facts", [{"source": ""}, {"models": ()}, {"models": "claude*"}, {"quotas": ("",)}, {"quotas": ()}]
)
def test_unusable_row_of_a_table_is_refused(facts: dict[str, object]) -> None:
    row = {"name": "n", "models": ("m*",), "quotas": ("requests",), "source": "s", **facts}
    with pytest.raises(ConfigurationError, match=r"SharedQuotas\(n\)"):
        providers.SharedQuotas(**row)


def test_table_without_models_shares_nothing() -> None:
    with pytest.raises(ConfigurationError, match="shared"):
        dataclasses.replace(ANTHROPIC, name="other", scope="account")
