"""Notes on SDKs' own errors for calls that tidegate gave up: how long each waited, for what and why.

The reason is in a header of the answer (`transports.call.REASON`). The hook wraps what makes an SDK's error, and reads
that header where the error shows it. Sources: `_base_client.py` of openai 3.52, anthropic 2.12, groq 1.7 and together
3.1; mistralai 3.7.0 `client/errors/`, mistralai 1.12.4 `models/`; google-genai 3.4.0 `_gaos/lib/compat_errors.py`;
cohere 7.3.1 `core/api_error.py`; huggingface_hub 2.4.0 `errors.py`; botocore 1.44.5 `exceptions.py`, which aiobotocore
shares; ollama 0.6.3 `_client.py` 147, 193, where the error of the HTTP client is being handled; replicate 1.0.7
`exceptions.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from tidegate.core.safe_text import printable
from tidegate.errors import add_note
from tidegate.transports.call import REASON
from tidegate.transports.patches import Patches

Source = Callable[[BaseException, tuple[Any, ...]], Any]
"""Function of an error and of the positional arguments that made it; returns what has the headers."""


def add_reason(error: BaseException, source: Any) -> None:
    headers = getattr(source, "headers", None)
    reason = headers.get(REASON) if headers is not None else None
    if isinstance(reason, str):
        add_note(error, printable(reason))


def noted(owner: str, maker: str, source: Source) -> Callable[[Patches, ModuleType], None]:
    """Return a hook that wraps `owner.maker` (an error's constructor, or a method that returns one), if it exists."""

    def make(wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        made = wrapped(*args, **kwargs)
        error = instance if made is None else made
        # The SDK's own error must be raised, whatever its fields hold.
        with suppress(Exception):
            add_reason(error, source(error, args))
        return made

    def put(patches: Patches, module: ModuleType) -> None:
        cls: Any = getattr(module, owner, None)
        # None has an `__init__` too.
        if cls is not None and hasattr(cls, maker):
            patches.put(cls, maker, make)

    return put


def of_error(error: BaseException, args: tuple[Any, ...]) -> Any:
    """Return the response of an error, or the error itself, which holds its headers."""
    response = getattr(error, "response", None)
    return error if response is None else response


def of_argument(error: BaseException, args: tuple[Any, ...]) -> Any:
    return args[0] if args else None


class Metadata:
    """The headers in botocore's parsed answer."""

    def __init__(self, parsed: Mapping[str, Any]) -> None:
        self.headers = parsed["ResponseMetadata"]["HTTPHeaders"]


def of_parsed(error: BaseException, args: tuple[Any, ...]) -> Any:
    return Metadata(error.response)  # type: ignore[attr-defined]


def of_handled(error: BaseException, args: tuple[Any, ...]) -> Any:
    """Return the response of the HTTP client's error that is being handled."""
    handled = sys.exception()
    return getattr(handled, "response", None) if type(handled).__name__ == "HTTPStatusError" else None
