"""The limiters' laws, in virtual time and exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ConfigurationError
from tidegate.testing import (
    Call,
    ContinuousBucket,
    Credit,
    DayQuota,
    FixedWindow,
    Gate,
    Outage,
    Pricing,
    Reason,
    Refill,
    Refusal,
    ResizedBucket,
    RollingWindow,
    Slope,
    Slots,
    Ticket,
    VirtualClock,
)

steps = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=60)
"""(time until the next attempt, amount)"""

HALVES = [(Fraction(10), Fraction(1, 2)), (Fraction(25), Fraction(3, 4))]

exact = st.integers(0, 1000).map(lambda value: Fraction(value, 7))


def admitted(limiter, history):
    now, taken = Fraction(0), []
    for wait, amount in history:
        now += wait
        if limiter.ready_at(amount, now) <= now:
            limiter.charge(amount, now)
            taken.append((now, amount))
    return taken


def most_within(taken, window):
    """The largest sum of what was taken in any half-open interval of `window`."""
    return max((sum(amount for at, amount in taken if start <= at < start + window) for start, _ in taken), default=0)


@given(steps, st.integers(1, 60), st.integers(1, 60), st.one_of(st.none(), st.integers(1, 60)))
def test_a_bucket_admits_no_more_than_its_content_and_its_refill_in_any_interval(history, limit, window, burst):
    bucket = ContinuousBucket("b", limit=Fraction(limit), window=Fraction(window), burst=burst and Fraction(burst))
    taken = admitted(bucket, history)
    for index, (start, _) in enumerate(taken):
        total = Fraction(0)
        for at, amount in taken[index:]:
            total += amount
            bound = bucket.capacity + Fraction(limit, window) * (at - start)
            assert total <= bound * (1 + Fraction(1, 10**8))


@given(steps, st.integers(1, 60), st.integers(1, 60), st.integers(0, 60))
def test_a_fixed_window_admits_no_more_than_its_limit_between_boundaries(history, limit, window, offset):
    taken = admitted(FixedWindow("f", limit=limit, window=window, offset=offset), history)
    spent: dict[int, int] = {}
    for at, amount in taken:
        index = math.floor((at - offset) / window)
        spent[index] = spent.get(index, 0) + amount
    assert all(amount <= limit for amount in spent.values())


@given(steps, st.integers(1, 60), st.integers(1, 60))
def test_a_rolling_window_admits_no_more_than_its_limit_in_any_window(history, limit, window):
    taken = admitted(RollingWindow("r", limit=limit, window=window), history)
    assert most_within(taken, window) <= limit


@given(exact, exact, exact)
def test_refilling_a_and_then_b_is_refilling_a_plus_b(first, second, spent):
    split, whole = (ContinuousBucket("b", limit=Fraction(600), window=Fraction(60)) for _ in range(2))
    for bucket in (split, whole):
        bucket.charge(spent, Fraction(0))
    split.remaining(first)
    assert split.remaining(first + second) == whole.remaining(first + second)


@given(exact, exact, exact)
def test_a_scheduled_refill_adds_up_over_a_split_and_agrees_with_its_inverse(start, first, second):
    refill = Refill(Fraction(3), [(Fraction(2), Fraction(1, 4)), (Fraction(5), Fraction(2))], Fraction(9))
    middle, end = start + first, start + first + second
    assert refill.between(start, end) == refill.between(start, middle) + refill.between(middle, end)
    assert refill.when(refill.between(start, end), start) == end


@given(steps, st.sampled_from(["bucket", "fixed", "rolling", "resized"]))
def test_what_fits_at_the_instant_that_was_named_does_not_fit_before(history, kind):
    limiter = {
        "bucket": lambda: ContinuousBucket("b", limit=Fraction(30), window=Fraction(30)),
        "fixed": lambda: FixedWindow("f", limit=30, window=30),
        "rolling": lambda: RollingWindow("r", limit=30, window=30),
        "resized": lambda: ResizedBucket(
            "b", limit=Fraction(60), window=Fraction(60), sizes=HALVES, period=Fraction(40)
        ),
    }[kind]()
    admitted(limiter, history)
    now = Fraction(sum(wait for wait, _ in history))
    ready_at = limiter.ready_at(30, now)
    if ready_at > now:
        assert limiter.ready_at(30, now + (ready_at - now) * Fraction(99, 100)) > now
    assert limiter.ready_at(30, ready_at) == ready_at


@given(steps)
def test_a_refused_call_is_charged_by_no_limiter(history):
    gate = Gate(
        [
            ContinuousBucket("requests", limit=10, window=60),
            FixedWindow("tokens", "tokens", limit=50, window=30),
            Slots(limit=7),
            Credit(limit=40),
        ],
        Pricing("input+max_tokens"),
    )
    now = 0.0
    for wait, amount in history:
        now += wait
        before = gate.levels(now)
        outcome = gate.admit(Call(input_tokens=amount, max_tokens=3), now)
        after = gate.levels(now)
        if isinstance(outcome, Refusal):
            assert after == before
        else:
            spent = [old.remaining - new.remaining for old, new in zip(before, after, strict=True)]
            assert spent == pytest.approx([1, amount + 3, 1, 1])
            if amount % 2:
                gate.finish(outcome, 0, now)


def test_a_bucket_starts_full_and_says_how_long_until_it_is_full_again():
    bucket = ContinuousBucket("requests", limit=600, window=60)
    bucket.charge(600, 0.0)
    assert bucket.level(0.0).reset_after == 60
    assert bucket.ready_at(1, 0.0) == pytest.approx(0.1)
    assert bucket.level(30.0).remaining == 300


def test_a_bucket_that_was_used_before_starts_with_what_is_left_and_fills_from_there():
    bucket = ContinuousBucket("requests", limit=60, window=60, initial=2)
    assert bucket.level(7.0).remaining == 2
    assert bucket.level(7.0).reset_after == 58
    bucket.charge(2, 7.0)
    assert bucket.ready_at(1, 7.0) == 8.0
    assert bucket.remaining(100.0) == 60
    assert ContinuousBucket("requests", limit=60, window=60, burst=5, initial=50).remaining(0.0) == 5


def test_a_small_burst_enforces_a_minute_by_the_second():
    bucket = ContinuousBucket("requests", limit=60, window=60, burst=1)
    bucket.charge(1, 0.0)
    assert bucket.ready_at(1, 0.0) == 1.0
    assert bucket.remaining(100.0) == 1
    assert bucket.level(0.0).limit == 60


def test_a_fixed_window_gives_everything_back_at_its_boundary():
    window = FixedWindow("requests", limit=2, window=10, offset=3)
    window.charge(2, 4.0)
    assert window.ready_at(1, 4.0) == 13.0
    assert window.remaining(12.999) == 0
    assert window.remaining(13.0) == 2


def test_a_day_ends_after_86400_seconds():
    day = DayQuota("day", limit=1)
    day.charge(1, 10.0)
    assert day.ready_at(1, 10.0) == 86_400
    assert day.reason is Reason.DAY


def test_slots_refuse_the_call_beyond_them_and_come_back_when_a_call_ends():
    slots = Slots(limit=1, status=429)
    slots.charge(1, 0.0)
    assert slots.ready_at(1, 0.0) == math.inf
    slots.finish(1.0)
    assert slots.ready_at(1, 1.0) == 1.0


def test_credit_never_comes_back():
    credit = Credit(limit=1)
    credit.charge(1, 0.0)
    assert credit.ready_at(1, 1e9) == math.inf


def test_an_outage_holds_from_its_start_until_just_before_its_end():
    outage = Outage(start=2.0, end=5.0)
    assert [outage.ready_at(1, now) for now in (1.9, 2.0, 4.9, 5.0)] == [1.9, 5.0, 5.0, 5.0]


@pytest.mark.parametrize(
    ("charge", "gives_back", "at_admission", "at_end"),
    [
        ("input", False, 100, 100),
        ("input+max_tokens", False, 150, 150),
        ("input+max_tokens", True, 150, 120),
        ("produced", False, 100, 120),
    ],
)
def test_tokens_are_charged_by_the_rule(charge, gives_back, at_admission, at_end):
    bucket = ContinuousBucket("tokens", "tokens", limit=1000, window=60)
    gate = Gate([bucket], Pricing(charge, gives_back))
    ticket = gate.admit(Call(input_tokens=100, max_tokens=50), 0.0)
    assert isinstance(ticket, Ticket)
    assert 1000 - bucket.remaining(0.0) == at_admission
    gate.finish(ticket, 20, 0.0)
    assert 1000 - bucket.remaining(0.0) == at_end


def test_a_token_of_output_may_count_several_times_in_the_end():
    bucket = ContinuousBucket("tokens", "tokens", limit=1000, window=60)
    gate = Gate([bucket], Pricing("input+max_tokens", gives_back=True, burndown=5.0))
    ticket = gate.admit(Call(input_tokens=100, max_tokens=50), 0.0)
    assert 1000 - bucket.remaining(0.0) == 150
    gate.finish(ticket, 40, 0.0)
    assert 1000 - bucket.remaining(0.0) == 300


def test_produced_output_may_drive_a_limiter_into_debt_which_has_to_be_paid_first():
    gate = Gate([ContinuousBucket("out", "output_tokens", limit=60, window=60)], Pricing("produced"))
    ticket = gate.admit(Call(), 0.0)
    gate.finish(ticket, 90, 0.0)
    refusal = gate.admit(Call(), 0.0)
    assert refusal.retry_after == pytest.approx(30)
    assert gate.ready_at(Call(), 0.0) == pytest.approx(30)


def test_a_call_above_the_whole_limit_is_too_large_and_has_no_time_to_wait_for():
    gate = Gate([ContinuousBucket("tokens", "tokens", limit=10, window=60)], Pricing())
    refusal = gate.admit(Call(input_tokens=11), 0.0)
    assert (refusal.name, refusal.reason, refusal.retry_after) == ("too_large", Reason.TOO_LARGE, None)


def test_of_two_rates_the_later_one_is_reported_and_money_comes_before_both():
    slow, fast = FixedWindow("slow", limit=1, window=60), FixedWindow("fast", limit=1, window=6)
    gate = Gate([fast, slow, Credit(limit=2)], Pricing())
    gate.admit(Call(), 0.0)
    assert gate.admit(Call(), 0.0).name == "slow"
    gate.admit(Call(), 60.0)
    assert gate.admit(Call(), 60.0).reason is Reason.MONEY


def test_a_limiter_that_replaces_another_of_its_name_goes_on_from_what_that_held():
    gate = Gate([ContinuousBucket("requests", limit=10, window=10), Slots(limit=5)], Pricing())
    for _ in range(4):
        gate.admit(Call(), 0.0)
    gate.replace([ContinuousBucket("requests", limit=3, window=3), Slots(limit=4)], Pricing(), 0.0)
    assert [level.remaining for level in gate.levels(0.0)] == [3, 0]
    gate.replace([ContinuousBucket("requests", limit=100, window=10), Slots(limit=9)], Pricing(), 0.0)
    assert [level.remaining for level in gate.levels(0.0)] == [3, 5]


def test_windows_keep_what_was_used_when_their_limit_changes():
    for kind in (FixedWindow, RollingWindow):
        gate = Gate([kind("w", limit=4, window=10)], Pricing())
        gate.admit(Call(), 1.0)
        gate.replace([kind("w", limit=2, window=10)], Pricing(), 2.0)
        assert gate.levels(2.0)[0].remaining == 1


def test_a_neighbour_takes_his_share_of_the_refill_while_the_limit_stays():
    bucket = ContinuousBucket("requests", limit=60, window=60, shares=[(0.0, 1.0), (10.0, 0.25)], period=20.0)
    bucket.charge(60, 0.0)
    assert bucket.remaining(10.0) == pytest.approx(10)
    assert bucket.remaining(20.0) == pytest.approx(12.5)
    assert bucket.ready_at(22.5, 20.0) == pytest.approx(30)


def test_a_resized_bucket_shrinks_and_grows_and_says_so():
    bucket = ResizedBucket("b", limit=60, window=60, sizes=[(10.0, 0.5), (20.0, 2.0)])
    assert (bucket.level(0.0).limit, bucket.level(9.0).remaining) == (60, 60)
    assert (bucket.level(10.0).limit, bucket.level(10.0).remaining) == (30, 30)
    bucket.charge(30, 10.0)
    assert bucket.remaining(20.0) == pytest.approx(5)
    assert (bucket.level(20.0).limit, bucket.remaining(25.0)) == (120, pytest.approx(15))
    assert bucket.reset_after(25.0) == pytest.approx(52.5)


def test_a_resized_bucket_names_the_instant_at_which_it_is_large_enough_again():
    bucket = ResizedBucket("b", limit=60, window=60, sizes=[(10.0, 0.5), (30.0, 1.0)])
    bucket.charge(60, 0.0)
    assert bucket.ready_at(12, 0.0) == pytest.approx(14)
    assert bucket.ready_at(50, 0.0) == pytest.approx(60)
    assert bucket.ready_at(61, 0.0) == math.inf
    assert bucket.level(0.0).limit == 60


def test_a_resized_bucket_that_is_never_full_for_long_enough_says_that_waiting_is_in_vain():
    bucket = ResizedBucket("b", limit=60, window=60, sizes=[(1.0, 0.5)], period=10.0)
    bucket.charge(60, 0.0)
    assert bucket.ready_at(40, 0.0) == math.inf


def _climbs(taken, least, now):
    """Whether one more may come at `now`, as the rule says it."""
    lately = sum(now - 10 < at <= now for at in taken)
    before = sum(now - 20 < at <= now - 10 for at in taken)
    return lately + 1 <= max(least, 1.5 * before)


@given(st.lists(st.sampled_from([0, 0, 1, 2, 7]), min_size=20, max_size=80), st.integers(1, 4))
def test_a_slope_lets_in_so_many_times_what_the_window_before_saw(waits, least):
    slope = Slope(limit=least, window=10, growth=1.5)
    now, taken = 0, []
    for wait in waits:
        now += wait
        ready_at = slope.ready_at(1, now)
        # Only an instant at which a call leaves the window can be the first at which another fits.
        instants = [now, *(at + 10 for at in taken if at + 10 > now)]
        assert ready_at == next(instant for instant in instants if _climbs(taken, least, instant))
        if ready_at <= now:
            slope.charge(1, now)
            taken.append(now)


def test_a_slope_can_be_climbed_and_says_what_it_allows_now():
    slope = Slope(limit=4, window=1.0, growth=1.5)
    for now, allowed in ((0.0, 4), (1.0, 6), (2.0, 9), (3.0, 13)):
        for _ in range(allowed):
            assert slope.ready_at(1, now) == now
            slope.charge(1, now)
        assert slope.ready_at(1, now) == pytest.approx(now + 1.0)
    assert slope.level(3.0).limit == pytest.approx(13.5)
    assert slope.remaining(60.0) == 4


def test_virtual_time_moves_forward_only():
    clock = VirtualClock(5.0)
    assert (clock(), clock.advance(1.5), clock.advance_to(3.0), clock.now) == (5.0, 6.5, 6.5, 6.5)
    with pytest.raises(ConfigurationError):
        clock.advance(-1)


def test_what_a_rolling_window_gets_back_is_free_at_once_and_counted_once():
    window = RollingWindow("tokens", "tokens", limit=100, window=10)
    window.charge(40, 0.0)
    window.charge(50, 4.0)
    window.charge(-60, 5.0)
    assert window.remaining(5.0) == 70
    assert window.reset_after(5.0) == 5.0
    assert window.remaining(10.0) == 100
    assert window.reset_after(10.0) == 0
    assert window.ready_at(101, 10.0) == math.inf
