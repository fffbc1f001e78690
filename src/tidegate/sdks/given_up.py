"""The check for a response that tidegate gave up on, as the wrapped functions of the SDKs ask."""

from __future__ import annotations

from typing import Any

from tidegate.transports.call import GAVE_UP, NO_RETRY


def is_given_up(response: Any) -> bool:
    """Return whether an SDK should hand this response back rather than repeat: its call waited as long as it may.

    Told by a header on responses of httpx, httpx2 and requests, by an attribute on those of aiohttp; google-auth's
    asynchronous session wraps the latter in `_response` (google-auth 2.62 `aio/transport/aiohttp.py`).
    """
    inner = getattr(response, "_response", response)
    # Of a mock's attributes none is False.
    if getattr(inner, GAVE_UP, False) is True:
        return True
    headers = getattr(inner, "headers", None)
    return headers is not None and headers.get(NO_RETRY) == "false"
