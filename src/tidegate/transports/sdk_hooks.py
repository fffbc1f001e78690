"""Description of one SDK, its hooks, and the check for a response that tidegate gave up on.

A hook may write notes on SDKs' own errors for calls that tidegate gave up: how long each waited, for what and why.

The reason is in a header of the answer (`own_answers.REASON`). The hook wraps what makes an SDK's error, and reads
that header where the error shows it. Sources: `_base_client.py` of openai 3.52, anthropic 2.12, groq 1.7 and together
3.1; mistralai 3.7.0 `client/errors/`, mistralai 1.12.4 `models/`; google-genai 3.4.0 `_gaos/lib/compat_errors.py`;
cohere 7.3.1 `core/api_error.py`; huggingface_hub 2.4.0 `errors.py`; botocore 1.44.5 `exceptions.py`, which aiobotocore
shares; ollama 0.6.3 `_client.py` 147, 193, where the error of the HTTP client is being handled; replicate 1.0.7
`exceptions.py`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any

from tidegate.core.safe_text import printable
from tidegate.errors import add_note
from tidegate.transports.imports import is_loading
from tidegate.transports.own_answers import NO_RETRY, REASON
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
