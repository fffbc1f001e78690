"""The clients of the further SDKs, synchronous and not: how each is made, asked and closed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cohere
import groq
import huggingface_hub
import ollama
import together
from cohere.core.api_error import ApiError
from huggingface_hub.errors import HfHubHTTPError
from mistralai.client import Mistral
from mistralai.client.errors import SDKError

from tests.other_sdks.giving import RepeatedQuestion

MESSAGES = [{"role": "user", "content": "How high?"}]
ANSWER = "You said: How high?"


@dataclass(frozen=True)
class Kind:
    """A client's class: `variable` names the server to it where it has such a variable; `table` is who then answers."""

    make: Callable[[str], Any]
    ask: Callable[[Any], Any]
    close: Callable[[Any], Any]
    text: Callable[[Any], str]
    error: type[Exception]
    table: str
    variable: str = ""
    is_async: bool = False

    def asking(self, client: Any) -> RepeatedQuestion:
        if not self.is_async:
            return RepeatedQuestion(lambda: self.text(self.ask(client)), lambda: self.close(client))

        async def ask() -> str:
            return self.text(await self.ask(client))

        return RepeatedQuestion(ask, lambda: self.close(client))


def _chat(client: Any) -> Any:
    return client.chat.completions.create(model="m", messages=MESSAGES)


def _stainless(sync: Any, asynchronous: Any, error: type[Exception], table: str, suffix: str) -> dict[str, Kind]:
    facts = (_chat, lambda client: client.close(), lambda answer: answer.choices[0].message.content, error, table)
    variable = f"{table.upper()}_BASE_URL"
    return {
        table: Kind(lambda url: sync(api_key="k", base_url=url + suffix), *facts, variable),
        f"async {table}": Kind(lambda url: asynchronous(api_key="k", base_url=url + suffix), *facts, variable, True),
    }


def _text(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def _exit(client: Any) -> Any:
    return client.__exit__(None, None, None)


def _aexit(client: Any) -> Any:
    return client.__aexit__(None, None, None)


def _cohere(cls: Any, close: Callable[[Any], Any], is_async: bool = False) -> Kind:
    return Kind(
        lambda url: cls(api_key="k", base_url=url),
        lambda client: client.chat(model="m", messages=MESSAGES),
        close,
        lambda answer: answer.message.content[0].text,
        ApiError,
        "cohere",
        "CO_API_URL",
        is_async,
    )


def _ollama(cls: Any, is_async: bool = False) -> Kind:
    return Kind(
        lambda url: cls(host=url),
        lambda client: client.chat(model="m", messages=MESSAGES),
        lambda client: client.close(),
        lambda answer: answer.message.content,
        ollama.ResponseError,
        "ollama-local",
        "OLLAMA_HOST",
        is_async,
    )


def _close_hugging_face(client: Any) -> None:
    client.close()
    huggingface_hub.close_session()


def _hugging_face(cls: Any, close: Callable[[Any], Any], is_async: bool = False) -> Kind:
    return Kind(
        lambda url: cls(base_url=f"{url}/v1", api_key="k"),
        lambda client: client.chat_completion(MESSAGES, model="m"),
        close,
        _text,
        HfHubHTTPError,
        "compatible",
        is_async=is_async,
    )


def _mistral(ask: Callable[[Any], Any], close: Callable[[Any], Any], is_async: bool = False) -> Kind:
    return Kind(
        lambda url: Mistral(api_key="k", server_url=url), ask, close, _text, SDKError, "mistral", is_async=is_async
    )


KINDS: dict[str, Kind] = {
    **_stainless(groq.Groq, groq.AsyncGroq, groq.RateLimitError, "groq", ""),
    **_stainless(together.Together, together.AsyncTogether, together.RateLimitError, "together", "/v1"),
    "mistral": _mistral(lambda client: client.chat.complete(model="m", messages=MESSAGES), _exit),
    "async mistral": _mistral(lambda client: client.chat.complete_async(model="m", messages=MESSAGES), _aexit, True),
    "cohere": _cohere(cohere.ClientV2, _exit),
    "async cohere": _cohere(cohere.AsyncClientV2, _aexit, True),
    "ollama": _ollama(ollama.Client),
    "async ollama": _ollama(ollama.AsyncClient, True),
    "hugging face": _hugging_face(huggingface_hub.InferenceClient, _close_hugging_face),
    "async hugging face": _hugging_face(huggingface_hub.AsyncInferenceClient, lambda client: client.close(), True),
}
