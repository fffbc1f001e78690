"""Which requests are governed, and by whose table."""

import pytest

from tidegate.providers import _lookup, adopt, family_of, recognise


def name(provider):
    return provider.name if provider is not None else None


@pytest.mark.parametrize(
    ("host", "path", "expected"),
    [
        ("api.openai.com", "/v1/chat/completions", "openai"),
        ("API.OpenAI.com.", "/v1/responses/", "openai"),
        ("eu.api.openai.com", "/v1/embeddings", "openai"),
        ("api.openai.com", "/v1/images/edits", "openai"),
        ("api.openai.com", "/v1/audio/transcriptions?x=1", "openai"),
        ("api.openai.com", "/v1/models", None),
        ("api.openai.com", "/v1/files", None),
        ("api.openai.com", "/v1/batches", None),
        ("api.openai.com", "/v1/fine_tuning/jobs", None),
        ("api.openai.com", "/v1/uploads", None),
        ("api.openai.com", "/v1/responses/resp_1", None),
        ("api.openai.com", "/v1/responses/resp_1/cancel", None),
        ("api.openai.com", "/v1/responses/input_tokens", None),
        ("api.openai.com", "/v1/chat/completions/chatcmpl-1", None),
        ("api.openai.com", "/v1/threads/t/messages", None),
        ("api.openai.com.evil.example", "/v1/chat/completions", None),
        ("xapi.openai.com", "/v1/chat/completions", None),
        ("api.anthropic.com", "/v1/messages", "anthropic"),
        ("api.anthropic.com", "/v1/chat/completions", "anthropic"),
        ("api.anthropic.com", "/v1/messages/batches", None),
        ("api.anthropic.com", "/v1/messages/count_tokens", None),
        ("api.anthropic.com", "/v1/models", None),
        ("res.openai.azure.com", "/openai/deployments/gpt/chat/completions", "azure"),
        ("res.openai.azure.com", "/openai/v1/responses", "azure"),
        ("res.openai.azure.com", "/openai/responses", "azure"),
        ("res.services.ai.azure.com", "/models/chat/completions", "azure"),
        ("res.services.ai.azure.com", "/anthropic/v1/messages", "azure"),
        ("ep.eastus2.models.ai.azure.com", "/v1/chat/completions", "azure"),
        ("res.cognitiveservices.azure.com", "/openai/v1/responses", "azure"),
        ("res.openai.azure.com", "/openai/v1/files", None),
        ("res.openai.azure.com", "/openai/deployments", None),
        (".openai.azure.com", "/openai/v1/responses", None),
        ("models.github.ai", "/inference/chat/completions", "github-models"),
        ("models.github.ai", "/orgs/acme/inference/chat/completions", "github-models"),
        ("models.github.ai", "/catalog/models", None),
        ("models.inference.ai.azure.com", "/chat/completions", "github-models"),
        (
            "bedrock-runtime.us-east-1.amazonaws.com",
            "/model/anthropic.claude-3-haiku-20240307-v1%3A0/invoke",
            "bedrock",
        ),
        ("bedrock-runtime.eu-west-1.amazonaws.com", "/model/eu.amazon.nova-lite-v1:0/converse-stream", "bedrock"),
        ("bedrock-runtime-fips.us-east-1.amazonaws.com", "/model/m/converse", "bedrock"),
        ("bedrock-runtime.us-east-1.amazonaws.com", "/openai/v1/chat/completions", "bedrock"),
        ("bedrock-mantle.us-east-1.api.aws", "/v1/responses", "bedrock"),
        ("bedrock-runtime.us-east-1.amazonaws.com", "/model/m/count-tokens", None),
        ("bedrock-runtime.us-east-1.amazonaws.com", "/async-invoke", None),
        ("bedrock.us-east-1.amazonaws.com", "/model/m/converse", None),
        ("generativelanguage.googleapis.com", "/v1beta/models/gemini-2.5-flash:generateContent", "gemini"),
        ("generativelanguage.googleapis.com", "/v1beta/models/g:streamGenerateContent?alt=sse&key=x", "gemini"),
        ("generativelanguage.googleapis.com", "/v1beta/openai/chat/completions", "gemini"),
        ("generativelanguage.googleapis.com", "/v1beta/models/g:countTokens", None),
        ("generativelanguage.googleapis.com", "/v1beta/models/g:batchGenerateContent", None),
        ("generativelanguage.googleapis.com", "/v1beta/cachedContents", None),
        ("aiplatform.googleapis.com", "/v1/publishers/google/models/gemini-2.0-flash-exp:generateContent", "vertex"),
        (
            "us-central1-aiplatform.googleapis.com",
            "/v1/projects/p/locations/us-central1/publishers/anthropic/models/claude-opus-5:streamRawPredict",
            "vertex",
        ),
        ("aiplatform.googleapis.com", "/v1/projects/p/locations/global/endpoints/openapi/chat/completions", "vertex"),
        ("aiplatform.googleapis.com", "/v1/projects/p/locations/global/batchPredictionJobs", None),
        ("storage.googleapis.com", "/v1/projects/p/locations/l/publishers/google/models/m:generateContent", None),
        ("ollama.com", "/api/chat", "ollama"),
        ("ollama.com", "/v1/chat/completions", "ollama"),
        ("ollama.com", "/api/tags", None),
        ("api.replicate.com", "/v1/predictions", "replicate"),
        ("api.replicate.com", "/v1/models/meta/llama/predictions", "replicate"),
        ("api.replicate.com", "/v1/deployments/acme/mine/predictions", "replicate"),
        ("api.replicate.com", "/v1/predictions/abc/cancel", None),
        ("api.replicate.com", "/v1/trainings", None),
        ("api.cohere.com", "/v2/chat", "cohere"),
        ("api.cohere.ai", "/v1/rerank", "cohere"),
        ("api.cohere.com", "/compatibility/v1/chat/completions", "cohere"),
        ("api.cohere.com", "/v1/datasets", None),
        ("example.com", "/v1/chat/completions", None),
        ("localhost", "/v1/chat/completions", None),
        ("", "", None),
        ("a" * 300, "/v1/chat/completions", None),
        ("api.openai.com", "/v1/" + "x" * 5000, None),
    ],
)
def test_a_process_wide_install_governs_known_inference_endpoints_only(host, path, expected):
    assert name(recognise(host, path)) == expected


@pytest.mark.parametrize(
    ("host", "path", "family", "expected"),
    [
        ("api.openai.com", "/v1/chat/completions", "openai", "openai"),
        ("api.openai.com", "/v1/models", "openai", None),
        ("gateway", "/v1/chat/completions", "openai", "compatible"),
        ("gateway", "/deep/prefix/v1/responses", "openai", "compatible"),
        ("gateway", "/v1/models", "openai", None),
        ("gateway", "/v1/files", None, None),
        ("gateway", "/v1/batches", None, None),
        ("gateway", "/v1/organization/usage/completions", "openai", None),
        ("gateway", "/v1/threads/t/messages", None, None),
        ("gateway", "/v1/responses/resp_1", "openai", None),
        ("gateway", "/v1/messages", "anthropic", "anthropic-compatible"),
        ("gateway", "/anthropic/v1/messages", None, "anthropic-compatible"),
        ("gateway", "/v1/messages/count_tokens", "anthropic", None),
        ("gateway", "/v1/messages/batches", "anthropic", None),
        ("gateway", "/openai/deployments/gpt/chat/completions", "azure", "azure-compatible"),
        ("gateway", "/apim/openai/deployments/gpt/chat/completions", "azure", "azure-compatible"),
        ("gateway", "/openai/deployments/gpt/chat/completions", None, "azure-compatible"),
        ("gateway", "/openai/v1/responses", "azure", "azure-compatible"),
        ("gateway", "/openai/models", "azure", None),
        ("127.0.0.1", "/generate", None, "compatible"),
        ("127.0.0.1", "/generate", "openai", None),
        ("127.0.0.1", "/api/chat", None, "ollama-local"),
        ("127.0.0.1", "/api/generate", None, "ollama-local"),
        ("127.0.0.1", "/v1/rerank", None, "compatible"),
        ("127.0.0.1", "/api/chat", "openai", None),
        ("127.0.0.1", "/api/embed", None, "ollama-local"),
        ("127.0.0.1", "/api/tags", None, None),
        ("ollama.com", "/api/chat", "openai", "ollama"),
        ("127.0.0.1", "/", None, None),
        ("gateway", "/google-ai-studio/v1beta/models/gemini-3:generateContent", "gemini", "gemini-compatible"),
        ("gateway", "/v1/models/gemini-3:streamGenerateContent", None, "gemini-compatible"),
        ("gateway", "/v1/models/gemini-3:streamGenerateContent", "openai", "gemini-compatible"),
        ("gateway", "/v1/models/gemini-3:countTokens", "gemini", None),
        ("gateway", "/v1beta1/publishers/google/models/gemini-3:generateContent", "gemini", "vertex-compatible"),
        ("gateway", "/v1/projects/p/locations/l/publishers/google/models/m:predict", "gemini", "vertex-compatible"),
        ("gateway", "/v1/publishers/anthropic/models/m:rawPredict", "anthropic", "vertex-compatible"),
        ("gateway", "/v1/interactions", "gemini", "gemini-compatible"),
        ("gateway", "/v1/interactions/i/cancel", "gemini", None),
        ("gateway", "/v1/interactions", "openai", None),
        ("gateway", "/v1beta/openai/chat/completions", "gemini", "compatible"),
        ("gateway", "/openai/v1/chat/completions", "groq", "groq"),
        ("gateway", "/groq/chat/completions", "groq", "compatible"),
        ("gateway", "/v1/chat/completions", "together", "together"),
        ("gateway", "/v1/fim/completions", "mistral", "mistral"),
        ("gateway", "/v2/chat", "cohere", "cohere"),
        ("gateway", "/v2/chat", "openai", None),
        ("gateway", "/api/chat", "ollama", "ollama-local"),
        ("gateway", "/v1/predictions", "replicate", "replicate"),
        ("api.openai.com", "/v1/chat/completions", "groq", "openai"),
    ],
)
def test_a_wrapped_client_is_governed_whatever_its_base_url(host, path, family, expected):
    assert name(adopt(host, path, family)) == expected


def test_coheres_endpoints_have_limits_of_their_own():
    cohere = recognise("api.cohere.com", "/v2/chat")
    paths = ("/v1/chat", "/v2/chat", "/v2/embed", "/v2/rerank")
    assert [family_of(cohere, path) for path in paths] == ["chat", "chat", "embed", "rerank"]


def test_no_endpoint_family_of_openai_has_limits_of_its_own():
    assert family_of(recognise("api.openai.com", "/v1/responses"), "/v1/responses") == ""
    assert family_of(recognise("api.openai.com", "/v1/responses"), "/nowhere") == ""


def test_addresses_of_any_length_leave_nothing_behind():
    before = _lookup._adopt.cache_info().currsize
    assert adopt("server.test", "/" + "x" * 60_000, None) is None
    assert adopt("h" * 60_000, "/v1/chat/completions", None) is None
    assert _lookup._adopt.cache_info().currsize == before
