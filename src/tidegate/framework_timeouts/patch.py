"""Extension and restoration of the timeouts of frameworks, imported already or later."""

from __future__ import annotations

import logging
import sys
import threading
from functools import partial
from types import ModuleType

from tidegate.framework_timeouts.table import CLOCKS
from tidegate.framework_timeouts.timeout import (
    ChangedTimeout,
    EnvironmentDefault,
    FrameworkTimeout,
    ParameterDefault,
    shown,
)
from tidegate.imports import is_loading
from tidegate.settings import Settings
from tidegate.transports.patches import when_imported

logger = logging.getLogger("tidegate")

_lock = threading.RLock()
_max_wait: float | None = None
_level = logging.WARNING
_hooked = False
_turned: dict[tuple[FrameworkTimeout, ParameterDefault | EnvironmentDefault], list[ChangedTimeout]] = {}
_told: set[FrameworkTimeout] = set()


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
        for clock in CLOCKS:
            for dial in clock.dials:
                module = sys.modules.get(dial.module)
                if module is not None and not is_loading(module):
                    _wind(clock, dial, module)
                if not _hooked:
                    when_imported(dial.module, partial(_wind, clock, dial))
        _hooked = True


def stretches(settings: Settings) -> bool:
    """Return whether these settings extend timeouts at all."""
    return settings.framework_clocks == "stretch" and not settings.disabled and settings.max_wait > 0


def restore() -> None:
    """Restore every timeout that still has the value set here."""
    global _max_wait
    with _lock:
        _max_wait = None
        for turned in _turned.values():
            for each in turned:
                each.undo()
        _turned.clear()


def _wind(clock: FrameworkTimeout, dial: ParameterDefault | EnvironmentDefault, module: ModuleType) -> None:
    with _lock:
        if _max_wait is None or (clock, dial) in _turned:
            return
        max_wait = _max_wait
        turned = _turned[clock, dial] = []
        try:
            for each in dial.turn(module, lambda seconds: clock.stretched(seconds, max_wait)):
                turned.append(each)
        except Exception as error:
            # This runs inside an import of the user's program: the import continues, and the timeout stays as it is.
            text = "timeout of %s not extended: %s was raised; its present value stays"
            logger.exception(text, clock.framework, type(error).__name__)
        if turned and clock not in _told:
            _told.add(clock)
            _tell(clock, turned[0])


def _tell(clock: FrameworkTimeout, turned: ChangedTimeout) -> None:
    logger.log(
        _level,
        "tidegate: %s timeout of %g s (%s) extended: it also runs while calls wait in the queue; it is %s now "
        "(TIDEGATE_FRAMEWORK_CLOCKS=keep leaves it unchanged)",
        clock.framework,
        turned.old,
        clock.measures,
        shown(turned.new),
    )
