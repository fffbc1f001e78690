from __future__ import annotations

from random import Random

from tidegate.core.rate_meter import Burst
from tidegate.core.refusal_cause import BELIEVED_LOG_ODDS, REMEMBERED_ATTEMPTS, RefusalCause

TRIP = 0.01


def played(slots: int | None, rate: float = 10.0, content: float = 4.0) -> RefusalCause:
    """Attempts of a client that sends one each 50 ms; answers take 0.1 to 0.6 s."""
    draw = Random(1)
    cause = RefusalCause(Burst(4, 0.0))
    flying: list[float] = []
    level, now = 0.0, 0.0
    for order in range(60):
        now += 0.05
        for end in [each for each in flying if each <= now]:
            flying.remove(end)
            cause.answered(end)
        level = min(content, level + 0.05 * rate)
        cause.sent(order, len(flying) + 1, now)
        if (len(flying) >= slots) if slots else level < 1.0:
            cause.refused(order, now, now + TRIP)
        else:
            level -= 1.0
            flying.append(now + draw.uniform(0.1, 0.6))
    return cause


def test_slots_are_told_from_a_bucket_by_what_was_in_flight() -> None:
    assert played(slots=4).log_odds(4.0) < 10.0 < played(slots=None).log_odds(4.0)
    assert played(slots=4).slots(4.0) == 4


def test_what_is_heard_late_from_another_process_counts_as_if_it_were_heard_at_once() -> None:
    draw, ends, at = Random(3), list[float](), 0.0
    made: list[tuple[float, str, int, bool]] = []
    for order in range(60):
        at += draw.uniform(0.02, 0.06)
        full = sum(end > at for end in ends) >= 4
        made.append((at, "sent", order, full))
        end = at + (TRIP if full else draw.uniform(0.1, 0.4))
        if not full:
            ends.append(end)
        made.append((end, "ended", order, full))

    def told(late: float) -> RefusalCause:
        """Hear every second attempt `late` seconds after it was sent or answered, as a replica does."""
        cause, flying, ended = (
            RefusalCause(Burst(4, 0.0)),
            dict[int, float](),
            list[tuple[float, float]](),
        )
        heard = sorted((each[0] + late * (each[2] % 2), *each) for each in made)
        for _, at, what, order, full in heard:
            if what == "sent":
                later = sum(sent > at for sent in flying.values())
                flying[order] = at
                cause.sent(order, len(flying), at)
                cause.order_last(len(flying) - later + sum(sent <= at < end for sent, end in ended))
                continue
            cause.end_before(at)
            ended.append((flying.pop(order), at))
            if full:
                cause.refused(order, at - TRIP, at)
            else:
                cause.answered(at)
        return cause

    assert told(0.05).log_odds(at + 1.0) == told(0.0).log_odds(at + 1.0)
    assert told(0.05).slots(at + 1.0) == 4


def test_an_attempt_that_a_test_overtook_is_refused_by_slots() -> None:
    cause = RefusalCause(Burst(4, 0.0))
    setup = 0.003
    for order in range(20):
        # Four calls run, and each new one takes the slot of an answer.
        cause.sent(order, min(order + 1, 4), 0.1 * order)
        cause.answered(0.1 * order + 0.099)
    for order in (20, 21, 22):
        cause.sent(order, order - 15, 2.0)
        cause.refused(order, 2.0, 2.0 + TRIP + setup)
    # The test of a fifth slot has a connection already, and comes first.
    cause.sent(23, 4, 2.5)
    cause.sent(24, 5, 2.5 + setup - 0.0001)
    cause.refused(23, 2.5, 2.5 + TRIP + setup)
    assert cause.slots_explain(2.5 + TRIP + setup)
    assert cause.slots(2.5 + TRIP + setup) == 4
    assert cause.log_odds(2.5 + TRIP + setup) < BELIEVED_LOG_ODDS


def test_the_rate_of_a_bucket_is_known_roughly() -> None:
    assert 4.0 <= played(slots=None).rate(4.0) <= 14.0


def test_an_attempt_that_was_never_sent_says_nothing() -> None:
    cause = played(slots=4)
    before = cause.log_odds(4.0)
    cause.sent(99, 1, 3.5)
    cause.withdrawn(99)
    assert cause.log_odds(4.0) == before


def thrown(share: float, spacing: float = 0.4) -> RefusalCause:
    """Attempts of which a share is refused at random, whatever the pace."""
    draw = Random(2)
    cause = RefusalCause(Burst(4, 0.0))
    for order in range(60):
        cause.sent(order, 1, spacing * order)
        if draw.random() < share:
            cause.refused(order, spacing * order, spacing * order + TRIP)
    return cause


def test_refusals_at_random_are_told_from_a_bucket() -> None:
    assert thrown(share=0.4).random_odds(30.0) > BELIEVED_LOG_ODDS
    assert played(slots=None).random_odds(4.0) < -BELIEVED_LOG_ODDS


def test_where_all_attempts_had_one_fate_nothing_is_random() -> None:
    assert thrown(share=0.0).random_odds(30.0) == -float("inf")
    assert thrown(share=1.0).random_odds(30.0) == -float("inf")
    assert thrown(share=0.0).chance_odds(30.0) == 0.0
    assert thrown(share=1.0).chance_odds(30.0) < -BELIEVED_LOG_ODDS


def test_a_first_refusal_alone_shows_no_content_of_a_bucket() -> None:
    """After a stray refusal, 12 calls at once are no evidence against a deep bucket."""
    odds = []
    for alone in (False, True):
        cause = RefusalCause(Burst(1, 0.0), alone)
        cause.sent(0, 1, 0.0)
        cause.refused(0, 0.0, TRIP)
        for order in range(1, 13):
            cause.sent(order, order, 60.0)
        odds.append(cause.random_odds(70.0))
    assert odds[1] < odds[0]


def test_a_late_refusal_that_is_no_longer_kept_proves_nothing() -> None:
    cause = RefusalCause(Burst(1, 0.0))
    for order in range(REMEMBERED_ATTEMPTS + 2):
        cause.sent(order, 1, 0.01 * order)
    cause.refused(0, 0.0, 2.0)
    assert cause.log_odds(9.0) == cause.rate(9.0) == 0.0
    assert cause.random_odds(9.0) == -float("inf")


def test_the_odds_of_chance_bear_changes_of_a_rate() -> None:
    """A rate that alternates fourfold refuses what goes faster, again and again: at no time is that chance."""
    draw = Random(3)
    cause = RefusalCause(Burst(4, 0.02))
    level, now = 0.0, 0.0
    for order in range(400):
        pace = 16.0 if order % 100 < 50 else 4.0
        seconds = draw.uniform(0.5, 1.4) / pace
        now, level = now + seconds, min(4.0, level + pace * seconds)
        cause.sent(order, 2, now)
        if level < 1.0:
            cause.refused(order, now, now + TRIP)
            assert cause.chance_odds(now + TRIP) < BELIEVED_LOG_ODDS
        else:
            level -= 1.0
    assert cause.chance_odds(now + 1.0) <= -BELIEVED_LOG_ODDS


def test_chance_is_disproved_by_refusals_that_follow_each_other() -> None:
    cause = thrown(share=0.4)
    assert cause.is_random(30.0, True)
    for order in range(60, 75):
        cause.sent(order, 2, 30.0 + 0.01 * order)
        cause.refused(order, 30.0 + 0.01 * order, 30.0 + 0.01 * order + TRIP)
    assert not cause.is_random(40.0, True)


def test_refusals_of_slots_are_not_random() -> None:
    assert not played(slots=4).is_random(4.0, True)


def test_attempts_with_a_wrong_number_in_flight_are_forgotten_and_the_answers_are_not() -> None:
    cause = played(slots=4)
    cause.forget()
    assert cause.log_odds(4.0) == 0.0
    assert not cause.is_random(4.0, True)
    # Sent with four in flight, of which one had ended: its answer arrives within a round trip, so a slot was free.
    cause.sent(100, 5, 5.0)
    cause.answered(5.0 + TRIP / 2)
    cause.sent(101, 5, 5.1)
    cause.refused(101, 5.1, 5.1 + TRIP)
    assert cause.log_odds(6.0) <= 0.0
    assert cause.slots(6.0) == 4


def test_slots_explain_an_attempt_that_a_new_connection_delayed() -> None:
    """The second attempt arrives after the answer to the first one, and the third one finds no free slot."""
    cause = RefusalCause(Burst(2, 0.0))
    for order, (in_flight, sent_at) in enumerate([(1, 0.0), (2, 0.5), (2, 0.55)]):
        cause.sent(order, in_flight, sent_at)
    cause.answered(0.52)
    cause.refused(2, 0.55, 0.55 + 6 * TRIP)
    cause.sent(3, 2, 0.7)
    cause.refused(3, 0.7, 0.7 + TRIP)
    assert cause.slots(1.0) == 1
    assert cause.log_odds(1.0) <= 0.0


def test_slots_explain_an_attempt_that_a_later_one_overtook() -> None:
    """The second attempt is refused because the third one, on an older connection, has taken the last of two slots."""
    cause = RefusalCause(Burst(2, 0.0))
    for order, (in_flight, sent_at) in enumerate([(1, 0.0), (2, 0.5), (3, 0.51)]):
        cause.sent(order, in_flight, sent_at)
    cause.refused(1, 0.5, 0.5 + 3 * TRIP)
    cause.sent(3, 3, 0.7)
    cause.refused(3, 0.7, 0.7 + TRIP)
    assert cause.slots(1.0) == 2
    assert cause.log_odds(1.0) <= 0.0


def test_refusals_at_random_that_take_as_long_as_answers_are_not_taken_for_delays() -> None:
    """Eight callers, of whose attempts 30 % are refused; answers and refusals take 0.3 to 0.8 s."""
    draw = Random(9)
    cause = RefusalCause(Burst(8, 0.0))
    flying: list[tuple[float, int, float, bool]] = []
    now, found = 0.0, []
    for order in range(60):
        now += 0.08
        while len(flying) == 8 or (flying and flying[0][0] <= now):
            end, which, sent_at, refused = flying.pop(0)
            now = max(now, end)
            if refused:
                cause.refused(which, sent_at, end)
                found.append(cause.is_random(end, True))
            else:
                cause.answered(end)
        cause.sent(order, len(flying) + 1, now)
        flying = sorted([*flying, (now + draw.uniform(0.3, 0.8), order, now, draw.random() < 0.3)])
    assert sum(found) >= len(found) / 2


def test_attempts_whose_slow_refusals_are_still_to_come_are_not_taken_for_admitted() -> None:
    """A spent window of a busy server, which refuses each attempt after 0.1 to 1 s."""
    draw = Random(5)
    cause = RefusalCause(Burst(100, 0.4))
    refused = sorted((0.01 * order + draw.uniform(0.1, 1.0), order) for order in range(90))
    sent = 0
    for at, order in refused:
        while sent < 90 and 0.01 * sent <= at:
            cause.sent(sent, min(77, sent + 1), 0.01 * sent)
            sent += 1
        cause.refused(order, 0.01 * order, at)
        assert not cause.is_random(at, True)


def test_attempts_that_were_refused_held_no_slot() -> None:
    cause = RefusalCause(Burst(4, 0.0))
    for order in range(4):
        cause.sent(order, 10 + order, 0.01 * order)
    cause.refused(1, 0.01, 0.015)
    cause.refused(0, 0.0, 0.05)
    assert cause.met(2, 12) == 11
    cause.refused(2, 0.02, 0.06)
    assert cause.met(3, 13) == 11
    assert cause.met(0, 10) == 10


def test_a_refusal_as_late_as_an_answer_is_no_limits_where_others_come_at_once() -> None:
    cause = RefusalCause(Burst(4, 0.0))
    for order, (travel, late) in enumerate([(0.5, False), (TRIP, False), (0.5, True), (TRIP, False), (9.0, False)]):
        cause.sent(order, 2, float(order))
        cause.refused(order, float(order), order + travel, latency=0.6)
        assert cause.was_late is late


def test_refusals_that_take_any_time_up_to_an_answer_may_all_be_a_limits() -> None:
    cause = RefusalCause(Burst(4, 0.0))
    for order, travel in enumerate([0.1, 0.3, TRIP, 0.2, 0.3, 0.08, 0.6]):
        cause.sent(order, 2, float(order))
        cause.refused(order, float(order), order + travel, latency=0.3)
        assert not cause.was_late
