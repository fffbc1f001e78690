"""Logs in one named actor of a Ray cluster, which the first process that needs it creates.

Nothing here starts Ray: its public functions do that in a process that is not connected, so they are called without
that. The actor outlives the job that created it, and uses no CPU of the cluster's account.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from tidegate.errors import ConfigurationError
from tidegate.shared_log.errors import NoConnection, Unshared
from tidegate.shared_log.log_table import LogTable
from tidegate.shared_log.redis_log import MEMBERS
from tidegate.shared_log.store_carrier import StoreCarrier
from tidegate.shared_log.store_log import Answer, Ask, Limits

RAY = "ray"
"""Value of the setting `share`, and the seed of its secret."""

NAME, NAMESPACE = "tidegate-log-v4", "tidegate"
"""Name of the actor, with a version that any change of `Ask`, `Answer` or the payloads raises."""

TIME_LIMIT = 1.0
"""Seconds after which the actor counts as away. Measured: 1 ms, and up to 0.31 s on a busy machine."""

CREATION_LIMIT = 10.0
"""Seconds for which a joiner waits until the actor exists. Measured: 0.8 s, longer on a busy machine."""


class LogActor:
    """The actor: it serves one exchange after the other."""

    def __init__(self) -> None:
        self._table = LogTable()

    def ready(self) -> bool:
        return True

    def exchange(self, name: bytes, ask: Ask) -> Answer | None:
        return self._table.exchange(name, ask, time.time())


class RayStore:
    """The actor, as used by the thread of one process; the actor is created where there is none."""

    def __init__(self) -> None:
        ray = sys.modules.get("ray")
        if ray is None or not ray.is_initialized():
            raise NoConnection("this process is not connected to Ray")
        if _connection(ray) in _inherited:
            raise Unshared("a fork of a process of Ray has no connection to it")
        self._handle: Any = _found(ray) or _created(ray)
        # A handle that a fork of this process dropped would wait for locks of threads that it does not have.
        _handles.append(self._handle)
        self._result(self._handle.ready.remote(), CREATION_LIMIT)

    def exchange(self, name: bytes, ask: Ask) -> Answer | None:
        found: Answer | None = self._result(self._handle.exchange.remote(name, ask), TIME_LIMIT)
        if found is None and not ask.leaves:
            raise Unshared(f"it has {MEMBERS} members already")
        return found

    def _result(self, reference: Any, limit: float) -> Any:
        # `ray.get` warns in the process of an asynchronous actor, of whose loop this thread is not.
        return reference.future().result(limit)

    def close(self) -> None:
        with contextlib.suppress(ValueError):
            _handles.remove(self._handle)


def _found(ray: Any) -> Any:
    try:
        return _plain(ray.get_actor)(NAME, namespace=NAMESPACE)
    except ValueError:
        return None


def _created(ray: Any) -> Any:
    """Create the actor and return it, or the one that another process has created since."""
    actor = ray.remote(LogActor)
    options = {
        "name": NAME, "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0, "max_restarts": -1,
        "enable_task_events": False,
    }  # fmt: skip
    try:
        return _plain(actor._remote.__func__)(actor, (), {}, **options)
    except ValueError:
        return _found(ray)


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of Ray without the part around it that starts Ray where it is not running."""
    found: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return found


def _connection(ray: Any) -> str:
    """Return the name of this process in the cluster."""
    return str(_plain(ray.get_runtime_context)().get_worker_id())


_handles: list[Any] = []
_inherited: set[str] = set()
"""Connections that this process has from the one that forked it: they do not work here."""


def _after_fork_in_child() -> None:
    ray = sys.modules.get("ray")
    with contextlib.suppress(Exception):
        if ray is not None and ray.is_initialized():
            _inherited.add(_connection(ray))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def ray_carrier() -> StoreCarrier:
    """Return the carrier in the Ray cluster of this process; raise `ConfigurationError` where Ray is not installed."""
    if find_spec("ray") is None:
        raise ConfigurationError("share", RAY, "sharing through a Ray cluster needs Ray: pip install ray")
    return StoreCarrier(
        RayStore, "ray", RAY, f"the actor {NAME} of the Ray cluster", Limits(TIME_LIMIT, CREATION_LIMIT)
    )
