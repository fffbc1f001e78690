"""Hosts that speak another provider's protocol: they are recognised, and their keys are kept apart."""

import json

import pytest

from tests.providers.estimates import read_inquiry
from tidegate.core.values import RequestFacts
from tidegate.providers import credential_of, family_of, named, recognise, scope

GATEWAY = "/v1/acc/gate"
CHAT = "/v1/chat/completions"

HOSTS = [
    ("api.moonshot.ai", CHAT, "moonshot"),
    ("api.moonshot.cn", CHAT, "moonshot"),
    ("api.moonshot.ai", "/anthropic/v1/messages", "moonshot"),
    ("api.kimi.com", "/coding/v1/chat/completions", "moonshot"),
    ("api.z.ai", "/api/paas/v4/chat/completions", "zai"),
    ("api.z.ai", "/api/coding/paas/v4/chat/completions", "zai"),
    ("api.z.ai", "/api/anthropic/v1/messages", "zai"),
    ("open.bigmodel.cn", "/api/paas/v4/embeddings", "zai"),
    ("api.minimax.io", CHAT, "minimax"),
    ("api.minimaxi.com", "/anthropic/v1/messages", "minimax"),
    ("api.minimax.io", "/v1/text/chatcompletion_v2", "minimax"),
    ("ark.cn-beijing.volces.com", "/api/v3/chat/completions", "volcengine"),
    ("ark.ap-southeast.bytepluses.com", "/api/v3/responses", "volcengine"),
    ("ark.cn-beijing.volces.com", "/api/v3/embeddings/multimodal", "volcengine"),
    ("api.siliconflow.cn", CHAT, "siliconflow"),
    ("api.siliconflow.com", "/v1/rerank", "siliconflow"),
    ("api.deepinfra.com", "/v1/openai/chat/completions", "deepinfra"),
    ("api.deepinfra.com", "/v1/inference/meta-llama/Llama-3", "deepinfra"),
    ("api.novita.ai", "/v3/openai/chat/completions", "novita"),
    ("api.novita.ai", "/openai/v1/chat/completions", "novita"),
    ("api.studio.nebius.com", CHAT, "nebius"),
    ("api.tokenfactory.nebius.com", CHAT, "nebius"),
    ("api.tokenfactory.us-central1.nebius.com", CHAT, "nebius"),
    ("api.hyperbolic.xyz", CHAT, "hyperbolic"),
    ("api.featherless.ai", CHAT, "featherless"),
    ("llm.chutes.ai", CHAT, "chutes"),
    ("api.lambda.ai", CHAT, "lambda"),
    ("api.lambdalabs.com", CHAT, "lambda"),
    ("api.voyageai.com", "/v1/embeddings", "voyage"),
    ("api.voyageai.com", "/v1/contextualizedembeddings", "voyage"),
    ("ai.mongodb.com", "/v1/rerank", "voyage"),
    ("api.jina.ai", "/v1/embeddings", "jina"),
    ("api.jina.ai", "/v1/rerank", "jina"),
    ("deepsearch.jina.ai", CHAT, "jina"),
    ("api.ai21.com", "/studio/v1/chat/completions", "ai21"),
    ("api.writer.com", "/v1/chat", "writer"),
    ("dbc-1.cloud.databricks.com", "/serving-endpoints/databricks-gpt-oss-120b/invocations", "databricks"),
    ("adb-1.2.azuredatabricks.net", "/serving-endpoints/chat/completions", "databricks"),
    ("1.ai-gateway.cloud.databricks.com", "/mlflow/v1/chat/completions", "databricks"),
    ("us-south.ml.cloud.ibm.com", "/ml/v1/text/chat?version=2025-10-15", "watsonx"),
    ("eu-de.ml.cloud.ibm.com", "/ml/v1/deployments/d/text/generation_stream", "watsonx"),
    ("api.githubcopilot.com", "/chat/completions", "github-copilot"),
    ("api.individual.githubcopilot.com", "/responses", "github-copilot"),
    ("ai-gateway.vercel.sh", CHAT, "vercel"),
    ("ai-gateway.vercel.sh", "/v1/messages", "vercel"),
    ("gateway.ai.cloudflare.com", f"{GATEWAY}/openai/chat/completions", "cloudflare"),
    ("gateway.ai.cloudflare.com", f"{GATEWAY}/compat/chat/completions", "cloudflare"),
    ("gateway.ai.cloudflare.com", f"{GATEWAY}/mistral/v1/chat/completions", "cloudflare"),
    ("gateway.ai.cloudflare.com", f"{GATEWAY}/anthropic/v1/messages", "cloudflare"),
    ("gateway.ai.cloudflare.com", f"{GATEWAY}/google-ai-studio/v1/models/g:generateContent", "cloudflare"),
    ("gateway.ai.cloudflare.com", f"{GATEWAY}/workers-ai/@cf/meta/llama-4", "cloudflare"),
    ("gateway.ai.cloudflare.com", f"{GATEWAY}/azure-openai/res/dep/chat/completions?api-version=1", "cloudflare"),
    ("gateway.ai.cloudflare.com", GATEWAY, "cloudflare"),
    ("api.portkey.ai", CHAT, "portkey"),
    ("oai.helicone.ai", CHAT, "helicone"),
    ("gateway.helicone.ai", "/api/v1/chat/completions", "helicone"),
    ("anthropic.helicone.ai", "/v1/messages", "helicone"),
    ("ai-gateway.helicone.ai", "/v1/responses", "helicone"),
    ("oai.hconeai.com", CHAT, "helicone"),
    # What is no inference: lists, files, accounts, and the management of a workspace.
    ("api.moonshot.ai", "/v1/users/me/balance", None),
    ("api.moonshot.ai", "/v1/files", None),
    ("api.moonshot.ai", "/v1/batches", None),
    ("api.z.ai", "/api/paas/v4/files", None),
    ("api.chutes.ai", "/users/me/quota_usage/me", None),
    ("dbc-1.cloud.databricks.com", "/api/2.0/serving-endpoints", None),
    ("dbc-1.cloud.databricks.com", "/api/2.0/mlflow/runs/search", None),
    ("us-south.ml.cloud.ibm.com", "/ml/v4/models", None),
    ("api.githubcopilot.com", "/models", None),
    ("api.portkey.ai", "/v1/logs", None),
    ("api.helicone.ai", "/v1/request/query", None),
    ("helicone.ai", CHAT, None),
    ("moonshot.ai", CHAT, None),
    ("api.z.ai.example", CHAT, None),
]


@pytest.mark.parametrize(("host", "path", "expected"), HOSTS)
def test_a_host_is_recognised_at_its_inference_paths_alone(host, path, expected):
    provider = recognise(host, path)
    assert (provider.name if provider is not None else None) == expected


@pytest.mark.parametrize(
    ("name", "path", "expected"),
    [
        ("moonshot", CHAT, ""),  # of the organisation, over all models
        ("zai", "/api/paas/v4/chat/completions", "m"),
        ("volcengine", "/api/v3/chat/completions", "m"),
        ("siliconflow", CHAT, "m"),
        ("deepinfra", "/v1/openai/chat/completions", "m"),
        ("deepinfra", "/v1/inference/meta-llama/Llama-3", "meta-llama/Llama-3"),
        ("hyperbolic", CHAT, ""),
        ("featherless", CHAT, ""),
        ("chutes", CHAT, ""),
        ("jina", "/v1/embeddings", ""),
        ("writer", "/v1/chat", ""),
        ("databricks", "/serving-endpoints/databricks-x/invocations", "databricks-x"),
        ("watsonx", "/ml/v1/text/chat", ""),
        ("vercel", CHAT, "m"),
    ],
)
def test_the_scope_of_a_hosts_quota_is_as_its_documents_say(name, path, expected):
    inquiry = read_inquiry(named(name), path, b'{"model": "m"}')
    assert scope(named(name), inquiry, "host", path) == expected


def test_a_workspace_of_databricks_has_its_quota_for_any_credential():
    assert credential_of(named("databricks"), {"authorization": "Bearer dapi"}.get) == ""


def test_each_service_of_jina_has_limits_of_its_own():
    families = [family_of(named("jina"), path) for path in ("/v1/embeddings", "/v1/rerank", CHAT)]
    assert families == ["embeddings", "rerank", ""]


def test_a_token_of_copilot_is_its_account_whenever_it_was_made():
    one, two = (f"Bearer tid=abc;exp={instant};sku=pro:sig{instant}" for instant in (1, 2))
    assert credential_of(named("github-copilot"), {"authorization": one}.get) == "authorization=abc"
    assert credential_of(named("github-copilot"), {"authorization": two}.get) == "authorization=abc"
    assert credential_of(named("github-copilot"), {"authorization": "Bearer x"}.get) == "authorization=Bearer x"


def cloudflare(path, model="m"):
    table = named("cloudflare")
    return scope(table, read_inquiry(table, path, json.dumps({"model": model}).encode()), "host", path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"{GATEWAY}/openai/chat/completions", "acc/gate/openai/m"),
        (f"{GATEWAY}/groq/chat/completions", "acc/gate/groq/m"),
        ("/v1/acc/other/openai/chat/completions", "acc/other/openai/m"),
        (f"{GATEWAY}/google-ai-studio/v1beta/models/g:generateContent", "acc/gate/google-ai-studio/g"),
        (f"{GATEWAY}/workers-ai/@cf/meta/llama-4", "acc/gate/meta/llama-4"),
        (f"{GATEWAY}/azure-openai/res/dep/chat/completions", "acc/gate/res/dep"),
        (GATEWAY, "acc/gate/m"),
    ],
)
def test_the_path_of_cloudflare_keeps_gateways_and_upstreams_apart(path, expected):
    assert cloudflare(path) == expected


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("portkey", {"x-portkey-provider": "openai"}, {"x-portkey-provider": "anthropic"}),
        ("portkey", {"x-portkey-virtual-key": "a"}, {"x-portkey-virtual-key": "b"}),
        ("portkey", {"x-portkey-config": "pc-1"}, {"x-portkey-config": "pc-2"}),
        ("portkey", {"x-portkey-custom-host": "https://a"}, {"x-portkey-custom-host": "https://b"}),
        ("portkey", {"x-portkey-api-key": "a"}, {"x-portkey-api-key": "b"}),
        ("helicone", {"helicone-target-url": "https://a"}, {"helicone-target-url": "https://b"}),
        ("helicone", {"helicone-openai-api-base": "https://a"}, {"helicone-openai-api-base": "https://b"}),
        ("helicone", {"helicone-auth": "Bearer a"}, {"helicone-auth": "Bearer b"}),
        ("cloudflare", {"cf-aig-authorization": "Bearer a"}, {"cf-aig-authorization": "Bearer b"}),
        ("cloudflare", {"x-goog-api-key": "a"}, {"x-goog-api-key": "b"}),
    ],
)
def test_the_headers_of_a_gateway_keep_upstreams_apart(name, one, other):
    keys = {credential_of(named(name), {"authorization": "Bearer k", **headers}.get) for headers in (one, other)}
    assert len(keys) == 2


def test_what_a_gateway_is_told_of_one_call_alone_is_not_part_of_its_key():
    headers = {"authorization": "k", "x-portkey-trace-id": "1", "helicone-request-id": "1", "helicone-user-id": "u"}
    assert credential_of(named("portkey"), headers.get) == "authorization=k"
    assert credential_of(named("helicone"), headers.get) == "authorization=k"


def test_a_model_of_vercel_names_its_upstream():
    assert scope(named("vercel"), RequestFacts("openai/gpt-5"), "host", CHAT) == "openai/gpt-5"
