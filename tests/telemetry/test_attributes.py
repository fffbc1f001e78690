"""What is said of a key, and what is not."""

from __future__ import annotations

import pytest

from tidegate import providers
from tidegate.core.values import Key
from tidegate.telemetry.attributes import PROVIDER_NAMES, Keys, described

PRESCRIBED = {
    "anthropic", "aws.bedrock", "azure.ai.inference", "azure.ai.openai", "cohere", "deepseek", "gcp.gemini",
    "gcp.gen_ai", "gcp.vertex_ai", "groq", "ibm.watsonx.ai", "mistral_ai", "moonshot_ai", "openai", "perplexity",
    "x_ai",
}  # fmt: skip
"""The values of `gen_ai.provider.name` that the GenAI conventions prescribe, at ac48b1f."""


def test_a_provider_goes_by_the_name_of_the_conventions_where_they_have_one() -> None:
    assert set(PROVIDER_NAMES.values()) <= PRESCRIBED
    assert set(PROVIDER_NAMES) <= {table.name for table in providers.TABLES}
    ours = {PROVIDER_NAMES.get(table.name, table.name) for table in providers.TABLES}
    assert PRESCRIBED - ours == {"azure.ai.inference", "gcp.gen_ai"}


def test_a_model_is_told_where_the_quota_is_kept_by_it() -> None:
    assert described(Key("openai", "https://api.openai.com", "d", "gpt-test", "embeddings")) == {
        "gen_ai.provider.name": "openai",
        "tidegate.key.provider": "openai",
        "server.address": "api.openai.com",
        "server.port": 443,
        "gen_ai.request.model": "gpt-test",
        "tidegate.key.family": "embeddings",
    }


@pytest.mark.parametrize(
    ("provider", "scope"), [("vertex", "project/region/gemini"), ("openrouter", ":free"), ("of-my-own", "tier")]
)
def test_another_scope_is_not_called_a_model(provider: str, scope: str) -> None:
    told = described(Key(provider, "https://p.test", "d", scope))
    assert told["tidegate.key.scope"] == scope
    assert "gen_ai.request.model" not in told


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("http://127.0.0.1:8000/v1", ("127.0.0.1", 8000, None)),
        ("http://[::1]:8000", ("::1", 8000, None)),
        ("http://vllm.test", ("vllm.test", 80, None)),
        ("https://user:hunter2@gate.test/team/hunter2/v1?key=hunter2#hunter2", ("gate.test", 443, None)),
        ("https://gate.test:hunter2", (None, None, None)),
        ("ftp://files.test", ("files.test", None, None)),
        ("my-service", (None, None, "my-service")),
        ("", (None, None, None)),
    ],
)
def test_of_a_base_url_host_and_port_are_told(url: str, told: tuple[str | None, int | None, str | None]) -> None:
    found = described(Key("compatible", url))
    assert (found.get("server.address"), found.get("server.port"), found.get("tidegate.key.name")) == told
    assert "hunter2" not in str(found)


def test_equal_sets_are_made_once_and_no_more_keys_are_remembered_than_the_registry_keeps() -> None:
    keys = Keys(2)
    first = keys.of(Key("p", "https://one.test"))
    assert keys.of(Key("p", "https://one.test")) is first
    assert first.also((("tidegate.outcome", "ok"),)) is first.also((("tidegate.outcome", "ok"),))
    for name in ("two", "three", "four", "five"):
        keys.of(Key("p", f"https://{name}.test"))
        assert len(keys._known) <= 2
