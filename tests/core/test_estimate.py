from __future__ import annotations

import pytest

from tidegate.core.estimate import CHARS_BOUNDS, CHARS_PER_TOKEN, OUTPUT_PRIOR, Estimate
from tidegate.core.vocabulary import Inquiry, Usage


@pytest.fixture
def estimate() -> Estimate:
    return Estimate()


def test_before_the_first_answer_the_prior_holds(estimate: Estimate) -> None:
    assert (estimate.chars_per_token, estimate.mean_output) == (CHARS_PER_TOKEN, OUTPUT_PRIOR)


def test_the_ratio_comes_to_what_the_answers_say(estimate: Estimate) -> None:
    for _ in range(50):
        estimate.learn(Inquiry(input_chars=2000), Usage(input_tokens=1000))
    assert estimate.chars_per_token == pytest.approx(2.0, rel=0.01)


def test_the_part_of_the_input_read_from_a_cache_is_counted_once(estimate: Estimate) -> None:
    for _ in range(50):
        estimate.learn(Inquiry(input_chars=2000), Usage(input_tokens=1000, cached_tokens=900))
    assert estimate.chars_per_token == pytest.approx(2.0, rel=0.01)


def test_the_mean_answer_follows_slowly(estimate: Estimate) -> None:
    estimate.learn(Inquiry(), Usage(output_tokens=1256))
    assert estimate.mean_output == pytest.approx(OUTPUT_PRIOR + 100.0)


@pytest.mark.parametrize(("chars", "tokens"), [(0, 100), (100, 0)])
def test_an_answer_that_does_not_tell_both_sides_teaches_no_ratio(estimate: Estimate, chars: int, tokens: int) -> None:
    estimate.learn(Inquiry(input_chars=chars), Usage(input_tokens=tokens))
    assert estimate.chars_per_token == CHARS_PER_TOKEN


def test_an_answer_without_output_teaches_no_mean(estimate: Estimate) -> None:
    estimate.learn(Inquiry(input_chars=10), Usage(input_tokens=10))
    assert estimate.mean_output == OUTPUT_PRIOR


@pytest.mark.parametrize(("chars", "tokens", "bound"), [(10**9, 1, CHARS_BOUNDS[1]), (1, 10**9, CHARS_BOUNDS[0])])
def test_an_absurd_ratio_stays_within_bounds(estimate: Estimate, chars: int, tokens: int, bound: float) -> None:
    estimate.learn(Inquiry(input_chars=chars), Usage(input_tokens=tokens))
    assert estimate.chars_per_token == bound
