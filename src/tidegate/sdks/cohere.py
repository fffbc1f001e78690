"""cohere: Fern's HTTP client repeats 408, 409, 429 and 5xx twice, whatever the response says.

Source: cohere 7.3.1 and 5.21.1 `core/http_client.py` (`_should_retry`, looked up at each answer).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tidegate.sdks.given_up import is_given_up
from tidegate.sdks.row import Hooks, Sdk
from tidegate.transports.patches import Patches


def _should_retry(wrapped: Callable[..., bool], _: Any, args: Any, kwargs: Any) -> bool:
    response = args[0] if args else kwargs.get("response")
    return not is_given_up(response) and wrapped(*args, **kwargs)


def put(patches: Patches, module: ModuleType) -> None:
    """Wraps the question whether to retry."""
    patches.put(module, "_should_retry", _should_retry)


COHERE = Sdk(
    package="cohere",
    clients=("Client", "AsyncClient", "ClientV2", "AsyncClientV2"),
    family="cohere",
    places=("_client_wrapper.httpx_client.httpx_client",),
    hooks=Hooks({"cohere.core.http_client": put}),
    source="cohere 7.3.1 `client.py` 178, 427 (`close`)",
)
