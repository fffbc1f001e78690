"""The charges newer than an anchor."""

from __future__ import annotations

import pytest

from tidegate.core.quota_base import MAX_UNDERWAY_SECONDS, ChargeLog, LoggedCharge


@pytest.fixture
def ledger() -> ChargeLog:
    """Charges of 1, 2 and 4 units, numbered 1 to 3, made at instants 10, 20 and 30."""
    ledger = ChargeLog()
    for order, amount in ((1, 1.0), (2, 2.0), (3, 4.0)):
        debit = LoggedCharge(amount, order, 10.0 * order)
        ledger.add(debit)
    return ledger


def test_charges_before_an_instant_are_dropped_that_instant_not(ledger: ChargeLog) -> None:
    ledger.drop_before(20.0)
    assert [debit.order for debit in ledger.entries] == [2, 3]
    assert ledger.total == 6.0


def test_an_empty_ledger_keeps_no_dust_of_floats() -> None:
    ledger = ChargeLog()
    for order in range(1, 8):
        ledger.add(LoggedCharge(0.1, order, 0.0))
    ledger.drop_through(7)
    assert ledger.total == 0.0
    ledger.add(LoggedCharge(0.1, 8, 1.0))
    ledger.drop_before(2.0)
    assert ledger.total == 0.0


def test_a_charge_can_be_changed_until_it_is_dropped(ledger: ChargeLog) -> None:
    first, *_, last = ledger.entries
    ledger.drop_through(1)
    assert ledger.amend(first, 0.0) == 0.0
    assert ledger.amend(last, 1.0) == -3.0
    assert ledger.total == 3.0


def test_a_charge_that_may_have_been_overtaken_stays(ledger: ChargeLog) -> None:
    ledger.drop_through(3, sent_at=30.0, reorder=10.0)
    assert ledger.dropped == 1.0
    assert [debit.order for debit in ledger.entries] == [2, 3]


def test_an_answered_charge_was_not_overtaken(ledger: ChargeLog) -> None:
    ledger.entries[1].answered = True
    ledger.drop_through(3, sent_at=30.0, reorder=10.0)
    assert ledger.dropped == 3.0
    assert [debit.order for debit in ledger.entries] == [3]


def test_of_more_charges_than_the_provider_has_seen_the_latest_stay(ledger: ChargeLog) -> None:
    ledger.drop_through(3, sent_at=24.0, reorder=0.0, seen=1.0)
    assert ledger.dropped == 1.0
    assert [debit.order for debit in ledger.entries] == [2, 3]
    assert ledger.total == 6.0


def test_what_cannot_still_be_under_way_does_not_stay_however_little_was_seen(ledger: ChargeLog) -> None:
    ledger.drop_through(3, sent_at=30.0 + MAX_UNDERWAY_SECONDS, reorder=0.0, seen=0.0)
    assert ledger.dropped == 3.0
    assert [debit.order for debit in ledger.entries] == [3]


def test_what_was_answered_was_seen(ledger: ChargeLog) -> None:
    for debit in ledger.entries:
        debit.answered = True
    ledger.drop_through(3, sent_at=30.0, reorder=0.0, seen=0.0)
    assert ledger.dropped == 7.0
    assert ledger.total == 0.0


def test_what_the_level_fell_by_had_been_charged_whoever_was_not_answered() -> None:
    ledger = ChargeLog()
    for order in (1, 2, 3):
        ledger.add(LoggedCharge(100.0, order, 29.9))
    ledger.drop_through(3, sent_at=30.0, reorder=1.0, fell=210.0)
    assert [debit.order for debit in ledger.entries] == [3]
