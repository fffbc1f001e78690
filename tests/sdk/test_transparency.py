"""Same client, same types, same exceptions, same streams: what the SDK user sees does not change."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import openai
import pytest

import tidegate
from tests.sdk.asking import KINDS, MESSAGES, Script, ask, failures, http, http_of, make, mocked, ok, only, request
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Scenario, Simulator


@pytest.mark.parametrize("kind", KINDS)
def test_wrap_returns_the_same_object(kind: str, registry: RateLimitRegistry) -> None:
    client = mocked(kind, Script(kind, ok(kind)))
    assert registry.wrap(client) is client


@pytest.mark.parametrize("kind", KINDS)
def test_wrapping_twice_takes_one_permit_a_call(kind: str, registry: RateLimitRegistry) -> None:
    client = registry.wrap(registry.wrap(mocked(kind, Script(kind, ok(kind)))))
    assert failures(ask(kind, client)) == []
    assert only(registry).attempts == 1


@pytest.mark.parametrize("kind", KINDS)
def test_copies_of_a_wrapped_client_are_governed(kind: str, registry: RateLimitRegistry) -> None:
    client = registry.wrap(mocked(kind, Script(kind, ok(kind))))
    assert failures(ask(kind, client.with_options(timeout=5).copy())) == []
    assert only(registry).attempts == 1


def test_send_keeps_its_signature_and_its_colour(registry: RateLimitRegistry) -> None:
    signatures = [inspect.signature(http.Client.send), inspect.signature(http.AsyncClient.send)]
    registry.wrap(http.Client())
    assert [inspect.signature(http.Client.send), inspect.signature(http.AsyncClient.send)] == signatures
    assert inspect.iscoroutinefunction(http.AsyncClient.send)
    assert not inspect.iscoroutinefunction(http.Client.send)
    assert "stream" in inspect.getsource(http.AsyncClient.send)


def test_raw_and_streaming_responses_are_as_they_were(registry: RateLimitRegistry) -> None:
    with Simulator() as provider, registry.wrap(make("openai", provider.url)) as client:
        raw = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
        assert raw.http_response.elapsed.total_seconds() >= 0
        assert type(raw.parse()).__name__ == "ChatCompletion"
        with client.chat.completions.with_streaming_response.create(model="m", messages=MESSAGES) as response:
            assert only(registry).in_flight == 1
            assert b"chat.completion" in b"".join(response.iter_bytes())
        assert only(registry).in_flight == 0


@pytest.mark.parametrize("kind", KINDS)
def test_event_hooks_fire_once_an_attempt(kind: str, registry: RateLimitRegistry) -> None:
    seen: list[str] = []
    script = Script(kind, (429, {"retry-after": "0"}, {"error": {"message": "Rate limit", "type": "x"}}), ok(kind))
    module = http_of(kind)
    transport = module.MockTransport(script)
    if kind.startswith("async"):

        async def on_request(_: Any) -> None:
            seen.append("request")

        async def on_response(_: Any) -> None:
            seen.append("response")

        hooks = {"request": [on_request], "response": [on_response]}
        client = make(
            kind, "https://provider.test", http_client=module.AsyncClient(transport=transport, event_hooks=hooks)
        )
    else:
        hooks = {"request": [lambda _: seen.append("request")], "response": [lambda _: seen.append("response")]}
        client = make(kind, "https://provider.test", http_client=module.Client(transport=transport, event_hooks=hooks))
    assert failures(ask(kind, registry.wrap(client))) == []
    assert seen == ["request", "response"] * 2


def test_a_redirect_and_an_auth_refresh_stay_under_one_slot(registry: RateLimitRegistry) -> None:
    in_flight: list[int] = []

    class Refreshing(http.Auth):  # type: ignore[misc, name-defined]
        def auth_flow(self, request: Any) -> Any:
            response = yield request
            if response.status_code == 401:
                request.headers["authorization"] = "Bearer fresh"
                yield request

    def handler(request: Any) -> Any:
        in_flight.append(only(registry).in_flight)
        if request.url.path == "/v1/chat/completions":
            return http.Response(307, headers={"location": "/v2/chat/completions"})
        if request.headers.get("authorization") != "Bearer fresh":
            return http.Response(401)
        return http.Response(200, json={})

    client = http.Client(transport=http.MockTransport(handler), follow_redirects=True, auth=Refreshing())
    response = registry.wrap(client).post("https://provider.test/v1/chat/completions", json={"model": "m"})
    assert response.status_code == 200
    assert sorted(each.status_code for each in response.history) == [307, 401]
    assert set(in_flight) == {1}
    assert only(registry).attempts == 1


def test_what_generates_nothing_passes_untouched(registry: RateLimitRegistry) -> None:
    script = Script("openai", (200, {}, {"object": "list", "data": []}))
    client = registry.wrap(mocked("openai", script))
    client.models.list()
    client.files.list()
    client.batches.list()
    assert registry.snapshot().keys == {}
    assert len(script.requests) == 3


def test_disabled_passes_through_in_its_context_only(registry: RateLimitRegistry) -> None:
    client = registry.wrap(mocked("openai", Script("openai", ok("openai"))))
    with tidegate.disabled():
        request("openai", client)
    assert registry.snapshot().keys == {}
    request("openai", client)
    assert only(registry).attempts == 1


def test_a_disabled_registry_governs_nothing() -> None:
    registry = RateLimitRegistry(tidegate.Settings(disabled=True))
    request("openai", registry.wrap(mocked("openai", Script("openai", ok("openai")))))
    assert registry.snapshot().keys == {}


def test_azure_clients_are_keyed_by_deployment(registry: RateLimitRegistry) -> None:
    script = Script("openai", ok("openai"))
    for kind in (openai.AzureOpenAI, openai.AsyncAzureOpenAI):
        client_class = http.AsyncClient if "Async" in kind.__name__ else http.Client
        client = kind(
            azure_endpoint="https://resource.openai.azure.com",
            api_key="azure-secret",
            api_version="2024-10-21",
            http_client=client_class(transport=http.MockTransport(script)),
        )
        ask("async_openai" if "Async" in kind.__name__ else "openai", registry.wrap(client), model="my-deployment")
    key = only(registry).key
    assert (key.provider, key.scope, only(registry).attempts) == ("azure", "my-deployment", 2)


@pytest.mark.parametrize("thing", [object(), "client", None, 3, type("OpenAI", (), {"_client": None})()])
def test_what_cannot_be_wrapped_is_a_type_error_that_says_what_can(thing: object, registry: RateLimitRegistry) -> None:
    with pytest.raises(TypeError, match=r"openai\.OpenAI"):
        registry.wrap(thing)


@pytest.mark.parametrize(("field", "value"), [("max_wait", -1), ("max_wait", "60"), ("priority", "high")])
def test_a_bad_option_of_wrap_names_field_value_and_bound(
    field: str, value: object, registry: RateLimitRegistry
) -> None:
    options: dict[str, Any] = {field: value}
    with pytest.raises(tidegate.ConfigurationError, match=field) as caught:
        registry.wrap(mocked("openai", Script("openai", ok("openai"))), **options)
    assert (caught.value.field, caught.value.value) == (field, value)


@pytest.mark.parametrize("kind", KINDS)
def test_no_secret_and_no_prompt_is_in_snapshots_events_or_keys(kind: str, registry: RateLimitRegistry) -> None:
    heard: list[object] = []
    registry.subscribe(heard.append)
    script = Script(kind, (429, {"retry-after": "0"}, {"error": {"message": "Rate limit", "type": "x"}}), ok(kind))
    ask(kind, registry.wrap(mocked(kind, script)))
    text = f"{heard!r} {registry.snapshot()!r} {only(registry).key}"
    assert "secret" not in text
    assert "tests" not in text, "the last characters of the key"
    assert "tide?" not in text
    assert len(heard) >= 6


def test_two_credentials_are_two_keys_and_digests_differ_between_processes() -> None:
    one, two = RateLimitRegistry(), RateLimitRegistry()
    assert one.digest("a") != one.digest("b")
    assert one.digest("a") != two.digest("a")
    stable = tidegate.Settings(digest_key="kept-with-the-state")
    assert RateLimitRegistry(stable).digest("a") == RateLimitRegistry(stable).digest("a")


GARBAGE = {
    "negative": "-1",
    "not a number": "NaN",
    "infinite": "inf",
    "huge": "1e300",
    "a list": "1, 2, 3",
    "unicode": "٣",
    "ten kilobytes": "9" * 10_000,
    "over 64 bits": "9223372036854767616",
    "zero": "0",
    "empty": "",
}


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.01, MAX_PAUSE_SECONDS=0.05)
@pytest.mark.parametrize("value", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("kind", KINDS)
def test_garbage_in_headers_never_reaches_the_caller_and_never_stops_the_queue(
    kind: str, value: str, registry: RateLimitRegistry
) -> None:
    names = [
        *(f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")),
        *(f"anthropic-ratelimit-requests-{what}" for what in ("limit", "remaining", "reset")),
        "retry-after",
        "retry-after-ms",
    ]
    headers = dict.fromkeys(names, value)
    quick = RateLimitRegistry(tidegate.Settings())
    refused = (429, headers, {"error": {"message": "Rate limit", "type": "x"}})
    script = Script(kind, (200, headers, ok(kind)[2]), refused, refused, ok(kind))
    client = quick.wrap(mocked(kind, script, max_retries=0), max_wait=300)
    assert failures(ask(kind, client, count=6)) == []
    assert len(script.requests) == 8


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_unusable_values_are_counted_in_the_snapshot(kind: str, registry: RateLimitRegistry) -> None:
    name = "x-ratelimit-limit-requests" if kind == "openai" else "anthropic-ratelimit-requests-limit"
    script = Script(kind, (200, {name: "minus one"}, ok(kind)[2]))
    ask(kind, registry.wrap(mocked(kind, script)))
    assert only(registry).ignored == 1


BODIES = [
    b"",
    b"<html>Too many</html>",
    b"[]",
    b"null",
    b'{"error": 3}',
    b"[" * 5000,
    b"\xff\xfe",
    b'{"error": {"code": []}}',
]


@pytest.mark.constants(FIRST_PAUSE_SECONDS=0.01)
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_with_any_body_is_waited_out(kind: str, body: bytes) -> None:
    registry = RateLimitRegistry(tidegate.Settings())
    script = Script(kind, (429, {}, body), ok(kind))
    assert failures(ask(kind, registry.wrap(mocked(kind, script, max_retries=0)))) == []


@pytest.mark.parametrize("kind", ["openai", "async_openai"])
def test_a_request_of_any_shape_is_sent_as_it_is(kind: str, registry: RateLimitRegistry) -> None:
    script = Script(kind, (200, {}, {}))
    client = registry.wrap(mocked(kind, script))

    async def main() -> None:
        async with client:
            await client.post(
                "/chat/completions", body={"model": 7, "messages": "x", "max_tokens": "many"}, cast_to=object
            )

    if kind == "openai":
        client.post("/chat/completions", body={"model": 7, "messages": "x", "max_tokens": "many"}, cast_to=object)
    else:
        asyncio.run(main())
    assert b'"max_tokens":"many"' in script.requests[0].content.replace(b" ", b"")


@pytest.mark.parametrize("broken", ["read_body", "judge"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_of_our_own_is_logged_and_never_reaches_the_caller(
    kind: str, broken: str, registry: RateLimitRegistry, monkeypatch: Any, caplog: Any
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(f"tidegate.providers.{broken}", fail)
    assert failures(ask(kind, registry.wrap(mocked(kind, Script(kind, ok(kind)))))) == []
    assert "ZeroDivisionError" in caplog.text
    assert registry.snapshot().in_flight == 0


def test_without_limits_every_call_is_sent_once(registry: RateLimitRegistry) -> None:
    with Simulator(Scenario(headers=False)) as provider:
        assert failures(ask("async_openai", registry.wrap(make("async_openai", provider.url)), count=100)) == []
        assert provider.truth().total.received == 100
