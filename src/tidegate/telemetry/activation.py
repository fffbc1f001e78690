"""Subscription of registries to OpenTelemetry: all where the process has an SDK, or single ones on request.

Theory of operation. The user configures nothing. A new registry calls `watch_for_sdk`, unless `Settings.telemetry` is
off. The import of an SDK, before or after, subscribes a listener to every such registry. Without an SDK there is no
listener, no event is built, and OpenTelemetry is never imported. Such a listener looks up its providers at the first
event: the program has usually set them by then, and the API's proxies forward to providers set later. `begin` looks
them up at once. This module keeps no registry alive, and each listener belongs to one registry.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from tidegate._version import __version__
from tidegate.admission.key_table import KeyTable
from tidegate.admission.known_keys import MAX_REGISTRY_KEYS
from tidegate.core import events
from tidegate.core.values import Key
from tidegate.transports.patches import when_imported

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from tidegate.telemetry.instruments import Metrics

SDK = ("opentelemetry.sdk.trace", "opentelemetry.sdk.metrics")
"""Modules that only an SDK has: an application that exports imports one of them (opentelemetry-sdk 1.45)."""

SCOPE = "tidegate"
"""Instrumentation scope of all signals."""

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
"""Version of the conventions that the names of the signals follow (`tidegate.telemetry.attributes`)."""

_lock = threading.RLock()
_watching = False
_waiting_for_sdk: weakref.WeakSet[KeyTable] = weakref.WeakSet()
_listening: weakref.WeakKeyDictionary[KeyTable, Telemetry] = weakref.WeakKeyDictionary()


class ProcessProvider:
    """Placeholder for the meter provider of the process, whichever that will be."""


_ANYBODY = ProcessProvider()
_metrics: weakref.WeakKeyDictionary[MeterProvider | ProcessProvider, Metrics] = weakref.WeakKeyDictionary()
"""Instruments by meter provider: each provider may create an instrument only once."""


class Telemetry:
    """Listener of one registry; None for a provider means that of the process."""

    def __init__(
        self,
        registry: KeyTable,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        self._registry = weakref.ref(registry)
        self._tokens = registry.settings.telemetry == "tokens"
        self._providers = tracer_provider, meter_provider
        self._handler: Callable[[events.Event], None] | None = None
        self._metrics: Metrics | None = None

    def __call__(self, event: events.Event) -> None:
        handler = self._handler or self.open()
        handler(event)

    def open(self) -> Callable[[events.Event], None]:
        """Find the providers and create the instruments, once; return the function that handles events."""
        with _lock:
            # A signal handler that makes a call inside may have opened it meanwhile.
            self._handler = self._handler or self._opened()
            return self._handler

    def _opened(self) -> Callable[[events.Event], None]:
        from opentelemetry.trace import get_tracer

        from tidegate.telemetry.attributes import Keys
        from tidegate.telemetry.instruments import note

        tracer_provider, meter_provider = self._providers
        tracer = get_tracer(SCOPE, __version__, tracer_provider, SCHEMA_URL)
        metrics = self._metrics = _metrics_of(meter_provider)
        registry = self._registry()
        keys = Keys(MAX_REGISTRY_KEYS, _operations(registry))
        if registry is not None:
            metrics.show(registry, keys)

        tokens = self._tokens

        def handler(event: events.Event) -> None:
            key = keys.of(event.key)
            # The end of an attempt measures nothing but its tokens.
            if tokens or type(event) is not events.AttemptEnded:
                metrics.measure(event, key)
            note(tracer, event, key)

        return handler

    def close(self) -> None:
        registry = self._registry()
        if registry is not None and self._metrics is not None:
            self._metrics.hide(registry)


def _operations(registry: KeyTable | None) -> Callable[[Key], str]:
    operations = registry.operations if registry is not None else {}
    return lambda key: operations.get(key, "")


def begin(
    registry: KeyTable, tracer_provider: TracerProvider | None = None, meter_provider: MeterProvider | None = None
) -> None:
    """Report a registry to OpenTelemetry from now on, through these providers; None means those of the process."""
    end(registry)
    telemetry = Telemetry(registry, tracer_provider, meter_provider)
    _subscribe(registry, telemetry)
    telemetry.open()


def end(registry: KeyTable) -> None:
    with _lock:
        _waiting_for_sdk.discard(registry)
        telemetry = _listening.pop(registry, None)
    if telemetry is not None:
        registry.unsubscribe(telemetry)
        telemetry.close()


def watch_for_sdk(registry: KeyTable) -> None:
    """Report a registry to OpenTelemetry once an SDK is imported, now or later."""
    global _watching
    with _lock:
        _waiting_for_sdk.add(registry)
        watching, _watching = _watching, True
    if not watching:
        for name in SDK:
            when_imported(name, _on_sdk_import)
    elif any(name in sys.modules for name in SDK):
        _subscribe(registry, Telemetry(registry))


def _on_sdk_import(module: ModuleType) -> None:
    with _lock:
        waiting = list(_waiting_for_sdk)
    for registry in waiting:
        _subscribe(registry, Telemetry(registry))


def _subscribe(registry: KeyTable, telemetry: Telemetry) -> None:
    with _lock:
        if _listening.setdefault(registry, telemetry) is telemetry:
            registry.subscribe(telemetry)


def _metrics_of(provider: MeterProvider | None) -> Metrics:
    """Return the instruments in a provider; the caller holds the lock."""
    from opentelemetry.metrics import get_meter

    from tidegate.telemetry.instruments import Metrics

    owner: MeterProvider | ProcessProvider = provider if provider is not None else _ANYBODY
    metrics = _metrics.get(owner)
    if metrics is None:
        metrics = _metrics.setdefault(owner, Metrics(get_meter(SCOPE, __version__, provider, SCHEMA_URL)))
    return metrics


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
