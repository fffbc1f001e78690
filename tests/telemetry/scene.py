"""A registry in virtual time, and what an OpenTelemetry SDK was told of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.core.values import KEY, PlainCall, StubWaker
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.exchange import AttemptResult, CallPolicy, Flow, Resume
from tidegate.core.values import Key, Outcome
from tidegate.settings import Settings
from tidegate.telemetry import instrument
from tidegate.testing import VirtualClock


class Providers:
    """An SDK of one's own, with exporters in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    def instrument(self, registry: RateLimitRegistry) -> None:
        instrument(registry, tracer_provider=self.tracers, meter_provider=self.meters)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        with self.tracers.get_tracer("user").start_as_current_span(name):
            yield

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def noted(self, name: str) -> list[str]:
        (span,) = self.spans(name)
        return [event.name for event in span.events]

    def metric(self, name: str) -> Any:
        """One metric as it is now, None where nothing was measured."""
        found = self.reader.get_metrics_data()
        scopes = [scope for resource in found.resource_metrics for scope in resource.scope_metrics] if found else []
        return next((each for scope in scopes for each in scope.metrics if each.name == name), None)

    def points(self, name: str, *attributes: str) -> dict[Any, Any]:
        """Value (or count and sum) of each point of a metric, by the values of these attributes."""
        metric = self.metric(name)
        return {
            tuple((point.attributes or {}).get(each) for each in attributes): value_of(point)
            for point in (metric.data.data_points if metric is not None else ())
        }


def value_of(point: Any) -> Any:
    return point.value if hasattr(point, "value") else (point.count, point.sum)


class Scene:
    """One registry in virtual time, told to an SDK of its own."""

    def __init__(self, providers: Providers | None = None, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.registry = RateLimitRegistry(Settings(**settings), clock=self.clock, draw=lambda: 0.5)
        self.providers = providers if providers is not None else Providers()
        self.providers.instrument(self.registry)
        self.flows: list[Flow] = []

    def call(self, key: Key = KEY, max_wait: float = 60.0, attempts: int = 1) -> Flow:
        governed = PlainCall(self.registry, key, CallPolicy(max_wait, attempts), 60.0, 0)
        assert governed.try_start() is None, "somebody listens, so every call has the whole dialogue"
        flow = governed.exchange(StubWaker, None, None)
        next(flow)
        # A flow that nobody holds is closed, and gives its place up.
        self.flows.append(flow)
        return flow

    def after(self, flow: Flow, seconds: float) -> None:
        self.clock.advance(seconds)
        resume(flow, Resume(self.clock()))

    def reply(self, flow: Flow, outcome: Outcome, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)
        resume(flow, Resume(self.clock(), AttemptResult(outcome)))


def resume(flow: Flow, what: Resume) -> None:
    with suppress(StopIteration):
        flow.send(what)
