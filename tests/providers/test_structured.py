"""The IETF's fields in all their drafts."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.providers import COMPATIBLE, judge
from tidegate.providers._headers import read_fields


def read(limit=None, remaining=None, reset=None, combined=None, policy=None):
    fields = [None if f is None else f.encode() for f in (limit, remaining, reset, combined, policy)]
    readings, bad = read_fields(*fields, (1_800_000_000.0, 0.0))
    return [(r.name, r.unit, r.limit, r.remaining, r.reset_after, r.window) for r in readings], bad


def test_drafts_03_to_06_name_the_current_limit_first_and_policies_after_it():
    assert read("100, 100;w=10", "50", "5") == ([("requests-10s", "requests", 100, 50, 5, 10)], 0)
    assert read("50, 100;w=10, 50;w=60", "9", "5")[0][1] == ("requests-minute", "requests", 50, 9, 5, 60)
    several, bad = read("10, 10;w=1, 50;w=60, 1000;w=3600", "9", "1")
    assert several == [
        ("requests-s", "requests", 10, 9, 1, 1),
        ("requests-minute", "requests", 50, None, None, 60),
        ("requests-hour", "requests", 1000, None, None, 3600),
    ]
    assert bad == 0


def test_three_fields_without_policies_are_one_quota_of_unknown_window():
    assert read("60", "59", "12") == ([("ratelimit", "requests", 60, 59, 12, None)], 0)
    assert read(None, "2999", "1") == ([("ratelimit", "requests", None, 2999, 1, None)], 0)


@pytest.mark.parametrize(
    ("reset", "after", "resolution"),
    [(b"1800000007", 7.0, 1.0), (b"1800000007250", 7.25, 1e-3), (b"1800000007.25", 7.25, 0.01)],
)
def test_instant_in_place_of_a_time_counts_from_the_receipt_and_keeps_its_rounding(reset, after, resolution):
    headers = [(b"x-ratelimit-limit", b"80"), (b"x-ratelimit-remaining", b"9"), (b"x-ratelimit-reset", reset)]
    at = datetime.fromtimestamp(1_800_000_000, UTC)
    (reading,) = judge(COMPATIBLE, 200, headers, None, at).readings
    assert (reading.reset_after, reading.resolution, reading.from_receipt) == (after, resolution, True)
    assert reading.instant is None
    dated = [*headers, (b"date", b"Fri, 15 Jan 2027 08:00:01 GMT")]
    (reading,) = judge(COMPATIBLE, 200, dated, None, at).readings
    assert reading.instant == (1_800_000_000 + after, resolution, 1_800_000_001)


def test_draft_07_puts_all_three_into_one_field():
    expected = [("requests-10s", "requests", 100, 50, 5, 10)]
    assert read(combined="limit=100, remaining=50, reset=5", policy="100;w=10") == (expected, 0)


def test_draft_08_names_policies():
    readings, bad = read(combined='"default";r=50;t=30', policy='"burst";q=100;w=60,"daily";q=1000;w=86400')
    assert readings == [
        ("default", "requests", None, 50, 30, None),
        ("burst", "requests", 100, None, None, 60),
        ("daily", "requests", 1000, None, None, 86400),
    ]
    assert bad == 0


def test_the_hub_writes_two_strings_before_the_parameters():
    assert read(combined='"api";r=499;t=112', policy='"fixed window";"api";q=500;w=300') == (
        [("api", "requests", 500, 499, 112, 300)],
        0,
    )


def test_a_quota_of_bytes_is_dropped_and_one_of_tokens_is_kept():
    readings, _ = read(policy='"a";q=5;w=60;qu="content-bytes","b";q=6;w=60;qu="tokens";pk=:c2:')
    assert readings == [("b", "tokens", 6, None, None, 60)]


def test_commas_and_semicolons_in_a_string_do_not_split_it():
    assert read(policy='"a,b;c";q=5;w=60')[0] == [("requests-minute-155108", "requests", 5, None, None, 60)]


def test_an_instant_as_reset_counts_from_the_answer():
    assert read("60", "59", "1800000012")[0][0][4] == 12


@pytest.mark.parametrize("limit", ["-1", "0", "nan", "1e300", "x" * 10_000, "٣", ";;;", '"', ",", ""])
def test_an_unusable_limit_is_counted_and_gives_no_limit(limit):
    readings, bad = read(limit, "5", "5")
    assert all(reading[2] is None for reading in readings)
    assert bad >= 1


def test_remaining_is_never_above_the_limit():
    assert read("100, 100;w=10", "500", "5")[0][0][3] == 100
    assert read("100", "500", "5")[0][0][3] == 100


@given(*[st.none() | st.text(alphabet='"qwrt=;,:100 limtreang-\\', max_size=60) for _ in range(5)])
def test_fields_of_any_shape_are_read_without_error(limit, remaining, reset, combined, policy):
    readings, bad = read(limit, remaining, reset, combined, policy)
    assert bad >= 0
    for _, _, *numbers in readings:
        assert all(number is None or number >= 0 for number in numbers)


def test_a_policys_window_may_be_written_out():
    expected = [("requests-minute", "requests", 100, 98, 3, 60), ("requests-day", "requests", 10000, None, None, 86400)]
    assert read("100, 100;window=60, 10000;window=86400", "98", "3") == (expected, 0)
    assert read("100, 100;window=0", "98", "3")[1] == 1


def kong(**values):
    headers = {"ratelimit-limit": "3", "ratelimit-remaining": "2", "ratelimit-reset": "41", **values}
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    found = judge(COMPATIBLE, 200, pairs, None, datetime(2026, 1, 1, tzinfo=UTC)).readings
    return sorted((r.name, r.limit, r.remaining, r.reset_after) for r in found)


def test_a_quota_that_two_families_of_headers_state_is_one():
    minute = {"x_ratelimit_limit_minute": "3", "x_ratelimit_remaining_minute": "2"}
    assert kong(**minute) == [("minute", 3, 2, 41)]
    assert kong(**minute, x_ratelimit_reset_minute="40") == [("minute", 3, 2, 40)]
    other = {"x_ratelimit_limit_hour": "30", "x_ratelimit_remaining_hour": "2"}
    assert kong(**other) == [("hour", 30, 2, None), ("ratelimit", 3, 2, 41)]
    both = {**minute, "x_ratelimit_limit_hour": "3", "x_ratelimit_remaining_hour": "2"}
    assert len(kong(**both)) == 3
