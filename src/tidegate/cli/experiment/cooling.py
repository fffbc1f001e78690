"""The cool-down between two toggles of the user, waited out: what was asked for is done a moment later."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tidegate.errors import CoolingDown
from tidegate.storage.claims import COOL_DOWN

T = TypeVar("T")

AGAIN = 0.5
"""Seconds between two tries while a cool-down lasts."""


async def once_cooled(toggle: Callable[[], Awaitable[T]], say: Callable[[str], None], what: str) -> T:
    """Return the result of `toggle` after the cool-down; where it has to wait, it says once `what` comes then.

    Raises `CoolingDown` a second after it should have been over: somebody else's toggles begin it anew.
    """
    patience = COOL_DOWN + 1.0
    while True:
        try:
            return await toggle()
        except CoolingDown:
            if patience <= 0.0:
                raise
            if patience > COOL_DOWN:
                say(f"{what} in {COOL_DOWN:.0f} s at the most")
        await sleep(AGAIN)
        patience -= AGAIN
