"""Rows through the clients of smaller makers, servers and clouds; the first word names the client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kit import SERVER, gather, govern, option, text

Ask = Callable[[int], Awaitable[Any]]

SECONDS = float(option(2, "60"))


def messages(row: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": text(row)}]


def chat(client: Any) -> Ask:
    """Return a question to a client in the form of openai's."""
    return lambda row: client.chat.completions.create(model="m", messages=messages(row))


def claude(client: Any) -> Ask:
    """Return a question to a client in the form of anthropic's."""
    return lambda row: client.messages.create(model="m", max_tokens=5, messages=messages(row))


def ollama() -> Ask:
    import ollama

    client = govern(ollama.AsyncClient(host=SERVER))
    return lambda row: client.chat(model="m", messages=messages(row))


def huggingface() -> Ask:
    import huggingface_hub

    return chat(govern(huggingface_hub.AsyncInferenceClient(base_url=SERVER + "/v1", api_key="hf_x")))


def cohere() -> Ask:
    import cohere

    client = govern(cohere.AsyncClientV2(api_key="x", base_url=SERVER))
    return lambda row: client.chat(model="m", messages=messages(row))


def mistral() -> Ask:
    from mistralai.client import Mistral

    client = govern(Mistral(api_key="x", server_url=SERVER))
    return lambda row: client.chat.complete_async(model="m", messages=messages(row))


def groq() -> Ask:
    import groq

    return chat(govern(groq.AsyncGroq(api_key="x", base_url=SERVER)))


def together() -> Ask:
    import together

    return chat(govern(together.AsyncTogether(api_key="x", base_url=SERVER + "/v1")))


def replicate() -> Ask:
    import replicate

    client = govern(replicate.Client(api_token="x", base_url=SERVER))
    return lambda row: client.models.predictions.async_create(model="o/m", input={"prompt": text(row)})


def openai_azure() -> Ask:
    import openai

    return chat(govern(openai.AsyncAzureOpenAI(azure_endpoint=SERVER, api_version="2024-10-21", api_key="k")))


def httpxaiohttp() -> Ask:
    import openai

    carrier = openai.DefaultAioHttpClient()
    return chat(govern(openai.AsyncOpenAI(base_url=SERVER + "/v1", timeout=SECONDS, http_client=carrier)))


def anthropic_bedrock() -> Ask:
    import anthropic

    given = {"aws_access_key": "AKIAX", "aws_secret_key": "y", "aws_region": "us-east-1"}
    return claude(govern(anthropic.AsyncAnthropicBedrock(base_url=SERVER, **given)))


def anthropic_vertex() -> Ask:
    import anthropic

    given = {"region": "europe-west1", "project_id": "p", "access_token": "ya29.x"}
    return claude(govern(anthropic.AsyncAnthropicVertex(base_url=SERVER + "/v1", **given)))


def anthropic_foundry() -> Ask:
    import anthropic

    return claude(govern(anthropic.AsyncAnthropicFoundry(api_key="k", base_url=SERVER + "/anthropic")))


def google_vertex() -> Ask:
    from google import genai
    from google.genai import types
    from google.oauth2.credentials import Credentials

    given = {"vertexai": True, "project": "p", "location": "europe-west1", "credentials": Credentials("t")}
    client = govern(genai.Client(http_options=types.HttpOptions(base_url=SERVER, timeout=60000), **given))
    return lambda row: client.aio.models.generate_content(model="gemini-2.5-flash", contents=text(row))


CLIENTS = (
    ollama,
    huggingface,
    cohere,
    mistral,
    groq,
    together,
    replicate,
    openai_azure,
    httpxaiohttp,
    anthropic_bedrock,
    anthropic_vertex,
    anthropic_foundry,
    google_vertex,
)


if __name__ == "__main__":
    gather({each.__name__: each for each in CLIENTS}[option(1)]())
