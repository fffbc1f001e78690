"""Who is told of, from when on, and what it costs where nobody is: each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from tests.core.values import KEY
from tests.telemetry.scene import Providers, Scene
from tests.test_layers import imports, modules
from tidegate.admission.callers import ReadyCallback
from tidegate.core.limiter_state import Permit
from tidegate.telemetry import uninstrument

SDK = """
import gc, os, sys, weakref
import tidegate, tidegate.telemetry
from tidegate.admission.registry import RateLimitRegistry

def load():
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    global exporter, reader, provide, span
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    def provide():
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(tracers)
        metrics.set_meter_provider(MeterProvider([reader]))
    span = lambda name: trace.get_tracer("user").start_as_current_span(name)

def counted():
    found = reader.get_metrics_data()
    return {
        point.attributes["tidegate.key.name"]: point.value
        for resource in (found.resource_metrics if found else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics if metric.name == "tidegate.attempts"
        for point in metric.data.data_points
    }
"""


def printed(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SDK + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "", "PYTHONPATH": ":".join(sys.path), **environment},
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_without_an_sdk_nobody_listens_and_opentelemetry_is_never_imported() -> None:
    code = """
    registry = RateLimitRegistry()
    registry.wrap(__import__("httpx2").Client())
    registry.execute("k", lambda: 1)
    from tidegate.admission.callers import ReadyCallback

    key = tidegate.Key("p", "https://p.test")
    at_once = registry.enter(ReadyCallback(None), key, 60.0)
    print(registry.listening, tidegate.registry().listening, at_once is not None)
    print([name for name in sys.modules if name.startswith("opentelemetry")])
    """
    assert printed(code).splitlines() == ["False False True", "[]"]


def test_tidegate_itself_needs_the_api_alone() -> None:
    imported = {target for _, path in modules() for target in imports(path) if target.startswith("opentelemetry")}
    assert {target.split(".")[1] for target in imported} == {"context", "metrics", "trace"}


def test_the_api_alone_is_no_sdk() -> None:
    code = """
    import opentelemetry.metrics, opentelemetry.trace
    print(RateLimitRegistry().listening)
    """
    assert printed(code) == "False"


def test_a_registry_is_told_of_whether_it_is_made_before_or_after_the_sdk_is_imported_and_provided() -> None:
    code = """
    registries = {"before": RateLimitRegistry()}
    print(registries["before"].listening)
    load()
    print(registries["before"].listening)
    registries["between"] = RateLimitRegistry()
    registries["default"] = tidegate.registry()
    provide()
    registries["after"] = RateLimitRegistry()
    for name, registry in registries.items():
        registry.execute(name, lambda: 1)
    print(counted())
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    print({metric.name: len(metric.data.data_points) for metric in metrics}["tidegate.concurrency.limit"])
    print(len(metrics) == len({metric.name for metric in metrics}))
    """
    assert printed(code).splitlines() == [
        "False", "True", str({"before": 1, "between": 1, "default": 1, "after": 1}), "4", "True",
    ]  # fmt: skip


def test_providers_that_come_after_the_first_call_hear_the_next_ones() -> None:
    code = """
    registry = RateLimitRegistry()
    load()
    registry.execute("k", lambda: 1)
    provide()
    with span("user"):
        registry.execute("k", lambda: 1)
    print(counted(), [event.name for each in exporter.get_finished_spans() for event in each.events])
    gauges = {m.name for m in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics}
    print("tidegate.concurrency.limit" in gauges)
    """
    noted = ["tidegate.request.started", "tidegate.request.completed"]
    assert printed(code).splitlines() == [f"{ {'k': 1} } {noted}", "True"]


@pytest.mark.parametrize("setting", ["off", "0", "false"])
def test_the_setting_switches_it_off(setting: str) -> None:
    code = """
    load()
    provide()
    registry = RateLimitRegistry()
    print(registry.listening)
    tidegate.telemetry.instrument(registry)
    registry.execute("asked for", lambda: 1)
    print(counted())
    """
    said = printed(code, TIDEGATE_TELEMETRY=setting)
    assert said.splitlines() == ["False", "{'asked for': 1}"]


def test_whoever_was_uninstrumented_stays_so_when_an_sdk_comes() -> None:
    code = """
    from tidegate.telemetry import uninstrument
    first, second = RateLimitRegistry(), RateLimitRegistry()
    uninstrument(first)
    uninstrument()
    load()
    print(first.listening, second.listening, tidegate.registry().listening)
    """
    assert printed(code) == "False True False"


def test_a_registry_that_nobody_holds_is_gone_at_once() -> None:
    code = """
    load()
    provide()
    gc.disable()
    registry = RateLimitRegistry()
    tidegate.telemetry.instrument(registry)
    registry.execute("k", lambda: 1)
    reader.get_metrics_data()
    gone = weakref.ref(registry)
    del registry
    print(gone() is None)
    """
    assert printed(code) == "True"


def test_a_forked_child_tells_its_own_sdk() -> None:
    code = """
    load()
    provide()
    registry = RateLimitRegistry()
    registry.execute("k", lambda: 1)
    child = os.fork()
    if child == 0:
        registry.execute("k", lambda: 1)
        RateLimitRegistry().execute("new", lambda: 1)
        print(counted(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(counted())
    """
    assert printed(code).splitlines() == ["{'k': 2, 'new': 1}", "{'k': 1}"]


def test_many_threads_that_come_first_make_one_set_of_instruments() -> None:
    code = """
    import threading
    load()
    provide()
    registry = RateLimitRegistry()
    gate = threading.Barrier(8)
    def work():
        gate.wait()
        registry.execute("k", lambda: 1)
    threads = [threading.Thread(target=work) for _ in range(8)]
    [each.start() for each in threads]
    [each.join() for each in threads]
    print(counted())
    """
    assert printed(code) == "{'k': 8}"


def test_instrumenting_again_replaces_the_providers(scene: Scene) -> None:
    later = Providers()
    later.instrument(scene.registry)
    scene.registry.execute("k", lambda: 1)
    assert scene.providers.points("tidegate.attempts") == {}
    assert scene.providers.metric("tidegate.concurrency.limit") is None
    assert later.points("tidegate.attempts") == {(): 1}


def test_after_uninstrument_the_registry_passes_calls_at_once_and_is_not_shown(scene: Scene) -> None:
    assert isinstance(scene.registry.try_admit(KEY), Permit)
    assert scene.providers.points("tidegate.concurrency.in_flight") == {(): 1}
    uninstrument(scene.registry)
    uninstrument(scene.registry)
    assert not scene.registry.listening
    assert scene.registry.enter(ReadyCallback(lambda: None), KEY, 60.0) is not None
    assert scene.providers.metric("tidegate.concurrency.in_flight") is None
    assert scene.providers.points("tidegate.wait.duration") == {(): (1, 0.0)}
