"""The retry loop that Speakeasy generates into SDKs: of mistralai, and of google-genai's interactions.

It sleeps and repeats whenever a `TemporaryError` comes out of an attempt, and looks at no header. What is wrapped are
the four loops, which `retry` and `retry_async` look up when they run: an attempt whose response we gave up on returns
that response, and so ends the loop as the last attempt would.

Source: mistralai 3.7.0 `client/utils/retries.py`, mistralai 1.12.4 `utils/retries.py`, google-genai 3.4.0 and 2.34.0
`_gaos/utils/retries.py`; the last alone has the loops that count attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from tidegate.sdks.given_up import is_given_up
from tidegate.transports.patches import Patches

LOOPS = ("retry_with_backoff", "retry_with_attempt_count_backoff")


def put(patches: Patches, module: ModuleType) -> None:
    """Wraps the loops of one generated `utils.retries`."""
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
