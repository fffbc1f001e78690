from __future__ import annotations

import pytest

from tidegate.core.backoff import ceiling, full_jitter, half_jitter


@pytest.mark.parametrize(("failures", "longest"), [(0, 1.0), (1, 1.0), (2, 2.0), (4, 8.0), (7, 60.0), (10_000, 60.0)])
def test_the_longest_delay_doubles_up_to_its_cap(failures: int, longest: float) -> None:
    assert ceiling(failures, 1.0, 60.0) == longest


def test_full_jitter_runs_from_nothing_to_the_longest_delay() -> None:
    assert [full_jitter(3, draw) for draw in (0.0, 0.5, 0.75)] == [0.0, 2.0, 3.0]


def test_half_jitter_never_reopens_at_once() -> None:
    assert [half_jitter(3, draw) for draw in (0.0, 0.5, 1.0)] == [2.0, 3.0, 4.0]
