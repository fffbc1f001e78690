"""The laboratory in virtual time: the same by seed, and honest about what was lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import virtual
from bench.measures import Run
from bench.scenarios import row_named
from bench.virtual import Laboratory
from tests.bench.rows import REJECTING, SMALL, STREAMED
from tidegate.settings import Settings
from tidegate.testing import Limit


def _without_cpu(run: Run) -> Run:
    return replace(run, cpu=0.0)


@pytest.mark.parametrize("name", ["token-bound", "three-buckets", "streams", "silent-tokens", "outage"])
def test_a_run_is_the_same_for_the_same_seed(name: str) -> None:
    row = row_named(name)
    assert _without_cpu(virtual.run(row, 1)) == _without_cpu(virtual.run(row, 1))
    assert _without_cpu(virtual.run(row, 1)) != _without_cpu(virtual.run(row, 2))


@pytest.mark.parametrize("row", [SMALL, STREAMED], ids=["whole", "streamed"])
def test_every_call_is_answered_once_and_every_permit_comes_back(row) -> None:
    laboratory = Laboratory(row, 0)
    laboratory.run()
    total = laboratory.accounts.truth().total
    assert (total.answered, total.in_flight, laboratory.unfinished) == (row.count, 0, 0)
    assert not laboratory.losses
    assert all(sending.permit.settled for sending in laboratory.sends)
    (key,) = laboratory.registry.snapshot().keys.values()
    assert (key.in_flight, key.waiting, key.answered) == (0, 0, row.count)


def test_limits_are_read_from_headers_that_the_dialect_wrote() -> None:
    laboratory = Laboratory(SMALL, 0)
    laboratory.run()
    (key,) = laboratory.registry.snapshot().keys.values()
    assert [(quota.unit, quota.limit) for quota in key.quotas] == [("requests", 20.0)]
    silent = Laboratory(replace(SMALL, scenario=SMALL.scenario.replace(headers=False, retry_after="none")), 0)
    silent.run()
    (key,) = silent.registry.snapshot().keys.values()
    assert all(quota.level == quota.limit or quota.limit == 20.0 for quota in key.quotas)
    assert silent.accounts.truth().total.refusals > 0


def test_a_call_that_the_provider_turns_away_is_lost() -> None:
    run = virtual.run(REJECTING, 0)
    assert run.lost == 2
    assert run.losses == {"permanent 400": 2}


def test_a_call_that_waits_too_long_is_lost() -> None:
    run = virtual.run(replace(SMALL, callers=50), 0, Settings(max_wait=0.8))
    assert 0 < run.lost < SMALL.count


def test_prompts_are_as_long_as_the_tokens_of_the_provider_say() -> None:
    limits = (Limit(limit=4000, window=1.0, unit="tokens"),)
    scenario = SMALL.scenario.replace(limiters=limits, chars_per_token=2.0)
    laboratory = Laboratory(replace(SMALL, scenario=scenario, sizes=(400, 400)), 0)
    laboratory.run()
    (key,) = laboratory.registry.snapshot().keys.values()
    assert key.chars_per_token == pytest.approx(2.0, rel=0.1)
