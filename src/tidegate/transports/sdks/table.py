"""The SDKs whose clients can be wrapped by name; `install` and `wrap` use this table.

SDKs that Stainless generates obey the header of every response that tidegate gave up on; ollama repeats nothing.
Replicate's `RetryTransport` is below its HTTP client, so its attempts would share one permit. But it repeats no POST
(replicate 1.0.7 `client.py`, `RETRYABLE_METHODS`), and only those are governed: it stays as it is.
"""

from __future__ import annotations

from tidegate.transports import bearer, sigv4
from tidegate.transports.sdks.error_notes import noted, of_argument, of_error, of_handled, of_parsed
from tidegate.transports.sdks.retry_hooks import COHERE, GOOGLE_GENAI, HUGGING_FACE, MISTRAL
from tidegate.transports.sdks.sdk import Hooks, Sdk

STAINLESS = noted("BaseClient", "_make_status_error_from_response", of_error)
"""Hook for the error of an answer, for `_base_client` of the SDKs that Stainless generates."""

OPENAI = Sdk(
    package="openai",
    clients=("OpenAI", "AsyncOpenAI", "AzureOpenAI", "AsyncAzureOpenAI"),
    family="openai",
    families={"AzureOpenAI": "azure", "AsyncAzureOpenAI": "azure"},
    places=("_client",),
    hooks=Hooks({**sigv4.of("openai"), **bearer.of("openai"), "openai._base_client": STAINLESS}),
    source="openai 3.52 and 2.54 `_base_client.py`",
)
ANTHROPIC = Sdk(
    package="anthropic",
    clients=("Anthropic", "AsyncAnthropic"),
    family="anthropic",
    places=("_client",),
    hooks=Hooks({**sigv4.of("anthropic"), **bearer.of("anthropic"), "anthropic._base_client": STAINLESS}),
    source="anthropic 2.11 `_base_client.py`",
)
BOTO3 = Sdk(
    package="botocore.client",
    clients=("BedrockRuntime",),
    family="bedrock",
    places=("_endpoint",),
    hooks=Hooks({"botocore.exceptions": noted("ClientError", "__init__", of_parsed)}),
    source="botocore 1.44.5 `client.py` (boto3 has no client classes of its own)",
)
GROQ = Sdk(
    package="groq",
    clients=("Groq", "AsyncGroq"),
    family="groq",
    places=("_client",),
    hooks=Hooks({"groq._base_client": STAINLESS}),
    source="groq 1.7.0 `_base_client.py`",
)
TOGETHER = Sdk(
    package="together",
    clients=("Together", "AsyncTogether"),
    family="together",
    places=("_client",),
    hooks=Hooks({"together._base_client": STAINLESS}),
    source="together 2.36.0 and 3.1.1 `_base_client.py` (3.x adds the version to a base URL itself)",
)
OLLAMA = Sdk(
    package="ollama",
    clients=("Client", "AsyncClient"),
    family="ollama",
    places=("_client",),
    hooks=Hooks({"ollama._types": noted("ResponseError", "__init__", of_handled)}),
    source="ollama 0.6.3 `_client.py` 116",
)
REPLICATE = Sdk(
    package="replicate",
    clients=("Client",),
    family="replicate",
    places=("_client", "_async_client"),
    hooks=Hooks({"replicate.exceptions": noted("ReplicateError", "from_response", of_argument)}),
    source="replicate 1.0.7 `client.py` 64, 76 (both are made when they are asked for)",
)

SDKS = (
    OPENAI,
    ANTHROPIC,
    BOTO3,
    GOOGLE_GENAI,
    GROQ,
    TOGETHER,
    MISTRAL,
    COHERE,
    OLLAMA,
    REPLICATE,
    HUGGING_FACE,
)


def sdk_of(client: object) -> Sdk | None:
    return next((sdk for sdk in SDKS if sdk.has(client)), None)
