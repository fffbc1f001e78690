from __future__ import annotations

import pytest

from tidegate.core.hidden_window import CHECK, HiddenWindow


@pytest.fixture
def window() -> HiddenWindow:
    """Four calls from 0 on; the next four after 9, and not after 10. The second four have all been sent."""
    window = HiddenWindow(4, 0.0, 9.0, 10.0)
    assert [window.sent(10.0) for _ in range(3)] == [False, False, True]
    return window


def test_window_of_another_number_of_calls_is_none() -> None:
    assert not HiddenWindow(20, 0.0, 9.0, 10.0).settle(12)


def test_window_of_an_unknown_number_of_calls_never_settles() -> None:
    assert not HiddenWindow(0, 0.0, 9.0, 10.0).settle(1)


def test_soon_after_the_last_call_one_attempt_checks_that_it_was_the_last(window: HiddenWindow) -> None:
    check = window.wait(10.1)
    assert check == pytest.approx(10.1 + CHECK * 9.0 / 4)
    window.refused(check)
    assert window.confirmed
    assert not window.found(check)


def test_a_call_beyond_a_window_on_trial_shows_that_its_size_is_not_known(window: HiddenWindow) -> None:
    check = window.wait(10.1)
    assert window.found(check)
    assert not window.sent(check)
    assert window.settle(6) is False
    assert window.settle(5)
    assert window.size == 5


def test_the_boundary_is_looked_for_where_the_last_ones_predict_it() -> None:
    window = HiddenWindow(40, 0.0, 9.0, 10.0)
    while not window.sent(10.0):
        pass
    middle = window.refused(window.wait(10.1))
    assert middle == pytest.approx(19.5)
    assert window.refused(middle) == pytest.approx(19.75)
    assert window.found(19.75)
    assert (window.waiting, window.admitted) == (False, 1)


def test_a_stated_boundary_is_waited_for_to_its_end_and_bounds_the_next_one(window: HiddenWindow) -> None:
    window.wait(10.1)
    assert window.told(18.5, 19.0) == 19.0
    assert window.confirmed
    assert window.found(19.0)
    for _ in range(3):
        window.sent(19.0)
    # The windows begin after 9 and after 18.5, and not after 10 and 19.
    window.wait(19.1)
    assert window.refused(18.5 + 8.4) >= 18.5 + 8.4
    assert window.told(27.5, 27.9) == 27.9


def test_a_boundary_is_known_well_enough_where_more_precision_costs_more_than_it_gains(window: HiddenWindow) -> None:
    assert window.refused(window.wait(10.1)) == pytest.approx(20.0)


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


def test_no_window_can_pass_between_two_attempts_that_look_for_a_late_boundary(window: HiddenWindow) -> None:
    at = window.wait(10.1)
    while (following := window.refused(at)) < float("inf"):
        assert following - at <= max(9.0, at - 10.0)
        at = following


def play_fixed(window: HiddenWindow, size: int, period: float, now: float, windows: int) -> tuple[list[int], float]:
    refused, late = [], 0.0
    used = {now // period: size}
    for _ in range(windows):
        at, misses = window.wait(now), 0
        while used.get(at // period, 0) >= size:
            misses += 1
            at = window.refused(at)
        assert window.found(at)
        used[at // period] = used.get(at // period, 0) + 1
        late, now = at % period, at
        while not window.sent(at):
            used[at // period] += 1
        used[at // period] += 1
        refused.append(misses)
    return refused, late


def test_a_fixed_window_whose_end_alone_was_seen_costs_few_refusals_and_none_is_missed() -> None:
    """Eight calls a 10 s: the first ones went 7 s after a boundary, so three seconds were seen of the first window."""
    window = HiddenWindow(8, 7.0, 9.0, 11.0)
    while not window.sent(11.0):
        pass
    refused, late = play_fixed(window, 8, 10.0, 11.0, windows=8)
    assert sum(refused) <= 12
    assert max(refused[2:]) <= 2
    assert late <= 0.15 * 10.0
    assert window.begun_at < 100.0


def test_a_refusal_amid_a_window_waits_until_calls_come_back_one_by_one(window: HiddenWindow) -> None:
    window.refused(window.wait(10.1))
    window.size = 40
    window.found(19.5)
    assert not window.sent(19.6)
    until, ended = window.early(19.6)
    assert 19.6 < until < float("inf")
    assert not ended


def test_in_a_rolling_window_the_second_call_waits_for_that_of_the_window_before() -> None:
    """The provider refuses a call that follows the first one at once, as often as the window before it was spread."""
    window = HiddenWindow(10, 0.0, 9.0, 10.0, 0.5)
    assert window.second_at(20.0) == 20.0
    window.sent(10.1)
    until, ended = window.early(10.1)
    assert not ended
    while not window.sent(until):
        pass
    lone = window.refused(window.wait(until))
    assert window.second_at(lone) == pytest.approx(until + 10.0)
