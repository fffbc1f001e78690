"""Description of one SDK for `table.SDKS`, its hooks, and the check for a response that tidegate gave up on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any

from tidegate.transports.call import NO_RETRY
from tidegate.transports.imports import is_loading
from tidegate.transports.patches import Patches, when_imported


def is_given_up(response: Any) -> bool:
    """Return whether an SDK must return this response rather than repeat: its call has used up its wait."""
    headers = getattr(response, "headers", None)
    return headers is not None and headers.get(NO_RETRY) == "false"


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


@dataclass(frozen=True, eq=False)
class Sdk:
    """An SDK whose clients can be wrapped.

    - `package`: dotted name of the package of its client classes
    - `clients`: their names, as listed to users
    - `family`: API family that an unknown host is assumed to speak (`providers.adopt`); `families` overrides it by
      class name
    - `places`: dotted attributes of a client that hold its HTTP clients; an absent or None one is skipped
    - `carrier`: attribute of the object that carries the binding because its HTTP clients change ("": the client
      itself; None: there is none)
    - `hooks`: patches of its functions
    - `source`: file and version that show this
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
        return any(f"{each.__module__}.".startswith(f"{self.package}.") for each in type(client).__mro__)

    def family_of(self, client: object) -> str:
        names = [each.__name__ for each in type(client).__mro__]
        return next((self.families[name] for name in names if name in self.families), self.family)

    def http_clients(self, client: object) -> Iterator[object]:
        """Yield the HTTP clients at the places."""
        for place in self.places:
            try:
                found = attrgetter(place)(client)
            except AttributeError:
                continue
            if found is not None:
                yield found

    def carrier_of(self, client: object) -> object | None:
        """Return the object that carries the binding, None if there is none."""
        return getattr(client, self.carrier, None) if self.carrier else None if self.carrier is None else client
