"""The tables: every event becomes something, and every name stands once."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

from tests.core.values import KEY
from tests.telemetry.scene import Providers, Scene
from tidegate.core import events
from tidegate.core.values import Cause, Kind, Source, Usage
from tidegate.telemetry import attributes, signals
from tidegate.telemetry.attributes import Attribute

EVENTS = [
    each for _, each in inspect.getmembers(events, inspect.isclass)
    if issubclass(each, events.Event) and each not in (events.Event, events.CallEvent)
]  # fmt: skip
SPECIMENS = {
    "usage": Usage(1, 2, model="m"),
    "kind": Kind.RATE_LIMIT,
    "cause": Cause.RATE,
    "status": 429,
    "retry_after": 7.0,
    "gate": "quota requests",
    "quota": "requests",
    "unit": "requests",
    "given_up": True,
    "until": 5.0,
    "origin": Source.RETRY_AFTER,
}
FED = ("histogram", "counter")
"""Kinds of instruments that events feed; the others read snapshots."""

NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


def specimen(kind: type[events.Event]) -> events.Event:
    return kind(KEY, 1.0, **{field.name: SPECIMENS.get(field.name, 3) for field in dataclasses.fields(kind)[2:]})


@pytest.mark.parametrize("kind", [each for each in EVENTS if each is not events.AttemptEnded])
def test_every_event_becomes_a_measurement_an_event_on_the_span_or_a_span(kind: type[events.Event]) -> None:
    assert kind in signals.SIGNALS, f"{kind.__name__} becomes nothing"
    scene = Scene(telemetry="tokens")
    with scene.providers.span("user"):
        scene.registry.emit(specimen(kind))
    measured = [each for each in signals.INSTRUMENTS if each.kind in FED and scene.providers.points(each.name)]
    (user,) = scene.providers.spans("user")
    assert measured or user.events or scene.providers.spans("tidegate.wait")


@pytest.mark.parametrize("kind", [each for each in EVENTS if signals.SIGNALS[each].measures])
def test_what_an_event_measures_inside_a_recorded_span_is_encoded_for_a_collector(kind: type[events.Event]) -> None:
    scene = Scene(telemetry="tokens")
    with scene.providers.span("user"):
        scene.registry.emit(specimen(kind))
    # An exemplar keeps the amount as it was given, and the encoder takes numbers only.
    found = scene.providers.reader.get_metrics_data()
    assert found is not None
    assert encode_metrics(found).resource_metrics


@pytest.mark.parametrize("kind", EVENTS)
def test_no_fact_of_an_event_is_lost_on_its_way_to_the_span(kind: type[events.Event], providers: Providers) -> None:
    note = signals.SIGNALS[kind].note
    if note is None:
        return
    facts = dict(signals.read(note.facts, specimen(kind)))
    assert len(facts) == len(note.facts)


def test_an_instrument_is_fed_by_events_or_reads_snapshots_and_no_name_stands_twice() -> None:
    fed = {measure.instrument.name for each in signals.SIGNALS.values() for measure in each.measures}
    assert fed == {each.name for each in signals.INSTRUMENTS if each.kind in FED}
    names = [each.name for each in signals.INSTRUMENTS]
    names += [each.note.name for each in signals.SIGNALS.values() if each.note is not None]
    names += [each.name for each in vars(attributes).values() if isinstance(each, Attribute)]
    assert len(names) == len(set(names))
    assert [name for name in names if NAME.fullmatch(name) is None] == []


def test_values_have_the_type_that_their_attribute_says() -> None:
    types = {"string": str, "int": int, "double": float | int, "boolean": bool}
    for kind, each in signals.SIGNALS.items():
        facts = [fact for measure in each.measures for fact in measure.facts]
        facts += each.note.facts if each.note is not None else ()
        for attribute, value_of_event in facts:
            value = value_of_event(specimen(kind))
            assert isinstance(value, types[attribute.type]), (kind, attribute.name, value)
            assert type(value) in (str, int, float, bool), (kind, attribute.name, value)
