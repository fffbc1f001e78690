"""The clients of an HTTP stack: of which modules and classes they are, and which of them were wrapped."""

from __future__ import annotations

import io
import logging
import sys
import weakref
from collections.abc import Callable
from types import ModuleType

from tidegate.imports import is_loading
from tidegate.transports.patching import Patches

logger = logging.getLogger("tidegate")


class Clients:
    """A stack as `tidegate.transports.stacks.Transport` describes it; `put` patches one of its modules, once."""

    def __init__(self, modules: tuple[str, ...], classes: tuple[str, ...], put: Callable[[ModuleType], None]) -> None:
        self.MODULES = modules
        self.put = put
        self.patches = Patches()
        self._classes = classes
        self._wrapped: weakref.WeakSet[object] = weakref.WeakSet()

    def loaded(self) -> list[ModuleType]:
        """Those of its modules that the process has imported to their end."""
        # None stands where an import is forbidden, and a mock where it is made up.
        found = (sys.modules.get(name) for name in self.MODULES)
        return [module for module in found if isinstance(module, ModuleType) and not is_loading(module)]

    def module_of(self, client: object) -> ModuleType:
        """The module that a client (see `is_client`) is of."""
        return next(module for module in self.loaded() if self._holds(module, client))

    def is_client(self, candidate: object) -> bool:
        """Return whether it is a client of this stack."""
        return any(self._holds(module, candidate) for module in self.loaded())

    def remember(self, client: object) -> None:
        """Notes what was wrapped: the patches stay on while it lives."""
        self._wrapped.add(client)

    def remembered(self) -> bool:
        """Return whether anything that was wrapped lives."""
        return len(self._wrapped) > 0

    def _holds(self, module: ModuleType, candidate: object) -> bool:
        # A module that is being imported may have no such class yet.
        found = (getattr(module, name, None) for name in self._classes)
        return isinstance(candidate, tuple(each for each in found if isinstance(each, type)))


MOCKS = frozenset({"betamax", "moto", "pook", "requests_mock", "responses", "vcr"})
"""Packages that answer in place of a network, by recordings or by hand, with bodies of their own classes.

Source: vcrpy 9.4.2 `stubs/__init__.py` `VCRHTTPResponse`, `stubs/aiohttp_stubs.py` `MockClientResponse`; the others
hold their bodies in memory (responses 0.26.3 `_form_response`, requests-mock 1.12.1 `response.py`, moto 5
`core/botocore_stubber.py` `MockRawResponse`).
"""


def made_up(response: object) -> bool:
    """Return whether a mock or a recording made up an answer of requests or botocore: no connection sends its body."""
    raw = getattr(response, "raw", None)
    return _in_memory(raw) or _in_memory(getattr(raw, "_fp", None))


def _in_memory(body: object) -> bool:
    return isinstance(body, io.BytesIO) or type(body).__module__.partition(".")[0] in MOCKS


def unreadable() -> None:
    """Says that a request passes through because it could not be read: nothing of ours is raised below an SDK."""
    logger.exception("a request could not be read; it is not governed")
