"""boto3's bedrock-runtime, against the simulator and against answers by script."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.auth
import botocore.endpoint
import botocore.exceptions
import pytest
from botocore.retries.bucket import TokenBucket
from botocore.stub import Stubber

import tidegate
from tests.bedrock import (
    ANSWER,
    ASK,
    BROKEN,
    FINE,
    INVOKE,
    MODES,
    PROFILE,
    THROTTLED,
    Script,
    client_of,
    is_signed_rightly,
    refusal,
    text_headers,
)
from tests.transports.answering import only
from tidegate.admission.context import AttemptScope
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Kind, Outcome
from tidegate.testing import Distribution, Limit, Scenario, Simulator
from tidegate.transports import botocore as transport

NOTHING = {"sts": b"<Response><GetCallerIdentityResult/><ResponseMetadata/></Response>", "s3": b""}


@pytest.fixture(autouse=True)
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long botocore would have slept before its own retries; it does not."""
    slept: list[float] = []
    monkeypatch.setattr(botocore.endpoint.time, "sleep", slept.append)
    return slept


@pytest.fixture
def client(registry: RateLimitRegistry) -> Iterator[Any]:
    with client_of() as client:
        yield registry.wrap(client)


def retries_of(answer: Any) -> int:
    number: int = answer["ResponseMetadata"]["RetryAttempts"]
    return number


@pytest.mark.parametrize("mode", MODES)
def test_every_row_is_answered_at_a_limit_that_nobody_announced(registry: RateLimitRegistry, mode: str) -> None:
    scenario = Scenario(limiters=(Limit(limit=5, window=0.5, burst=2),))
    with Simulator(scenario) as provider, client_of(provider.bedrock_url, mode) as client:
        registry.wrap(client)
        answers = [client.converse(**ASK) for _ in range(8)]
        assert [retries_of(answer) for answer in answers] == [0] * 8
        assert provider.truth().total.answered == 8
        assert provider.truth().total.received == only(registry).attempts
    assert only(registry).in_flight == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("refused", [THROTTLED, refusal(503, "ServiceUnavailableException")], ids=["429", "503"])
def test_a_refusal_is_waited_out_below_botocores_own_retries(
    registry: RateLimitRegistry, sleeps: list[float], mode: str, refused: Any
) -> None:
    with client_of(mode=mode, total_max_attempts=1) as client:
        script = Script(registry.wrap(client), refused, refused, FINE)
        answer = client.converse(**ASK)
    assert (answer["usage"], retries_of(answer), len(script.requests)) == (ANSWER["usage"], 0, 3)
    assert sleeps == []
    seen = only(registry)
    assert (seen.refused, seen.answered, seen.in_flight) == (2, 1, 0)


@pytest.mark.parametrize("mode", MODES)
def test_a_refusal_that_was_given_up_on_is_not_sent_again(mode: str, registry: RateLimitRegistry) -> None:
    with client_of(mode=mode) as client:
        script = Script(registry.wrap(client, max_wait=0), THROTTLED)
        with pytest.raises(client.exceptions.ThrottlingException, match="Too many tokens") as caught:
            client.converse(**ASK)
    assert (len(script.requests), retries_of(caught.value.response)) == (1, 0)
    assert "MaxAttemptsReached" not in caught.value.response["ResponseMetadata"]
    headers = caught.value.response["ResponseMetadata"]["HTTPHeaders"]
    assert float(headers["x-tidegate-waited"]) >= 0.0
    assert " s of max_wait = 0 s; " in headers["x-tidegate-reason"]


@pytest.mark.usefixtures("sleeps")
@pytest.mark.parametrize(("mode", "attempts"), [("legacy", 5), ("standard", 3), ("adaptive", 3)])
def test_quota_of_the_day_is_not_waited_for(mode: str, attempts: int, registry: RateLimitRegistry) -> None:
    """It is asked as often as by botocore alone."""
    spent = refusal(429, "ThrottlingException", "Too many tokens per day, please wait before trying again.")
    spent[1].pop("retry-after")
    with client_of(mode=mode) as client:
        script = Script(registry.wrap(client), spent)
        with pytest.raises(client.exceptions.ThrottlingException, match="per day"):
            client.converse(**ASK)
    assert len(script.requests) == attempts


@pytest.mark.parametrize("mode", MODES)
def test_day_whose_named_reset_is_in_vain_is_handed_back(mode: str, registry: RateLimitRegistry) -> None:
    """A reset that is named is waited for; after the second one in vain it is not believed."""
    spent = refusal(429, "ThrottlingException", "Too many tokens per day, please wait before trying again.")
    with client_of(mode=mode) as client:
        script = Script(registry.wrap(client), spent)
        with pytest.raises(client.exceptions.ThrottlingException, match="per day"):
            client.converse(**ASK)
    assert len(script.requests) == 3


@pytest.mark.parametrize(("mode", "attempts"), [("legacy", 5), ("standard", 3), ("adaptive", 3)])
def test_other_failures_are_botocores_to_repeat_and_each_attempt_passes_the_queue(
    registry: RateLimitRegistry, sleeps: list[float], mode: str, attempts: int
) -> None:
    with client_of(mode=mode) as client:
        script = Script(registry.wrap(client), BROKEN)
        with pytest.raises(client.exceptions.InternalServerException) as caught:
            client.converse(**ASK)
    assert (len(script.requests), retries_of(caught.value.response), len(sleeps)) == (
        attempts,
        attempts - 1,
        attempts - 1,
    )
    assert only(registry).failed == attempts


@pytest.mark.parametrize("mode", MODES)
def test_the_two_owners_of_retries_do_not_multiply(mode: str, registry: RateLimitRegistry) -> None:
    with client_of(mode=mode) as client:
        script = Script(registry.wrap(client), THROTTLED, BROKEN, THROTTLED, FINE)
        answer = client.converse(**ASK)
    assert (retries_of(answer), len(script.requests)) == (1, 4)


@pytest.mark.parametrize("mode", MODES)
def test_without_an_answer_before_the_deadline_botocore_raises_its_own_throttling_exception(mode: str) -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
    with client_of(mode=mode) as client:
        script = Script(registry.wrap(client, max_wait=0), FINE)
        client.converse(**ASK)
        assert registry.try_admit(only(registry).key)
        with pytest.raises(client.exceptions.ThrottlingException, match="tidegate: no request was sent") as caught:
            client.converse(**ASK)
    metadata = caught.value.response["ResponseMetadata"]
    assert (metadata["HTTPStatusCode"], metadata["RetryAttempts"]) == (429, 0)
    assert metadata["HTTPHeaders"]["x-tidegate"] == "queue-deadline"
    assert caught.value.response["message"] == caught.value.response["Error"]["Message"]
    assert len(script.requests) == 1


def test_a_request_is_made_and_signed_anew_before_it_is_sent_again(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    instants = iter(datetime(2026, 11, 21, 12, 0, tzinfo=UTC) + timedelta(minutes=10 * step) for step in range(9))
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: next(instants).replace(tzinfo=None))
    script = Script(client, THROTTLED, FINE)
    client.converse(**ASK)
    first, second = (text_headers(request.headers) for request in script.requests)
    assert (first["x-amz-date"], second["x-amz-date"]) == ("20261121T120000Z", "20261121T121000Z")
    assert first["amz-sdk-invocation-id"] == second["amz-sdk-invocation-id"]
    for request in script.requests:
        assert is_signed_rightly(request.method, request.url, request.headers, request.body)
    assert first["authorization"] != second["authorization"]


def test_a_request_that_stood_in_the_queue_is_signed_when_it_leaves_it(client: Any) -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))
    registry.wrap(client)
    made: list[Any] = []
    client.meta.events.register("request-created", lambda request, **facts: made.append(request))
    script = Script(client, FINE)
    client.converse(**ASK)
    assert len(made) == 1
    permit = registry.try_admit(only(registry).key)
    assert isinstance(permit, Permit)
    thread = threading.Thread(target=client.converse, kwargs=ASK)
    thread.start()
    while registry.snapshot().waiting == 0:
        threading.Event().wait(0.001)
    registry.settle(permit, Outcome(Kind.OK))
    thread.join()
    assert (len(made), len(script.requests)) == (3, 2)


def test_the_instant_until_which_a_retry_is_of_use_moves_with_the_wait(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport.BotocoreCall, "now", lambda call: call.registry.clock() - 1000.0)
    dated = (500, {"Date": "Sat, 21 Nov 2026 12:00:00 GMT"}, {})
    script = Script(client, dated, THROTTLED, FINE)
    client.converse(**ASK)
    ttls = [text_headers(request.headers)["amz-sdk-request"].partition(";")[0] for request in script.requests[1:]]
    before, after = (datetime.strptime(ttl, "ttl=%Y%m%dT%H%M%SZ") for ttl in ttls)
    # The wait counts once, and the rest is what the test takes.
    assert 999 <= (after - before).total_seconds() <= 1900


@pytest.mark.parametrize("reads", ["file", "generator"])
def test_a_body_is_sent_again_whole_where_it_can_be_read_again(client: Any, reads: str) -> None:
    sent: list[bytes] = []
    body: Any = io.BytesIO(INVOKE["body"].encode())
    if reads == "generator":
        body.seekable = lambda: False
    script = Script(client, THROTTLED, FINE)
    client.meta.events.register("before-send", lambda request, **facts: sent.append(request.body.read()), unique_id="r")
    answer = client.invoke_model(modelId=INVOKE["modelId"], body=body)
    assert len(script.requests) == 2
    # What cannot be rewound by us is handed back, and botocore, which can, repeats it.
    assert retries_of(answer) == (1 if reads == "generator" else 0)
    assert sent == [INVOKE["body"].encode()] * 2


def test_its_key_is_region_credential_and_the_literal_model(client: Any, registry: RateLimitRegistry) -> None:
    Script(client, FINE)
    client.converse(**{**ASK, "modelId": PROFILE})
    key = only(registry).key
    assert (key.provider, key.base_url) == ("bedrock", "https://bedrock-runtime.us-east-1.amazonaws.com")
    assert key.scope == PROFILE


def test_bearer_tokens_are_told_apart(registry: RateLimitRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    for token in ("one", "one", "two"):
        monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", token)
        with client_of() as client:
            script = Script(registry.wrap(client), FINE)
            client.converse(**ASK)
        assert text_headers(script.requests[0].headers)["authorization"] == f"Bearer {token}"
    assert [key.attempts for key in registry.snapshot().keys.values()] == [2, 1]


def test_usage_teaches_the_estimate(registry: RateLimitRegistry) -> None:
    scenario = Scenario(output_tokens=Distribution.constant(5000))
    with Simulator(scenario) as provider, client_of(provider.bedrock_url) as client:
        registry.wrap(client)
        client.converse(**ASK)
        whole = only(registry).mean_output
        list(client.converse_stream(**ASK)["stream"])
        assert only(registry).mean_output > whole > 256


@pytest.mark.parametrize("mode", MODES)
def test_connection_errors_come_through_and_are_botocores_to_repeat(registry: RateLimitRegistry, mode: str) -> None:
    with client_of("http://127.0.0.1:9", mode, total_max_attempts=2) as client:
        registry.wrap(client)
        with pytest.raises(botocore.exceptions.EndpointConnectionError):
            client.converse(**ASK)
    assert (only(registry).failed, only(registry).in_flight) == (2, 0)


def test_what_a_hook_of_the_users_raises_comes_through_and_teaches_nothing(
    client: Any, registry: RateLimitRegistry
) -> None:
    def refuse(**facts: Any) -> None:
        raise LookupError("no")

    client.meta.events.register("response-received", refuse)
    Script(client, FINE)
    with pytest.raises(LookupError):
        client.converse(**ASK)
    assert (only(registry).abandoned, only(registry).in_flight) == (1, 0)


def test_the_bucket_of_the_adaptive_mode_does_not_sleep_inside_our_slot(
    registry: RateLimitRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(TokenBucket, "_acquire", lambda self, **facts: asked.append(facts))
    with client_of(mode="adaptive", total_max_attempts=1) as client:
        Script(registry.wrap(client), THROTTLED, FINE)
        with tidegate.disabled(), pytest.raises(client.exceptions.ThrottlingException):
            client.converse(**ASK)
        client.converse(**ASK)
        assert asked == []
        with tidegate.disabled():
            client.converse(**ASK)
        assert len(asked) == 1


def test_a_stubbed_client_never_reaches_the_queue(client: Any, registry: RateLimitRegistry) -> None:
    with Stubber(client) as stubber:
        stubber.add_response("converse", ANSWER)
        assert client.converse(**ASK)["usage"] == ANSWER["usage"]
    assert registry.snapshot().keys == {}


@pytest.mark.parametrize(
    ("service", "operation", "fields"),
    [
        ("sts", "get_caller_identity", {}),
        ("s3", "put_object", {"Bucket": "b", "Key": "k", "Body": b"x"}),
        ("bedrock", "list_foundation_models", {}),
        ("bedrock-runtime", "list_async_invokes", {}),
    ],
)
def test_whatever_generates_nothing_passes_untouched(
    registry: RateLimitRegistry, service: str, operation: str, fields: dict[str, Any]
) -> None:
    tidegate.install(registry)
    with client_of(service=service) as client:
        script = Script(client, (200, {}, NOTHING.get(service, {})))
        getattr(client, operation)(**fields)
    (request,) = script.requests
    assert hasattr(request, transport.SOURCE_REQUEST) is service.startswith("bedrock")
    assert registry.snapshot().keys == {}


def test_no_other_service_is_looked_at(registry: RateLimitRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*facts: Any) -> None:
        pytest.fail("an endpoint of another service was looked at")

    tidegate.install(registry)
    monkeypatch.setattr(transport, "binding_of", look)
    with client_of(service="sts", total_max_attempts=2) as client:
        script = Script(
            client, (500, {}, b"<ErrorResponse><Error><Code>InternalFailure</Code></Error></ErrorResponse>")
        )
        with pytest.raises(botocore.exceptions.ClientError):
            client.get_caller_identity()
    assert len(script.requests) == 2


def test_clients_of_other_services_cannot_be_wrapped(registry: RateLimitRegistry) -> None:
    with client_of(service="sts") as client, pytest.raises(TypeError, match="BedrockRuntime"):
        registry.wrap(client)


def test_install_governs_clients_made_before_and_uninstall_restores_them(
    registry: RateLimitRegistry,
) -> None:
    originals = [vars(botocore.endpoint.Endpoint)[name] for name in ("create_request", "_get_response", "_needs_retry")]
    with client_of("https://gateway.test/aws") as client:
        Script(client, FINE)
        assert "botocore.endpoint" in tidegate.install(registry)
        client.converse(**ASK)
        with tidegate.disabled():
            client.converse(**ASK)
        with AttemptScope():
            client.converse(**ASK)
        tidegate.uninstall()
        client.converse(**ASK)
    assert only(registry).attempts == 1
    restored = [vars(botocore.endpoint.Endpoint)[name] for name in ("create_request", "_get_response", "_needs_retry")]
    assert restored == originals


def test_install_governs_what_is_imported_later_and_imports_nothing() -> None:
    code = """
        import sys, tidegate
        tidegate.install()
        assert not [name for name in sys.modules if name.startswith("boto")]
        import boto3, botocore.endpoint, botocore.retries.bucket
        patched = botocore.endpoint.Endpoint._get_response, botocore.retries.bucket.TokenBucket.acquire
        print([hasattr(each, "__wrapped__") for each in patched])
    """
    lines = "\n".join(line.strip() for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], check=True, capture_output=True)
    assert done.stdout == b"[True, True]\n"


def test_threads_share_one_client_and_one_queue(registry: RateLimitRegistry) -> None:
    scenario = Scenario(limiters=(Limit(kind="slots", limit=2, status=429),), latency=Distribution.constant(0.01))
    answers: list[Any] = []
    with Simulator(scenario) as provider, client_of(provider.bedrock_url) as client:
        registry.wrap(client)
        threads = [threading.Thread(target=lambda: answers.append(client.converse(**ASK))) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(answers) == 12
    assert (only(registry).answered, only(registry).in_flight) == (12, 0)


def test_a_call_that_passes_at_once_is_signed_once_also_where_somebody_listens(
    registry: RateLimitRegistry,
) -> None:
    made: list[Any] = []
    registry.subscribe(lambda event: None)
    with client_of() as client:
        Script(client, FINE)
        client.meta.events.register("request-created", lambda **facts: made.append(facts))
        registry.wrap(client).converse(**ASK)
    assert len(made) == 1
