"""Hooks in the code of SDKs: they end an SDK's own retries after tidegate gave up on a call, and note the reason.

Theory of operation. An answer that tidegate gave up on carries the header `own_answers.NO_RETRY`, which
`HttpCall.stop_retries` writes. SDKs that Stainless generates (openai, anthropic, groq, together) obey that header.
`BotocoreCall.stop_retries` ends the retries of boto3. Ollama and huggingface_hub repeat nothing. For each other SDK, a
hook here wraps the function that repeats, or that decides to.

google-genai: `_request` hands `_request_once` to tenacity, by the client's own retrying object or a new one for a
request's options. So an error that tidegate gave up on leaves `_request_once` as a value. Tenacity returns that value,
and `_request` raises the error. This also covers clients made before, and every option. It does not cover aiohttp's
second tries: those follow connection errors, are the SDK's to repeat, and pass the queue one by one. Source:
google-genai 3.4.0, 2.34.0 and 1.75.0, `_api_client.py` and (not 1.75.0) `_gaos/`.

Speakeasy generates the retry loop of mistralai (which needs a `retry_config`) and of google-genai's interactions. The
loop sleeps and repeats whenever an attempt raises a `TemporaryError`, and reads no header. The hook wraps the four
loops, which `retry` and `retry_async` look up when they run. An attempt whose response tidegate gave up on returns that
response, and so ends the loop as the last attempt would. Source: mistralai 3.7.0 `client/utils/retries.py`, mistralai
1.12.4 `utils/retries.py`, google-genai 3.4.0 and 2.34.0 `_gaos/utils/retries.py`; only the last has the loops that
count attempts.

cohere: Fern's HTTP client repeats 408, 409, 429 and 5xx twice, for any response. Source: cohere 7.3.1 and 5.21.1
`core/http_client.py` (`_should_retry`, looked up at each answer).

Replicate's `RetryTransport` is below its HTTP client, so its attempts would share one permit. But it repeats no POST
(replicate 1.0.7 `client.py`, `RETRYABLE_METHODS`), and only those are governed: it stays as it is.

The reason of a call that tidegate gave up is in a header of the answer too (`own_answers.REASON`). A hook that `noted`
makes wraps what makes an SDK's error, and writes the reason on it as a note. Sources: `_base_client.py` of openai 3.52,
anthropic 2.12, groq 1.7 and together 3.1; mistralai 3.7.0 `client/errors/`, mistralai 1.12.4 `models/`; google-genai
3.4.0 `_gaos/lib/compat_errors.py`; cohere 7.3.1 `core/api_error.py`; huggingface_hub 2.4.0 `errors.py`; botocore 1.44.5
`exceptions.py`, which aiobotocore shares; ollama 0.6.3 `_client.py` 147, 193, where the error of the HTTP client is
being handled; replicate 1.0.7 `exceptions.py`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, NoReturn

from tidegate.core.safe_text import printable
from tidegate.errors import add_note
from tidegate.transports import bearer, sigv4
from tidegate.transports.governance import BINDING, bind_context
from tidegate.transports.imports import is_loading
from tidegate.transports.own_answers import NO_RETRY, REASON
from tidegate.transports.patches import Patches, when_imported

logger = logging.getLogger("tidegate")

Put = Callable[[Patches, ModuleType], object]


class Hooks:
    """Patches of one SDK's modules, put on when each module is imported; `remove` takes all of them off."""

    def __init__(self, puts: Mapping[str, Put]) -> None:
        self.patches = Patches()
        self._puts = puts
        self._active = False
        self._hooked = False

    def put(self) -> None:
        self._active = True
        hooked, self._hooked = self._hooked, True
        for name, put in self._puts.items():
            module = sys.modules.get(name)
            if not hooked:
                when_imported(name, partial(self._put, put))
            elif module is not None and not is_loading(module):
                self._put(put, module)

    def remove(self) -> None:
        self._active = False
        self.patches.remove()

    def _put(self, put: Put, module: ModuleType) -> None:
        if not self._active:
            return
        try:
            put(self.patches, module)
        except Exception as error:
            # An unknown version: the program's import must not fail.
            text = "module %s not patched: its code is of an unknown version (%s); its own retries may continue"
            logger.warning(text, module.__name__, type(error).__name__)


def is_given_up(response: Any) -> bool:
    """Return whether an SDK must return this response rather than repeat: its call has used up its wait."""
    headers = getattr(response, "headers", None)
    return headers is not None and headers.get(NO_RETRY) == "false"


LOOPS = ("retry_with_backoff", "retry_with_attempt_count_backoff")
"""Names of Speakeasy's loops; their asynchronous forms end in `_async`."""


def patch_speakeasy(patches: Patches, module: ModuleType) -> None:
    """Wrap the loops of one generated `utils.retries`."""
    temporary = module.TemporaryError

    def loop(wrapped: Callable[..., Any], _: Any, args: Any, kwargs: Any) -> Any:
        attempt, *others = args or (kwargs.pop("func"),)

        def once(*numbers: int) -> Any:
            try:
                return attempt(*numbers)
            except temporary as error:
                if is_given_up(error.response):
                    return error.response
                raise

        return wrapped(once, *others, **kwargs)

    async def async_loop(wrapped: Callable[..., Any], _: Any, args: Any, kwargs: Any) -> Any:
        attempt, *others = args or (kwargs.pop("func"),)

        async def once(*numbers: int) -> Any:
            try:
                return await attempt(*numbers)
            except temporary as error:
                if is_given_up(error.response):
                    return error.response
                raise

        return await wrapped(once, *others, **kwargs)

    patches.put(module, LOOPS[0], loop)
    patches.put(module, f"{LOOPS[0]}_async", async_loop)
    if hasattr(module, LOOPS[1]):
        patches.put(module, LOOPS[1], loop)
        patches.put(module, f"{LOOPS[1]}_async", async_loop)


class Stopped(NamedTuple):
    """Error on its way through tenacity."""

    error: Exception


def _once(wrapped: Callable[..., Any], api_client: Any, args: Any, kwargs: Any) -> Any:
    try:
        return _bound(wrapped, api_client, args, kwargs)
    except Exception as error:
        if is_given_up(response := getattr(error, "response", None)):
            add_reason(error, response)
            return Stopped(error)
        raise


async def _async_once(wrapped: Callable[..., Any], api_client: Any, args: Any, kwargs: Any) -> Any:
    try:
        return await _async_bound(wrapped, api_client, args, kwargs)
    except Exception as error:
        if is_given_up(response := getattr(error, "response", None)):
            add_reason(error, response)
            return Stopped(error)
        raise


def _request(wrapped: Callable[..., Any], api_client: Any, args: Any, kwargs: Any) -> Any:
    response = wrapped(*args, **kwargs)
    if isinstance(response, Stopped):
        _raise(response.error)
    return response


async def _async_request(wrapped: Callable[..., Any], api_client: Any, args: Any, kwargs: Any) -> Any:
    response = await wrapped(*args, **kwargs)
    if isinstance(response, Stopped):
        _raise(response.error)
    return response


def _raise(error: Exception) -> NoReturn:
    try:
        raise error
    finally:
        del error


def _bound(wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
    """Run a method in the context of the client's binding."""
    with bind_context(getattr(client, BINDING, None)):
        return wrapped(*args, **kwargs)


async def _async_bound(wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
    with bind_context(getattr(client, BINDING, None)):
        return await wrapped(*args, **kwargs)


def patch_google_genai(patches: Patches, module: ModuleType) -> None:
    """Wrap the attempt and the call of `google.genai._api_client`, and the per-loop client that 3.x has."""
    patches.put(module.BaseApiClient, "_request_once", _once)
    patches.put(module.BaseApiClient, "_async_request_once", _async_once)
    patches.put(module.BaseApiClient, "_request", _request)
    patches.put(module.BaseApiClient, "_async_request", _async_request)
    bearer.put(patches, module)
    if hasattr(module, "_PerLoopAsyncClientMixin"):
        patches.put(module._PerLoopAsyncClientMixin, "send", _async_bound)


def patch_openai_bedrock(patches: Patches, module: ModuleType) -> None:
    """Note who signed a request of `openai.providers.bedrock`, or gave its token."""
    sigv4.put(patches, module)
    bearer.put(patches, module)


def patch_inference(patches: Patches, module: ModuleType) -> None:
    """Run the calls of a client of huggingface_hub in the context of its binding: its HTTP client serves others too."""
    if module.__name__.endswith("_async_client"):
        patches.put(module.AsyncInferenceClient, "_inner_post", _async_bound)
    else:
        patches.put(module.InferenceClient, "_inner_post", _bound)


def _should_retry(wrapped: Callable[..., bool], _: Any, args: Any, kwargs: Any) -> bool:
    response = args[0] if args else kwargs.get("response")
    return not is_given_up(response) and wrapped(*args, **kwargs)


def patch_cohere(patches: Patches, module: ModuleType) -> None:
    """Wrap the function that decides whether to retry."""
    patches.put(module, "_should_retry", _should_retry)


def add_reason(error: BaseException, source: Any) -> None:
    headers = getattr(source, "headers", None)
    reason = headers.get(REASON) if headers is not None else None
    if isinstance(reason, str):
        add_note(error, printable(reason))


def noted(owner: str, maker: str) -> Callable[[Patches, ModuleType], None]:
    """Return a hook that wraps `owner.maker` (an error's constructor, or a method that returns one), if it exists."""

    def make(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        made = wrapped(*args, **kwargs)
        error = instance if made is None else made
        # The SDK's own error must be raised, whatever its fields hold.
        with suppress(Exception):
            add_reason(error, _answer(error, args))
        return made

    def put(patches: Patches, module: ModuleType) -> None:
        cls: Any = getattr(module, owner, None)
        # None has an `__init__` too.
        if cls is not None and hasattr(cls, maker):
            patches.put(cls, maker, make)

    return put


def _answer(error: BaseException, args: tuple[Any, ...]) -> Any:
    """Return what has the headers of the answer: the error's response, the error, what made it, or a handled error."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return SimpleNamespace(headers=response["ResponseMetadata"]["HTTPHeaders"])
    # ollama's error has no answer, but is raised while the one of its HTTP client is handled.
    handling = sys.exception()
    handled = getattr(handling, "response", None) if type(handling).__name__ == "HTTPStatusError" else None
    found = (each for each in (response, error, *args[:1], handled) if getattr(each, "headers", None) is not None)
    return next(found, None)
