"""Constants of tidegate that tests replace: waits that are too long for a test, and first values of a limiter."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

HOMES = {
    "CANCEL_GRACE_SECONDS": "pool.execution",
    "FIRST_BACKOFF_SECONDS": "core.backoff",
    "FIRST_COOLDOWN_SECONDS": "core.circuit_breaker",
    "FIRST_PAUSE_SECONDS": "core.backoff",
    "FOLLOW_SECONDS": "experiments.engine.claims",
    "GUARD_FAILURES": "experiments.engine.job",
    "HEARTBEAT_SECONDS": "experiments.engine.replica",
    "KEY_IDLE_SECONDS": "admission.known_keys",
    "LINE_SECONDS": "experiments.commands.display",
    "LOOK_SECONDS": "experiments.engine.feeder",
    "MAX_BACKOFF_SECONDS": "core.backoff",
    "MAX_COOLDOWN_SECONDS": "core.circuit_breaker",
    "MAX_EVENTS": "experiments.engine.events",
    "MAX_PAUSE_SECONDS": "core.backoff",
    "MAX_REGISTRY_KEYS": "admission.known_keys",
    "ORPHAN_SCAN_SECONDS": "experiments.engine.heartbeat",
    "OUTAGE_FAILURES": "core.circuit_breaker",
    "PAGE_ITEMS": "experiments.engine.queues",
    "POLL_SECONDS": "experiments.engine.batch.submission",
    "SEARCH_SECONDS": "experiments.engine.batch.submission",
    "SETTLE_SECONDS": "experiments.engine.batch.submission",
    "SPEND_SECONDS": "experiments.engine.spending",
    "STALE_SECONDS": "experiments.engine.replica",
    "START_CONCURRENCY": "core.concurrency_limit",
    "TRANSIENT_ATTEMPTS": "core.backoff",
    "UNTAKEN_SECONDS": "admission.wait_queue",
    "UNREAD_SECONDS": "admission.key_queue",
    "UNWRITTEN_RESULTS": "experiments.engine.results",
    "WRITE_GRACE_SECONDS": "experiments.engine.experiment_runner",
    "WRITE_SECONDS": "experiments.engine.results",
}
"""Module of each constant, below `tidegate`."""

VARIABLE = "TESTED_CONSTANTS"
"""Variable by which a test names the constants of a process that it starts."""

_replaced: dict[str, Any] = {}


def replace(**values: Any) -> None:
    """Replace constants, also where other modules have imported them, until `restore`."""
    for name, value in values.items():
        home = import_module(f"tidegate.{HOMES[name]}")
        _replaced.setdefault(name, getattr(home, name))
        _set(home, name, value)


def is_replaced(name: str) -> bool:
    """Return whether a constant is replaced now."""
    return name in _replaced


def restore() -> None:
    """Give all replaced constants their own values again."""
    while _replaced:
        name, value = _replaced.popitem()
        _set(import_module(f"tidegate.{HOMES[name]}"), name, value)


def environ(**values: Any) -> dict[str, str]:
    """Return the environment in which a process replaces constants."""
    return {VARIABLE: json.dumps(values)}


def replace_named() -> None:
    """Replace the constants that the environment of this process names."""
    replace(**json.loads(os.environ.get(VARIABLE, "{}")))


def _set(home: ModuleType, name: str, value: Any) -> None:
    held = getattr(home, name)
    for module in list(sys.modules.values()):
        if module.__name__.startswith("tidegate.") and vars(module).get(name) is held:
            setattr(module, name, value)
