"""google-genai: its tenacity retries end where we gave up, and a wrapped client's mark goes wherever it sends.

`_request` hands `_request_once` to tenacity: the client's own retrying, or a new one for a request's own options. So an
error that we gave up on leaves `_request_once` as a value, which tenacity returns, and is raised by `_request`. That
holds for clients made before, too, and for every option. Without aiohttp's second tries: those follow connection
errors, are transient failures of the SDK's to repeat, and pass the queue one by one.

The client has an HTTP client, an asynchronous one with inner ones for each event loop, aiohttp sessions made on first
use, and google-auth's session for mutual TLS: it carries the mark itself.

Source: google-genai 3.4.0, 2.34.0 and 1.75.0, `_api_client.py` and (not 1.75.0) `_gaos/`.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from tidegate.sdks import speakeasy
from tidegate.sdks.given_up import is_given_up
from tidegate.sdks.row import Hooks, Sdk
from tidegate.transports.governance import MARK, carrying
from tidegate.transports.patches import Patches


class Stopped(NamedTuple):
    """An error on its way past tenacity."""

    error: Exception


def _once(wrapped: Callable[..., Any], api_client: Any, args: Any, kwargs: Any) -> Any:
    try:
        with carrying(getattr(api_client, MARK, None)):
            return wrapped(*args, **kwargs)
    except Exception as error:
        if is_given_up(getattr(error, "response", None)):
            return Stopped(error)
        raise


async def _async_once(wrapped: Callable[..., Any], api_client: Any, args: Any, kwargs: Any) -> Any:
    try:
        with carrying(getattr(api_client, MARK, None)):
            return await wrapped(*args, **kwargs)
    except Exception as error:
        if is_given_up(getattr(error, "response", None)):
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
    with carrying(getattr(client, MARK, None)):
        return await wrapped(*args, **kwargs)


def put(patches: Patches, module: ModuleType) -> None:
    """Wraps the attempt and the call of `google.genai._api_client`, and the client of clients that 3.x has."""
    patches.put(module.BaseApiClient, "_request_once", _once)
    patches.put(module.BaseApiClient, "_async_request_once", _async_once)
    patches.put(module.BaseApiClient, "_request", _request)
    patches.put(module.BaseApiClient, "_async_request", _async_request)
    if hasattr(module, "_PerLoopAsyncClientMixin"):
        patches.put(module._PerLoopAsyncClientMixin, "send", _per_loop_send)


GOOGLE_GENAI = Sdk(
    package="google.genai",
    clients=("Client",),
    family="gemini",
    places=("_api_client._httpx_client", "_api_client._async_httpx_client"),
    carrier="_api_client",
    hooks=Hooks({"google.genai._api_client": put, "google.genai._gaos.utils.retries": speakeasy.put}),
    source="google-genai 3.4.0 `client.py`, `_api_client.py` 1357-1374; gaos shares both (`_gaos/google_genai.py` 218)",
)
