"""A user's own tests of refusals, with the libraries that stand in for a server: they want the SDK's error soon."""

from __future__ import annotations

import httpx
import httpx2
import openai
import pytest
import requests
import requests_mock
import responses
import respx

ERROR = {"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}}
URL = "https://api.openai.com/v1/chat/completions"


def refuse(_: object) -> httpx2.Response:
    return httpx2.Response(429, json=ERROR)


def test_a_transport_that_refuses() -> None:
    carrier = httpx2.Client(transport=httpx2.MockTransport(refuse))
    client = openai.OpenAI(api_key="x", max_retries=0, http_client=carrier)
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="m", messages=[])


def test_responses() -> None:
    with responses.RequestsMock() as mock:
        mock.post(URL, json=ERROR, status=429)
        with pytest.raises(requests.HTTPError):
            requests.post(URL, json={}, timeout=5).raise_for_status()


def test_requests_mock() -> None:
    with requests_mock.Mocker() as mock:
        mock.post(URL, json=ERROR, status_code=429)
        with pytest.raises(requests.HTTPError):
            requests.post(URL, json={}, timeout=5).raise_for_status()


def test_respx() -> None:
    with respx.mock:
        respx.post(URL).mock(return_value=httpx.Response(429, json=ERROR))
        with pytest.raises(httpx.HTTPStatusError):
            httpx.post(URL, json={}).raise_for_status()
