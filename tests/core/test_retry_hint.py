from __future__ import annotations

import pytest

from tidegate.core.backoff import (
    FIRST_TRIAL_SHARE,
    GRACE_BOUNDS_SECONDS,
    LAST_TRIAL_SHARE,
    NEW_TRIAL_HINT_RATIO,
    HintTrust,
)

GRACE = 0.03
TRIP = 0.01


class Refuser:
    """A provider whose refusals name a time, and a key that sends an attempt whenever its trust says so."""

    def __init__(self) -> None:
        self.trust = HintTrust()
        self.let_in = 20

    def answer(self, sent_at: float) -> None:
        if self.trust.in_trial(sent_at):
            self.trust.answered(sent_at)

    def refuse(self, sent_at: float, hint: float, *, admitted: int = 0, new_wave: bool = True) -> float:
        """Refuse what was sent at `sent_at`, after so many more admitted calls; return the wait."""
        self.let_in += admitted
        return self.trust.seconds(hint, sent_at, sent_at + TRIP, self.let_in, GRACE, new_wave)


@pytest.fixture
def refuser() -> Refuser:
    return Refuser()


def test_a_long_hint_is_tried_early(refuser: Refuser) -> None:
    assert refuser.refuse(0.0, 60.0) == FIRST_TRIAL_SHARE * 60.0


def test_a_constant_hint_that_is_too_long_is_tried_again_before_its_end(refuser: Refuser) -> None:
    """Each refusal says a minute, and the quota is back after ten seconds."""
    first = refuser.refuse(0.0, 60.0)
    assert first < 10.0
    assert first + refuser.refuse(first, 60.0) < 20.0


def test_a_short_hint_is_tried_where_its_rounding_does_not_hide_the_countdown(refuser: Refuser) -> None:
    assert refuser.refuse(0.0, 3.0) == pytest.approx(1.0)
    assert Refuser().refuse(0.0, 1.0) == LAST_TRIAL_SHARE


def test_a_key_that_was_hardly_used_obeys() -> None:
    refuser = Refuser()
    refuser.let_in = 3
    assert refuser.refuse(0.0, 12.0) == 12.0


def test_no_attempt_goes_before_its_fate_could_be_known(refuser: Refuser) -> None:
    assert refuser.refuse(0.0, 0.05) == 0.05


def test_a_hint_that_counts_down_is_obeyed_from_then_on(refuser: Refuser) -> None:
    refuser.refuse(0.0, 12.0)
    assert refuser.trust.in_trial(3.0)
    assert refuser.refuse(3.0, 9.0) == 9.0
    assert refuser.trust.counts_down
    assert not refuser.trust.in_trial(12.1)
    assert refuser.refuse(20.0, 12.0, admitted=30) == 12.0


def test_a_hint_that_counts_down_three_times_too_fast_ends_where_it_reaches_zero(refuser: Refuser) -> None:
    """Four seconds are left, and the provider says twelve."""
    refuser.refuse(0.0, 12.0)
    wait = refuser.refuse(3.0, 3.0)
    assert 3.0 + wait == pytest.approx(4.0, abs=0.2)
    # It lost eight to ten seconds in three: the slowest of these countdowns is waited for.
    assert refuser.trust.share == pytest.approx(3.0 / 8.0)
    assert refuser.refuse(20.0, 9.0, admitted=30) == pytest.approx(9.0 * 3.0 / 8.0)


def test_each_pair_of_hints_narrows_how_fast_they_count_down(refuser: Refuser) -> None:
    refuser.refuse(0.0, 12.0)
    refuser.refuse(3.0, 3.0)
    assert refuser.trust.span(9.0) == pytest.approx((8.0 * 3.0 / 10.0, 9.0 * 3.0 / 8.0))
    # Fifteen at 20 and four 3.3 seconds later: ten to twelve seconds.
    refuser.refuse(20.0, 15.0, admitted=30)
    refuser.refuse(23.3, 4.0)
    assert refuser.trust.span(9.0) == pytest.approx((8.0 * 3.0 / 10.0, 9.0 * 3.3 / 10.0))


def test_true_hints_state_the_seconds_of_their_rounding(refuser: Refuser) -> None:
    assert refuser.trust.span(9.0) is None
    refuser.refuse(0.0, 12.0)
    refuser.refuse(3.0, 9.0)
    assert refuser.trust.span(9.0) == (8.0, 9.0)


def test_a_constant_states_no_instant_and_neither_does_a_hint_that_becomes_longer(refuser: Refuser) -> None:
    refuser.refuse(0.0, 2.0)
    refuser.refuse(1.0, 2.0)
    assert refuser.trust.span(2.0) is None
    refuser.refuse(20.0, 2.0, admitted=30)
    refuser.refuse(21.0, 1.0)
    assert refuser.trust.span(2.0) is not None
    refuser.refuse(40.0, 2.0, admitted=30)
    refuser.refuse(41.0, 3.0)
    assert refuser.trust.span(2.0) is None


def test_constant_hint_is_obeyed_as_it_may_be_true(refuser: Refuser) -> None:
    """Each refusal blocks the key for twelve seconds."""
    first = refuser.refuse(0.0, 12.0)
    second = first + refuser.refuse(first, 12.0)
    assert refuser.refuse(second, 12.0) == 12.0
    assert refuser.refuse(30.0, 12.0, admitted=30) == 12.0


def test_a_hint_that_an_admitted_attempt_refutes_is_obeyed_for_less_and_less(refuser: Refuser) -> None:
    waits = [refuser.refuse(0.0, 8.0)]
    for number in range(1, 4):
        refuser.answer(20.0 * (number - 1) + TRIP + waits[-1])
        waits.append(refuser.refuse(20.0 * number, 8.0, admitted=30))
    assert waits == pytest.approx([2.0, 0.5, 0.125, 0.03125])
    refuser.answer(60.0 + TRIP + waits[-1])
    assert refuser.refuse(100.0, 8.0, admitted=30) == 0.0


def test_attempts_after_the_end_of_a_hint_prove_nothing_about_it(refuser: Refuser) -> None:
    first = refuser.refuse(0.0, 12.0)
    refuser.answer(30.0)
    assert refuser.refuse(40.0, 12.0, admitted=30) == first


def test_slow_refusals_leave_no_time_for_a_trial(refuser: Refuser) -> None:
    grace = GRACE_BOUNDS_SECONDS[1]
    assert refuser.trust.seconds(60.0, 0.0, 4.0, 20, grace, True) == 60.0


def test_what_was_enough_before_is_waited_for_where_less_is_refused(refuser: Refuser) -> None:
    refuser.answer(refuser.refuse(0.0, 1.0) + TRIP)
    assert refuser.refuse(20.0, 1.0, admitted=30) == pytest.approx(0.25)
    assert refuser.refuse(20.25, 1.0) == pytest.approx(0.25)
    assert refuser.refuse(40.0, 1.0, admitted=30) == pytest.approx(0.5)


def test_a_trial_that_shows_nothing_is_not_repeated_for_a_hint_of_that_length(refuser: Refuser) -> None:
    refuser.refuse(0.0, 1.0)
    assert refuser.refuse(0.5, 1.0) == 1.0
    assert refuser.refuse(20.0, 1.0, admitted=30) == 1.0
    assert refuser.refuse(40.0, NEW_TRIAL_HINT_RATIO + 1.0, admitted=30) == pytest.approx(1.0)


def test_a_refusal_after_the_end_of_a_hint_begins_anew(refuser: Refuser) -> None:
    refuser.refuse(0.0, 12.0)
    refuser.refuse(3.0, 9.0)
    assert refuser.refuse(12.5, 4.0) == 4.0


def test_further_refusals_of_a_wave_do_not_extend_a_trial(refuser: Refuser) -> None:
    wait = refuser.refuse(0.0, 12.0)
    assert refuser.refuse(0.1, 12.0, new_wave=False) == pytest.approx(wait - 0.1)
