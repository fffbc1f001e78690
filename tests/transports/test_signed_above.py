"""Requests that were signed above the HTTP client, as LiteLLM signs Bedrock's: AWS refuses an old signature."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import botocore.auth
import httpx
import httpx2
import pytest
import requests
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, RefreshableCredentials

import tidegate
from tests import bedrock as aws
from tests.transports.answering import Reply, Server, only
from tidegate.admission.registry import RateLimitRegistry
from tidegate.transports import bearer, sigv4

PATH = "/model/anthropic.claude-sonnet-5-v1%3A0/converse"
DATA = json.dumps({"messages": aws.ASK["messages"]})
ALLOWED = timedelta(minutes=5)


class Clock:
    """The time of day that signers and AWS see; each refusal takes ten minutes of it."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)

    def read(self) -> datetime:
        return self.now.replace(tzinfo=None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(botocore.auth, "get_current_datetime", clock.read)
    return clock


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sigv4, "STALE_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(bearer, "LOOK_AFTER_SECONDS", 0.0)
    return


class Bedrock:
    """Throttles the first request, and refuses a signature that is wrong or older than five minutes, as AWS does."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.statuses: list[int] = []
        self.server = Server(self.reply)

    def reply(self, number: int, path: str) -> Reply:
        status, headers, body = self.judge(number, path)
        self.statuses.append(status)
        return status, {"content-type": "application/json", **headers}, json.dumps(body).encode()

    def judge(self, number: int, path: str) -> tuple[int, dict[str, str], dict[str, Any]]:
        headers, sent = self.server.headers[-1], self.server.bodies[-1]
        url = f"http://{headers['host']}{path}"
        signed_on = datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if not aws.is_signed_rightly("POST", url, headers, sent):
            return 403, {}, {"message": "The request signature we calculated does not match"}
        if self.clock.now - signed_on > ALLOWED:
            return 403, {}, {"message": f"Signature expired: {headers['x-amz-date']} is now earlier than - 5 min."}
        if number == 1:
            self.clock.now += timedelta(minutes=10)
            told = {"x-amzn-errortype": "ThrottlingException", "retry-after": "0.02"}
            return 429, told, {"message": "Too many tokens, please wait."}
        return 200, {}, aws.ANSWER

    @property
    def url(self) -> str:
        return self.server.chat.replace("/v1/chat/completions", PATH)


def signed(url: str, credentials: Any = None) -> dict[str, str]:
    """Return the headers that LiteLLM 1.106.2 posts (`llms/bedrock/base_aws_llm.py`, `dict(prepped.headers)`)."""
    auth = SigV4Auth(credentials or Credentials(aws.KEY, aws.SECRET, "token"), "bedrock", aws.REGION)
    request = AWSRequest(method="POST", url=url, data=DATA, headers={"Content-Type": "application/json"})
    auth.add_auth(request)
    request.headers["x-forwarded-for"] = "added after the signature"
    return dict(request.prepare().headers)


def posted(stack: str, registry: RateLimitRegistry, url: str, headers: dict[str, str]) -> int:
    if stack == "requests":
        with requests.Session() as session:
            session.trust_env = False
            registry.wrap(session)
            return session.post(url, data=DATA, headers=headers).status_code
    module: ModuleType = httpx2 if "httpx2" in stack else httpx
    if "async" not in stack:
        with registry.wrap(module.Client(trust_env=False)) as client:
            return int(client.post(url, content=DATA, headers=headers).status_code)

    async def main() -> int:
        async with registry.wrap(module.AsyncClient(trust_env=False)) as client:
            return int((await client.post(url, content=DATA, headers=headers)).status_code)

    return asyncio.run(main())


STACKS = ("httpx", "httpx2", "async httpx", "async httpx2", "requests")


def wrapped_before(stack: str, registry: RateLimitRegistry) -> Any:
    """A client that has made its stack governed by the time that the request is signed."""
    module: Any = requests if stack == "requests" else httpx2 if "httpx2" in stack else httpx
    return registry.wrap(requests.Session() if stack == "requests" else module.Client())


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("stack", STACKS)
def test_request_signed_above_is_signed_anew_after_a_wait(
    stack: str, clock: Clock, registry: RateLimitRegistry
) -> None:
    bedrock = Bedrock(clock)
    with bedrock.server, wrapped_before(stack, registry):
        status = posted(stack, registry, bedrock.url, signed(bedrock.url))
    assert (status, bedrock.statuses) == (200, [429, 200])
    first, second = bedrock.server.headers
    assert first["x-amz-date"] != second["x-amz-date"]
    assert second["x-forwarded-for"] == first["x-forwarded-for"]
    assert bedrock.server.bodies[0] == bedrock.server.bodies[1]


@pytest.mark.usefixtures("impatient")
def test_request_is_signed_anew_with_refreshed_credentials(clock: Clock, registry: RateLimitRegistry) -> None:
    tokens = iter(("first", "second"))

    def fresh() -> dict[str, str]:
        expiry = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        return {"access_key": aws.KEY, "secret_key": aws.SECRET, "token": next(tokens), "expiry_time": expiry}

    credentials = RefreshableCredentials.create_from_metadata(fresh(), fresh, "test")
    bedrock = Bedrock(clock)
    with bedrock.server, wrapped_before("httpx", registry):
        headers = signed(bedrock.url, credentials)
        credentials._expiry_time = datetime.now(UTC) - timedelta(seconds=1)
        assert posted("httpx", registry, bedrock.url, headers) == 200
    assert [headers["x-amz-security-token"] for headers in bedrock.server.headers] == ["first", "second"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("stack", STACKS)
def test_signature_of_an_unknown_signer_is_not_sent_when_it_is_old(
    stack: str, clock: Clock, registry: RateLimitRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    bedrock = Bedrock(clock)
    headers = signed(bedrock.url)  # before anything is patched
    monkeypatch.setattr(sigv4, "seconds_left", lambda *facts: 0.0)
    with bedrock.server:
        status = posted(stack, registry, bedrock.url, headers)
    assert (status, bedrock.statuses) == (429, [429])
    assert only(registry).in_flight == 0


def test_seconds_left_counts_from_the_date_of_the_signature() -> None:
    headers = {"authorization": "AWS4-HMAC-SHA256 Credential=…", "x-amz-date": "20261121T120000Z"}
    noon = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    ages = [-60, 0, 60, 239, 241]
    left = [sigv4.seconds_left(headers, noon + timedelta(seconds=age)) for age in ages]
    assert left == [240.0, 240.0, 180.0, 1.0, 0.0]
    assert sigv4.seconds_left({"authorization": "Bearer token"}, noon) is None


def test_only_the_newest_signers_are_kept(clock: Clock, registry: RateLimitRegistry) -> None:
    with registry.wrap(httpx.Client()):
        for number in range(sigv4.MAX_NOTED_SIGNATURES + 5):
            signed(f"http://127.0.0.1/{number}{PATH}")
    assert len(sigv4._noted) == sigv4.MAX_NOTED_SIGNATURES


def test_after_uninstall_no_signer_is_kept(registry: RateLimitRegistry) -> None:
    original = vars(SigV4Auth)["add_auth"]
    tidegate.install(registry)
    assert vars(SigV4Auth)["add_auth"] is not original
    tidegate.uninstall()
    assert vars(SigV4Auth)["add_auth"] is original
