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


def test_the_mean_answer_follows_slowly(estimate: CostEstimator) -> None:
    prior = estimate.mean_output
    estimate.learn(RequestFacts(), Usage(output_tokens=int(prior) + 1000))
    assert prior + 20.0 < estimate.mean_output < prior + 500.0


@pytest.mark.parametrize(("chars", "tokens"), [(0, 100), (100, 0)])
def test_an_answer_that_does_not_tell_both_sides_teaches_no_ratio(
    estimate: CostEstimator, chars: int, tokens: int
) -> None:
    prior = estimate.chars_per_token
    estimate.learn(RequestFacts(input_chars=chars), Usage(input_tokens=tokens))
    assert estimate.chars_per_token == prior


def test_an_answer_without_output_teaches_no_mean(estimate: CostEstimator) -> None:
    prior = estimate.mean_output
    estimate.learn(RequestFacts(input_chars=10), Usage(input_tokens=10))
    assert estimate.mean_output == prior


def chars_per_token(chars: int, tokens: int) -> float:
    estimate = CostEstimator()
    estimate.learn(RequestFacts(input_chars=chars), Usage(input_tokens=tokens))
    return estimate.chars_per_token


def test_an_absurd_ratio_stays_within_bounds(estimate: CostEstimator) -> None:
    most, least = chars_per_token(10**9, 1), chars_per_token(1, 10**9)
    assert 0.0 < least < estimate.chars_per_token < most < 1000.0
    assert (chars_per_token(10**8, 1), chars_per_token(1, 10**8)) == (most, least)


def test_what_every_request_has_is_told_from_what_its_length_costs(estimate: CostEstimator) -> None:
    for chars in (400, 4000, 800, 2000) * 20:
        estimate.learn(RequestFacts(input_chars=chars), Usage(input_tokens=500 + chars // 4))
    assert estimate.chars_per_token == pytest.approx(4.0, rel=0.05)
    assert estimate.fixed_tokens == pytest.approx(500.0, rel=0.05)


def test_a_prefix_that_costs_nothing_is_below_zero(estimate: CostEstimator) -> None:
    for chars in (8400, 12000, 8800, 10000) * 20:
        estimate.learn(RequestFacts(input_chars=chars), Usage(input_tokens=chars // 4 - 2000))
    assert estimate.fixed_tokens == pytest.approx(-2000.0, rel=0.05)


def test_answers_of_requests_that_allow_little_are_told_from_those_that_allow_much(estimate: CostEstimator) -> None:
    for _ in range(30):
        estimate.learn(RequestFacts(max_output_tokens=16), Usage(output_tokens=5))
        estimate.learn(RequestFacts(max_output_tokens=4000), Usage(output_tokens=900))
    assert estimate.output_for(16) == pytest.approx(5.0, rel=0.2)
    assert estimate.output_for(4000) == pytest.approx(900.0, rel=0.1)
    assert estimate.output_for(3000) == estimate.output_for(4000), "bounds of one power of two are one kind"


def test_no_answer_is_expected_to_be_longer_than_its_request_allows(estimate: CostEstimator) -> None:
    assert estimate.output_for(16) == 16.0
    assert estimate.output_for(None) > 16.0
