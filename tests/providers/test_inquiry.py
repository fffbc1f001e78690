"""What a request says of itself, whose quota it is, and what it is expected to cost."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.providers.estimates import learned, read_inquiry
from tidegate.core.values import Cost, RequestFacts, Usage
from tidegate.providers import COMPATIBLE, charged, credential_of, estimate, payer, scope
from tidegate.providers.anthropic import ANTHROPIC
from tidegate.providers.clouds import AZURE, AZURE_COMPATIBLE, BEDROCK, GITHUB_MODELS
from tidegate.providers.google import GEMINI, VERTEX
from tidegate.providers.model_hosts import OLLAMA, OLLAMA_LOCAL, REPLICATE
from tidegate.providers.model_makers import COHERE
from tidegate.providers.openai import OPENAI

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
PICTURE = "data:image/png;base64," + "A" * 100_000


def read(body, path=CHAT, provider=OPENAI):
    return read_inquiry(provider, path, body if isinstance(body, bytes) else json.dumps(body).encode())


def test_a_chat_request_says_its_model_length_bound_and_stream():
    body = {"model": "m", "messages": [{"role": "user", "content": "x" * 100}], "max_tokens": 7, "stream": True}
    assert read(body) == RequestFacts("m", 104, 7, True)


@pytest.mark.parametrize(
    ("body", "chars"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "abc"}]}]}, 11),
        ({"input": "abc"}, 3),
        ({"input": ["abc", "de"]}, 5),
        ({"input": [1, 2, 3]}, 12),
        ({"input": [[1, 2], [3]]}, 12),
        ({"prompt": "abc", "suffix": "d"}, 4),
        ({"system": "abc", "messages": []}, 3),
        ({"instructions": "abc", "input": [{"role": "user", "content": "de"}]}, 9),
        ({"inputs": "abc"}, 3),
        ({"query": "a", "documents": ["bc", {"text": "d"}]}, 4),
        ({"messages": "äöü€"}, 4),
        ({"tools": [{"name": "f", "parameters": {"properties": {"city": {"type": "string"}}}}]}, 39),
        ({"contents": [{"role": "user", "parts": [{"text": "abc"}]}]}, 7),
        ({"systemInstruction": {"parts": [{"text": "abc"}]}, "generationConfig": {"temperature": 0}}, 3),
        ({"content": {"parts": [{"text": "abc"}]}}, 3),
        ({"messages": [{"role": "user", "content": [{"text": "abc"}]}], "system": [{"text": "de"}]}, 9),
        ({"inputText": "abc"}, 3),
        ({"message": "abc", "chat_history": [{"role": "USER", "message": "de"}]}, 9),
        ({"temperature": 0.5, "user": "somebody"}, 0),
    ],
)
def test_the_length_is_of_the_text_that_counts_as_input(body, chars):
    assert read(body).input_chars == chars


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "input_image", "image_url": PICTURE},
        {"type": "image", "source": {"type": "base64", "data": "A" * 100_000}},
        {"type": "input_audio", "input_audio": {"data": "A" * 100_000}},
        {"type": "file", "file": {"file_data": PICTURE}},
        {"url": PICTURE},
        {"images": ["A" * 100_000]},
        {"inlineData": {"mimeType": "image/png", "data": "A" * 100_000}},
        {"inline_data": {"mime_type": "image/png", "data": "A" * 100_000}},
        {"image": {"source": {"bytes": "A" * 100_000}}},
    ],
)
def test_a_picture_a_sound_or_a_file_counts_a_fixed_length(part):
    assert read({"messages": [part]}).input_chars == OPENAI.image_chars
    assert read({"messages": [part]}, MESSAGES, ANTHROPIC).input_chars == ANTHROPIC.image_chars


def test_a_document_of_text_counts_its_text():
    part = {"type": "document", "source": {"type": "text", "data": "abc"}}
    assert read({"messages": [part]}, MESSAGES, ANTHROPIC).input_chars == len("document" + "text" + "abc")


@pytest.mark.parametrize(
    ("body", "bound"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6, "max_tokens": 5}, 6),
        ({"max_output_tokens": 7}, 7),
        ({"max_tokens": 5, "n": 3}, 15),
        ({"max_tokens": 5, "n": 2, "best_of": 4}, 20),
        ({"options": {"num_predict": 8}}, 8),
        ({"parameters": {"max_new_tokens": 9}}, 9),
        ({}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": 1.5}, None),
        ({"max_tokens": 10**30}, None),
        ({"max_tokens": 5, "n": -3}, 5),
        ({"options": {"num_predict": -1}}, None),
    ],
)
def test_the_bound_on_output_is_over_all_choices(body, bound):
    assert read(body).max_output_tokens == bound


def test_the_deployment_in_the_path_wins_over_the_model_in_the_body():
    body = json.dumps({"model": "gpt-3.5-turbo"}).encode()
    path = "/openai/deployments/gpt-4.1-mini/chat/completions"
    assert read_inquiry(AZURE, path, body).model == "gpt-4.1-mini"
    assert read_inquiry(AZURE_COMPATIBLE, "/apim" + path, body).model == "gpt-4.1-mini"
    assert read_inquiry(AZURE, "/openai/v1/responses", body).model == "gpt-3.5-turbo"


def test_ollama_streams_unless_told_not_to():
    for provider in (OLLAMA, OLLAMA_LOCAL):
        assert read({"model": "m"}, "/api/chat", provider).stream
        assert not read({"model": "m", "stream": False}, "/api/chat", provider).stream
        assert not read({"model": "m"}, "/api/embed", provider).stream


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
def test_the_model_of_a_form_is_found_before_or_after_the_file(newline):
    field = f'--b{newline}Content-Disposition: form-data; name="model"{newline}{newline}whisper-1{newline}'.encode()
    file = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n' + b"\x00" * 100_000 + b"\r\n"
    for body in (field + file + b"--b--", file + field + b"--b--\r\n"):
        assert read(body, "/v1/audio/transcriptions") == RequestFacts("whisper-1", 0, None, False)
    assert read(file, "/v1/audio/transcriptions").model == ""


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"5", b'"x"', b"{", b"\xff\xfe", b"{" * 100_000, b"[" * 100_000, b'{"messages":' * 50_000,
        b'{"model": 5}', b'{"model": null, "messages": 7, "n": [], "stream": "yes"}', b'{"n": ' + b"9" * 5000 + b"}",
        b"--", b"--" * 100_000, b'{"options": []}', b'{"messages": [null, true, 1.5, [[]]]}',
    ],
)  # fmt: skip
def test_no_body_raises(body):
    inquiry = read(body)
    assert inquiry.model == ""
    assert inquiry.input_chars >= 0
    assert inquiry.max_output_tokens is None


def test_a_form_and_a_broken_body_leave_the_model_of_the_path_alone():
    path = "/openai/deployments/d/audio/transcriptions"
    assert read(b'--b\r\nname="model"\r\n\r\nx\r\n--b--', path, AZURE).model == "d"
    assert read(b'{"model": "x"', path, AZURE).model == "d"


def test_a_lone_surrogate_and_a_deep_list_do_not_keep_a_body_from_being_read():
    deep = b"[" * 300 + b"]" * 300
    body = b'{"model": "m", "metadata": %s, "messages": [{"content": "\\ud800 four"}], "max_tokens": 7}' % deep
    assert read_inquiry(OPENAI, CHAT, body) == RequestFacts("m", 6, 7)


def test_a_body_that_is_too_deep_to_parse_still_names_its_model():
    body = b'{"model": "m", "stream": true, "messages": ' + b"[" * 100_000
    assert read(body) == RequestFacts("m", len(body), None, True)


def test_a_model_is_cut_and_can_always_be_encoded():
    assert read(b'{"model": "\\ud800"}').model.encode("utf-8") == b"?"
    assert len(read({"model": "m" * 10_000}).model) == 256


def test_no_body_at_all_says_nothing():
    assert read_inquiry(OPENAI, CHAT, None) == RequestFacts()


KEYS = st.sampled_from(["messages", "input", "type", "images", "tools", "max_tokens", "n", "options", "model"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=15,
)


@given(JSON)
def test_no_json_of_any_shape_raises(document):
    inquiry = read(json.dumps(document).encode(), provider=COMPATIBLE)
    assert inquiry.input_chars >= 0
    assert inquiry.max_output_tokens is None or inquiry.max_output_tokens >= 0


@given(st.binary(max_size=200))
def test_no_bytes_raise(body):
    assert read(body).input_chars >= 0


def test_the_scope_is_the_model_or_deployment():
    for provider in (OPENAI, AZURE, ANTHROPIC, COMPATIBLE, GITHUB_MODELS):
        assert scope(provider, RequestFacts("m"), "host", "/path") == "m"


def test_the_credential_is_all_that_says_who_pays():
    headers = {"authorization": "Bearer s", "openai-project": "p", "x-api-key": "k", "api-key": "a"}
    assert credential_of(OPENAI, headers.get) == "authorization=Bearer s\nopenai-project=p"
    assert credential_of(ANTHROPIC, headers.get) == "x-api-key=k\nauthorization=Bearer s"
    assert credential_of(AZURE, headers.get) == ""
    assert credential_of(AZURE_COMPATIBLE, headers.get) == "api-key=a\nauthorization=Bearer s"
    assert credential_of(COMPATIBLE, {}.get) == ""


SIGNED = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261121/us-east-1/bedrock/aws4_request, Signature="


def test_of_a_signed_request_the_access_key_pays_whatever_the_signature():
    one, other = ({"authorization": SIGNED + signature} for signature in ("abc", "def"))
    assert credential_of(BEDROCK, one.get) == credential_of(BEDROCK, other.get) == "authorization=AKIDEXAMPLE"
    assert credential_of(BEDROCK, {"authorization": "Bearer k"}.get) == "authorization=Bearer k"
    assert payer(OPENAI, SIGNED) == SIGNED


ARN = "arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-sonnet-4-20250514-v1:0"
PROJECT = "/v1/projects/p-1/locations/us-central1"


@pytest.mark.parametrize(
    ("provider", "path", "expected"),
    [
        (BEDROCK, "/model/anthropic.claude-3-haiku-20240307-v1%3A0/invoke", "anthropic.claude-3-haiku-20240307-v1:0"),
        (BEDROCK, "/model/us.amazon.nova-lite-v1:0/converse", "us.amazon.nova-lite-v1:0"),
        (BEDROCK, f"/model/{ARN}/converse", ARN),
        (BEDROCK, f"/model/{ARN.replace('/', '%2F')}/converse-stream", ARN),
        (BEDROCK, "/openai/v1/chat/completions", "body"),
        (GEMINI, "/v1beta/models/gemini-2.5-flash:generateContent", "gemini-2.5-flash"),
        (GEMINI, "/v1beta/openai/chat/completions", "body"),
        (VERTEX, f"{PROJECT}/publishers/google/models/g:predict", "p-1/us-central1/g"),
        (VERTEX, f"{PROJECT}/endpoints/openapi/chat/completions", "p-1/us-central1/body"),
        (VERTEX, "/v1/publishers/google/models/g:generateContent", "g"),
        (COHERE, "/v2/chat", "body"),
        (REPLICATE, "/v1/models/meta/llama/predictions", ""),
        (OLLAMA, "/api/chat", ""),
        (OLLAMA_LOCAL, "/api/chat", ""),
    ],
)
def test_the_scope_is_what_the_provider_keeps_its_quota_for(provider, path, expected):
    assert scope(provider, read({"model": "body"}, path, provider), "host", path) == expected


@pytest.mark.parametrize(
    ("provider", "path", "body"),
    [
        (BEDROCK, "/model/m/converse", {"inferenceConfig": {"maxTokens": 7}}),
        (BEDROCK, "/model/m/invoke", {"inferenceConfig": {"max_new_tokens": 7}}),
        (BEDROCK, "/model/m/invoke", {"textGenerationConfig": {"maxTokenCount": 7}}),
        (BEDROCK, "/model/m/invoke", {"max_gen_len": 7}),
        (GEMINI, "/v1beta/models/m:generateContent", {"generationConfig": {"maxOutputTokens": 7}}),
        (GEMINI, "/v1beta/models/m:generateContent", {"generation_config": {"max_output_tokens": 7}}),
        (VERTEX, f"{PROJECT}/publishers/google/models/m:predict", {"parameters": {"maxOutputTokens": 7}}),
        (OLLAMA, "/api/chat", {"options": {"num_predict": 7}}),
    ],
)
def test_the_bound_is_found_where_each_dialect_has_it(provider, path, body):
    assert read(body, path, provider).max_output_tokens == 7


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        ("us.anthropic.claude-3-7-sonnet-20250219-v1:0", 200),
        ("anthropic.claude-sonnet-4-20250514-v1:0", 200),
        ("global.anthropic.claude-opus-5-v1:0", 200),
        ("anthropic.claude-3-5-sonnet-20241022-v2:0", 150),
        ("anthropic.claude-v2:1", 150),
        ("amazon.nova-lite-v1:0", 150),
    ],
)
def test_bedrock_counts_an_output_token_of_the_later_claudes_five_times(model, tokens):
    assert estimate(BEDROCK, RequestFacts(model, 400, 50), learned(4.0, 20.0)).tokens == tokens


INQUIRY = RequestFacts("m", 400, 50, False)


@pytest.mark.parametrize(
    ("provider", "mean", "cost"),
    [
        (OPENAI, 20, Cost(1, 100, 100, 20, 0)),
        (AZURE, 20, Cost(1, 150, 100, 20, 0)),
        (ANTHROPIC, 20, Cost(1, 100, 100, 0, 20)),
        (ANTHROPIC, 500, Cost(1, 100, 100, 0, 50)),
        (COMPATIBLE, 20, Cost(1, 100, 100, 20, 0)),
    ],
)
def test_a_call_is_charged_by_the_providers_rule(provider, mean, cost):
    assert estimate(provider, INQUIRY, learned(4.0, mean))[:7] == cost[:7]


def test_a_cost_has_the_estimates_that_other_charging_rules_need():
    cost = estimate(OPENAI, INQUIRY, learned(4.0, 20))
    assert (cost.input_estimate, cost.output_bound, cost.output_estimate) == (100, 50, 20)
    assert estimate(OPENAI, RequestFacts("m", 400), learned(4.0, 30.0)).output_bound == 30, (
        "the mean stands for no bound"
    )


def test_without_a_bound_azure_is_charged_the_mean():
    assert estimate(AZURE, RequestFacts("m", 400), learned(4.0, 30.0)).tokens == 130


def test_input_read_from_a_cache_is_free_where_the_provider_says_so():
    usage = Usage(1000, 20, 900)
    assert charged(ANTHROPIC, usage) == Usage(100, 20, 900)
    assert charged(OPENAI, usage) == usage


def test_what_is_held_is_the_bound_where_it_is_given_back():
    assert estimate(BEDROCK, RequestFacts("m", 400, 50), learned(4.0, 20.0)).held == 50.0
    assert estimate(AZURE, RequestFacts("m", 400, 50), learned(4.0, 20.0)).held == 0.0


def test_what_every_request_has_is_added_and_never_makes_less_than_a_token():
    assert estimate(OPENAI, RequestFacts("m", 400), learned(4.0, 20.0, 50.0)).tokens == 150.0
    assert estimate(OPENAI, RequestFacts("m", 400), learned(4.0, 20.0, -2000.0)).tokens == 1.0
