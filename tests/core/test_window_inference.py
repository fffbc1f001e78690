from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tests.core.values import bucket
from tidegate.core.server_clock import ServerClock
from tidegate.core.values import ResetInstant
from tidegate.core.window_inference import WindowInference


def learned_of_whole_seconds(round_to: Callable[[float], float], take: int = 40) -> tuple[WindowInference, float]:
    """Return what is inferred of a bucket of 300 in 5.6 s whose resets are rounded to seconds, and the last window."""
    period = WindowInference(60.0)
    for used in range(300 - take, 300):
        reading = bucket(300.0, 300.0 - used, reset_after=round_to(used * 5.6 / 300.0), window=None)
        window = period.window(reading, 0.0, 60.0, 0.4)
    return period, window


@pytest.mark.parametrize("round_to", [math.floor, math.ceil, round])
def test_resets_of_whole_seconds_are_understood_however_they_are_rounded(round_to: Callable[[float], float]) -> None:
    period, window = learned_of_whole_seconds(round_to, 200)
    assert period.capacity is None, "it holds its whole limit"
    assert window == pytest.approx(5.6, rel=0.06)


def test_an_instant_counts_from_the_answer() -> None:
    period = WindowInference(60.0)
    for used, took in ((150, 0.4), (200, 0.9), (250, 0.3), (280, 0.7), (299, 0.5)):
        until_full = used * 6.0 / 300.0 - took
        reading = bucket(300.0, 300.0 - used, reset_after=until_full, window=None)
        reading = reading._replace(from_receipt=True, resolution=1e-6)
        window = period.window(reading, 0.0, 60.0, took)
    assert period.capacity is None
    assert window == pytest.approx(6.0, rel=0.1)


def test_a_duration_that_counts_from_the_answer_is_seen_to_do_so() -> None:
    period = WindowInference(60.0)
    window = 60.0
    for used, took in ((150, 0.4), (200, 0.9), (250, 0.3), (280, 0.7), (299, 0.5)):
        reading = bucket(300.0, 300.0 - used, reset_after=round(used * 6.0 / 300.0 - took, 3), window=None)
        window = period.window(reading, 0.0, window, took)
    assert period.capacity is None
    assert window == pytest.approx(6.0, rel=0.1)


def test_one_odd_answer_does_not_overturn_a_learned_window() -> None:
    period = WindowInference(60.0)
    for used in (100, 150, 200):
        read(period, used, used * 6.001 / 300.0, 0.0)
    learned = read(period, 250, 250 * 6.001 / 300.0, 0.0)
    odd = bucket(300.0, 100.0, reset_after=0.777, window=None)
    assert period.window(odd, 0.0, learned, 0.0) == learned
    assert period.capacity is None
    assert period.window(odd, 0.0, learned, 0.0) != learned, "two odd answers in a row do"


def read(
    period: WindowInference, used: float, reset: float, sent_at: float, limit: float = 300.0, **facts: float | None
) -> float:
    given = {"window": None, **facts}
    reading = bucket(limit, limit - used, reset_after=reset, **given)
    return period.window(reading, sent_at, 60.0, 0.0)


@pytest.fixture
def period() -> WindowInference:
    return WindowInference(60.0)


def test_resets_in_proportion_to_the_use_give_the_window(period: WindowInference) -> None:
    for used in (30.0, 60.0, 150.0):
        window = read(period, used, used * 10.0 / 300.0, used / 100.0)
    assert window == 10.0
    assert period.turned is None


def test_resets_that_name_one_instant_are_a_fixed_windows(period: WindowInference) -> None:
    for step in range(6):
        read(period, 20.0 + 40.0 * step, 6.0 - 0.5 * step, 0.5 * step)
    assert period.turned == "fixed"


def test_resets_that_name_one_time_are_a_rolling_windows(period: WindowInference) -> None:
    for step in range(6):
        read(period, 20.0 + 40.0 * step, 6.0, 0.5 * step)
    assert period.turned == "rolling"
    assert period.returns_after == 6.0
    assert period.taken_before(1.2) == [(0.0, 20.0), (0.5, 40.0), (1.0, 40.0)]


def test_what_is_sent_at_once_leaves_open_which_of_the_two_it_is(period: WindowInference) -> None:
    for used in range(1, 100, 10):
        reading = bucket(300.0, 300.0 - used, reset_after=6.0, window=None)
        period.window(reading, 0.001 * used, 60.0, 0.1)
    assert period.turned is None


def test_a_bucket_that_is_full_soon_holds_what_remains_and_comes_back_until_then(period: WindowInference) -> None:
    for remaining, reset in ((4.0, 0.25), (2.0, 0.75), (0.0, 1.25), (3.0, 0.5)):
        window = read(period, 240.0 - remaining, reset, 0.0, limit=240.0)
    assert window == 60.0
    assert period.capacity == pytest.approx(5.0, abs=0.05)
    assert period.turned is None


def test_a_bucket_full_within_a_second_holds_less_than_its_limit_from_the_first_answer_on(
    period: WindowInference,
) -> None:
    assert read(period, 600.0, 0.099, 0.0, limit=600.0) == 60.0
    assert period.capacity == 1.0


def test_a_declared_window_holds_while_little_is_used(period: WindowInference) -> None:
    assert read(period, 1.0, 19.0, 0.0, limit=1000.0, window=60.0) == 60.0


def test_a_declared_window_is_denied_by_a_reset_far_off_it_while_much_is_used(period: WindowInference) -> None:
    assert read(period, 150.0, 3.002, 0.0, window=60.0) == pytest.approx(6.0, rel=0.01)
    assert read(period, 10.0, 0.201, 0.1, window=60.0) == pytest.approx(6.0, rel=0.01), "and stays denied"


def test_a_bucket_smaller_than_the_limit_of_a_denied_window_refills_over_the_usual_one() -> None:
    """A day's 240 are declared; the server lets 6 through at once and 4 a second after that."""
    period, window = WindowInference(86_400.0), 86_400.0
    for remaining in (5.0, 4.0, 3.0, 2.0, 1.0, 0.0):
        answer = bucket(240.0, remaining, reset_after=(6.0 - remaining) / 4.0, window=86_400.0)
        window = period.window(answer, 0.0, window, 0.0)
    assert window == 60.0
    assert period.capacity == pytest.approx(6.0, abs=0.1)


def test_resets_of_whole_seconds_may_err_to_either_side(period: WindowInference) -> None:
    read(period, 150.0, 2.0, 0.0, resolution=1.0)
    window = read(period, 290.0, 6.0, 3.0, resolution=1.0)
    assert 6.0 <= window <= 7.3
    assert period.capacity is None


def test_the_time_until_full_tells_the_fraction_of_a_level(period: WindowInference) -> None:
    for remaining in (4.0, 3.0, 2.0):
        read(period, 5.0 - remaining, (5.0 - remaining) * 12.0, 0.0, limit=5.0)
    assert period.whole_level(bucket(5.0, 1.0, reset_after=42.0, window=None), 1.0) == pytest.approx(1.5, abs=0.01)


def test_what_is_known_roughly_tells_no_fraction(period: WindowInference) -> None:
    read(period, 5.0, 6.1, 0.0, limit=5.0)
    assert period.whole_level(bucket(5.0, 1.0, reset_after=4.2, window=None), 1.0) == 1.0


def test_the_time_until_full_tells_a_debt_and_a_rounded_level(period: WindowInference) -> None:
    for remaining in (200.0, 100.0, 0.0):
        read(period, 240.0 - remaining, (240.0 - remaining) / 4.0, 0.0, limit=240.0)
    debt = bucket(240.0, 0.0, reset_after=62.0, window=None)
    assert period.levels(debt, -240.0, 0.0, 5.0, 5.3) == pytest.approx((-8.0, -8.0), abs=0.01)
    rounded = bucket(240.0, 100.0, reset_after=32.0, window=None)
    assert period.levels(rounded, 50.0, 150.0, 5.0, 5.3) == pytest.approx((112.0, 112.0), abs=0.01)


def test_a_time_until_full_that_contradicts_what_remains_tells_no_level(period: WindowInference) -> None:
    for remaining in (200.0, 100.0, 0.0):
        read(period, 240.0 - remaining, (240.0 - remaining) / 4.0, 0.0, limit=240.0)
    assert period.levels(bucket(240.0, 100.0, reset_after=2.0, window=None), 50.0, 150.0, 5.0, 5.3) == (50.0, 150.0)


def test_a_new_limit_begins_anew(period: WindowInference) -> None:
    for remaining, reset in ((4.0, 0.25), (0.0, 1.25)):
        read(period, 240.0 - remaining, reset, 0.0, limit=240.0)
    period.forget()
    assert period.capacity is None


def test_more_use_with_an_earlier_reset_is_a_fixed_window_however_late_the_answers_come() -> None:
    """Requests of a first wave arrive after one another, so their instants differ by more than any jitter."""
    period, window = WindowInference(60.0), 60.0
    for number in range(1, 12):
        late = 0.02 * number
        reading = bucket(300.0, 300.0 - 9.0 * number, reset_after=round(3.5 - late, 3), window=None)
        window = period.window(reading, 0.0, window, late + 0.3)
    assert period.turned == "fixed"


def instants(reset: Callable[[float, float], float], rounding: float, sends: int = 30) -> WindowInference:
    """Return what is inferred where calls, one each 0.1 s, use 10 of 300; `reset` is by instant and use."""
    period, window, clock = WindowInference(60.0), 60.0, ServerClock()
    for number in range(1, sends + 1):
        sent, used = 0.1 * number, 10.0 * number
        stated = math.floor(reset(sent, used) / rounding) * rounding
        instant = ResetInstant(1e6 + stated, rounding, math.floor(1e6 + sent))
        reading = bucket(300.0, 300.0 - used, window=None)._replace(from_receipt=True, instant=instant)
        (timed,) = clock.timed([reading], sent, sent + 0.3)
        window = period.window(timed, sent, window, 0.3)
    return period


def test_an_instant_that_stands_still_while_more_is_taken_is_a_boundary() -> None:
    assert instants(lambda sent, used: 9.5, 1.0).turned == "fixed"


def test_instants_that_follow_the_calls_are_a_rolling_windows() -> None:
    period = instants(lambda sent, used: sent + 6.0, 0.001)
    assert period.turned == "rolling"
    assert period.returns_after == pytest.approx(6.0, abs=0.15)


@pytest.mark.parametrize(("rounding", "error"), [(0.001, 0.02), (1.0, 0.1)])
def test_the_slope_of_instants_is_the_window(rounding: float, error: float) -> None:
    period, window, clock = WindowInference(60.0), 60.0, ServerClock()
    for number in range(300):
        sent, used = 0.1 * number, 1.0 + (number * 37) % 299
        stated = math.floor((sent + used * 7.0 / 300.0) / rounding) * rounding
        instant = ResetInstant(1e6 + stated, rounding, math.floor(1e6 + sent))
        reading = bucket(300.0, 300.0 - used, window=None)._replace(from_receipt=True, instant=instant)
        (timed,) = clock.timed([reading], sent, sent + 0.5)
        window = period.window(timed, sent, window, 0.5)
    assert window == pytest.approx(7.0, rel=error)


def test_what_was_taken_when_is_read_off_the_order_of_use() -> None:
    period = WindowInference(60.0)
    for used, sent in ((10.0, 0.0), (30.0, 0.3), (20.0, 0.2), (40.0, 0.25)):
        period.window(bucket(300.0, 300.0 - used, reset_after=6.0, window=None), sent, 60.0, 0.1)
    assert period.taken_before(10.0) == [(0.0, 10.0), (0.2, 10.0), (0.3, 10.0), (0.3, 10.0)]


def test_units_are_dated_by_the_answers_that_found_them() -> None:
    """A call may arrive long after it was sent; the quickest answer says how long an answer takes at least."""
    period = WindowInference(60.0)
    for used, took in ((10.0, 0.5), (20.0, 0.75), (30.0, 1.5), (40.0, 1.0)):
        period.window(bucket(300.0, 300.0 - used, reset_after=6.0, window=None), 0.0, 60.0, took)
    assert period.date(10.0, 50.0, 3.0) == [(0.25, 10.0), (0.5, 10.0), (0.5, 10.0), (2.5, 10.0)]


def test_the_reading_of_a_refusal_says_nothing_of_a_rolling_windows_length() -> None:
    """A refused call took nothing, so its reset is that of the call before it."""
    period = WindowInference(60.0)
    for step in range(6):
        read(period, 20.0 + 40.0 * step, 6.003, 0.0)
    assert period.turned is None
    refused = bucket(300.0, 80.0, reset_after=5.503, window=None)
    period.window(refused, 1.1, 60.0, 0.01, charged=False)
    assert period.turned == "rolling"


def test_units_that_come_back_move_no_instant_and_show_no_boundary() -> None:
    """Refused calls take nothing: each answer finds more left, and names the instant of the one before."""
    period, clock = WindowInference(60.0), ServerClock()

    def answered(sent: float, now: float, remaining: float, reset: float, charged: bool) -> None:
        instant = ResetInstant(1e6 + reset, 1e-6, 1e6)
        reading = bucket(4600.0, remaining, window=None)._replace(unit="input_tokens", from_receipt=True)
        (timed,) = clock.timed([reading._replace(instant=instant)], sent, now)
        period.window(timed, sent, 60.0, now - sent, charged)

    for number in range(3):
        answered(0.384 + 0.005 * number, 0.397 + 0.005 * number, 18.0 + 4.0 * number, 6.604, False)
    # Calls sent before, whose answers take longer.
    answered(0.3, 0.45, 1143.0, 4.809, True)
    answered(0.25, 0.5, 1900.0, 3.772, True)
    answered(0.2, 0.6, 2500.0, 2.939, True)
    assert period.turned is None


def test_resets_of_an_overdrawn_quota_stretch_no_window() -> None:
    """Output charged at its end leaves less than nothing: headers show zero, and resets lie beyond the window."""
    period, window = WindowInference(60.0), 60.0
    for used in (30_000, 50_000, 70_000):
        reading = bucket(77_000.0, 77_000.0 - used, reset_after=round(used * 60.0 / 77_000.0, 3), window=None)
        window = period.window(reading._replace(unit="tokens"), 0.0, window, 0.5)
    for reset in (62.492, 62.6, 63.1):
        overdrawn = bucket(77_000.0, 0.0, reset_after=reset, window=None)._replace(unit="tokens")
        window = period.window(overdrawn, 0.0, window, 0.5)
    assert window == 60.0
    assert period.capacity is None


def test_a_window_that_is_known_closely_is_not_inferred_again_until_an_answer_denies_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    period, window, limit = WindowInference(60.0), 60.0, 30_000.0

    def answered(used: float, seconds: float) -> float:
        after = math.floor(used * seconds / limit * 1000.0) / 1000.0
        return period.window(bucket(limit, limit - used, reset_after=after, window=None), 0.0, window, 0.3)

    for used in (10_000.0, 15_000.0, 20_000.0, 25_000.0, 29_000.0):
        window = answered(used, 47.0)
    inferred: list[object] = []

    def infer(*given: object) -> float:
        inferred.append(given)
        return window

    monkeypatch.setattr(WindowInference, "_infer", infer)
    for used in range(5_000, 28_000, 1_000):
        assert answered(used, 47.0) == window == pytest.approx(47.0, rel=1e-3)
    assert not inferred
    answered(20_000.0, 94.0)
    assert inferred


@pytest.mark.parametrize("reset", [25.0, 45.0, 3700.0])
def test_overdrawn_quota_in_the_first_answer_shows_no_natural_window(reset: float) -> None:
    """Any window up to the reset may have been overdrawn so; the longest one meets no refusals."""
    period = WindowInference(60.0)
    reading = bucket(1000.0, 0.0, reset_after=reset, window=None)._replace(unit="tokens")
    assert period.window(reading, 0.0, 60.0, 0.5) >= reset
