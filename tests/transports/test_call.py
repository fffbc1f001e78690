"""Whose quota a request counts against, as an HTTP stack asks it."""

import pytest

from tests.providers.estimates import read_inquiry
from tidegate.admission.registry import RateLimitRegistry
from tidegate.providers import adopt
from tidegate.transports.request_key import OutgoingRequest, RequestRoute, key_of

BEDROCK = "bedrock-runtime.us-east-1.amazonaws.com"
GEMINI = "generativelanguage.googleapis.com"
CONVERSE = "/model/m/converse"
GENERATE = "/v1beta/models/m:generateContent"


def key(registry, host, path, headers=(), query=b""):
    provider = adopt(host, path, None)
    sending = OutgoingRequest(
        RequestRoute(provider, "https", host, None, path), list(headers), b"{}", True, query=query
    )
    return key_of(registry, sending, read_inquiry(provider, path, b"{}"), dict(headers))[0]


def signed(access_key, signature):
    scope = f"{access_key}/20261121/us-east-1/bedrock/aws4_request"
    return [(b"Authorization", f"AWS4-HMAC-SHA256 Credential={scope}, Signature={signature}".encode())]


def test_requests_signed_with_one_access_key_share_one_key_and_one_entry():
    registry = RateLimitRegistry()
    keys = {key(registry, BEDROCK, CONVERSE, signed("AKIDONE", number)) for number in range(50)}
    assert len(keys) == len(registry.interned) == 1
    assert key(registry, BEDROCK, CONVERSE, signed("AKIDTWO", 0)) not in keys


def test_a_key_in_the_query_is_the_key_in_the_header():
    registry = RateLimitRegistry()
    asked = key(registry, GEMINI, GENERATE, query=b"alt=sse&key=k%2D1")
    assert asked == key(registry, GEMINI, GENERATE, [(b"X-Goog-Api-Key", b"k-1")])
    assert asked != key(registry, GEMINI, GENERATE, query=b"key=k-2")
    assert asked.credential
    assert key(registry, GEMINI, GENERATE, query=b"alt=sse").credential == ""


@pytest.mark.parametrize(
    "path",
    [
        "/google/v1beta/models/m:generateContent",
        "/google/v1/interactions",
        "/google/v1beta1/projects/p/locations/l/publishers/google/models/m:generateContent",
        "/google/chat/completions",
    ],
)
def test_the_base_url_of_a_gateway_ends_where_the_sdk_begins(path):
    assert key(RateLimitRegistry(), "gateway.test", path).base_url == "https://gateway.test/google"


def test_no_part_of_a_credential_is_kept():
    registry = RateLimitRegistry()
    key(registry, GEMINI, GENERATE, query=b"key=secret-one")
    key(registry, BEDROCK, CONVERSE, signed("AKIDSECRET", "secret-two"))
    kept = repr(registry.interned).lower()
    assert "secret" not in kept


def test_a_project_of_vertex_is_the_key_whoever_asks():
    registry = RateLimitRegistry()
    path = "/v1/projects/p/locations/l/publishers/google/models/m:generateContent"
    keys = {key(registry, "aiplatform.googleapis.com", path, [(b"authorization", token)]) for token in (b"a", b"b")}
    assert [each.scope for each in keys] == ["p/l/m"]
