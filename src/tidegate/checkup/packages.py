"""The packages that are known: HTTP stacks, and what sends through them."""

from __future__ import annotations

from typing import NamedTuple


class Stack(NamedTuple):
    """An HTTP stack, or another way out: `point` is where each attempt passes, of what can be governed.

    It was tried from version `least` to before `below`. One that is `shared` is used for much else than LLM calls: it
    matters only where an SDK sends through it.
    """

    distribution: str
    module: str
    point: str
    least: str
    below: str
    source: str
    shared: bool = False


class Package(NamedTuple):
    """An SDK or framework; `modules` are what a script imports of it.

    It sends through what its metadata requires of the packages here, and through `also`, where that is installed:
    optional stacks. `instead` replaces both, where metadata names what is not used for inference.
    """

    distribution: str
    modules: tuple[str, ...]
    source: str
    also: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    note: str = ""


STACKS = (
    Stack("httpx", "httpx", "Client.send, AsyncClient.send", "0.23", "1", "httpx 0.28.1 _client.py"),
    Stack("httpx2", "httpx2", "Client.send, AsyncClient.send", "2", "3", "httpx2 2.16.2 _client.py"),
    Stack("requests", "requests", "Session.send", "2.20", "3", "requests 2.34.2 sessions.py"),
    Stack("aiohttp", "aiohttp", "ClientSession._request", "3.8", "4", "aiohttp 3.14.5 client.py"),
    Stack("botocore", "botocore", "Endpoint, before signing", "1.29", "2", "botocore 1.44.5 endpoint.py"),
    Stack("aiobotocore", "aiobotocore", "AioEndpoint, before signing", "2.13", "4", "aiobotocore 3.10.0 endpoint.py"),
    Stack("grpcio", "grpc", "", "", "", "grpcio: a channel of its own, no HTTP client", shared=True),
)

PACKAGES = (
    Package("openai", ("openai",), "openai 3.52.0 _base_client.py"),
    Package("anthropic", ("anthropic",), "anthropic 2.11.0 _base_client.py"),
    Package("google-genai", ("google.genai",), "google-genai 3.4.0 _api_client.py", ("aiohttp",)),
    Package("groq", ("groq",), "groq 1.7.0 _base_client.py"),
    Package("together", ("together",), "together 3.1.1 _base_client.py"),
    Package("cohere", ("cohere",), "cohere 7.3.1 core/http_client.py"),
    Package("mistralai", ("mistralai",), "mistralai 3.7.0 client/basesdk.py"),
    Package("ollama", ("ollama",), "ollama 0.6.3 _client.py"),
    Package("huggingface-hub", ("huggingface_hub",), "huggingface_hub 1.33.0 inference/_client.py"),
    Package(
        "replicate",
        ("replicate",),
        "replicate 1.0.7 client.py: RetryTransport",
        note="its RetryTransport repeats GETs by itself; predictions are POSTs, each of which passes the queue",
    ),
    Package("boto3", ("boto3",), "boto3 1.44.5", instead=("botocore",)),
    Package("aioboto3", ("aioboto3",), "aioboto3 7.0.0 session.py: sessions of aiobotocore", instead=("aiobotocore",)),
    Package("xai-sdk", ("xai_sdk",), "xai-sdk 1.21.0 client.py: grpc.aio channels", instead=("grpcio",)),
    Package(
        "google-cloud-aiplatform",
        (
            "vertexai.generative_models",
            "vertexai.language_models",
            "vertexai.vision_models",
            "vertexai.preview",
            "google.cloud.aiplatform",
        ),
        "google-cloud-aiplatform 2.7.0 initializer.py: gRPC unless api_transport is rest",
        instead=("grpcio",),
        note='vertexai.init(api_transport="rest") sends through requests, vertexai.Client through google-genai',
    ),
    Package(
        "google-generativeai",
        ("google.generativeai",),
        "google-generativeai 0.8.6 client.py: gRPC unless transport is rest",
        instead=("grpcio",),
        note='with configure(transport="rest") it sends through requests',
    ),
    Package("litellm", ("litellm",), "litellm 1.106.2 llms/custom_httpx/http_handler.py"),
    Package("langchain-openai", ("langchain_openai",), "langchain-openai 1.7.3", instead=("openai",)),
    Package("langchain-anthropic", ("langchain_anthropic",), "langchain-anthropic 1.7.7", instead=("anthropic",)),
    Package("instructor", ("instructor",), "instructor 1.17.0", instead=("openai",)),
    Package(
        "pydantic-ai-slim", ("pydantic_ai",), "pydantic-ai 2.62.0", instead=("openai", "anthropic", "google-genai")
    ),
    Package(
        "openai-agents",
        ("agents",),
        "openai-agents 0.24.0",
        instead=("openai",),
        note="its websocket transport and realtime sessions cannot be governed; the HTTP transport is the default",
    ),
    Package("inspect-ai", ("inspect_ai",), "inspect_ai 0.3.285", instead=("openai", "anthropic", "google-genai")),
    Package("lm-eval", ("lm_eval",), "lm_eval 0.4.13 models/api_models.py", instead=("aiohttp", "requests")),
    Package("deepeval", ("deepeval",), "deepeval 4.3.1", instead=("openai",)),
    Package("ragas", ("ragas",), "ragas 0.4.3", instead=("openai",)),
    Package(
        "arize-phoenix-evals",
        ("phoenix.evals",),
        "arize-phoenix-evals 3.9.4 llm/registries.py",
        instead=("openai", "anthropic", "litellm", "google-genai"),
    ),
    Package("arize-phoenix-client", ("phoenix.client",), "arize-phoenix-client 3.5.0", instead=("openai",)),
    Package("dspy", ("dspy",), "dspy 3.4.1", instead=("litellm",)),
    Package("mlflow", ("mlflow",), "mlflow 3.18.0: its judges", instead=("requests", "litellm")),
    Package(
        "llama-index-llms-openai", ("llama_index.llms.openai",), "llama-index-llms-openai 0.8.3", instead=("openai",)
    ),
    Package("llama-index-workflows", ("workflows", "llama_index.core.workflow"), "llama-index-workflows 2.26.1"),
    Package("haystack-ai", ("haystack",), "haystack 3.4.0", instead=("openai",)),
)

PATCHERS = {
    "opentelemetry-instrumentation-httpx": "httpx",
    "opentelemetry-instrumentation-requests": "requests",
    "opentelemetry-instrumentation-aiohttp-client": "aiohttp",
    "opentelemetry-instrumentation-botocore": "botocore",
    "ddtrace": "httpx, requests, aiohttp and botocore",
    "newrelic": "httpx, requests, aiohttp and botocore",
    "sentry-sdk": "httpx, aiohttp and botocore",
    "logfire": "httpx, requests and aiohttp, through opentelemetry",
}
"""Distributions that patch the same HTTP stacks, by wrapt or by hand; either order works."""

NODE_COMMANDS = {"promptfoo": "promptfoo 0.123.1 runs on Node: point its base URL at a gateway of yours"}
"""Commands for LLM calls that are no Python."""
