"""What lands on the span of whom."""

from __future__ import annotations

import pytest
from opentelemetry.trace import use_span

from tests.core.values import INVALID, KEY, OK, OUTAGE, TIMEOUT, answer, bucket, refusal
from tests.telemetry.scene import Scene
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Outcome

REFUSED = refusal(2.0)._replace(status=429)
ANSWERED = OK._replace(status=200)


def test_a_call_is_noted_on_its_callers_span_from_its_beginning_to_its_end(scene: Scene) -> None:
    with scene.providers.span("user"):
        flow = scene.call()
        scene.reply(flow, ANSWERED, 3.0)
    assert scene.providers.noted("user") == ["tidegate.request.started", "tidegate.request.completed"]
    (span,) = scene.providers.spans("user")
    facts = dict(span.events[1].attributes or {})
    assert facts == {
        "gen_ai.provider.name": "provider",
        "tidegate.key.provider": "provider",
        "server.address": "provider.test",
        "server.port": 443,
        "tidegate.key.scope": "model",
        "http.response.status_code": 200,
        "tidegate.attempt.count": 1,
        "tidegate.elapsed": 3.0,
    }


def test_a_refusal_is_noted_with_what_it_says_and_what_it_did_to_the_key(scene: Scene) -> None:
    with scene.providers.span("user"):
        flow = scene.call()
        scene.reply(flow, REFUSED)
        scene.after(flow, 10.0)
        scene.reply(flow, ANSWERED)
    assert scene.providers.noted("user") == [
        "tidegate.request.started",
        "tidegate.key.paused",
        "tidegate.rate_limit.hit",
        "tidegate.request.retrying",
        "tidegate.request.completed",
    ]
    (span,) = scene.providers.spans("user")
    paused, hit = (dict(event.attributes or {}) for event in span.events[1:3])
    assert (paused["tidegate.closed_for"], paused["tidegate.origin"]) == (2.0, "retry-after")
    assert (hit["tidegate.retry_after"], hit["http.response.status_code"], hit["error.type"]) == (2.0, 429, "429")


@pytest.mark.parametrize(
    ("outcome", "error"), [(INVALID._replace(status=400), "400"), (OUTAGE, "outage"), (TIMEOUT, "transient")]
)
def test_a_failure_is_noted_with_its_type(scene: Scene, outcome: Outcome, error: str) -> None:
    with scene.providers.span("user"):
        scene.reply(scene.call(), outcome)
    (span,) = scene.providers.spans("user")
    failed = span.events[-1]
    assert failed.name == "tidegate.request.failed"
    assert (failed.attributes or {})["error.type"] == error
    assert (failed.attributes or {})["tidegate.given_up"] is False


def test_a_learnt_quota_and_its_scarcity_are_noted(scene: Scene) -> None:
    with scene.providers.span("user"):
        scene.reply(scene.call(), answer(bucket(60.0, 30.0, refill="fixed")))
        scene.reply(scene.call(), answer(bucket(60.0, 3.0, refill="fixed")))
    learned, scarce = (event for event in scene.providers.spans("user")[0].events if "quota" in event.name)
    assert (learned.attributes or {})["tidegate.quota.size"] == 60.0
    assert (scarce.attributes or {})["tidegate.quota.share"] == 0.05


def test_a_wait_is_a_span_below_the_callers_that_ends_with_it(narrow: Scene) -> None:
    first = narrow.call()
    with narrow.providers.span("user"):
        second = narrow.call()
        narrow.reply(first, ANSWERED, 3.0)
        narrow.after(second, 0.0)
        narrow.reply(second, ANSWERED)
    (wait,) = narrow.providers.spans("tidegate.wait")
    (user,) = narrow.providers.spans("user")
    assert wait.parent is not None
    assert wait.parent.span_id == user.context.span_id
    assert (wait.end_time or 0) - (wait.start_time or 0) == 3_000_000_000
    assert (user.start_time or 0) <= (wait.end_time or 0) <= (user.end_time or 0)
    assert (wait.attributes or {})["tidegate.gate"] == "concurrency"
    assert (wait.attributes or {})["server.address"] == "provider.test"


def test_a_wait_is_not_taken_for_a_call_of_a_model(narrow: Scene) -> None:
    narrow.registry.intern(("a",), KEY, "chat")
    first = narrow.call()
    with narrow.providers.span("user"):
        second = narrow.call()
        narrow.reply(first, ANSWERED, 3.0)
        narrow.after(second, 0.0)
    (wait,) = narrow.providers.spans("tidegate.wait")
    # By the conventions a span with `gen_ai.operation.name` is an inference, and backends count it as one.
    assert [name for name in wait.attributes or {} if name.startswith("gen_ai.")] == []


def test_a_wait_without_a_span_of_the_caller_makes_no_trace_of_its_own(narrow: Scene) -> None:
    first, second = narrow.call(), narrow.call()
    narrow.reply(first, ANSWERED, 3.0)
    narrow.after(second, 0.0)
    assert narrow.providers.spans("tidegate.wait") == []
    assert narrow.providers.points("tidegate.wait.duration") == {(): (2, 3.0)}


@pytest.mark.parametrize(("seconds", "spans"), [(0.0, 0), (0.01, 0), (0.011, 1)])
def test_only_a_wait_of_more_than_ten_milliseconds_is_a_span(narrow: Scene, seconds: float, spans: int) -> None:
    with narrow.providers.span("user"):
        first, second = narrow.call(), narrow.call()
        narrow.reply(first, ANSWERED, seconds)
        narrow.after(second, 0.0)
    assert len(narrow.providers.spans("tidegate.wait")) == spans


def test_a_call_that_goes_back_to_the_queue_has_a_span_for_each_of_its_waits(scene: Scene) -> None:
    with scene.providers.span("user"):
        flow = scene.call(attempts=3)
        scene.reply(flow, REFUSED)
        scene.after(flow, 2.0)
        scene.reply(flow, TIMEOUT)
        scene.after(flow, 0.5)
        scene.reply(flow, ANSWERED)
    gates = [(span.attributes or {})["tidegate.gate"] for span in scene.providers.spans("tidegate.wait")]
    assert gates == ["pause", "backoff"]


def test_a_call_that_waited_in_vain_notes_its_deadline_and_its_wait(narrow: Scene) -> None:
    narrow.call()
    with narrow.providers.span("user"):
        narrow.after(narrow.call(max_wait=5.0), 5.0)
    assert narrow.providers.noted("user") == ["tidegate.queue.deadline", "tidegate.request.failed"]
    (wait,) = narrow.providers.spans("tidegate.wait")
    assert (wait.end_time or 0) - (wait.start_time or 0) == 5_000_000_000


def test_whoever_lets_another_in_has_nothing_of_him_on_his_span(narrow: Scene) -> None:
    with narrow.providers.span("first"):
        first = narrow.call()
    with narrow.providers.span("second"):
        second = narrow.call()
    with narrow.providers.span("end of first"):
        narrow.reply(first, ANSWERED, 3.0)
    with narrow.providers.span("end of second"):
        narrow.after(second, 0.0)
        narrow.reply(second, ANSWERED)
    assert narrow.providers.noted("end of first") == ["tidegate.request.completed"]
    assert narrow.providers.noted("end of second") == ["tidegate.request.started", "tidegate.request.completed"]


def test_the_first_after_a_pause_or_an_outage_is_no_event_on_a_strangers_span(narrow: Scene) -> None:
    with narrow.providers.span("early"):
        flows = [narrow.call() for _ in range(2)]
        narrow.reply(flows[0], REFUSED)
    narrow.clock.advance(2.0)
    with narrow.providers.span("stranger"):
        narrow.registry.try_admit(KEY._replace(scope="another"))
        narrow.registry.snapshot()
        narrow.after(flows[1], 0.0)
    assert narrow.providers.noted("stranger") == []


def test_an_answer_that_was_dropped_is_told_by_nobodys_span(scene: Scene) -> None:
    dropped = scene.registry.try_admit(KEY)
    assert isinstance(dropped, Permit)
    with scene.providers.span("stranger"):
        scene.registry.drop(dropped)
        scene.reply(scene.call(), ANSWERED)
    points = scene.providers.metric("tidegate.attempt.duration").data.data_points
    assert sorted((len(point.exemplars), point.attributes["tidegate.outcome"]) for point in points) == [
        (0, "abandoned"), (1, "ok"),
    ]  # fmt: skip


def test_a_span_that_has_ended_hears_nothing(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    span = scene.providers.tracers.get_tracer("user").start_span("user")
    with use_span(span):
        span.end()
        scene.reply(scene.call(), ANSWERED)
    assert caplog.text == ""
