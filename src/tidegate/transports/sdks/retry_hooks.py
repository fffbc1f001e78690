"""Hooks that end an SDK's own retries after tidegate has given up on a call, and the SDKs that need them.

google-genai: `_request` hands `_request_once` to tenacity, by the client's own retrying object or a new one for a
request's options. So an error that tidegate gave up on leaves `_request_once` as a value. Tenacity returns that value,
and `_request` raises the error. This also covers clients made before, and every option. It does not cover aiohttp's
second tries: those follow connection errors, are the SDK's to repeat, and pass the queue one by one. The client has an
HTTP client, an asynchronous one with inner ones per event loop, and aiohttp sessions made on first use. It also has
google-auth's session for mutual TLS. So it carries the binding itself. Source: google-genai 3.4.0, 2.34.0 and 1.75.0,
`_api_client.py` and (not 1.75.0) `_gaos/`.

Speakeasy generates the retry loop of mistralai and of google-genai's interactions. The loop sleeps and repeats whenever
an attempt raises a `TemporaryError`, and reads no header. The hook wraps the four loops, which `retry` and
`retry_async` look up when they run. An attempt whose response tidegate gave up on returns that response, and so ends
the loop as the last attempt would. Source: mistralai 3.7.0 `client/utils/retries.py`, mistralai 1.12.4
`utils/retries.py`, google-genai 3.4.0 and 2.34.0 `_gaos/utils/retries.py`; only the last has the loops that count
attempts.

huggingface_hub: its inference clients send through HTTP clients of the whole process, and repeat nothing. So a wrapped
one carries the binding itself: other users of those HTTP clients stay ungoverned. Source: huggingface_hub 2.4.0
`inference/_client.py` 259, `inference/_generated/_async_client.py` 258 (`_inner_post`).

cohere: Fern's HTTP client repeats 408, 409, 429 and 5xx twice, for any response. Source: cohere 7.3.1 and 5.21.1
`core/http_client.py` (`_should_retry`, looked up at each answer).

mistralai: it retries only with a `retry_config`, and then by Speakeasy's loop. Source: mistralai 3.7.0 `client/`,
`azure/client/`, `gcp/client/`; mistralai 1.12.4 beside its azure and gcp packages.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from tidegate.transports import bearer
from tidegate.transports.governance import BINDING, bind_context
from tidegate.transports.patches import Patches
from tidegate.transports.sdks.error_notes import add_reason, noted, of_error
from tidegate.transports.sdks.sdk import Hooks, Sdk, is_given_up

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
        with bind_context(getattr(api_client, BINDING, None)):
            return wrapped(*args, **kwargs)
    except Exception as error:
        if is_given_up(response := getattr(error, "response", None)):
            add_reason(error, response)
            return Stopped(error)
        raise


async def _async_once(wrapped: Callable[..., Any], api_client: Any, args: Any, kwargs: Any) -> Any:
    try:
        with bind_context(getattr(api_client, BINDING, None)):
            return await wrapped(*args, **kwargs)
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


async def _per_loop_send(wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
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
        patches.put(module._PerLoopAsyncClientMixin, "send", _per_loop_send)


GOOGLE_GENAI = Sdk(
    package="google.genai",
    clients=("Client",),
    family="gemini",
    places=("_api_client._httpx_client", "_api_client._async_httpx_client"),
    carrier="_api_client",
    hooks=Hooks(
        {
            "google.genai._api_client": patch_google_genai,
            "google.genai._gaos.utils.retries": patch_speakeasy,
            "google.genai._gaos.lib.compat_errors": noted("APIStatusError", "__init__", of_error),
        }
    ),
    source="google-genai 3.4.0 `client.py`, `_api_client.py` 1357-1374; gaos shares both (`_gaos/google_genai.py` 218)",
)


def _inner_post(wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
    with bind_context(getattr(client, BINDING, None)):
        return wrapped(*args, **kwargs)


async def _async_inner_post(wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
    with bind_context(getattr(client, BINDING, None)):
        return await wrapped(*args, **kwargs)


def patch_hugging_face(patches: Patches, module: ModuleType) -> None:
    """Wrap the one function through which a client sends."""
    patches.put(module.InferenceClient, "_inner_post", _inner_post)


def patch_async_hugging_face(patches: Patches, module: ModuleType) -> None:
    patches.put(module.AsyncInferenceClient, "_inner_post", _async_inner_post)


HUGGING_FACE = Sdk(
    package="huggingface_hub.inference",
    clients=("InferenceClient", "AsyncInferenceClient"),
    family="huggingface",
    carrier="",
    hooks=Hooks(
        {
            "huggingface_hub.inference._client": patch_hugging_face,
            "huggingface_hub.inference._generated._async_client": patch_async_hugging_face,
            "huggingface_hub.errors": noted("HfHubHTTPError", "__init__", of_error),
        }
    ),
    source="huggingface_hub 2.4.0 `inference/_client.py` 245 (`get_session`)",
)


def _should_retry(wrapped: Callable[..., bool], _: Any, args: Any, kwargs: Any) -> bool:
    response = args[0] if args else kwargs.get("response")
    return not is_given_up(response) and wrapped(*args, **kwargs)


def patch_cohere(patches: Patches, module: ModuleType) -> None:
    """Wrap the function that decides whether to retry."""
    patches.put(module, "_should_retry", _should_retry)


COHERE = Sdk(
    package="cohere",
    clients=("Client", "AsyncClient", "ClientV2", "AsyncClientV2"),
    family="cohere",
    places=("_client_wrapper.httpx_client.httpx_client",),
    hooks=Hooks(
        {
            "cohere.core.http_client": patch_cohere,
            "cohere.core.api_error": noted("ApiError", "__init__", of_error),
        }
    ),
    source="cohere 7.3.1 `client.py` 178, 427 (`close`)",
)


RETRIES = (
    "mistralai.client.utils.retries",
    "mistralai.azure.client.utils.retries",
    "mistralai.gcp.client.utils.retries",
    "mistralai.utils.retries",
    "mistralai_azure.utils.retries",
    "mistralai_gcp.utils.retries",
)
"""Modules of mistralai that hold Speakeasy's loops."""

ERRORS = {
    "mistralai.client.errors.mistralerror": noted("MistralError", "__init__", of_error),
    "mistralai.azure.client.errors.mistralazureerror": noted("MistralAzureError", "__init__", of_error),
    "mistralai.gcp.client.errors.mistralgcperror": noted("MistralGCPError", "__init__", of_error),
    "mistralai.models.mistralerror": noted("MistralError", "__init__", of_error),
    "mistralai_azure.models.mistralazureerror": noted("MistralAzureError", "__init__", of_error),
    "mistralai_gcp.models.mistralgcperror": noted("MistralGcpError", "__init__", of_error),
}
"""Hooks of the base classes of mistralai's errors, by module."""

MISTRAL = Sdk(
    package="mistralai",
    clients=("Mistral",),
    family="mistral",
    places=("sdk_configuration.client", "sdk_configuration.async_client"),
    hooks=Hooks({**dict.fromkeys(RETRIES, patch_speakeasy), **ERRORS}),
    source="mistralai 3.7.0 `client/basesdk.py` 269, 343",
)
