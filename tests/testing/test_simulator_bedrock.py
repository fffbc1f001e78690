"""boto3's bedrock-runtime, and the Bedrock client of another SDK, against the simulator over loopback HTTP."""

from __future__ import annotations

import json
from contextlib import closing

import anthropic
import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError

from tidegate.testing import Fault, Limit, OutageSpan, Scenario, Simulator

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


def test_its_bound_on_the_output_cuts_an_answer_short(client):
    answer = client.converse(**ASK, inferenceConfig={"maxTokens": 2})
    assert (answer["stopReason"], answer["usage"]["outputTokens"]) == ("max_tokens", 2)


def test_converse_stream_adds_up_and_ends_with_its_usage(client):
    events = list(client.converse_stream(**ASK)["stream"])
    deltas = [event["contentBlockDelta"]["delta"]["text"] for event in events if "contentBlockDelta" in event]
    assert "".join(deltas) == "It is 4, of course."
    assert events[-1]["metadata"]["usage"]["outputTokens"] == 5


def test_invoke_speaks_anthropics_messages_whole_and_in_chunks(client):
    assert json.loads(client.invoke_model(**INVOKE)["body"].read())["content"][0]["text"] == "It is 4, of course."
    chunks = [event["chunk"]["bytes"] for event in client.invoke_model_with_response_stream(**INVOKE)["body"]]
    kinds = [json.loads(chunk)["type"] for chunk in chunks]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


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


@pytest.mark.parametrize(
    ("status", "code"), [(503, "ServiceUnavailableException"), (500, "InternalServerException"), (502, "502")]
)
def test_its_outages_are_named_by_their_status(status, code):
    with Simulator(Scenario(outages=(OutageSpan(start=0, end=60, status=status),))) as provider:
        assert refusal_of(provider)[:2] == (status, code)


def test_signatures_differ_but_an_account_is_one():
    with Simulator(Scenario(limiters=(Limit(limit=9),))) as provider:
        for bound, key in enumerate(("AKIAONE", "AKIAONE", "AKIATWO")):
            with client_of(provider, key) as client:
                client.converse(**ASK, inferenceConfig={"maxTokens": 9 + bound})
        assert [counts.received for counts in provider.truth().keys.values()] == [2, 1]
        assert all(name.startswith(PROFILE) for name in provider.truth().keys)
