"""Once over the wire: OTLP over HTTP, to a receiver that reads the protobuf."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

import tidegate
from tests.sdk.asking import make, request
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.events import RequestWaited
from tidegate.telemetry import instrument
from tidegate.testing import Scenario, Simulator

READERS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


class Receiver(ThreadingHTTPServer):
    """A collector: what was sent to it, by path, read."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Post)
        self.received: list[tuple[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Post(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        receiver = self.server
        assert isinstance(receiver, Receiver)
        receiver.received.append((self.path, READERS[self.path].FromString(body)))
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *given: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def scopes(found: Any) -> list[Any]:
    resources = getattr(found, "resource_spans", None) or found.resource_metrics
    inner = [
        each for resource in resources for each in getattr(resource, "scope_spans", None) or resource.scope_metrics
    ]
    return [each for each in inner if each.scope.name == "tidegate"]


def test_metrics_and_spans_arrive_at_a_collector_and_what_exports_them_is_not_governed(
    registry: RateLimitRegistry, receiver: Receiver
) -> None:
    tracers = TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{receiver.url}/v1/traces")))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{receiver.url}/v1/metrics"), 3_600_000)
    meters = MeterProvider([reader])
    instrument(registry, tracer_provider=tracers, meter_provider=meters)
    tidegate.install(registry)
    try:
        user_tracer = tracers.get_tracer("user")
        with Simulator(Scenario()) as provider, make("openai", provider.url) as client:
            ask(client, user_tracer)
        with user_tracer.start_as_current_span("waiting"):
            registry.emit(a_wait(registry))
        tracers.shutdown()
        meters.shutdown()
    finally:
        tidegate.uninstall()
    metrics = [each for path, found in receiver.received if path == "/v1/metrics" for each in scopes(found)]
    names = {metric.name: metric.unit for scope in metrics for metric in scope.metrics}
    assert names["tidegate.attempt.duration"] == "s"
    assert names["tidegate.concurrency.limit"] == "{attempt}"
    traces = [found for path, found in receiver.received if path == "/v1/traces"]
    spans = [span for found in traces for resource in found.resource_spans for scope in resource.scope_spans
             for span in scope.spans]  # fmt: skip
    user = next(span for span in spans if span.name == "user")
    assert [event.name for event in user.events][-1] == "tidegate.request.completed"
    wait = next(span for span in spans if span.name == "tidegate.wait")
    assert wait.end_time_unix_nano - wait.start_time_unix_nano == 2_500_000_000
    (attempts,) = [metric for scope in metrics for metric in scope.metrics if metric.name == "tidegate.attempts"]
    assert sum(point.as_int for point in attempts.sum.data_points) == 1


def ask(client: Any, tracer: Tracer) -> None:
    with tracer.start_as_current_span("user"):
        request("openai", client)


def a_wait(registry: RateLimitRegistry) -> Any:
    """A wait of 2.5 s at the one key that the registry knows."""
    (key,) = registry.snapshot().keys
    return RequestWaited(key, registry.clock(), 2.5, "pause")
