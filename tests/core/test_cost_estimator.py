from __future__ import annotations

import pytest

from tidegate.core.cost_estimator import CostEstimator
from tidegate.core.values import RequestFacts, Usage


@pytest.fixture
def estimate() -> CostEstimator:
    return CostEstimator()


def test_before_the_first_answer_the_prior_holds(estimate: CostEstimator) -> None:
    assert 2.0 < estimate.chars_per_token < 8.0
    assert 16.0 < estimate.mean_output < 4000.0
    assert estimate.output_for(None) == estimate.mean_output


def test_the_ratio_comes_to_what_the_answers_say(estimate: CostEstimator) -> None:
    for _ in range(50):
        estimate.learn(RequestFacts(input_chars=2000), Usage(input_tokens=1000))
    assert estimate.chars_per_token == pytest.approx(2.0, rel=0.01)


def test_the_part_of_the_input_read_from_a_cache_is_counted_once(estimate: CostEstimator) -> None:
    for _ in range(50):
        estimate.learn(RequestFacts(input_chars=2000), Usage(input_tokens=1000, cached_tokens=900))
    assert estimate.chars_per_token == pytest.approx(2.0, rel=0.01)


def chars_per_token(chars: int, tokens: int) -> float:
    estimate = CostEstimator()
    estimate.learn(RequestFacts(input_chars=chars), Usage(input_tokens=tokens))
    return estimate.chars_per_token


def test_an_absurd_ratio_stays_within_bounds(estimate: CostEstimator) -> None:
    most, least = chars_per_token(10**9, 1), chars_per_token(1, 10**9)
    assert 0.0 < least < estimate.chars_per_token < most < 1000.0
    assert (chars_per_token(10**8, 1), chars_per_token(1, 10**8)) == (most, least)


def test_no_answer_is_expected_to_be_longer_than_its_request_allows(estimate: CostEstimator) -> None:
    assert estimate.output_for(16) == 16.0
    assert estimate.output_for(None) > 16.0
