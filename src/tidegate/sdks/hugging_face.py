"""huggingface_hub: its inference clients send through HTTP clients of the whole process, and repeat nothing.

So a wrapped one carries the mark itself: other users of those HTTP clients stay as they were.

Source: huggingface_hub 2.4.0 `inference/_client.py` 259, `inference/_generated/_async_client.py` 258 (`_inner_post`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tidegate.sdks.row import Hooks, Sdk
from tidegate.transports.governance import MARK, carrying
from tidegate.transports.patches import Patches


def _inner_post(wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
    with carrying(getattr(client, MARK, None)):
        return wrapped(*args, **kwargs)


async def _async_inner_post(wrapped: Callable[..., Any], client: Any, args: Any, kwargs: Any) -> Any:
    with carrying(getattr(client, MARK, None)):
        return await wrapped(*args, **kwargs)


def put(patches: Patches, module: ModuleType) -> None:
    """Wraps the one function through which a client of tasks sends."""
    patches.put(module.InferenceClient, "_inner_post", _inner_post)


def async_put(patches: Patches, module: ModuleType) -> None:
    """Wraps the same of the asynchronous client."""
    patches.put(module.AsyncInferenceClient, "_inner_post", _async_inner_post)


HUGGING_FACE = Sdk(
    package="huggingface_hub.inference",
    clients=("InferenceClient", "AsyncInferenceClient"),
    family="huggingface",
    carrier="",
    hooks=Hooks(
        {
            "huggingface_hub.inference._client": put,
            "huggingface_hub.inference._generated._async_client": async_put,
        }
    ),
    source="huggingface_hub 2.4.0 `inference/_client.py` 245 (`get_session`)",
)
