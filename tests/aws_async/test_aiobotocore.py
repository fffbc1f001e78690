"""The bedrock-runtime clients of aiobotocore and aioboto3, against the simulator and against answers by script.

They pin another botocore than boto3's newest: `make test-aiobotocore` runs this in an environment of its own.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

aiobotocore = pytest.importorskip("aiobotocore.endpoint")

import aioboto3  # noqa: E402
import botocore.auth  # noqa: E402
import botocore.exceptions  # noqa: E402
from aiobotocore.awsrequest import AioAWSResponse  # noqa: E402
from aiobotocore.config import AioConfig  # noqa: E402
from aiobotocore.httpsession import AIOHTTPSession  # noqa: E402
from aiobotocore.httpxsession import HttpxSession  # noqa: E402
from aiobotocore.retries.bucket import AsyncTokenBucket  # noqa: E402
from aiobotocore.session import get_session  # noqa: E402

import tidegate  # noqa: E402
from tests.bedrock import (  # noqa: E402
    ANSWER,
    ASK,
    BROKEN,
    FINE,
    INVOKE,
    KEY,
    MODES,
    PROFILE,
    REGION,
    SECRET,
    THROTTLED,
    Reply,
    is_signed_rightly,
    refusal,
)
from tests.transports.answering import only  # noqa: E402
from tidegate.admission.registry import RateLimitRegistry  # noqa: E402
from tidegate.testing import Fault, Limit, Scenario, Simulator  # noqa: E402

SESSIONS = {"aiohttp": AIOHTTPSession, "httpx": HttpxSession}


@pytest.fixture(autouse=True)
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that aiobotocore would have slept before its own retries; it does not."""
    slept: list[float] = []

    async def sleep(endpoint: Any, seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(aiobotocore.AioEndpoint, "_sleep", sleep)
    monkeypatch.setattr(aiobotocore.AnyioEndpoint, "_sleep", sleep)
    return slept


@pytest.fixture
def provider() -> Iterator[Simulator]:
    with Simulator(Scenario(answers={"tide": "High, and still rising, at this hour of the day."})) as running:
        yield running


@pytest.fixture(params=SESSIONS)
def session(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def client_of(
    url: str | None = None, mode: str = "legacy", session: str = "aiohttp", **retries: Any
) -> AbstractAsyncContextManager[Any]:
    config = AioConfig(
        retries={"mode": mode, **retries},
        connect_timeout=5,
        read_timeout=30,
        http_session_cls=SESSIONS[session],
    )
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET}
    made: AbstractAsyncContextManager[Any] = get_session().create_client(
        "bedrock-runtime", region_name=REGION, endpoint_url=url, config=config, **keys
    )
    return made


class Raw:
    """A body as aiobotocore reads one."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def read(self) -> bytes:
        return self.body


class Script:
    """Answers instead of the network: `replies` in order, then the last again. `requests` are those it was sent."""

    def __init__(self, client: Any, *replies: Reply) -> None:
        self.replies = replies
        self.requests: list[Any] = []
        client.meta.events.register("before-send", self)

    def __call__(self, request: Any, **facts: Any) -> Any:
        status, headers, body = self.replies[min(len(self.requests), len(self.replies) - 1)]
        self.requests.append(request)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return AioAWSResponse(request.url, status, {"content-type": "application/json", **headers}, Raw(content))


def retries_of(answer: Any) -> int:
    number: int = answer["ResponseMetadata"]["RetryAttempts"]
    return number


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_every_row_is_answered_at_a_limit_that_nobody_announced(
    registry: RateLimitRegistry, mode: str, session: str
) -> None:
    async def test() -> None:
        scenario = Scenario(limiters=(Limit(limit=5, window=0.5, burst=2),))
        with Simulator(scenario) as provider:
            async with client_of(provider.bedrock_url, mode, session) as client:
                registry.wrap(client)
                answers = await asyncio.gather(*(client.converse(**ASK) for _ in range(8)))
            assert [retries_of(answer) for answer in answers] == [0] * 8
            assert provider.truth().total.answered == 8
            assert provider.truth().total.received == only(registry).attempts

    run(test)
    assert only(registry).in_flight == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("refused", [THROTTLED, refusal(503, "ServiceUnavailableException")], ids=["429", "503"])
def test_refusal_is_waited_out_below_aiobotocores_own_retries(
    registry: RateLimitRegistry, sleeps: list[float], mode: str, refused: Any
) -> None:
    async def test() -> None:
        async with client_of(mode=mode, total_max_attempts=1) as client:
            script = Script(registry.wrap(client), refused, refused, FINE)
            answer = await client.converse(**ASK)
        assert (answer["usage"], retries_of(answer), len(script.requests)) == (ANSWER["usage"], 0, 3)

    run(test)
    assert sleeps == []
    seen = only(registry)
    assert (seen.refused, seen.answered, seen.in_flight) == (2, 1, 0)


@pytest.mark.parametrize("mode", MODES)
def test_refusal_that_was_given_up_on_is_not_sent_again(mode: str, registry: RateLimitRegistry) -> None:
    async def test() -> None:
        async with client_of(mode=mode) as client:
            script = Script(registry.wrap(client, max_wait=0), THROTTLED)
            with pytest.raises(client.exceptions.ThrottlingException, match="Too many tokens") as caught:
                await client.converse(**ASK)
        assert (len(script.requests), retries_of(caught.value.response)) == (1, 0)
        assert " given up: it waited " in caught.value.__notes__[0]
        assert " s of max_wait = 0 s; " in caught.value.__notes__[0]

    run(test)


@pytest.mark.parametrize(("mode", "attempts"), [("legacy", 5), ("standard", 3), ("adaptive", 3)])
def test_other_failures_are_aiobotocores_to_repeat(
    registry: RateLimitRegistry, sleeps: list[float], mode: str, attempts: int
) -> None:
    async def test() -> None:
        async with client_of(mode=mode) as client:
            script = Script(registry.wrap(client), BROKEN)
            with pytest.raises(client.exceptions.InternalServerException):
                await client.converse(**ASK)
        assert (len(script.requests), len(sleeps)) == (attempts, attempts - 1)

    run(test)
    assert only(registry).failed == attempts


@pytest.mark.parametrize("mode", MODES)
def test_without_an_answer_before_the_deadline_its_own_exception_is_raised(mode: str) -> None:
    registry = RateLimitRegistry(tidegate.Settings(max_concurrency=1))

    async def test() -> None:
        async with client_of(mode=mode) as client:
            script = Script(registry.wrap(client, max_wait=0), FINE)
            await client.converse(**ASK)
            held = registry.try_admit(only(registry).key)
            assert held
            with pytest.raises(client.exceptions.ThrottlingException, match="no request was sent"):
                await client.converse(**ASK)
        assert len(script.requests) == 1

    run(test)


def test_adaptive_token_bucket_holds_up_nothing_inside_a_slot(
    registry: RateLimitRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def acquire(bucket: Any, *facts: Any, **more: Any) -> bool:
        asked.append("bucket")
        return True

    monkeypatch.setattr(AsyncTokenBucket, "acquire", acquire)

    async def test() -> None:
        async with client_of(mode="adaptive") as client:
            script = Script(registry.wrap(client), THROTTLED, FINE)
            await client.converse(**ASK)
        assert len(script.requests) == 2

    run(test)
    assert asked == []


def test_request_that_waited_is_signed_anew(registry: RateLimitRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    instants = (datetime(2026, 11, 21, 12, 0, tzinfo=UTC) + timedelta(minutes=10 * step) for step in range(99))
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: next(instants).replace(tzinfo=None))

    async def test() -> None:
        async with client_of() as client:
            script = Script(registry.wrap(client), THROTTLED, FINE)
            await client.converse(**ASK)
        first, second = script.requests
        assert first.headers["X-Amz-Date"] != second.headers["X-Amz-Date"]
        for each in script.requests:
            assert is_signed_rightly("POST", each.url, dict(each.headers), each.body)

    run(test)


async def read_events(body: Any) -> None:
    assert len([event async for event in body]) > 5


async def read_whole(body: Any) -> None:
    assert (await body.read()).startswith(b"{")


async def read_pieces(body: Any) -> None:
    assert b"".join([chunk async for chunk in body.iter_chunks(16)]).endswith(b"}")


async def close(body: Any) -> None:
    closing = body.close()
    if closing is not None:
        await closing


STREAMING = [
    ("invoke_model", INVOKE, "body", read_whole),
    ("invoke_model", INVOKE, "body", read_pieces),
    ("invoke_model_with_response_stream", INVOKE, "body", read_events),
    ("invoke_model_with_response_stream", INVOKE, "body", close),
    ("converse_stream", ASK, "stream", read_events),
    ("converse_stream", ASK, "stream", close),
]


@pytest.mark.parametrize(
    ("operation", "fields", "member", "ends"), STREAMING, ids=[f"{each[0]}-{each[3].__name__}" for each in STREAMING]
)
def test_stream_gives_its_slot_back(
    registry: RateLimitRegistry,
    provider: Simulator,
    session: str,
    operation: str,
    fields: dict[str, Any],
    member: str,
    ends: Any,
) -> None:
    if session == "httpx" and operation != "invoke_model":
        pytest.skip("aiobotocore 3.10.0 eventstream.py reads no event stream of httpx")

    async def test() -> None:
        async with client_of(provider.bedrock_url, session=session) as client:
            registry.wrap(client)
            body = (await getattr(client, operation)(**fields))[member]
            if session == "httpx":
                assert only(registry).in_flight == 1
            await ends(body)

    run(test)
    seen = only(registry)
    assert (seen.in_flight, seen.answered, seen.abandoned, seen.attempts) == (0, 1, 0, 1)


def test_exception_inside_a_stream_is_counted(registry: RateLimitRegistry) -> None:
    async def test() -> None:
        scenario = Scenario(faults=(Fault(kind="stream-error", nth=(1,)),))
        with Simulator(scenario) as provider:
            async with client_of(provider.bedrock_url) as client:
                stream = (await registry.wrap(client, max_wait=0).converse_stream(**ASK))["stream"]
                with pytest.raises(botocore.exceptions.EventStreamError, match="throttlingException"):
                    await read_events(stream)
                # What was not read keeps its connection until then.
                stream.close()
                assert (only(registry).refused, only(registry).in_flight) == (1, 0)

    run(test)
    assert only(registry).attempts == 1


@pytest.mark.parametrize("retries", MODES)
def test_aioboto3_is_governed_under_install(provider: Simulator, retries: str, registry: Any) -> None:
    """As Inspect AI's bedrock provider makes its client, with adaptive retries."""

    async def test() -> None:
        made = aioboto3.Session().client(
            "bedrock-runtime",
            region_name=REGION,
            endpoint_url=provider.bedrock_url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=AioConfig(retries={"mode": retries, "max_attempts": 10}),
        )
        async with made as client:
            answer = await client.converse(**{**ASK, "modelId": PROFILE})
            assert answer["output"]["message"]["content"][0]["text"]

    tidegate.install(registry)
    run(test)
    seen = only(registry)
    assert (seen.key.provider, seen.key.scope, seen.answered, seen.attempts) == ("bedrock", PROFILE, 1, 1)


def test_httpx_backend_is_governed_on_trio(provider: Simulator, registry: RateLimitRegistry) -> None:
    import trio

    async def main() -> None:
        async with client_of(provider.bedrock_url, session="httpx") as client:
            registry.wrap(client)
            await read_whole((await client.invoke_model(**INVOKE))["body"])

    trio.run(main)
    assert (only(registry).answered, only(registry).in_flight) == (1, 0)


def test_other_services_pass_at_once(registry: RateLimitRegistry) -> None:
    async def test() -> None:
        keys = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": REGION}
        async with get_session().create_client("s3", **keys) as client:
            Script(client, (200, {}, b""))
            await client.head_bucket(Bucket="tides")

    tidegate.install(registry)
    run(test)
    assert registry.snapshot().keys == {}


def test_mocks_refusal_under_install_is_handed_back(registry: RateLimitRegistry) -> None:
    class Memory(io.BytesIO):
        async def read(self) -> bytes:  # type: ignore[override]
            return super().read()

    asked: list[Any] = []

    def answer(request: Any, **facts: Any) -> Any:
        asked.append(request)
        return AioAWSResponse(request.url, 429, {"x-amzn-errortype": "ThrottlingException"}, Memory(b"{}"))

    async def test() -> None:
        async with client_of(total_max_attempts=1) as client:
            client.meta.events.register("before-send", answer)
            for _ in range(3):
                with pytest.raises(client.exceptions.ThrottlingException):
                    await client.converse(**ASK)

    tidegate.install(registry)
    run(test)
    assert (len(asked), only(registry).refused) == (3, 0)


def test_after_uninstall_a_client_passes_through(provider: Simulator, registry: RateLimitRegistry) -> None:
    async def test() -> None:
        async with client_of(provider.bedrock_url) as client:
            await client.converse(**ASK)
            tidegate.uninstall()
            await client.converse(**ASK)

    tidegate.install(registry)
    run(test)
    assert (provider.truth().total.answered, only(registry).answered) == (2, 1)
