"""Runs of drawn families in virtual time: ratio, refusals and probes show that a limit was told from another one."""

from __future__ import annotations

import pytest

from bench import virtual
from bench.drawntable import named
from bench.measures import Run


def played(name: str, seed: int) -> Run:
    """Return the run of one seed of a family, which loses no call."""
    (family,) = named([name])
    run = virtual.run(family.row(seed), seed)
    assert run.lost == 0
    return run


def test_the_rate_of_a_bucket_that_runs_over_is_not_measured_too_low() -> None:
    assert played("tiny-bucket", 4).ratio <= 1.08


@pytest.mark.parametrize("seed", [8, 18, 72])
def test_slots_are_not_taken_for_a_rate(seed: int) -> None:
    """In seeds 18 and 72 answers come before the first refusal, and new connections delay attempts."""
    run = played("hidden-slots", seed)
    assert run.ratio <= 1.08
    assert run.refused_share <= 0.015


@pytest.mark.parametrize("name", ["hidden-fixed", "hidden-rolling"])
def test_a_hidden_window_is_not_taken_for_a_rate(name: str) -> None:
    run = played(name, {"hidden-fixed": 10, "hidden-rolling": 6}[name])
    assert run.ratio <= 1.08
    assert run.refused_share <= 0.12


def test_an_outage_is_probed_seldom_and_its_end_is_seen_soon() -> None:
    run = played("drawn-outage", 2)
    assert run.hits <= 20
    assert run.ratio <= 1.06


def test_calls_in_flight_at_the_first_answer_are_not_charged_twice() -> None:
    """The whole work fits the burst; seed 8 took 1.226 of the plain SDK's time while they were."""
    assert played("fits-burst-anthropic", 8).ratio <= 1.15
