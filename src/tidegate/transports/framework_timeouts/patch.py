"""Extension and restoration of the timeouts of frameworks, imported already or later."""

from __future__ import annotations

import logging
import sys
import threading
from functools import partial
from types import ModuleType

from tidegate.settings import Settings
from tidegate.transports.framework_timeouts.table import TIMEOUTS
from tidegate.transports.framework_timeouts.timeout import (
    ChangedTimeout,
    EnvironmentDefault,
    FrameworkTimeout,
    ParameterDefault,
    shown,
)
from tidegate.transports.imports import is_loading
from tidegate.transports.patches import when_imported

logger = logging.getLogger("tidegate")

_lock = threading.RLock()
_max_wait: float | None = None
_level = logging.WARNING
_hooked = False
_changes: dict[tuple[FrameworkTimeout, ParameterDefault | EnvironmentDefault], list[ChangedTimeout]] = {}
_logged: set[FrameworkTimeout] = set()


def stretch(settings: Settings) -> None:
    """Extend the timeouts of imported frameworks now and of others at their import, after restoring earlier changes.

    Change nothing with `framework_clocks="keep"`, with `max_wait` 0, and where tidegate is disabled.
    """
    global _max_wait, _level, _hooked
    with _lock:
        restore()
        if not stretches(settings):
            return
        _max_wait = settings.max_wait
        # A warning is visible without any configuration of logging. It is needed: the user's program now behaves
        # differently from its documentation.
        _level = logging.WARNING if settings.log else logging.INFO
        for timeout in TIMEOUTS:
            for default in timeout.defaults:
                module = sys.modules.get(default.module)
                if module is not None and not is_loading(module):
                    _apply(timeout, default, module)
                if not _hooked:
                    when_imported(default.module, partial(_apply, timeout, default))
        _hooked = True


def stretches(settings: Settings) -> bool:
    return settings.framework_clocks == "stretch" and not settings.disabled and settings.max_wait > 0


def restore() -> None:
    """Restore every timeout that still has the value set here."""
    global _max_wait
    with _lock:
        _max_wait = None
        for changes in _changes.values():
            for each in changes:
                each.undo()
        _changes.clear()


def _apply(timeout: FrameworkTimeout, default: ParameterDefault | EnvironmentDefault, module: ModuleType) -> None:
    with _lock:
        if _max_wait is None or (timeout, default) in _changes:
            return
        max_wait = _max_wait
        changes = _changes[timeout, default] = []
        try:
            for each in default.apply(module, lambda seconds: timeout.stretched(seconds, max_wait)):
                changes.append(each)
        except Exception as error:
            # This runs inside an import of the user's program: the import continues, and the timeout stays as it is.
            text = "timeout of %s not extended: %s was raised; its present value stays"
            logger.exception(text, timeout.framework, type(error).__name__)
        if changes and timeout not in _logged:
            _logged.add(timeout)
            _log_change(timeout, changes[0])


def _log_change(timeout: FrameworkTimeout, changes: ChangedTimeout) -> None:
    logger.log(
        _level,
        "tidegate: %s timeout of %g s (%s) extended: it also runs while calls wait in the queue; it is %s now "
        "(TIDEGATE_FRAMEWORK_CLOCKS=keep leaves it unchanged)",
        timeout.framework,
        changes.old,
        timeout.measures,
        shown(changes.new),
    )
