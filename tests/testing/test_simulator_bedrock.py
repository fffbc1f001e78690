"""boto3's bedrock-runtime, and the Bedrock client of another SDK, against the simulator over loopback HTTP."""

from __future__ import annotations

import json
from contextlib import closing

import anthropic
import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError

from tidegate.testing import Fault, Limit, Scenario, Simulator

PROFILE = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-5-v1:0"
ASK = {"modelId": PROFILE, "messages": [{"role": "user", "content": [{"text": "What is 2+2?"}]}]}
BODY = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 64, "messages": [{"role": "user", "content": "2+2?"}]}
INVOKE = {"modelId": "anthropic.claude-sonnet-5-v1:0", "body": json.dumps(BODY)}
ANSWERS = {"2+2?": "It is 4, of course."}


def client_of(provider, key="AKIATEST"):
    return closing(
        boto3.client(
            "bedrock-runtime",
            region_name="us-east-1",
            endpoint_url=provider.bedrock_url,
            aws_access_key_id=key,
            aws_secret_access_key="secret",
            config=Config(retries={"total_max_attempts": 1, "mode": "standard"}),
        )
    )


@pytest.fixture
def provider():
    with Simulator(Scenario(answers=ANSWERS)) as running:
        yield running


@pytest.fixture
def client(provider):
    with client_of(provider) as client:
        yield client


def refusal_of(provider):
    with client_of(provider) as client, pytest.raises(ClientError) as caught:
        client.converse(**ASK)
    error = caught.value.response
    return error["ResponseMetadata"]["HTTPStatusCode"], error["Error"]["Code"], error["Error"]["Message"]


def test_converse_is_answered_with_its_usage(client):
    answer = client.converse(**ASK)
    assert answer["output"]["message"]["content"][0]["text"] == "It is 4, of course."
    assert answer["usage"] == {"inputTokens": 3, "outputTokens": 5, "totalTokens": 8}
    assert answer["stopReason"] == "end_turn"
    assert not [name for name in answer["ResponseMetadata"]["HTTPHeaders"] if "limit" in name]


def test_the_bedrock_client_of_anthropics_sdk_reads_its_streams(provider):
    with anthropic.AnthropicBedrock(
        base_url=provider.bedrock_url, aws_access_key="AKIATEST", aws_secret_key="secret", aws_region="us-east-1"
    ) as client:
        fields = {"model": INVOKE["modelId"], "max_tokens": 64, "messages": BODY["messages"]}
        with client.messages.stream(**fields) as stream:
            assert stream.get_final_text() == "It is 4, of course."


def test_a_stream_breaks_with_a_throttling_exception_inside_a_200():
    with Simulator(Scenario(answers=ANSWERS, faults=(Fault(kind="stream-error", nth=(1,)),))) as provider:
        with (
            client_of(provider) as client,
            closing(client.converse_stream(**ASK)["stream"]) as stream,
            pytest.raises(EventStreamError, match=r"throttlingException.*Too many tokens"),
        ):
            list(stream)
        assert provider.truth().total.broken == 1


@pytest.mark.parametrize(
    ("limits", "refusal"),
    [
        (Limit(limit=1), (429, "ThrottlingException", "Too many requests, please wait before trying again.")),
        (
            Limit(limit=9, unit="tokens"),
            (429, "ThrottlingException", "Too many tokens, please wait before trying again."),
        ),
        (
            Limit(kind="day", limit=1),
            (429, "ThrottlingException", "Too many requests per day, please wait before trying again."),
        ),
        (
            Limit(limit=2, unit="tokens"),
            (400, "ValidationException", "Input is too long for requested model."),
        ),
        (
            Limit(kind="credit", limit=1),
            (403, "AccessDeniedException", "Model access is denied due to INVALID_PAYMENT_INSTRUMENT."),
        ),
    ],
    ids=["requests", "tokens", "day", "too large", "money"],
)
def test_its_refusals_say_what_bedrock_says_and_no_time(limits, refusal):
    with Simulator(Scenario(limiters=(limits,), charge="produced")) as provider:
        if refusal[0] != 400:
            with client_of(provider) as client:
                client.converse(**ASK)
        assert refusal_of(provider) == refusal
