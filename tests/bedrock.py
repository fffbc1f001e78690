"""Clients of Bedrock with made-up credentials, scripted answers, and a check of signatures as AWS does it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import boto3
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest, AWSResponse
from botocore.config import Config
from botocore.credentials import Credentials

MODES = ("legacy", "standard", "adaptive")
REGION = "us-east-1"
KEY, SECRET = "AKIATESTTESTTESTTEST", "a-secret-of-the-tests"
MODEL = "anthropic.claude-sonnet-5-v1:0"
PROFILE = f"arn:aws:bedrock:{REGION}:123456789012:inference-profile/us.{MODEL}"
ASK: dict[str, Any] = {"modelId": MODEL, "messages": [{"role": "user", "content": [{"text": "How high is the tide?"}]}]}
BODY = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 64, "messages": [{"role": "user", "content": "Tide?"}]}
INVOKE: dict[str, Any] = {"modelId": MODEL, "body": json.dumps(BODY)}

USAGE = {"inputTokens": 9, "outputTokens": 2, "totalTokens": 11}
ANSWER = {
    "output": {"message": {"role": "assistant", "content": [{"text": "High."}]}},
    "stopReason": "end_turn",
    "usage": USAGE,
    "metrics": {"latencyMs": 1},
}

Reply = tuple[int, dict[str, str], dict[str, Any] | bytes]

FINE: Reply = (200, {}, ANSWER)
SOON = {"retry-after": "0.02"}
"""What real refusals lack: without it each would be waited out for most of a second."""


def refusal(status: int, name: str, message: str = "Too many tokens, please wait before trying again.") -> Reply:
    return status, {"x-amzn-errortype": f"{name}:http://internal.amazon.com/coral/", **SOON}, {"message": message}


THROTTLED = refusal(429, "ThrottlingException")
BROKEN = refusal(500, "InternalServerException", "The system encountered an unexpected error.")


def client_of(url: str | None = None, mode: str = "legacy", service: str = "bedrock-runtime", **retries: Any) -> Any:
    client = boto3.client(
        service,
        region_name=REGION,
        endpoint_url=url,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(retries={"mode": mode, **retries}, connect_timeout=5, read_timeout=30),  # type: ignore[typeddict-item]
    )
    return closing(client)


class Raw(io.BytesIO):
    """A body as botocore reads one."""

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[bytes]:
        yield self.read()


class Script:
    """Answers instead of the network: `replies` in order, then the last again. `requests` are those it was sent."""

    def __init__(self, client: Any, *replies: Reply) -> None:
        self.replies = replies
        self.requests: list[Any] = []
        client.meta.events.register("before-send", self)

    def __call__(self, request: Any, **facts: Any) -> AWSResponse:
        status, headers, body = self.replies[min(len(self.requests), len(self.replies) - 1)]
        self.requests.append(request)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return AWSResponse(request.url, status, {"content-type": "application/json", **headers}, Raw(content))


def text_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    plain = {name: value.decode() if isinstance(value, bytes) else value for name, value in headers.items()}
    return {name.lower(): value for name, value in plain.items()}


def is_signed_rightly(method: str, url: str, headers: Mapping[Any, Any], body: bytes, service: str = "bedrock") -> bool:
    """Whether the signature is that of this request, by this secret, at the instant that it says."""
    given = text_headers(headers)
    parts = dict(part.strip().split("=", 1) for part in given["authorization"].partition(" ")[2].split(","))
    signed = {name: given[name] for name in parts["SignedHeaders"].split(";") if name != "host"}
    request = AWSRequest(method=method, url=url, headers=signed, data=body)
    request.context["timestamp"] = given["x-amz-date"]
    signer = SigV4Auth(Credentials(KEY, SECRET, given.get("x-amz-security-token")), service, REGION)
    text = signer.string_to_sign(request, signer.canonical_request(request))
    return signer.signature(text, request) == parts["Signature"]
