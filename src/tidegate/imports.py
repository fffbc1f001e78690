"""Modules that are still being loaded: which of tidegate's own are, and a call at the end of one's loading.

An import hook runs in the middle of imports: of the module that it waits for, of modules around that one, and of
tidegate's own where a plugin of pydantic imports an HTTP client. Nothing here imports more than the interpreter has.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

LOADING = "_initializing"
"""The attribute of a spec that is true from the start to the end of loading (CPython 3.11 to 3.14 `_load_unlocked`)."""

CALLS = "_tidegate_calls"
"""The attribute of a spec that holds what is called at the end of its loading."""


class ObservedSpec(ModuleSpec):
    """A spec that calls back when the import system marks its module as loaded, or as failed."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == LOADING and not value:
            calls = self.__dict__.pop(CALLS, ())
            self.__class__ = ModuleSpec  # type: ignore[assignment]  # mypy: the class of a subclass's instance
            for call in calls:
                call()


def is_loading(module: object) -> bool:
    """Return whether a module of `sys.modules` is only half loaded."""
    return bool(getattr(getattr(module, "__spec__", None), LOADING, False))


def own_loading() -> list[ModuleType]:
    """Return the modules of tidegate that are half loaded, in whatever thread."""
    found = [module for name, module in list(sys.modules.items()) if f"{name}.".startswith("tidegate.")]
    return [module for module in found if is_loading(module)]


def when_loaded(spec: ModuleSpec | None, call: Callable[[], object]) -> bool:
    """Call `call` at the end of the next or current loading by `spec`, in the loading thread.

    `call` must not raise: it runs inside the import of the program. Returns False for a spec that cannot be observed.
    """
    # A loader from before Python 3.4 does not mark what it loads; the layout of another class of specs is unknown.
    if spec is None or type(spec) not in (ModuleSpec, ObservedSpec) or not hasattr(spec.loader, "exec_module"):
        return False
    calls = spec.__dict__.setdefault(CALLS, [])
    if call not in calls:
        calls.append(call)
    spec.__class__ = ObservedSpec
    return True
