"""Recorded and stubbed answers in a process that has tidegate installed: a playback has no limit to be waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import httpx
import pytest
import requests
import requests_mock
import responses
import vcr
import yaml
from botocore.awsrequest import AWSResponse
from botocore.stub import Stubber

import tidegate
from tests.bedrock import ANSWER, ASK, INVOKE, Raw, client_of
from tests.transports.answering import Server, only, refused_at_first
from tidegate.admission.registry import RateLimitRegistry

CHAT = "https://api.openai.com/v1/chat/completions"
INVOKED = "https://bedrock-runtime.us-east-1.amazonaws.com/model/anthropic.claude-sonnet-5-v1%3A0/invoke"
SPENT = {
    "x-ratelimit-limit-requests": "3",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "60s",
    "retry-after": "60",
    "content-type": "application/json",
}


@pytest.fixture
def installed() -> Iterator[RateLimitRegistry]:
    # A call that waits gives up soon, so that a broken promise is a failure and not a test that hangs.
    registry = RateLimitRegistry(tidegate.Settings(max_wait=1.0))
    tidegate.install(registry)
    yield registry
    tidegate.uninstall()


def cassette(folder: Path, url: str, *statuses: int) -> Any:
    recorded = [
        {
            "request": {"method": "POST", "uri": url, "body": "", "headers": {}},
            "response": {
                "status": {"code": status, "message": "recorded"},
                "headers": {name: [value] for name, value in SPENT.items()},
                "body": {"string": json.dumps({"id": number})},
            },
        }
        for number, status in enumerate(statuses)
    ]
    path = folder / "recorded.yaml"
    path.write_text(yaml.safe_dump({"interactions": recorded, "version": 1}))
    return vcr.use_cassette(str(path), record_mode="none", match_on=["method", "uri"])


def untaught(registry: RateLimitRegistry) -> bool:
    return all(
        (key.quotas, key.refused, key.failed, key.in_flight) == ((), 0, 0, 0)
        for key in registry.snapshot().keys.values()
    )


def by_requests(url: str, times: int) -> list[int]:
    return [requests.post(url, json={}).status_code for _ in range(times)]


def by_requests_streaming(url: str, times: int) -> list[int]:
    statuses = []
    for number in range(times):
        with requests.post(url, json={}, stream=True) as response:
            assert b"".join(response.iter_content(4)) == json.dumps({"id": number}).encode()
            statuses.append(response.status_code)
    return statuses


def by_httpx(url: str, times: int) -> list[int]:
    with httpx.Client() as client:
        return [client.post(url, json={}).status_code for _ in range(times)]


def by_httpx_streaming(url: str, times: int) -> list[int]:
    statuses = []
    with httpx.Client() as client:
        for number in range(times):
            with client.stream("POST", url, json={}) as response:
                assert response.read() == json.dumps({"id": number}).encode()
                statuses.append(response.status_code)
    return statuses


def by_aiohttp(url: str, times: int) -> list[int]:
    async def main() -> list[int]:
        statuses = []
        async with aiohttp.ClientSession() as session:
            for _ in range(times):
                async with session.post(url, json={}) as response:
                    statuses.append(response.status)
        return statuses

    return asyncio.run(main())


@pytest.mark.parametrize("ask", [by_requests, by_requests_streaming, by_httpx, by_httpx_streaming, by_aiohttp])
def test_playback_shows_each_answer_once(ask: Any, installed: RateLimitRegistry, tmp_path: Path) -> None:
    with cassette(tmp_path, CHAT, 429, 200, 529, 200, 200) as played:
        assert ask(CHAT, 5) == [429, 200, 529, 200, 200]
        assert played.play_count == 5
    assert untaught(installed)


def test_playback_of_botocore_shows_each_answer_once(installed: RateLimitRegistry, tmp_path: Path) -> None:
    with cassette(tmp_path, INVOKED, 200, 429, 200) as played, client_of(total_max_attempts=1) as client:
        assert client.invoke_model(**INVOKE)["body"].read() == b'{"id": 0}'
        with pytest.raises(client.exceptions.ClientError) as caught:
            client.invoke_model(**INVOKE)
        assert client.invoke_model(**INVOKE)["body"].read() == b'{"id": 2}'
        assert played.play_count == 3
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 429
    assert untaught(installed)


def test_playback_through_a_wrapped_session_is_governed(tmp_path: Path, registry: RateLimitRegistry) -> None:
    with cassette(tmp_path, CHAT, 429) as played, requests.Session() as session:
        assert registry.wrap(session, max_wait=0).post(CHAT, json={}).status_code == 429
        assert played.play_count == 1
    assert only(registry).refused == 1


def test_responses_are_shown_as_they_are_stubbed(installed: RateLimitRegistry) -> None:
    with responses.RequestsMock() as stub:
        for status in (429, 200, 503):
            stub.post(CHAT, json={}, status=status, headers=SPENT)
        assert by_requests(CHAT, 3) == [429, 200, 503]
    assert untaught(installed)


def test_answers_of_requests_mock_are_shown_as_they_are_stubbed(installed: RateLimitRegistry) -> None:
    with requests_mock.Mocker() as stub:
        stub.post(CHAT, [{"status_code": status, "json": {}, "headers": SPENT} for status in (429, 200, 503)])
        assert by_requests(CHAT, 3) == [429, 200, 503]
    assert untaught(installed)


def test_requests_mock_leaves_nothing_behind_that_uninstall_cannot_take_off() -> None:
    plain = vars(requests.Session)["send"]
    tidegate.install(RateLimitRegistry(tidegate.Settings()))
    with requests_mock.Mocker():
        assert vars(requests.Session)["send"] is not plain
    tidegate.uninstall()
    assert vars(requests.Session)["send"] is plain


def test_answers_of_a_before_send_handler_are_shown_as_they_are(installed: RateLimitRegistry) -> None:
    """As moto answers: `core/botocore_stubber.py` returns an AWSResponse over a subclass of BytesIO."""
    statuses = [429, 200, 429]

    def answer(request: Any, **facts: Any) -> AWSResponse:
        return AWSResponse(request.url, statuses.pop(0), dict(SPENT), Raw(json.dumps(ANSWER).encode()))

    seen = []
    with client_of(total_max_attempts=1) as client:
        client.meta.events.register("before-send", answer)
        for _ in range(3):
            try:
                client.converse(**ASK)
                seen.append(200)
            except client.exceptions.ClientError as error:
                seen.append(error.response["ResponseMetadata"]["HTTPStatusCode"])
    assert seen == [429, 200, 429]
    assert untaught(installed)


def test_stubber_of_botocore_is_heard(installed: RateLimitRegistry) -> None:
    with client_of() as client, Stubber(client) as stub:
        stub.add_client_error("converse", "ThrottlingException", http_status_code=429)
        stub.add_response("converse", ANSWER)
        with pytest.raises(client.exceptions.ThrottlingException):
            client.converse(**ASK)
        assert client.converse(**ASK)["usage"] == ANSWER["usage"]
    assert installed.snapshot().keys == {}


def test_connection_below_requests_is_governed(installed: RateLimitRegistry) -> None:
    with Server(refused_at_first) as server, requests.Session() as session:
        session.trust_env = False
        assert session.post(server.chat, json={}).status_code == 200
        assert len(server.seen) == 2
    assert only(installed).refused == 1


@pytest.mark.parametrize(("client", "method"), [(httpx.Client, "send"), (requests.Session, "send")])
def test_install_governs_again_where_a_mock_of_before_put_the_plain_method_back(client: Any, method: str) -> None:
    plain = vars(client)[method]
    with mock.patch.object(client, method, return_value=None):
        tidegate.install()
    assert vars(client)[method] is plain
    tidegate.install()
    try:
        assert vars(client)[method].__wrapped__ is plain
        on = vars(client)[method]
        tidegate.install()
        assert vars(client)[method] is on
    finally:
        tidegate.uninstall()
    assert vars(client)[method] is plain
