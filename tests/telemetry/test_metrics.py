"""What events add to instruments, and what gauges read."""

from __future__ import annotations

import gc

import pytest

from tests.core.values import ABANDONED, INVALID, KEY, OK, OUTAGE, TIMEOUT, answer, bucket, refusal
from tests.telemetry.scene import Providers, Scene
from tidegate.core import concurrency_limit
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Cause, Key, Kind, Outcome, Usage

OUTCOME = ("tidegate.outcome", "http.response.status_code", "error.type")
REFUSED = refusal(2.0)._replace(status=429)
ANSWERED = OK._replace(status=200)


def permit_of(scene: Scene, key: Key = KEY) -> Permit:
    permit = scene.registry.try_admit(key)
    assert isinstance(permit, Permit)
    return permit


def test_each_attempt_adds_its_wait_with_a_nought_where_it_passed_at_once(narrow: Scene) -> None:
    first = narrow.call()
    second = narrow.call()
    narrow.reply(first, ANSWERED, 3.0)
    narrow.after(second, 0.0)
    assert narrow.providers.points("tidegate.wait.duration") == {(): (2, 3.0)}


def test_each_attempt_adds_its_duration_and_itself_by_what_it_came_to(scene: Scene) -> None:
    outcomes = [ANSWERED, ANSWERED, REFUSED, OUTAGE, TIMEOUT, INVALID._replace(status=400), ABANDONED]
    permits = [permit_of(scene) for _ in outcomes]
    for permit, outcome in zip(permits, outcomes, strict=True):
        scene.clock.advance(1.0)
        scene.registry.settle(permit, outcome)
    counts = scene.providers.points("tidegate.attempts", *OUTCOME)
    assert counts == {
        ("ok", 200, None): 2,
        ("rate_limit", 429, "429"): 1,
        ("transient", None, "outage"): 1,
        ("transient", None, "transient"): 1,
        ("permanent", 400, "400"): 1,
        ("abandoned", None, "abandoned"): 1,
    }
    durations = scene.providers.points("tidegate.attempt.duration", *OUTCOME)
    assert durations[("ok", 200, None)] == (2, 3.0)
    assert durations.keys() == counts.keys()


def test_tokens_are_measured_where_asked_for_by_kind_and_model() -> None:
    usage = Usage(input_tokens=1200, output_tokens=0, model="gpt-4o-mini")
    by = ("gen_ai.token.type", "gen_ai.request.model")
    for settings, found in (
        ({}, {}),
        ({"telemetry": "tokens"}, {("input", "gpt-4o-mini"): (2, 2400), ("output", "gpt-4o-mini"): (2, 0)}),
    ):
        scene = Scene(**settings)
        for outcome in (ANSWERED._replace(usage=usage), ANSWERED._replace(usage=usage), ANSWERED):
            scene.reply(scene.call(), outcome, 1.0)
        assert scene.providers.points("gen_ai.client.token.usage", *by) == found
        assert scene.providers.points("tidegate.attempts") == {(): 3}


def test_refusals_are_counted_by_status_cause_and_the_quota_that_explains_them(scene: Scene) -> None:
    for outcome in (REFUSED, refusal(None, bucket(60.0, 0.0))._replace(status=429)):
        scene.registry.settle(permit_of(scene), outcome)
        scene.clock.advance(60.0)
    overloaded = Outcome(Kind.OVERLOADED, Cause.OTHERS_CAPACITY, status=529)
    scene.registry.settle(permit_of(scene), overloaded)
    by = ("http.response.status_code", "tidegate.cause", "tidegate.quota.name")
    assert scene.providers.points("tidegate.rate_limit.hits", *by) == {
        (429, "rate", None): 1,
        (429, "rate", "requests"): 1,
        (529, "others_capacity", None): 1,
    }


def test_retries_are_counted_by_what_made_them(scene: Scene) -> None:
    flow = scene.call(attempts=3)
    scene.reply(flow, REFUSED)
    scene.after(flow, 2.0)
    scene.reply(flow, TIMEOUT)
    scene.after(flow, 1.0)
    assert scene.providers.points("tidegate.retries", *OUTCOME) == {
        ("rate_limit", 429, "429"): 1,
        ("transient", None, "transient"): 1,
    }


def test_a_call_is_given_up_when_it_could_wait_no_longer_and_not_where_the_provider_ended_it(narrow: Scene) -> None:
    refused, waiting = narrow.call(max_wait=5.0), narrow.call(max_wait=3.0)
    narrow.after(waiting, 3.0)
    narrow.reply(refused, REFUSED, 3.0)
    narrow.clock.advance(5.0)
    failed = narrow.call()
    narrow.reply(failed, INVALID)
    by = ("error.type", "tidegate.gate")
    assert narrow.providers.points("tidegate.give_ups", *by) == {("queue_deadline", "concurrency"): 1, ("429", None): 1}


def test_changes_of_a_key_are_counted_by_what_changed(scene: Scene) -> None:
    permits = [permit_of(scene) for _ in range(20)]
    scene.registry.settle(permits.pop(), OK)
    scene.registry.settle(permits.pop(), answer(bucket(1000.0)))
    for permit in permits[:5]:
        scene.registry.settle(permit, OUTAGE)
    scene.clock.advance(1.0)
    scene.registry.settle(permit_of(scene), OK)
    scene.registry.settle(permits[5], refusal(3.0, cause=Cause.CONCURRENCY))
    scene.clock.advance(3.0)
    for permit in permits[6:]:
        scene.registry.settle(permit, OK)
    permit_of(scene)
    crowded = [permit_of(scene, KEY._replace(scope="crowded")) for _ in range(3)]
    scene.registry.settle(crowded[2], refusal(cause=Cause.CONCURRENCY))
    found = {name for (name,) in scene.providers.points("tidegate.key.changes", "tidegate.change")}
    assert found >= {
        "quota_learned", "limit_increased", "limit_decreased", "paused", "resumed",
        "breaker_opened", "breaker_half_opened", "breaker_closed",
    }  # fmt: skip


def test_gauges_show_what_the_snapshot_says_at_collection(narrow: Scene) -> None:
    flow = narrow.call()
    narrow.reply(flow, answer(bucket(60.0, 30.0)))
    narrow.call()
    narrow.call()
    points = narrow.providers.points
    assert points("tidegate.concurrency.limit") == {(): 1}
    assert points("tidegate.concurrency.in_flight") == {(): 1}
    assert points("tidegate.queue.waiting") == {(): 1}
    quota = ("tidegate.quota.name", "tidegate.quota.unit")
    assert points("tidegate.quota.requests.limit", *quota) == {("requests", None): 60.0}
    assert points("tidegate.quota.requests.remaining", *quota) == {("requests", None): 29.0}
    narrow.clock.advance(10.0)
    assert points("tidegate.quota.requests.remaining", *quota) == {("requests", None): 39.0}


def test_quotas_of_requests_tokens_and_others_are_metrics_of_their_own(scene: Scene) -> None:
    quotas = (bucket(60.0, 30.0), bucket(900.0, 90.0, name="in", unit="input_tokens"))
    images = bucket(5.0, 5.0, name="images", unit="input_images")
    scene.registry.settle(permit_of(scene), answer(*quotas, images))
    by = ("tidegate.quota.name", "tidegate.quota.unit")
    points = scene.providers.points
    assert points("tidegate.quota.requests.limit", *by) == {("requests", None): 60.0}
    assert points("tidegate.quota.tokens.limit", *by) == {("in", "input_tokens"): 900.0}
    assert points("tidegate.quota.others.limit", *by) == {("images", "input_images"): 5.0}
    units = {name: scene.providers.metric(f"tidegate.quota.{name}.limit").unit for name in ("requests", "tokens")}
    assert units == {"requests": "{request}", "tokens": "{token}"}


def test_what_adds_up_over_processes_is_an_up_down_counter(narrow: Scene) -> None:
    permit_of(narrow)
    for name in ("concurrency.limit", "concurrency.in_flight", "queue.waiting"):
        data = narrow.providers.metric(f"tidegate.{name}").data
        assert (type(data).__name__, data.is_monotonic) == ("Sum", False)


def test_wait_that_ended_in_a_give_up_is_measured(narrow: Scene) -> None:
    narrow.call()
    narrow.after(narrow.call(max_wait=2.0), 2.0)
    waits = narrow.providers.points("tidegate.wait.duration", "error.type")
    assert waits == {(None,): (1, 0.0), ("queue_deadline",): (1, 2.0)}


def test_call_refused_once_and_given_up_in_the_queue_is_no_retry_and_one_give_up(scene: Scene) -> None:
    flow = scene.call(max_wait=2.0)
    scene.reply(flow, refusal(600.0)._replace(status=429))
    scene.after(flow, 2.0)
    points = scene.providers.points
    assert points("tidegate.retries") == {}
    assert points("tidegate.give_ups", "error.type") == {("queue_deadline",): 1}
    assert points("tidegate.attempts", "http.response.status_code") == {(429,): 1}


def test_operation_of_a_key_is_told_while_it_is_the_only_one(scene: Scene) -> None:
    scene.registry.intern(("a",), KEY, "chat")
    permit_of(scene)
    name = "gen_ai.operation.name"
    assert scene.providers.points("tidegate.concurrency.in_flight", name) == {("chat",): 1}
    scene.registry.intern(("b",), KEY, "embeddings")
    assert scene.providers.points("tidegate.concurrency.in_flight", name) == {(None,): 1}


def test_a_quota_that_is_overdrawn_has_nothing_left(scene: Scene) -> None:
    permits = [permit_of(scene) for _ in range(4)]
    scene.registry.settle(permits[0], answer(bucket(60.0, 1.0)))
    assert scene.registry.snapshot().keys[KEY].quotas[0].level < 0
    assert scene.providers.points("tidegate.quota.requests.remaining") == {(): 0.0}


def test_histograms_ask_for_bounds_that_fit_what_they_measure(scene: Scene) -> None:
    scene.registry.settle(permit_of(scene), OK)
    for name, longest in (("tidegate.wait.duration", 3600.0), ("tidegate.attempt.duration", 600.0)):
        metric = scene.providers.metric(name)
        (point,) = metric.data.data_points
        bounds = point.explicit_bounds
        assert (metric.unit, sorted(bounds)) == ("s", list(bounds))
        assert sum(bound < 1.0 for bound in bounds) > 3, "those of the SDK's default measure milliseconds"
        assert bounds[-1] >= longest


def test_two_registries_are_told_apart(providers: Providers) -> None:
    # Registries of earlier tests have their places until they are collected.
    gc.collect()
    first, second = Scene(providers), Scene(providers)
    permit_of(first)
    permit_of(second)
    permit_of(second)
    assert providers.points("tidegate.concurrency.in_flight", "tidegate.key.ordinal") == {(None,): 1, (2,): 2}


def test_two_credentials_are_told_apart_without_a_word_of_either(scene: Scene) -> None:
    gc.collect()
    keys = [KEY, KEY._replace(credential="fedcba9876543210")]
    permits = [permit_of(scene, key) for key in keys]
    scene.registry.settle(permits[1], OK)
    assert scene.providers.points("tidegate.concurrency.in_flight", "tidegate.key.ordinal") == {(None,): 1, (2,): 0}
    shown = scene.providers.reader.get_metrics_data().to_json()
    assert not [key.credential for key in keys if key.credential in shown]


def test_a_registry_that_is_gone_is_shown_no_more_and_its_place_is_free(providers: Providers) -> None:
    first = Scene(providers)
    permit_of(first)
    del first
    gc.collect()
    second = Scene(providers)
    permit_of(second)
    assert providers.points("tidegate.concurrency.in_flight", "tidegate.key.ordinal") == {(None,): 1}


@pytest.mark.constants(MAX_REGISTRY_KEYS=2)
def test_a_key_that_the_registry_forgot_is_shown_no_more() -> None:
    scene = Scene()
    for scope in ("first", "second", "third"):
        scene.registry.settle(permit_of(scene, KEY._replace(scope=scope)), OK)
    shown = scene.providers.points("tidegate.concurrency.limit", "tidegate.key.scope")
    slots = concurrency_limit.START_CONCURRENCY
    assert shown == {("second",): slots, ("third",): slots}


def test_a_slot_that_a_strangers_step_gave_is_no_example_for_the_strangers_span(narrow: Scene) -> None:
    with narrow.providers.span("stranger"):
        first = narrow.call()
    narrow.call()
    with narrow.providers.span("stranger"):
        narrow.reply(first, ANSWERED, 3.0)
    (point,) = narrow.providers.metric("tidegate.wait.duration").data.data_points
    assert (point.count, list(point.exemplars)) == (2, [])


def test_an_attempt_is_an_example_for_its_callers_span(scene: Scene) -> None:
    with scene.providers.span("user"):
        scene.reply(scene.call(), ANSWERED, 3.0)
    (user,) = scene.providers.spans("user")
    (point,) = scene.providers.metric("tidegate.attempt.duration").data.data_points
    assert [exemplar.span_id for exemplar in point.exemplars] == [user.context.span_id]


def test_the_end_of_a_queue_is_one_series_whatever_gate_binds(scene: Scene) -> None:
    scene.registry.settle(permit_of(scene), answer(bucket(60.0, 0.0)))
    for _ in range(3):
        scene.call()
    # Three calls at one a second, and the quarter of a call that the quota keeps back.
    assert scene.providers.points("tidegate.queue.eta", "tidegate.gate") == {(None,): 3.25}


def test_an_end_that_nobody_knows_is_not_shown(narrow: Scene) -> None:
    permit_of(narrow)
    narrow.call()
    assert narrow.providers.points("tidegate.queue.eta") == {}
