from __future__ import annotations

import pytest

from tidegate.core.hidden_window import CHECK, HiddenWindow


@pytest.fixture
def window() -> HiddenWindow:
    """Four calls from 0 on; the next four after 9, and not after 10. The second four have all been sent."""
    window = HiddenWindow(4, 0.0, 9.0, 10.0)
    for _ in range(4):
        assert not window.sent(10.0)
    assert window.settle(4)
    window.admitted = 4
    return window


def test_window_of_another_number_of_calls_is_none() -> None:
    assert not HiddenWindow(20, 0.0, 9.0, 10.0).settle(12)


def test_window_of_an_unknown_number_of_calls_never_settles() -> None:
    assert not HiddenWindow(0, 0.0, 9.0, 10.0).settle(1)


def test_soon_after_the_last_call_one_attempt_checks_that_it_was_the_last(window: HiddenWindow) -> None:
    assert window.wait(10.1) == pytest.approx(10.1 + CHECK * 9.0 / 4)
    assert not window.found(10.1 + CHECK * 9.0 / 4)


def test_the_boundary_is_looked_for_where_the_last_ones_predict_it(window: HiddenWindow) -> None:
    check = window.wait(10.1)
    middle = window.refused(check)
    assert middle == pytest.approx(19.5)
    assert window.refused(middle) == pytest.approx(19.75)
    assert window.found(19.75)
    assert (window.waiting, window.admitted) == (False, 1)


def test_a_boundary_that_comes_later_is_looked_for_ever_later_and_at_last_not_at_all(window: HiddenWindow) -> None:
    at, gaps = window.wait(10.1), []
    for _ in range(40):
        following = window.refused(at)
        if following == float("inf"):
            break
        gaps.append(following - at)
        at = following
    assert following == float("inf")
    assert gaps[-1] > gaps[-2] > gaps[-3]


def test_a_refusal_amid_a_window_waits_until_calls_come_back_one_by_one(window: HiddenWindow) -> None:
    window.refused(window.wait(10.1))
    window.size = 40
    window.found(19.5)
    assert not window.sent(19.6)
    until, ended = window.early(19.6)
    assert 19.6 < until < float("inf")
    assert not ended
