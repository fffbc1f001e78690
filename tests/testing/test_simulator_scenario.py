"""Scenarios: their bounds, their JSON, their flags, and the oracle that reads them."""

from __future__ import annotations

import random
from typing import Any

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
    from_flags,
    ideal_makespan,
    ideal_schedule,
)
from tidegate.testing.accounts import Accounts
from tidegate.testing.flags import parser, scenario_of


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Limit(limit=0), "limit"),
        (lambda: Limit(limit=float("nan")), "limit"),
        (lambda: Limit(limit=True), "limit"),
        (lambda: Limit(limit=1, window=0), "window"),
        (lambda: Limit(limit=1, burst=-1), "burst"),
        (lambda: Limit(limit=1, initial=-1), "initial"),
        (lambda: Limit(limit=1, kind="leaky"), "kind"),
        (lambda: Limit(limit=1, unit="images"), "unit"),
        (lambda: Limit(limit=1, kind="slots", status=418), "status"),
        (lambda: Limit(limit=1, shares=((5, 1), (2, 1))), "shares"),
        (lambda: Limit(limit=1, shares=((0, 0),)), "shares"),
        (lambda: Limit(limit=1, shares=((0, 1), (9, 1)), period=5), "shares"),
        (lambda: Limit(limit=1, shares=((0, -1),)), "shares.share"),
        (lambda: Limit(limit=1, sizes=((5, 1), (2, 1))), "sizes"),
        (lambda: Limit(limit=1, sizes=((5, 0),)), "sizes.factor"),
        (lambda: Limit(limit=1, kind="slope", growth=0.5), "growth"),
        (lambda: OutageSpan(start=2, end=1), "end"),
        (lambda: OutageSpan(start=0, end=1, status=200), "status"),
        (lambda: Fault(probability=1.5), "probability"),
        (lambda: Fault(nth=(0,)), "nth"),
        (lambda: Fault(kind="status", status=200), "status"),
        (lambda: Fault(kind="fire"), "kind"),
        (lambda: Scenario(dialect="klingon"), "dialect"),
        (lambda: Scenario(scope="planet"), "scope"),
        (lambda: Scenario(charge="free"), "charge"),
        (lambda: Scenario(retry_after="soon"), "retry_after"),
        (lambda: Scenario(token_pace=-1), "token_pace"),
        (lambda: Scenario(burndown=0), "burndown"),
        (lambda: Scenario(chars_per_token=0), "chars_per_token"),
        (lambda: Scenario(knee=0), "knee"),
        (lambda: Scenario(answers={"a": 1}), "answers"),
        (lambda: Distribution.parse("normal:1,2"), "distribution"),
        (lambda: Distribution.uniform(2, 1), "uniform.b"),
        (lambda: Distribution.constant(-1), "constant.a"),
        (lambda: from_flags(algorithm="magic"), "algorithm"),
        (lambda: from_flags(outage=["5"]), "outage"),
        (lambda: Scenario.from_json("{"), "scenario"),
        (lambda: Scenario.from_json("[]"), "scenario"),
        (lambda: Scenario.from_json('{"limit": 5}'), "limit"),
        (lambda: Scenario.from_json('{"limiters": 5}'), "limiters"),
        (lambda: Scenario.from_json('{"latency": {"kind": "constant"}}'), "latency"),
        (lambda: Scenario.from_json('{"limiters": [{}]}'), "Limit"),
        (lambda: Scenario.from_json('{"limiters": [{"limit": "many"}]}'), "limit"),
        (lambda: ideal_makespan(Scenario(), [], concurrency=0), "concurrency"),
        (lambda: ideal_schedule(Scenario(), [Call()], arrivals=(0.0, 1.0)), "arrivals"),
        (lambda: ideal_schedule(Scenario(), [Call(), Call()], arrivals=(1.0, 0.0)), "arrivals"),
        (lambda: Limit(limit=1, block=1.0), "block"),
        (lambda: Limit(limit=1, kind="fixed", block=-1.0), "block"),
        (lambda: Limit(limit=1, counts_refused=True), "counts_refused"),
        (lambda: Limit(limit=1, backends=0), "backends"),
        (lambda: Limit(limit=8, kind="slots", backends=2), "backends"),
        (lambda: Limit(limit=8, unit="tokens", backends=2), "backends"),
        (lambda: Simulator(host="0.0.0.0"), "host"),
        (lambda: Simulator(host="example.com"), "host"),
        (lambda: Simulator(host="::"), "host"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_of_its_field(make, field):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert caught.value.field == field
    assert caught.value.bound


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


def test_replacing_takes_values_and_json_alike():
    changed = Scenario().replace(limiters=[{"limit": 5}], latency="0.25")
    assert changed == Scenario(limiters=(Limit(limit=5),), latency=Distribution.constant(0.25))
    assert FULL.replace(seed=8).limiters == FULL.limiters


def test_a_second_limiter_of_one_name_gets_a_number():
    limits = (Limit(limit=1), Limit(limit=2, window=1), Limit(kind="credit", limit=0), Limit(limit=3, name="mine"))
    names = [limiter.name for limiter in Scenario(limiters=limits).build_limiters()]
    assert names == ["requests", "requests-2", "money", "mine"]


def test_the_flags_make_the_scenario_that_they_say():
    line = "--rpm 600 --tpm 1000 --slots 4 --rpd 50 --window 6 --algorithm fixed --latency uniform:0.1,0.2"
    line += " --outage 1:2:drop --outage 5:6 --no-headers --dialect none"
    scenario = scenario_of(parser().parse_args(line.split()), "")
    assert scenario == Scenario(
        dialect="none",
        limiters=(
            Limit(kind="fixed", limit=600, window=6),
            Limit(kind="fixed", limit=1000, window=6, unit="tokens"),
            Limit(kind="day", limit=50),
            Limit(kind="slots", limit=4),
        ),
        outages=(OutageSpan(start=1, end=2, status="drop"), OutageSpan(start=5, end=6)),
        latency=Distribution.uniform(0.1, 0.2),
        headers=False,
    )


def test_the_same_seed_draws_the_same_amounts_around_the_median():
    for shape in (Distribution.constant(3), Distribution.uniform(1, 5), Distribution.lognormal(3, 0.5)):
        first, second = random.Random(1), random.Random(1)
        draws = [shape.draw(first) for _ in range(2001)]
        assert draws == [shape.draw(second) for _ in range(2001)]
        assert sorted(draws)[1000] == pytest.approx(shape.median, rel=0.1)


HALF = Distribution.constant(0.5)


def test_the_ideal_spends_the_standing_balance_and_then_goes_at_the_rate():
    scenario = Scenario(limiters=(Limit(limit=600),), latency=HALF)
    assert ideal_makespan(scenario, [Call()] * 600) == pytest.approx(0.5)
    assert ideal_makespan(scenario, [Call()] * 900) == pytest.approx(30.5)


def test_the_ideal_waits_for_boundaries_slots_outages_and_its_own_concurrency():
    fixed = Scenario(limiters=(Limit(kind="fixed", limit=10, window=1),), latency=HALF)
    assert ideal_makespan(fixed, [Call()] * 25) == pytest.approx(2.5)
    slots = Scenario(limiters=(Limit(kind="slots", limit=32),), latency=HALF)
    assert ideal_makespan(slots, [Call()] * 65) == pytest.approx(1.5)
    outage = Scenario(outages=(OutageSpan(start=0, end=5),), latency=HALF)
    assert ideal_makespan(outage, [Call()] * 3) == pytest.approx(5.5)
    assert ideal_makespan(Scenario(latency=HALF), [Call()] * 5, concurrency=2) == pytest.approx(1.5)


def test_the_ideal_counts_tokens_by_their_rule_and_their_pace():
    scenario = Scenario(
        limiters=(Limit(limit=60, unit="output_tokens"),),
        charge="produced",
        output_tokens=Distribution.constant(120),
        token_pace=0.01,
    )
    assert scenario.with_output(Call(max_tokens=50)).output_tokens == 50
    assert ideal_makespan(scenario, [Call()]) == pytest.approx(1.2)
    # Each is larger than the limit, and goes when the limit is full: after the first it is 60 in debt.
    assert ideal_makespan(scenario, [Call()] * 2, concurrency=1) == pytest.approx(120 + 1.2, abs=0.1)


def test_the_ideal_keeps_a_limit_that_would_let_it_go_into_debt():
    limits = (Limit(limit=60, unit="output_tokens"),)
    scenario = Scenario(limiters=limits, charge="produced", output_tokens=Distribution.constant(20), latency=HALF)
    schedule = ideal_schedule(scenario, [Call()] * 4)
    assert schedule.admitted_at == pytest.approx((0, 0, 0, 20))
    assert schedule.makespan == pytest.approx(20.5)


def test_the_ideal_may_begin_later_on_the_providers_clock():
    outage = Scenario(latency=HALF, limiters=(Limit(limit=60),), outages=(OutageSpan(start=1, end=5),))
    assert ideal_schedule(outage, [Call()] * 2, start=3.0).ended_at == pytest.approx((5.5, 5.5))
    assert ideal_schedule(outage, [Call()] * 61, start=9.0).ended_at[-1] == pytest.approx(9 + 1 + 0.5)


def test_the_ideal_goes_no_further_than_the_knee():
    assert ideal_makespan(Scenario(latency=HALF, knee=2), [Call()] * 5, concurrency=4) == pytest.approx(1.5)


def test_the_ideal_draws_what_the_simulator_draws():
    spread = Distribution.lognormal(0.5, 0.5)
    scenario = Scenario(latency=spread, token_pace=0.01, output_tokens=Distribution.lognormal(50, 0.5), seed=3)
    books = Accounts(scenario, lambda: 0.0)
    ends = []
    for number in range(20):
        admission = books.admit("key", str(number), Call(), stream=False).outcome
        ends.append(admission.latency + 0.01 * books.output_tokens(1))
    assert ideal_schedule(scenario, [Call()] * 20, drawn=True).ended_at == pytest.approx(ends)


def test_the_ideal_of_a_call_that_never_fits_does_not_exist():
    with pytest.raises(ConfigurationError) as caught:
        ideal_makespan(Scenario(limiters=(Limit(limit=5, unit="tokens"),)), [Call(1), Call(6)])
    assert caught.value.field == "costs[1]"
    with pytest.raises(ConfigurationError):
        ideal_makespan(Scenario(limiters=(Limit(kind="credit", limit=1),)), [Call()] * 2)


def test_the_ideal_of_nothing_takes_no_time():
    assert ideal_makespan(Scenario(), []) == 0


@pytest.mark.parametrize(("field", "kind"), [("limiters", "Limit"), ("outages", "OutageSpan"), ("faults", "Fault")])
def test_a_part_of_another_kind_is_refused_where_it_is_given(field: str, kind: str) -> None:
    given: dict[str, Any] = {field: (Distribution.constant(1.0),)}
    with pytest.raises(ConfigurationError, match=f"each must be a {kind}"):
        Scenario(**given)
