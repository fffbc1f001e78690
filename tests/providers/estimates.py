"""What a key has learned of its requests, for the tests of prices."""

from tidegate.core.cost_estimator import CostEstimator


def learned(chars_per_token: float, mean_output: float, fixed_tokens: float = 0.0) -> CostEstimator:
    made = CostEstimator()
    made.chars_per_token, made.mean_output, made.fixed_tokens = chars_per_token, mean_output, fixed_tokens
    return made
