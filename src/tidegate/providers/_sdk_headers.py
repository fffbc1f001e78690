"""Headers by which the SDKs of providers identify the sender of a request.

A request to an inference path of an unknown host is governed if it carries one of these headers. A header of the
protocol, such as `anthropic-version`, does not count: bare HTTP clients send it too.
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
