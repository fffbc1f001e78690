"""Instruments of one meter provider, events on the caller's current span, and a span for each real wait."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import INVALID_SPAN, Tracer, get_current_span, set_span_in_context

from tidegate.admission.key_table import KeyTable
from tidegate.core import events
from tidegate.core.snapshot import KeySnapshot, QuotaSnapshot
from tidegate.telemetry.attributes import QUOTA, QUOTA_UNIT, KeyAttributes, Keys, Pairs
from tidegate.telemetry.signals import (
    ETA,
    IN_FLIGHT,
    INSTRUMENTS,
    LIMIT,
    OTHERS_LIMIT,
    OTHERS_REMAINING,
    REAL_WAIT_SECONDS,
    REQUESTS_LIMIT,
    REQUESTS_REMAINING,
    SIGNALS,
    TOKENS_LIMIT,
    TOKENS_REMAINING,
    WAITING,
    Instrument,
    Measure,
    read,
)

NOWHERE: Context = set_span_in_context(INVALID_SPAN, Context())
"""Context in which no span is current. (An empty context would mean the current one.)"""

Seen = Iterator[tuple[float, Pairs]]

READINGS: dict[str, Callable[[KeySnapshot], Seen]] = {
    LIMIT.name: lambda key: iter([(key.limit, ())]),
    IN_FLIGHT.name: lambda key: iter([(key.in_flight, ())]),
    WAITING.name: lambda key: iter([(key.waiting, ())]),
    ETA.name: lambda key: _eta(key),
    REQUESTS_LIMIT.name: lambda key: _quotas(key, "requests", _limit),
    REQUESTS_REMAINING.name: lambda key: _quotas(key, "requests", _remaining),
    TOKENS_LIMIT.name: lambda key: _quotas(key, "tokens", _limit),
    TOKENS_REMAINING.name: lambda key: _quotas(key, "tokens", _remaining),
    OTHERS_LIMIT.name: lambda key: _quotas(key, "others", _limit),
    OTHERS_REMAINING.name: lambda key: _quotas(key, "others", _remaining),
}
"""Functions by metric name; each reads its metric from the snapshot of a key."""


def _limit(quota: QuotaSnapshot) -> float:
    return quota.limit


def _remaining(quota: QuotaSnapshot) -> float:
    return max(0.0, quota.level)


def _counted(unit: str) -> str:
    """Return the group of metrics of quotas that count `unit`."""
    return "tokens" if unit.endswith("tokens") else "requests" if unit == "requests" else "others"


def _eta(key: KeySnapshot) -> Seen:
    if key.eta is not None:
        yield key.eta, ()


def _quotas(key: KeySnapshot, group: str, amount: Callable[[QuotaSnapshot], float]) -> Seen:
    for quota in key.quotas:
        if _counted(quota.unit) == group:
            unit = () if group == "requests" else ((QUOTA_UNIT.name, quota.unit),)
            yield amount(quota), ((QUOTA.name, quota.name), *unit)


class Recording(NamedTuple):
    """Measure, bound to its instrument."""

    record: Callable[..., None]
    measure: Measure
    context: Context | None

    def of(self, event: events.Event, key: KeyAttributes) -> None:
        read_amount = self.measure.amount
        amount = 1 if read_amount is None else read_amount(event)
        if amount is not None and (amount or self.measure.instrument.kind == "histogram"):
            self.record(amount, key.also(read(self.measure.facts, event)), self.context)


class Metrics:
    """Instruments of one meter provider; its gauges show the added registries while these exist."""

    def __init__(self, meter: Meter) -> None:
        self._shown: weakref.WeakKeyDictionary[KeyTable, Keys] = weakref.WeakKeyDictionary()
        made = {each.name: self._make(meter, each) for each in INSTRUMENTS}
        self._recordings = {
            kind: [
                Recording(made[each.instrument.name], each, NOWHERE if each.apart else None)
                for each in signals.measures
            ]
            for kind, signals in SIGNALS.items()
        }

    def show(self, registry: KeyTable, keys: Keys) -> None:
        self._shown[registry] = keys

    def hide(self, registry: KeyTable) -> None:
        self._shown.pop(registry, None)

    def measure(self, event: events.Event, key: KeyAttributes) -> None:
        for recording in self._recordings[type(event)]:
            recording.of(event, key)

    def _make(self, meter: Meter, what: Instrument) -> Callable[..., None]:
        if what.kind == "histogram":
            histogram = meter.create_histogram(
                what.name, what.unit, what.meaning, explicit_bucket_boundaries_advisory=what.bounds
            )
            return histogram.record
        if what.kind == "counter":
            return meter.create_counter(what.name, what.unit, what.meaning).add
        readers = [self._gauge(READINGS[what.name])]
        if what.kind == "updowncounter":
            meter.create_observable_up_down_counter(what.name, readers, what.unit, what.meaning)
        else:
            meter.create_observable_gauge(what.name, readers, what.unit, what.meaning)
        return _shows_itself

    def _gauge(self, reading: Callable[[KeySnapshot], Seen]) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            found = []
            for registry, keys in list(self._shown.items()):
                for key, state in registry.snapshot().keys.items():
                    attributes = keys.of(key)
                    found += [Observation(amount, attributes.also(facts)) for amount, facts in reading(state)]
            return found

        return observe


def _shows_itself(*given: object) -> None:
    raise AssertionError("event not recorded: a gauge reads snapshots and takes no events")


def note(tracer: Tracer, event: events.Event, key: KeyAttributes) -> None:
    """Add an event to the current span, or create a span for it, according to `SIGNALS`.

    A wait is reported when it ends: its span began `lasting` seconds ago, so no clock needs conversion. Without a span
    of the caller it has none, as it would be a separate trace. It has no attribute of the GenAI conventions, because
    backends take such a span for a call of a model.
    """
    found = SIGNALS[type(event)].note
    if found is None:
        return
    if found.lasting is None:
        span = get_current_span()
        if span.is_recording():
            span.add_event(found.name, key.along(read(found.facts, event)))
        return
    lasting = found.lasting(event)
    if lasting > REAL_WAIT_SECONDS and get_current_span().get_span_context().is_valid:
        now = time.time_ns()
        attributes = {
            name: value for name, value in key.along(read(found.facts, event)).items() if not name.startswith("gen_ai.")
        }
        tracer.start_span(found.name, attributes=attributes, start_time=now - int(lasting * 1e9)).end(now)
