"""Class-level patches by wrapt, and the client classes of an HTTP stack with their connection pools.

A patch is set once, does nothing unless a client or the process is governed, and can be removed.

A pool states how many calls a client can have in flight at once. It is looked at when several calls are in flight, so
that a program with few calls pays nothing. Its size is read from attributes that the libraries do not publish: where
one is missing, the pool counts as unknown.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

import wrapt

from tidegate.transports.imports import is_loading, when_loaded

if TYPE_CHECKING:
    from tidegate.admission.key_table import KeyTable
    from tidegate.core.limiter_state import Permit

MAX_WRAPPER_DEPTH = 64
"""Wrappers around one function that are followed. Chosen: no program wraps a function that often."""

logger = logging.getLogger("tidegate")
Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class Patches:
    """The patches of one HTTP stack or SDK, at most one per function, also if its module has several names."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._handles: dict[tuple[type | ModuleType, str], Any] = {}
        # What a thread is about to patch: a signal handler of the same thread may patch too.
        self._begun: dict[tuple[type | ModuleType, str], object] = {}

    @property
    def on(self) -> bool:
        return bool(self._handles)

    def put(self, target: type | ModuleType, method: str, wrapper: Wrapper) -> bool:
        """Wrap `target.method`, also again if other code restored it; return False if the wrapper is set."""
        place, mark = (target, method), object()
        with self._lock:
            if self._begun.setdefault(place, mark) is not mark:
                return False
            try:
                if (handle := self._handles.get(place)) and _is_on(handle, vars(target).get(method)):
                    return False
                self._handles[place] = wrapt.wrap_function_wrapper(target, method, wrapper)
                return True
            finally:
                self._begun.pop(place, None)

    def remove(self) -> None:
        """Restore every patched method; a patch under a foreign wrapper stays and does nothing."""
        with self._lock:
            for (target, method), handle in list(self._handles.items()):
                try:
                    found: Any = vars(target).get(method)
                    if getattr(found, "_self_parent", None) is handle:
                        # A mock (requests-mock 1.12.1 `Mocker.stop`) restored the attribute that it had read from the
                        # class. That is the wrapper as bound by the access, which `unwrap_object` does not recognise.
                        setattr(target, method, found.__wrapped__)
                    else:
                        wrapt.unwrap_object(target, method, handle)
                except wrapt.WrapperNotFoundError:
                    continue
                del self._handles[target, method]


def _is_on(handle: Any, function: Any) -> bool:
    """Return whether a function is the wrapper `handle`, or visibly wraps it."""
    for _ in range(MAX_WRAPPER_DEPTH):
        if function is None or function is handle or getattr(function, "_self_parent", None) is handle:
            break
        function = getattr(function, "__wrapped__", None)
    return function is not None


def when_imported(name: str, put: Callable[[ModuleType], object]) -> None:
    """Call `put` with the module `name` when it is imported, or now; never import it.

    For a module that is being imported, `put` runs at the end, because the module may be incomplete before.
    """
    module = sys.modules.get(name)
    if module is None:
        wrapt.register_post_import_hook(put, name)
    elif not is_loading(module) or not when_loaded(module.__spec__, partial(_put_loaded, name, put)):
        put(module)


def _put_loaded(name: str, put: Callable[[ModuleType], object]) -> None:
    try:
        when_imported(name, put)
    except Exception as error:
        # An import of the program is in progress and must continue.
        text = "module %s not patched: %s was raised; calls through it may be ungoverned"
        logger.exception(text, name, type(error).__name__)


class Clients:
    """The clients of one HTTP stack, whose modules may load later; `put` patches one of its modules once."""

    def __init__(self, modules: tuple[str, ...], classes: tuple[str, ...], put: Callable[[ModuleType], None]) -> None:
        self.MODULES = modules
        self.put = put
        self.patches = Patches()
        self._classes = classes
        self._wrapped: weakref.WeakSet[object] = weakref.WeakSet()

    def loaded(self) -> list[ModuleType]:
        """Return those of its modules that the process has fully imported."""
        # An entry is None if its import is forbidden, and no module if a mock replaced it.
        found = (sys.modules.get(name) for name in self.MODULES)
        return [module for module in found if isinstance(module, ModuleType) and not is_loading(module)]

    def module_of(self, client: object) -> ModuleType:
        return next(module for module in self.loaded() if self._holds(module, client))

    def is_client(self, candidate: object) -> bool:
        return any(self._holds(module, candidate) for module in self.loaded())

    def remember(self, client: object) -> None:
        """Remember a wrapped client: the patches stay while it lives."""
        self._wrapped.add(client)

    def remembered(self) -> bool:
        return len(self._wrapped) > 0

    def _holds(self, module: ModuleType, candidate: object) -> bool:
        # A module that is being imported may not have the class yet.
        found = (getattr(module, name, None) for name in self._classes)
        return isinstance(candidate, tuple(each for each in found if isinstance(each, type)))


MOCKS = frozenset({"betamax", "moto", "pook", "requests_mock", "responses", "vcr"})
"""Packages that answer in place of a network, from recordings or scripts, with their own body classes.

Source: vcrpy 9.4.2 `stubs/__init__.py` `VCRHTTPResponse`, `stubs/aiohttp_stubs.py` `MockClientResponse`; the others
hold their bodies in memory (responses 0.26.3 `_form_response`, requests-mock 1.12.1 `response.py`, moto 5
`core/botocore_stubber.py` `MockRawResponse`).
"""


def made_up(response: object) -> bool:
    """Return whether a mock or recording made a response of requests or botocore: its body comes from no connection."""
    raw = getattr(response, "raw", None)
    return _in_memory(raw) or _in_memory(getattr(raw, "_fp", None))


def _in_memory(body: object) -> bool:
    return isinstance(body, io.BytesIO) or type(body).__module__.partition(".")[0] in MOCKS


def unreadable() -> None:
    """Log that a request could not be read and passes through. tidegate never raises its own errors below an SDK."""
    logger.exception("request not governed: reading it raised an error; it is sent as it is")


LOOK_FROM_CALLS = 8
"""Calls in flight from which on a client's pool is looked at. Chosen: below the smallest default, aiohttp's 100, by
far, and above what sequential programs have in flight."""


def note_httpx(registry: KeyTable, permit: Permit, client: Any, url: Any) -> None:
    """Record the pool that an httpx or httpx2 client uses for `url`. With HTTP/2, calls share a connection."""
    if not _is_new(permit, client):
        return
    try:
        pool = client._transport_for_url(url)._pool
        size = 0 if pool._http2 else int(pool._max_connections)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return
    registry.note_pool(permit.key, pool, size)


def note_aiohttp(registry: KeyTable, permit: Permit, session: Any) -> None:
    if not _is_new(permit, session):
        return
    connector = getattr(session, "connector", None)
    sizes = [getattr(connector, name, 0) for name in ("limit", "limit_per_host")]
    given = [size for size in sizes if isinstance(size, int) and size > 0]
    if connector is not None:
        registry.note_pool(permit.key, connector, min(given, default=0))


def _is_new(permit: Permit, client: Any) -> bool:
    """Return whether the last call of the key came from another client, so that a client is looked at once."""
    bound = permit.state.bound
    if bound.client is not None and bound.client() is client:
        return False
    bound.client = ref(client)
    return True
