"""Scenarios: their bounds, their JSON, their flags, and the oracle that reads them."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidegate.errors import ConfigurationError
from tidegate.testing import (
    Call,
    Distribution,
    Fault,
    Limit,
    OutageSpan,
    Scenario,
    Simulator,
    ideal_makespan,
    ideal_schedule,
)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Limit(limit=0), "limit"),
        (lambda: Limit(limit=True), "limit"),
        (lambda: Limit(limit=1, window=0), "window"),
        (lambda: Limit(limit=1, burst=-1), "burst"),
        (lambda: Limit(limit=1, kind="leaky"), "kind"),
        (lambda: Limit(limit=1, unit="images"), "unit"),
        (lambda: Limit(limit=1, kind="slots", status=418), "status"),
        (lambda: Limit(limit=1, shares=((5, 1), (2, 1))), "shares"),
        (lambda: Limit(limit=1, shares=((0, -1),)), "shares"),
        (lambda: Limit(limit=1, sizes=((5, 0),)), "sizes"),
        (lambda: Limit(limit=1, kind="slots", sizes=((5, 2),)), "sizes"),
        (lambda: Limit(limit=1, kind="slope", growth=0.5), "growth"),
        (lambda: OutageSpan(start=2, end=1), "end"),
        (lambda: OutageSpan(start=0, end=1, status=200), "status"),
        (lambda: Fault(probability=1.5), "probability"),
        (lambda: Fault(nth=(0,)), "nth"),
        (lambda: Fault(kind="status", status=200), "status"),
        (lambda: Scenario(dialect="klingon"), "dialect"),
        (lambda: Scenario(token_pace=-1), "token_pace"),
        (lambda: Scenario(answers={"a": 1}), "answers"),
        (lambda: Distribution.parse("normal:1,2"), "distribution"),
        (lambda: Distribution.uniform(2, 1), "uniform.b"),
        (lambda: Scenario.from_json("{"), "scenario"),
        (lambda: Scenario.from_json("[]"), "scenario"),
        (lambda: Scenario.from_json(cast("Any", {"seed": 1})), "scenario"),
        (lambda: Scenario.from_json('{"latency": {"kind": "constant"}}'), "latency"),
        (lambda: Scenario.from_json('{"limiters": [{}]}'), "limit"),
        (lambda: Scenario.from_json('{"limiters": [{"limit": "many"}]}'), "limit"),
        (lambda: ideal_makespan(Scenario(), [], concurrency=0), "concurrency"),
        (lambda: ideal_schedule(Scenario(), [Call()], arrivals=(0.0, 1.0)), "arrivals"),
        (lambda: ideal_schedule(Scenario(), [Call(), Call()], arrivals=(1.0, 0.0)), "arrivals"),
        (lambda: Simulator(host="0.0.0.0"), "host"),
        (lambda: Simulator(host="::"), "host"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_field(make, field):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.field == field
    assert caught.value.bound


@pytest.mark.parametrize(("limit", "bound"), [(float("inf"), "finite number"), ("many", "valid number")])
def test_a_limit_that_is_no_number_is_told_so(limit: Any, bound: str) -> None:
    with pytest.raises(ConfigurationError, match=bound):
        Limit(limit=limit)


FULL = Scenario(
    dialect="anthropic",
    limiters=(
        Limit(limit=600, burst=10, initial=3, shares=((0.0, 1.0), (5.0, 0.25)), period=10),
        Limit(kind="fixed", limit=9000, unit="tokens", window=6, offset=1),
        Limit(kind="slots", limit=8, status=429),
    ),
    charge="input+max_tokens",
    gives_back=True,
    outages=(OutageSpan(start=1, end=2, status="drop"),),
    latency=Distribution.lognormal(0.5, 0.4),
    output_tokens=Distribution.uniform(10, 20),
    faults=(Fault(kind="stream-error", nth=(3,), probability=0.5),),
    answers={"2+2?": "4"},
    seed=7,
)


def test_a_scenario_comes_back_from_json_as_it_was():
    assert Scenario.from_json(FULL.to_json()) == FULL
    assert Scenario().to_json() == "{}"


@pytest.mark.parametrize(("field", "kind"), [("limiters", "Limit"), ("outages", "OutageSpan"), ("faults", "Fault")])
def test_a_part_of_another_kind_is_refused_where_it_is_given(field: str, kind: str) -> None:
    given: dict[str, Any] = {field: (Distribution.constant(1.0),)}
    with pytest.raises(ConfigurationError, match=f"instance of {kind}"):
        Scenario(**given)
