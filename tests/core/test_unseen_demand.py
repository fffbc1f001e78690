"""Room that a member leaves for admissions of others which it has not heard of yet."""

from __future__ import annotations

import math

import pytest

from tidegate.core.turns import LOOK_AGAIN_SECONDS, MemberTurns, WaitingMember
from tidegate.core.unheard_members import UnseenDemand
from tidegate.core.values import Cost


def test_nothing_is_unheard_at_a_log_that_is_locked() -> None:
    unseen = UnseenDemand()
    for number in range(10):
        unseen.admitted(number / 10)
        unseen.own(number / 10)
    assert not unseen.delayed
    assert (unseen.calls(1.0, 3), unseen.hearing(1.0)) == (0.0, 0.0)


def test_members_whose_calls_wait_are_assumed_to_admit_what_this_one_does() -> None:
    unseen = UnseenDemand()
    unseen.heard(10.0)
    for _ in range(2):
        unseen.own(10.01)
    assert unseen.calls(10.02, 3) == 6.0
    assert unseen.calls(10.02, 0) == 0.0
    # The next exchange tells of all that they admitted until then.
    unseen.heard(10.05)
    assert unseen.calls(10.06, 3) == 0.0


def test_others_are_assumed_to_go_on_at_their_rate_until_they_are_heard() -> None:
    unseen = UnseenDemand()
    for number in range(1, 501):
        unseen.heard(number / 100)
        unseen.admitted(number / 100)
    assert unseen.calls(5.0, 0) == 0.0, "below half a call"
    assert unseen.calls(5.1, 0) == pytest.approx(10.0, rel=0.15)
    assert unseen.calls(5.2, 0) > unseen.calls(5.1, 0)
    unseen.heard(15.0)
    assert unseen.calls(15.1, 0) == 0.0, "they have admitted nothing for ten seconds"


def test_an_admission_that_an_earlier_exchange_did_not_tell_of_was_late() -> None:
    unseen = UnseenDemand()
    unseen.heard(1.0)
    unseen.heard(1.5)
    # It may have been admitted right before the exchange.
    unseen.admitted(1.2)
    assert unseen.hearing(1.5) == 0.0
    unseen.heard(1.6)
    unseen.admitted(1.3)
    assert unseen.hearing(1.6) == pytest.approx(0.2)
    assert unseen.hearing(1.7) == pytest.approx(0.2 / math.exp(0.1) + 0.1)
    # One that is much later is an exchange that failed, or a clock.
    unseen.admitted(0.1)
    assert unseen.hearing(1.6) == 0.25
    assert unseen.hearing(9.6) == pytest.approx(8.0, abs=0.01), "delays of long ago do not count"


def late_turns(heads: int) -> MemberTurns:
    turns = MemberTurns(9)
    turns.served_at = 5.0
    turns.others = tuple(WaitingMember(member, 0, float(member), Cost(1.0)) for member in range(heads))
    turns.unseen.heard(9.95)
    return turns


def test_each_head_that_goes_first_has_the_time_to_be_heard() -> None:
    turns = late_turns(2)
    step = turns.unseen.hearing(10.0) + LOOK_AGAIN_SECONDS
    # The pause ended at 9.9, and nothing but the others keeps the head.
    assert turns.in_turn(10.0, "", 10.0, 9.999, 10.0) == (pytest.approx(9.999 + 2 * step), "quota")
    assert turns.in_turn(10.0, "", 10.0, 9.0, 10.0) == (10.0, "")
    assert late_turns(0).in_turn(10.0, "", 10.0, 9.999, 10.0) == (10.0, "")


def test_a_gate_without_an_end_holds_a_head_only_while_it_is_closed() -> None:
    turns = late_turns(2)
    assert turns.in_turn(math.inf, "concurrency", math.inf, 0.0, 10.0) == (math.inf, "concurrency")
    ready, _ = turns.in_turn(10.0, "", 10.0, 0.0, 10.0)
    assert ready <= 10.0 + 2 * (turns.unseen.hearing(10.0) + LOOK_AGAIN_SECONDS)


def test_a_pause_without_an_end_that_was_lifted_does_not_hold_a_head() -> None:
    turns = late_turns(1)
    ready, _ = turns.in_turn(10.0, "", 10.0, math.inf, 10.0)
    assert ready < 11.0
