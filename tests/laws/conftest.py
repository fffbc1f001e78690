"""How all laws are tried: the same examples each time, as many as a slow machine bears."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "laws",
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("laws")


@pytest.fixture(autouse=True)
def unpatched() -> None:
    """Nothing here patches anything."""
