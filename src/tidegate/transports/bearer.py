"""Renewal of bearer tokens that expire in the queue.

Theory of operation. An SDK writes the token of a request before the request is queued. Some SDKs can ask their source
for another one. A class patch on the method that asks keeps the client under each token that it got. A call that waited
long, or whose token ends soon, asks that client again when it is sent. The method returns the same token while that one
is good, because the sources keep their tokens. If the method fails, the old token is sent.

Lines: openai 3.52 `lib/_client_auth.py` `sync_refresh_api_key` (an `api_key` that is a function), `lib/azure.py`
`_get_azure_ad_token`, `providers/bedrock.py` `_resolve_token`; anthropic 2.11 `lib/vertex/_client.py`
`_ensure_access_token`, `lib/foundry.py` `_get_azure_ad_token`; google-genai 3.4.0 `_api_client.py` `_access_token`.
None of these methods is public. A version without one is not patched.
"""

from __future__ import annotations

import inspect
import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from tidegate.transports.patches import Patches
from tidegate.transports.request_key import EXPIRES_SOON_SECONDS, expiry

LOOK_AFTER_SECONDS = 1.0
"""Seconds of a call after which its token is looked at: no source gives tokens that end within seconds."""

STALE_AFTER_SECONDS = 30.0
"""Seconds of a call after which its token is asked for again: a source that keeps its token answers at once."""

MAX_NOTED_TOKENS = 1024
"""Tokens whose clients are kept. Chosen: far above the identities of one program."""

METHODS: dict[str, tuple[str, ...]] = {
    "openai._client": ("_refresh_api_key",),
    "openai.lib.azure": ("_get_azure_ad_token",),
    "openai.providers.bedrock": ("_resolve_token", "_resolve_token_async"),
    "anthropic.lib.foundry": ("_get_azure_ad_token",),
    "anthropic.lib.vertex._client": ("_ensure_access_token",),
    "google.genai._api_client": ("_access_token", "_async_access_token"),
}
"""By module: the methods of its clients that return a token."""

HEADERS = ("authorization", "api-key")
"""Headers that such a token is written to."""

logger = logging.getLogger("tidegate")


class TokenSource(NamedTuple):
    """The client that wrote a token, and the name of its method that returns one."""

    owner: weakref.ref[Any]
    method: str


_noted: OrderedDict[tuple[str, bool], TokenSource] = OrderedDict()
"""By token, and whether its source is awaited: a client of each kind may write the same token."""


def of(package: str) -> dict[str, Callable[[Patches, ModuleType], None]]:
    return {name: put for name in METHODS if name.startswith(f"{package}.")}


def put(patches: Patches, module: ModuleType) -> None:
    # The package may rename its classes' modules, and a class may have two names.
    for each in {each for each in vars(module).values() if isinstance(each, type)}:
        for name in METHODS[module.__name__]:
            if name in vars(each):
                patches.put(each, name, note)


def note(wrapped: Callable[..., Any], owner: Any, args: Any, kwargs: Any) -> Any:
    """Run a method that returns a token, or a coroutine of one, and keep its client under the token."""
    found = wrapped(*args, **kwargs)
    source = TokenSource(weakref.ref(owner), wrapped.__name__)
    if inspect.isawaitable(found):
        return _noted_later(found, source)
    _note(found, source, False)
    return found


async def _noted_later(found: Awaitable[Any], source: TokenSource) -> Any:
    token = await found
    _note(token, source, True)
    return token


def _note(token: object, source: TokenSource, awaits: bool) -> None:
    if isinstance(token, str) and token:
        # Each line is one step for other threads. A lock would stay locked in a forked child.
        _noted.pop((token, awaits), None)
        _noted[token, awaits] = source
        if len(_noted) > MAX_NOTED_TOKENS:
            _noted.popitem(last=False)


def is_renewable(headers: Mapping[str, Any], awaits: bool) -> bool:
    """Return whether a client that still lives can renew the token in these headers, for a call of this kind."""
    return _renewal(headers, awaits) is not None


class Renewal(NamedTuple):
    """A token that is due: the header with it, the header's value without it, and the client's method."""

    header: str
    before: str
    token: str
    ask: Callable[[], Any]

    def renew(self) -> str:
        """Return a new token; the old one where the method fails."""
        try:
            return self._checked(self.ask())
        except Exception as error:
            return self._failed(error)

    async def arenew(self) -> str:
        try:
            found = self.ask()
            return self._checked(await found if inspect.isawaitable(found) else found)
        except Exception as error:
            return self._failed(error)

    def _checked(self, found: Any) -> str:
        return found if isinstance(found, str) and found else self.token

    def _failed(self, error: Exception) -> str:
        logger.warning("token not renewed: %s was raised; the one from before the wait is sent", type(error).__name__)
        return self.token


def due(headers: Mapping[str, Any], waited: float, awaits: bool) -> Renewal | None:
    """Return how to renew the token of a call that waited so many seconds; None where it is fresh or has no source."""
    found = _renewal(headers, awaits)
    if found is None or waited > STALE_AFTER_SECONDS:
        return found
    ends = expiry(f"Bearer {found.token}".encode("latin-1", "replace"))
    return found if ends < time.time() + EXPIRES_SOON_SECONDS else None


def _renewal(headers: Mapping[str, Any], awaits: bool) -> Renewal | None:
    for header in HEADERS:
        value = headers.get(header)
        if not isinstance(value, str):
            continue
        before, _, token = value.rpartition(" ")
        # A call that awaits can ask either source, one that blocks only its own.
        for source in filter(None, (_noted.get((token, True)) if awaits else None, _noted.get((token, False)))):
            if (owner := source.owner()) is not None:
                return Renewal(header, f"{before} " if before else "", token, getattr(owner, source.method))
    return None
