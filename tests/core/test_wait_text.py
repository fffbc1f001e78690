"""Texts of waits: the reason first, then when the next call goes."""

from __future__ import annotations

import pytest

from tidegate.core.wait_text import amount, duration, never_answered, wait_text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.04, "0.0 s"), (9.9, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1:00"), (7200.0, "2:00:00")],
)
def test_durations_have_a_unit_or_a_colon(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("wait", "said"),
    [
        (("pause", 118.0, 600.0), "paused: provider asks for 10:00, next try in 1:58"),
        (("pause", 118.0, 600.0, "status 429"), "paused: provider asks for 10:00 (status 429), next try in 1:58"),
        (("pause", 4.0), "paused after a refusal: next try in 4.0 s"),
        (("breaker", None), "provider down: next probe when an answer arrives"),
        (("breaker", 12.0, 0.0, "status 500"), "provider down (status 500): next probe in 12 s"),
        (("quota day", 7200.0), "quota of the day spent: provider's reset in 2:00:00"),
        (("rejected", 0.0, 0.0, "auth"), "key rejected (auth): next call now"),
        (("quota requests", 0.5), "quota requests used up: next call in 0.5 s"),
        (("concurrency", 3.0), "all slots taken: next call when an answer arrives"),
        (("pace", 0.5), "learned rate reached: next call in 0.5 s"),
        (("", 0.0), "behind earlier calls: next call now"),
    ],
)
def test_reason_is_followed_by_the_next_call(wait: tuple[str, float], said: str) -> None:
    assert wait_text(*wait) == said


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (999, "999"),
        (12_340, "12.3k"),
        (999_400, "999k"),
        (999_700, "1M"),
        (4e6, "4M"),
        (1e9, "1,000M"),
        (2.5e10, "25,000M"),
    ],
)
def test_amounts_are_written_plainly(number: float, text: str) -> None:
    assert amount(number) == text


def test_a_quota_whose_next_call_is_due_is_not_used_up() -> None:
    assert wait_text("quota requests", 0.0) == "quota requests: the next call goes now, those behind it wait"


def test_a_key_that_never_answered_says_so() -> None:
    assert never_answered(0, 19) == never_answered(1, 500) == ""
    assert wait_text("pace", 11.0, 0.0, never_answered(0, 20)) == (
        "learned rate reached (no call of this key was ever answered: 20 refusals): next call in 11 s"
    )
