"""One SDK's row in `table.SDKS`: its clients, and the functions of it that are wrapped.

The check for a response that tidegate gave up on, as the wrapped functions of the SDKs ask.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any

from tidegate.imports import is_loading
from tidegate.transports.call import GAVE_UP, NO_RETRY
from tidegate.transports.patches import Patches, when_imported


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


logger = logging.getLogger("tidegate")

Put = Callable[[Patches, ModuleType], object]


class Hooks:
    """The modules of one SDK in which functions are wrapped, once each is imported; all of it is inert or taken off."""

    def __init__(self, puts: Mapping[str, Put]) -> None:
        self.patches = Patches()
        self._puts = puts
        self._active = False
        self._hooked = False

    def put(self) -> None:
        """Wraps what is loaded, and what will be until `remove`."""
        self._active = True
        hooked, self._hooked = self._hooked, True
        for name, put in self._puts.items():
            module = sys.modules.get(name)
            if not hooked:
                when_imported(name, partial(self._put, put))
            elif module is not None and not is_loading(module):
                self._put(put, module)

    def remove(self) -> None:
        """Restores every function."""
        self._active = False
        self.patches.remove()

    def _put(self, put: Put, module: ModuleType) -> None:
        if not self._active:
            return
        try:
            put(self.patches, module)
        except Exception:
            # Another version than any we know: the program's import must not fail.
            logger.warning("%s is of another shape than is known: its own retries may not be stopped", module.__name__)


@dataclass(frozen=True, eq=False)
class Sdk:
    """An SDK whose clients can be wrapped.

    package    of its client classes, dotted
    clients    their names, as they are listed to people
    family     whose dialect an unknown host is taken to speak (`providers.adopt`); `families` says so by class name
    places     attributes of a client, dotted, where its HTTP clients are; one that is absent or None is none
    carrier    the attribute that sends through HTTP clients which come and go: it carries the mark itself ("" is the
               client; None: there is none)
    hooks      the functions of it that are wrapped
    source     the file and version that says so
    """

    package: str
    clients: tuple[str, ...]
    family: str
    source: str
    places: tuple[str, ...] = ()
    carrier: str | None = None
    families: Mapping[str, str] = field(default_factory=dict)
    hooks: Hooks = field(default_factory=lambda: Hooks({}))

    def has(self, client: object) -> bool:
        """Return whether a client, or a class that it derives from, is of this SDK."""
        return any(f"{each.__module__}.".startswith(f"{self.package}.") for each in type(client).__mro__)

    def family_of(self, client: object) -> str:
        """The family of a client of this SDK."""
        names = [each.__name__ for each in type(client).__mro__]
        return next((self.families[name] for name in names if name in self.families), self.family)

    def http_clients(self, client: object) -> Iterator[object]:
        """Return what is found at the places."""
        for place in self.places:
            try:
                found = attrgetter(place)(client)
            except AttributeError:
                continue
            if found is not None:
                yield found

    def carrier_of(self, client: object) -> object | None:
        """The object that carries the mark, where there is one."""
        return getattr(client, self.carrier, None) if self.carrier else None if self.carrier is None else client
