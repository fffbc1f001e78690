"""Rows through the clients of smaller makers and servers; the first word names the SDK."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kit import SERVER, gather, govern, option, text


def messages(row: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": text(row)}]


def client_of(name: str) -> Callable[[int], Awaitable[Any]]:
    """Return the function that asks one row with the SDK of that name."""
    if name == "ollama":
        import ollama

        client = govern(ollama.AsyncClient(host=SERVER))
        return lambda row: client.chat(model="m", messages=messages(row))
    if name == "huggingface":
        import huggingface_hub

        client = govern(huggingface_hub.AsyncInferenceClient(base_url=SERVER + "/v1", api_key="hf_x"))
        return lambda row: client.chat.completions.create(model="m", messages=messages(row), max_tokens=5)
    if name == "cohere":
        import cohere

        client = govern(cohere.AsyncClientV2(api_key="x", base_url=SERVER))
        return lambda row: client.chat(model="m", messages=messages(row))
    if name == "mistral":
        from mistralai.client import Mistral

        client = govern(Mistral(api_key="x", server_url=SERVER))
        return lambda row: client.chat.complete_async(model="m", messages=messages(row))
    if name == "groq":
        import groq

        client = govern(groq.AsyncGroq(api_key="x", base_url=SERVER))
        return lambda row: client.chat.completions.create(model="m", messages=messages(row))
    if name == "together":
        import together

        client = govern(together.AsyncTogether(api_key="x", base_url=SERVER + "/v1"))
        return lambda row: client.chat.completions.create(model="m", messages=messages(row))
    import replicate

    client = govern(replicate.Client(api_token="x", base_url=SERVER))
    return lambda row: client.models.predictions.async_create(model="o/m", input={"prompt": text(row)})


if __name__ == "__main__":
    gather(client_of(option(1)))
