"""Headers by which the SDKs of providers identify the sender of a request.

A request to an inference path of an unknown host is governed if it carries one of these headers. A header of the
protocol, such as `anthropic-version`, does not count: bare HTTP clients send it too.

Environment variables with base URLs. Their hosts are governed like those of known providers.

The SDKs read some of them. LiteLLM, LangChain and LlamaIndex (and their dependents) read the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

ANY = "any"
"""The family of a library that uses every dialect; the path alone determines which."""

UNNAMED = "unnamed"
"""The family of an SDK that Stainless generated, for a service that its headers do not name, perhaps for no LLM.

Telnyx's sends an SMS by `/v2/messages`, and surveys have `/responses`.
"""


class AgentRow(NamedTuple):
    """The beginning of a `user-agent`, or any part of it with `anywhere`, and the family of its SDK."""

    text: str
    family: str
    source: str
    anywhere: bool = False


_STAINLESS = "_base_client.py `user_agent`: the name of the client's class"

AGENTS = (
    AgentRow("OpenAI/Python", "openai", f"openai 3.52.0 {_STAINLESS}"),
    AgentRow("AsyncOpenAI/Python", "openai", f"openai 3.52.0 {_STAINLESS}"),
    AgentRow("AzureOpenAI/Python", "azure", f"openai 3.52.0 {_STAINLESS}"),
    AgentRow("AsyncAzureOpenAI/Python", "azure", f"openai 3.52.0 {_STAINLESS}"),
    AgentRow("Anthropic", "anthropic", f"anthropic 2.11.0 {_STAINLESS}; AnthropicBedrock, AnthropicVertex too"),
    AgentRow("AsyncAnthropic", "anthropic", f"anthropic 2.11.0 {_STAINLESS}"),
    AgentRow("Groq/Python", "groq", f"groq 1.7.0 {_STAINLESS}"),
    AgentRow("AsyncGroq/Python", "groq", f"groq 1.7.0 {_STAINLESS}"),
    AgentRow("Together/Python", "together", f"together 2.36.0 {_STAINLESS}"),
    AgentRow("AsyncTogether/Python", "together", f"together 2.36.0 {_STAINLESS}"),
    AgentRow("cohere/", "cohere", "cohere 7.3.1 core/client_wrapper.py"),
    AgentRow("ollama-python/", "ollama", "ollama 0.6.3 _client.py"),
    AgentRow("replicate-python/", "replicate", "replicate 1.0.7 client.py"),
    AgentRow("litellm/", ANY, "litellm 1.109.1 llms/custom_httpx/http_handler.py `default_user_agent`"),
    AgentRow("Voyage/v1 PythonBindings/", ANY, "voyageai api_resources/api_requestor.py"),
    AgentRow("azsdk-python-ai-inference/", "azure", "azure-ai-inference _configuration.py `sdk_moniker`"),
    AgentRow("mistral-client-python/", "mistral", "mistralai 3.7.0 client/_hooks/custom_user_agent.py"),
    AgentRow("mistralai", "mistral", "mistralai 3.7.0 client/_version.py: speakeasy-sdk/python … mistralai", True),
    AgentRow("google-genai-sdk/", "gemini", "google-genai 3.4.0 _api_client.py `append_library_version_headers`", True),
    AgentRow("hf_hub/", ANY, "huggingface_hub 2.4.0 utils/_headers.py", True),
)

STAINLESS = b"x-stainless-lang"
"""The header of every SDK that Stainless generates, also if the user changed the user agent."""

GOOGLE = b"x-goog-api-client"
"""Header with the SDK's name and version (google-genai 3.4.0 `_api_client.py`)."""
FERN = b"x-fern-sdk-name"
"""Header with the name of Cohere's SDK (cohere 7.3.1 `core/client_wrapper.py`)."""


def sdk_family(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the family of the SDK that sends these headers (names in lower case), None for no SDK.

    `UNNAMED` requires an unambiguous inference path.
    """
    found = dict(headers)
    agent = found.get(b"user-agent")
    family = _agent_family(agent) if agent is not None else None
    if family is not None:
        return family
    if STAINLESS in found:
        return "anthropic" if b"anthropic-version" in found else UNNAMED
    if b"google-genai-sdk/" in found.get(GOOGLE, b""):
        return "gemini"
    return "cohere" if found.get(FERN) == b"cohere" else None


@lru_cache(maxsize=256)
def _agent_family(agent: bytes) -> str | None:
    text = agent.decode("latin-1")
    for row in AGENTS:
        if row.text in text if row.anywhere else text.startswith(row.text):
            return row.family
    return None


BY_PATH = "openai"
"""The family of a server whose dialect is determined by the path of each request."""


class BaseUrlVariable(NamedTuple):
    """A variable, the family of the server at its host (see `adopt`), and the file that reads it."""

    name: str
    family: str
    source: str


_GET_PROVIDER = "litellm 1.109.1 litellm_core_utils/get_llm_provider_logic.py"
_MAIN = "litellm 1.109.1 main.py"


def _rows(family: str, source: str, *names: str) -> tuple[BaseUrlVariable, ...]:
    return tuple(BaseUrlVariable(name, family, source) for name in names)


BASE_URL_VARIABLES = (
    *_rows(BY_PATH, "openai 3.52.0 _client.py", "OPENAI_BASE_URL"),
    *_rows(
        BY_PATH,
        "litellm 1.109.1 llms/openai/, langchain-openai 1.7.4 chat_models/base.py, "
        "llama-index-llms-openai 0.8.3 utils.py",
        "OPENAI_API_BASE",
    ),
    *_rows(BY_PATH, "anthropic 2.11.0 _client.py", "ANTHROPIC_BASE_URL"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/anthropic/common_utils.py", "ANTHROPIC_API_BASE"),
    *_rows(BY_PATH, "langchain-anthropic 1.7.10 chat_models.py", "ANTHROPIC_API_URL"),
    *_rows("bedrock", "anthropic 2.11.0 lib/bedrock/_client.py", "ANTHROPIC_BEDROCK_BASE_URL"),
    *_rows("bedrock", "openai 3.52.0 lib/bedrock.py", "AWS_BEDROCK_BASE_URL"),
    *_rows("bedrock", "litellm 1.109.1 llms/bedrock/base_aws_llm.py", "AWS_BEDROCK_RUNTIME_ENDPOINT"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/bedrock_mantle/common_utils.py", "BEDROCK_MANTLE_API_BASE"),
    *_rows("gemini", "anthropic 2.11.0 lib/vertex/_client.py", "ANTHROPIC_VERTEX_BASE_URL"),
    *_rows(BY_PATH, "anthropic 2.11.0 lib/foundry.py", "ANTHROPIC_FOUNDRY_BASE_URL"),
    *_rows(BY_PATH, "openai 3.52.0 lib/azure.py", "AZURE_OPENAI_ENDPOINT"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/azure/", "AZURE_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/azure_ai/common_utils.py", "AZURE_AI_API_BASE"),
    *_rows("gemini", "google-genai 3.4.0 _base_url.py", "GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"),
    *_rows("gemini", "litellm 1.109.1 llms/gemini/", "GEMINI_API_BASE"),
    *_rows("gemini", _MAIN, "VERTEXAI_API_BASE", "VERTEX_API_BASE"),
    *_rows("groq", "groq 1.7.0 _client.py", "GROQ_BASE_URL"),
    *_rows("groq", "litellm 1.109.1 llms/groq/, langchain-groq 1.1.3 chat_models.py", "GROQ_API_BASE"),
    *_rows("together", "together 2.36.0 _client.py", "TOGETHER_BASE_URL"),
    *_rows("together", _GET_PROVIDER, "TOGETHER_AI_API_BASE"),
    *_rows("together", "langchain-together 0.4.0 chat_models.py", "TOGETHER_API_BASE"),
    *_rows("mistral", "litellm 1.109.1 llms/mistral/common_utils.py", "MISTRAL_API_BASE"),
    *_rows("mistral", "langchain-mistralai 1.1.6 chat_models.py", "MISTRAL_BASE_URL"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/mistral/chat/transformation.py", "MISTRAL_AZURE_API_BASE"),
    *_rows("cohere", "cohere 7.3.1 client.py", "CO_API_URL"),
    *_rows("cohere", _MAIN, "COHERE_API_BASE"),
    *_rows("ollama", "ollama 0.6.3 _client.py", "OLLAMA_HOST"),
    *_rows("ollama", "litellm 1.109.1 llms/ollama/common_utils.py", "OLLAMA_API_BASE"),
    *_rows("replicate", "replicate 1.0.7 client.py", "REPLICATE_BASE_URL"),
    *_rows("replicate", _MAIN, "REPLICATE_API_BASE"),
    *_rows(BY_PATH, "huggingface_hub 2.4.0 constants.py, langchain-huggingface 1.2.3", "HF_INFERENCE_ENDPOINT"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/huggingface/", "HUGGINGFACE_API_BASE", "HF_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/hosted_vllm/", "HOSTED_VLLM_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/vllm/common_utils.py", "VLLM_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/lm_studio/chat/transformation.py", "LM_STUDIO_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/llamafile/chat/transformation.py", "LLAMAFILE_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/openai_like/", "OPENAI_LIKE_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/litellm_proxy/", "LITELLM_PROXY_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/openrouter/common_utils.py", "OPENROUTER_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/vercel_ai_gateway/", "VERCEL_AI_GATEWAY_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/fireworks_ai/, langchain-fireworks 1.7.1", "FIREWORKS_API_BASE"),
    *_rows(BY_PATH, "fireworks-ai _client.py (Stainless)", "FIREWORKS_BASE_URL"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/deepseek/, langchain-deepseek 1.1.1", "DEEPSEEK_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/perplexity/", "PERPLEXITY_API_BASE"),
    *_rows(BY_PATH, "perplexityai _client.py (Stainless)", "PERPLEXITY_BASE_URL"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/xai/common_utils.py, langchain-xai 1.3.0", "XAI_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/nvidia_nim/", "NVIDIA_NIM_API_BASE"),
    *_rows(BY_PATH, "langchain-nvidia-ai-endpoints 1.5.0 _common.py", "NVIDIA_BASE_URL"),
    *_rows(BY_PATH, "cerebras-cloud-sdk _client.py (Stainless)", "CEREBRAS_BASE_URL"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/deepinfra/", "DEEPINFRA_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/databricks/common_utils.py", "DATABRICKS_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/dashscope/", "DASHSCOPE_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/moonshot/chat/transformation.py", "MOONSHOT_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/minimax/chat/transformation.py", "MINIMAX_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/zai/chat/transformation.py", "ZAI_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/volcengine/", "VOLCENGINE_API_BASE", "ARK_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/baseten/chat.py", "BASETEN_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/hyperbolic/chat/transformation.py", "HYPERBOLIC_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/github_copilot/", "GITHUB_COPILOT_API_BASE"),
    *_rows(BY_PATH, "litellm 1.109.1 llms/jina_ai/embedding/transformation.py", "JINA_AI_API_BASE"),
    *_rows(
        BY_PATH,
        _GET_PROVIDER,
        "AI21_API_BASE",
        "CEREBRAS_API_BASE",
        "NEBIUS_API_BASE",
        "NOVITA_API_BASE",
        "SAMBANOVA_API_BASE",
    ),
    *_rows(BY_PATH, _MAIN, "XINFERENCE_API_BASE"),
    *_rows(BY_PATH, "llama-api-client _client.py (Stainless)", "LLAMA_API_CLIENT_BASE_URL"),
    *_rows(BY_PATH, "writer-sdk _client.py (Stainless)", "WRITER_BASE_URL"),
)
"""Environment variables that name a base URL, with the SDK or library that reads each."""


class GatewayVariable(NamedTuple):
    """A variable that leads a program to the gateway, the base URL that it stands for where it is not set, and the
    files that read it.

    One without such a `default` is changed only where the user has set it.
    """

    name: str
    default: str
    source: str


GATEWAY_VARIABLES = (
    GatewayVariable(
        "OPENAI_BASE_URL",
        "https://api.openai.com/v1",
        "npm: openai 6.49.0 client.js, @ai-sdk/openai 3.0.141, promptfoo 0.121.20 providers",
    ),
    GatewayVariable(
        "ANTHROPIC_BASE_URL",
        "https://api.anthropic.com",
        "npm: @anthropic-ai/sdk 1.13.0 client.js, promptfoo 0.121.20; Claude Code (LLM gateway configuration)",
    ),
    GatewayVariable(
        "GOOGLE_GEMINI_BASE_URL",
        "https://generativelanguage.googleapis.com",
        "npm: @google/genai 2.32.0 (Gemini CLI calls it)",
    ),
    GatewayVariable(
        "GOOGLE_API_BASE_URL", "https://generativelanguage.googleapis.com", "npm: promptfoo 0.121.20 google provider"
    ),
    GatewayVariable("GROQ_BASE_URL", "https://api.groq.com", "npm: groq-sdk 1.6.0 client.js"),
    GatewayVariable("MISTRAL_API_BASE_URL", "https://api.mistral.ai/v1", "npm: promptfoo 0.121.20 mistral provider"),
    GatewayVariable("OPENAI_API_BASE_URL", "", "npm: promptfoo 0.121.20 openai provider"),
    GatewayVariable("AZURE_OPENAI_ENDPOINT", "", "npm: openai 6.49.0 azure.js"),
    GatewayVariable("AZURE_API_BASE_URL", "", "npm: promptfoo 0.121.20 azure provider"),
    GatewayVariable("OLLAMA_BASE_URL", "", "npm: promptfoo 0.121.20 ollama provider"),
)
"""Variables that programs of Node read. Those of Python alone are absent: Python is governed in its own process. Those
of Bedrock are absent, too: its requests are signed for their host."""
