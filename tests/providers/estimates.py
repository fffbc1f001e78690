"""Facts of requests, and what a key has learned of its requests, for the tests of prices."""

from tidegate.core.cost_estimator import CostEstimator
from tidegate.providers import read_body


def learned(chars_per_token: float, mean_output: float, fixed_tokens: float = 0.0) -> CostEstimator:
    made = CostEstimator()
    made.chars_per_token, made.mean_output, made.fixed_tokens = chars_per_token, mean_output, fixed_tokens
    return made


def read_inquiry(provider, path, body):
    """The facts of a request to a path."""
    return read_body(provider, provider.endpoint(path), body)
