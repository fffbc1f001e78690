"""Class-level patches by wrapt: put on once, inert unless something is governed, taken off again."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import wrapt

from tidegate.imports import is_loading, when_loaded

MAX_DEPTH = 64
"""Wrappers around one function that are looked through. Raising it only matters for a chain without an end."""

logger = logging.getLogger("tidegate")
Wrapper = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]


class Patches:
    """The patches of one HTTP stack or SDK, at most one a function, whatever name its module was imported under."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[tuple[type | ModuleType, str], Any] = {}

    @property
    def on(self) -> bool:
        """Return whether anything is patched."""
        return bool(self._handles)

    def put(self, target: type | ModuleType, method: str, wrapper: Wrapper) -> bool:
        """Wrap `target.method`, of a class or a module; return False where the wrapper is on it already.

        A wrapper that is gone, because somebody put back a function of before, is put on again.
        """
        with self._lock:
            if (handle := self._handles.get((target, method))) and _is_on(handle, vars(target).get(method)):
                return False
            self._handles[target, method] = wrapt.wrap_function_wrapper(target, method, wrapper)
            return True

    def remove(self) -> None:
        """Restore every patched method; one under a foreign wrapper stays, inert."""
        with self._lock:
            for (target, method), handle in list(self._handles.items()):
                try:
                    found: Any = vars(target).get(method)
                    if getattr(found, "_self_parent", None) is handle:
                        # A mock (requests-mock 1.12.1 `Mocker.stop`) put back what it had read from the class: the
                        # wrapper as bound by that access. `unwrap_object` does not know it.
                        setattr(target, method, found.__wrapped__)
                    else:
                        wrapt.unwrap_object(target, method, handle)
                except wrapt.WrapperNotFoundError:
                    continue
                del self._handles[target, method]


def _is_on(handle: Any, function: Any) -> bool:
    """Return whether a function is the wrapper `handle`, or wraps it in a way that can be seen."""
    for _ in range(MAX_DEPTH):
        if function is None or function is handle or getattr(function, "_self_parent", None) is handle:
            break
        function = getattr(function, "__wrapped__", None)
    return function is not None


def when_imported(name: str, put: Callable[[ModuleType], object]) -> None:
    """Call `put` with the module `name` when it is imported, or now; never import it.

    A module that is being imported is handed over at the end of that: until then it may lack what `put` looks for.
    """
    module = sys.modules.get(name)
    if module is None:
        wrapt.register_post_import_hook(put, name)
    elif not is_loading(module) or not when_loaded(module.__spec__, partial(_put_loaded, name, put)):
        put(module)


def _put_loaded(name: str, put: Callable[[ModuleType], object]) -> None:
    """Hand over a module at the end of its loading, which may have failed."""
    try:
        when_imported(name, put)
    except Exception:
        # An import of the program's is under way: it goes on.
        logger.exception("%s could not be patched; calls through it are not governed", name)
