"""Providers that speak OpenAI's protocol: where they differ from it."""

import json
from datetime import UTC, datetime

import pytest

from tests.providers.estimates import learned, read_inquiry
from tidegate.core.values import Cause, Kind, RequestFacts
from tidegate.providers import (
    credential_of,
    dimensions,
    estimate,
    family_of,
    judge,
    named,
    recognise,
    scope,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("host", "path", "expected"),
    [
        ("api.x.ai", "/v1/chat/completions", "xai"),
        ("us-east-1.api.x.ai", "/v1/responses", "xai"),
        ("api.groq.com", "/openai/v1/chat/completions", "groq"),
        ("api.deepseek.com", "/chat/completions", "deepseek"),
        ("api.deepseek.com", "/beta/completions", "deepseek"),
        ("api.deepseek.com", "/anthropic/v1/messages", "deepseek"),
        ("dashscope.aliyuncs.com", "/compatible-mode/v1/chat/completions", "dashscope"),
        ("dashscope-intl.aliyuncs.com", "/api/v1/services/aigc/text-generation/generation", "dashscope"),
        ("dashscope-us.aliyuncs.com", "/compatible-mode/v1/embeddings", "dashscope"),
        ("api-inference.modelscope.cn", "/v1/chat/completions", "modelscope"),
        ("api.fireworks.ai", "/inference/v1/chat/completions", "fireworks"),
        ("api.mistral.ai", "/v1/chat/completions", "mistral"),
        ("codestral.mistral.ai", "/v1/fim/completions", "mistral"),
        ("api.mistral.ai", "/v1/conversations/conv_1", "mistral"),
        ("api.together.xyz", "/v1/chat/completions", "together"),
        ("api.together.ai", "/v1/embeddings", "together"),
        ("llama3-1-8b.lepton.run", "/api/v1/chat/completions", "lepton"),
        ("api.cerebras.ai", "/v1/chat/completions", "cerebras"),
        ("inference.baseten.co", "/v1/chat/completions", "baseten"),
        ("model-abc.api.baseten.co", "/environments/production/predict", "baseten"),
        ("model-abc.api.baseten.co", "/production/sync/v1/chat/completions", "baseten"),
        ("openrouter.ai", "/api/v1/chat/completions", "openrouter"),
        ("integrate.api.nvidia.com", "/v1/chat/completions", "nvidia"),
        ("api.perplexity.ai", "/chat/completions", "perplexity"),
        ("api.sambanova.ai", "/v1/chat/completions", "sambanova"),
        ("router.huggingface.co", "/v1/chat/completions", "huggingface"),
        ("router.huggingface.co", "/together/v1/chat/completions", "huggingface"),
        ("router.huggingface.co", "/hf-inference/models/org/m/v1/chat/completions", "huggingface"),
        ("router.huggingface.co", "/v1/models", None),
        ("huggingface.co", "/api/models/org/m", None),
        ("openrouter.ai", "/api/v1/key", None),
        ("openrouter.ai", "/chat", None),
        ("api.mistral.ai", "/v1/files", None),
        ("api.baseten.co", "/v1/models", None),
        ("lepton.run", "/api/v1/chat/completions", None),
        ("api.groq.com", "/openai/v1/batches", None),
        ("api.deepseek.com", "/user/balance", None),
    ],
)
def test_a_hosts_generating_paths_are_its_own(host, path, expected):
    provider = recognise(host, path)
    assert (provider.name if provider is not None else None) == expected


@pytest.mark.parametrize(
    ("name", "model", "expected"),
    [
        ("groq", "llama-3.1-8b-instant", "llama-3.1-8b-instant"),
        ("openrouter", "qwen/qwen3:free", ":free"),
        ("openrouter", "deepseek/deepseek-chat:free", ":free"),
        ("openrouter", "qwen/qwen3", "qwen/qwen3"),
        ("nvidia", "meta/llama", ""),
        ("baseten", "deepseek-ai/DeepSeek-V3", ""),
    ],
)
def test_a_quota_is_kept_by_model_by_pool_or_by_account(name, model, expected):
    assert scope(named(name), RequestFacts(model), "host", "/path") == expected


def test_limits_of_an_upstream_or_an_endpoint_of_its_own_are_kept_apart():
    router = named("huggingface")
    assert family_of(router, "/together/v1/chat/completions") == "together"
    assert family_of(router, "/hf-inference/models/org/m") == "hf-inference"
    assert family_of(router, "/groq/openai/v1/chat/completions") == "groq"
    assert family_of(router, "/v1/chat/completions") == ""
    assert read_inquiry(router, "/hf-inference/models/org/m", b'{"inputs": "hi"}').model == "m"
    assert family_of(named("perplexity"), "/search") == "search"


@pytest.mark.parametrize("name", ["deepseek", "fireworks", "openrouter", "xai"])
def test_a_key_of_anthropics_protocol_says_who_pays_too(name):
    assert credential_of(named(name), {"x-api-key": "k"}.get) == "x-api-key=k"


@pytest.mark.parametrize(
    ("name", "tokens", "output", "produced"),
    [
        ("groq", 510.0, 60.0, 0.0),
        ("cerebras", 510.0, 60.0, 0.0),
        ("mistral", 10.0, 0.0, 60.0),
        ("xai", 10.0, 0.0, 60.0),
    ],
)
def test_the_bound_on_output_is_charged_where_the_provider_reserves_it(name, tokens, output, produced):
    cost = estimate(named(name), RequestFacts("m", 40, 500), learned(4.0, 60.0))
    assert (cost.tokens, cost.output_tokens, cost.produced) == (tokens, output, produced)


def test_dashscopes_own_request_says_its_text_and_its_bound():
    body = {"model": "qwen-max", "input": {"messages": [{"role": "user", "content": "12345"}]},
            "parameters": {"max_tokens": 7, "result_format": "message"}}  # fmt: skip
    path = "/api/v1/services/aigc/text-generation/generation"
    inquiry = read_inquiry(named("dashscope"), path, json.dumps(body).encode())
    assert (inquiry.model, inquiry.max_output_tokens) == ("qwen-max", 7)
    assert inquiry.input_chars >= 5


def refused(name, body, headers=()):
    return judge(named(name), 429, headers, json.dumps(body).encode(), NOW)


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        "50",
        {"X-RateLimit-Limit": None},
        {"X-RateLimit-Limit": "-1", "X-RateLimit-Remaining": True},
        {"\ud800": "\ud800", "X-RateLimit-Limit": "\ud800"},
        {"X-RateLimit-Limit": {"a": 1}},
        {f"h{i}": "1" for i in range(1000)},
    ],
)
def test_whatever_a_body_quotes_as_headers_nothing_raises(headers):
    outcome = refused("openrouter", {"error": {"message": "x", "code": 429, "metadata": {"headers": headers}}})
    assert outcome.kind is Kind.RATE_LIMIT
    assert not [reading for reading in outcome.readings if reading.limit is not None]


def test_headers_in_a_body_count_for_a_provider_that_quotes_its_own():
    body = {"error": {"message": "x", "code": 429, "metadata": {"headers": {"X-RateLimit-Limit": 20}}}}
    assert dimensions(refused("openrouter", body), named("openrouter"))["limits"] == {"requests_per_minute": 20}
    assert refused("together", body).readings == ()


def test_a_window_that_the_refusal_names_leaves_a_declared_one_alone():
    headers = ((b"x-ratelimit-limit-requests-day", b"50"),)
    body = {"error": "You reached free usage limit (reset hourly)."}
    outcome = refused("huggingface", body, headers)
    assert (outcome.cause, [reading.window for reading in outcome.readings]) == (Cause.RATE, [86400.0])
