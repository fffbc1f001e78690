"""Every value grammar, and what each refuses."""

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.providers import _values
from tidegate.providers._headers import HeaderPlaces
from tidegate.providers.refusal_limits import read_prose

GARBAGE = [
    b"", b" ", b"-1", b"+1", b"nan", b"NaN", b"inf", b"-inf", b"Infinity", b"1e300", b"1e3", b"0x10", b"1_000", b"1,2",
    b"10, 20", b"1.2.3", b".5", b"5.", "٣٤".encode(), "５".encode(), b"9" * 10_000, b"a" * 10_000, b"\x00", b"\xff\xfe",
    b"--", b"s", b"ms", b"6m 0s", b"1s1s", b"s6", b"-6ms", b"1:30", b"2026-13-45T99:99:99Z", b"Mon, 99 Foo 2026",
    b"unlimited", b"X-RATELIMIT-LIMIT-REQUESTS-XXX",
]  # fmt: skip


@pytest.mark.parametrize("value", GARBAGE)
def test_no_grammar_takes_garbage(value):
    assert _values.amount(value) is None
    assert _values.seconds(value) is None
    assert _values.instant(value) is None
    assert _values.http_date(value) is None
    assert _values.retry_after(value, 0.0) is None
    assert _values.time(value) is None
    assert _values.duration(value) is None


@pytest.mark.parametrize(
    ("value", "number"), [(b"0", 0), (b"30000", 30000), (b" 12 ", 12), (b"9999.5", 9999.5), (b"007", 7)]
)
def test_an_amount_is_digits(value, number):
    assert _values.amount(value) == number


def test_giants_that_mean_unlimited_are_no_amounts():
    assert _values.amount(b"9223372036854767616") is None
    assert _values.amount(None) is None


@pytest.mark.parametrize(
    ("value", "seconds", "resolution"),
    [
        (b"0s", 0, 1e-3),
        (b"6ms", 0.006, 1e-3),
        (b"8.64s", 8.64, 1e-3),
        (b"6m0s", 360, 1e-3),
        (b"1h23m31s", 5011, 1e-3),
        (b"2h47m48.417s", 10068.417, 1e-3),
        (b"17.399999999s", 17.399999999, 1e-9),
        (b"172.799999ms", 0.172799999, 1e-9),
        (b"7.44ms", 0.00744, 1e-5),
        (b"250us", 0.00025, 1e-6),
        ("250µs".encode(), 0.00025, 1e-6),
        (b"1d", 86400, 1e-3),
    ],
)
def test_a_go_duration_is_seconds_with_the_resolution_it_was_written_in(value, seconds, resolution):
    assert _values.duration(value) == pytest.approx((seconds, resolution))
    assert _values.time(value) == ("span", pytest.approx(seconds), pytest.approx(resolution))


@pytest.mark.parametrize(
    ("value", "form", "seconds", "resolution"),
    [
        (b"30", "bare", 30, 1.0),
        (b"33011.38", "span", 33011.38, 0.01),
        (b"1783063800", "instant", 1783063800, 1.0),
        (b"1783063800000", "instant", 1783063800, 1e-3),
        (b"2024-08-04T19:33:34Z", "instant", 1722800014, 1.0),
        (b"2024-08-04T21:33:34+02:00", "instant", 1722800014, 1.0),
        (b"2024-08-04T19:33:34.123456789Z", "instant", 1722800014.123456, 1e-9),
        (b"Sun, 04 Aug 2024 19:33:34 GMT", "instant", 1722800014, 1.0),
    ],
)
def test_a_time_is_read_by_its_form(value, form, seconds, resolution):
    assert _values.time(value) == (form, pytest.approx(seconds), pytest.approx(resolution))


@pytest.mark.parametrize("value", [b"200000000000", b"999999999999999", b"99999999999.5"])
def test_a_time_more_than_a_hundred_years_away_is_none(value):
    assert _values.time(value) is None


@pytest.mark.parametrize(
    "value",
    [
        b"Sun, 06 Nov 1994 08:49:37 GMT",
        b"Sunday, 06-Nov-94 08:49:37 GMT",
        b"Sun Nov  6 08:49:37 1994",
    ],
)
def test_all_three_http_dates_are_read(value):
    assert _values.http_date(value) == datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC).timestamp()


NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        (b"0", 0), (b"13", 13), (b"0.5", 0.5), (b" 7 ", 7), (b"315360000", 315360000), (b"1800000030", 30),
        (b"1799999990", 0), (b"Fri, 15 Jan 2027 08:01:00 GMT", 60), (b"Fri, 15 Jan 2027 07:00:00 GMT", 0),
        (b"4000000000", None), (b"99999999999", None), (b"1, 2", None),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date_within_a_hundred_years(value, wait):
    assert _values.retry_after(value, NOW) == wait


@pytest.mark.parametrize(
    ("value", "limit", "remaining", "period", "read"),
    [
        (500, 120, 119, 60, (0.5, 1e-3)),
        (350, 120, 119, 60, (0.35, 1e-3)),
        (7, 120000, 119986, 60, (0.007, 1e-3)),
        (3, 20000, 19999, 60, (0.003, 1e-3)),
        (1, 2000000, 1999962, 60, (0.001, 1e-3)),
        (30, 1500000, 745399, 60, (30, 1.0)),
        (1, 50, 49, 60, (1, 1.0)),
        (0, 9000, 8999, 10, (0, 1.0)),
        (0, 250, 249, 60, (0, 1.0)),
        (0, 100, 100, 60, (0, 1.0)),
        (0, 100, 0, 60, None),
        (400, 120000, 119986, 60, None),
        (5, None, 3, 60, None),
        (5, 3, None, 60, None),
        (5, 0, 0, 60, None),
    ],
)
def test_a_bare_integer_is_read_in_the_unit_that_fits_or_not_at_all(value, limit, remaining, period, read):
    assert _values.fit(value, limit, remaining, period) == read


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("please try again in 6ms.", 0.006),
        ("please try again in 1.2s.", 1.2),
        ("please try again in 7m12s. visit", 432),
        ("please try again in 50.597142857s. visit", 50.597142857),
        ("please try again in 1m26.4s", 86.4),
        ("please retry after 86400 seconds.", 86400),
        ("please wait 46 seconds before retrying", 46),
        ("please wait 0 seconds", 0),
        ("please retry in 48.939935699s.", 48.939935699),
        ("your rate limit resets in ~10s.", 10),
        ("try again in 2 minutes", 120),
        ("try again in 1 hour", 3600),
        ("try again in 20 milliseconds", 0.02),
        ("retry after 1 day", 86400),
        ("please wait a moment and try again", None),
        ("try again later", None),
        ("retry after -5 seconds", None),
        ("retry after 1e9 seconds", None),
        ("retry after 999999999 days", None),
        ("entry in 5s", None),
        ("try again in 1.5 seconds", 1.5),
        ("quota will be replenished in 5.03:23:11", 444191),
        ("quota will be replenished in 07:01:20.", 25280),
        ("usage limit (resets in 3h 21min)", 12060),
        ("reset after 2m)", 120),
        ("try again in 1:02:03", 3723),
        ("retry after: 30s", 30),
        ("you are blocked for 10 minutes", 600),
        ("try again in about 2 hrs 5 mins", 7500),
        ("try again in 3 models", None),
        ("try again in an hour", 3600),
        ("retry after a minute", 60),
        ("try again in 04:30 pm", None),
        ("retry your request after 8 s", 8),
        ("next request allowed in 15s", 15),
        ("you can make another request in 20 seconds", 20),
        ("cooldown: 30s remaining", 30),
        ("please slow down for 10 seconds", 10),
        ("retry_after=30", 30),
        ("retry-after: 12, x", 12),
        ("retrydelay: 34s", 34),
        ("retry_after_ms: 1500", 1.5),
        ("no gpu was available after 60s", None),
        ("you have 30 days left in your trial", None),
        ("max 30 requests in 60 seconds", None),
    ],
)
def test_prose_names_a_wait(text, wait):
    assert read_prose(text).wait == (None if wait is None else pytest.approx(wait))


@pytest.mark.parametrize(
    ("text", "limit", "requested", "unit", "window"),
    [
        ("on tokens per min (tpm): limit 30000, used 5, requested 32042.", 30000, 32042, "tokens", 60),
        ("on requests per day (rpd): limit 1000, used 1000, requested 1. please", 1000, 1, "requests", 86400),
        ("limit 7000, used 0, requested ~12903. please", 7000, 12903, None, None),
        ("limit of 20,000 input tokens per minute.", 20000, None, "input_tokens", 60),
        ("the rate limit is 8,000 output tokens per minute", 8000, None, "output_tokens", 60),
        ("rate limit of 10 per 60s exceeded for userbymodelbyminute", 10, None, "requests", 60),
        ("rate limit of 5 per 0s exceeded for userconcurrentrequests", 5, None, "concurrent_requests", 0),
        ("tokens per minute (actual/limit): 65605/16000", 16000, None, "tokens", 60),
        ("limited to 20 api calls / minute; trial limit", 20, None, "requests", 60),
        ("you sent 20 tokens per minute", None, None, None, None),
        ("exceeded the limit of 150 requests within a 10 second period", 150, None, "requests", 10),
        ("the limit of 100 times per apikey per minute", 100, None, "requests", 60),
        ("limited to 100 requests over a 24 hour period", 100, None, "requests", 86400),
        ("limit exceeded. upgrade to get 100 requests per minute", None, None, None, None),
        ("maximum of 3 concurrent requests", 3, None, "concurrent_requests", 0),
        ("request reached max organization concurrency: 2, please", 2, None, "concurrent_requests", 0),
        ("current rpm: 3, rpm limit: 2, current tpm: 9", 2, None, "requests", 60),
        ("limit of 40k tokens per minute", 40000, None, "tokens", 60),
        ("rate limit: 60 rpm", 60, None, "requests", 60),
        ("you exceeded 10 rps", 10, None, "requests", 1),
        ("quota of 20 qps exceeded", 20, None, "requests", 1),
        ("limit of 200k tpm exceeded", 200000, None, "tokens", 60),
        ("limit 5 req/s", 5, None, "requests", 1),
        ("you can only make 3 calls per second", 3, None, "requests", 1),
        ("50 per 1 minute", 50, None, "requests", 60),
        ("rate limit exceeded: 10 per 1 hour", 10, None, "requests", 3600),
        ("policy ip over ratelimit,limit:5,time:1 minute", 5, None, "requests", 60),
        ("user has 3 concurrent requests. max allowed: 3", 3, None, "concurrent_requests", 0),
        ("your plan allows 1 simultaneous request", 1, None, "concurrent_requests", 0),
        ("key has 1 concurrent requests in flight (limit 1); wait", 1, None, "concurrent_requests", 0),
        ("user hourly token limit of 100000 exceeded", 100000, None, "tokens", 3600),
        ("paid 50 per 1 month", None, None, None, None),
    ],
)
def test_prose_names_a_limit(text, limit, requested, unit, window):
    prose = read_prose(text)
    assert (prose.limit, prose.requested, prose.unit, prose.window) == (limit, requested, unit, window)
    assert prose.exceeds == (requested is not None and requested > limit)


def test_the_type_of_an_error_gives_the_unit_that_its_message_leaves_out():
    assert read_prose("limit 5, requested 6", frozenset({"tokens"})).unit == "tokens"


@given(st.binary(max_size=80))
def test_no_grammar_raises_or_gives_what_is_not_a_finite_number(value):
    numbers = [_values.amount(value), _values.seconds(value), _values.http_date(value), _values.retry_after(value, NOW)]
    for pair in (_values.time(value), _values.instant(value), _values.duration(value)):
        numbers += [number for number in pair if isinstance(number, float)] if pair is not None else []
    assert all(number is None or math.isfinite(number) for number in numbers)


@given(st.text(alphabet="limtpersqud 0123456789.,~:()/hms", max_size=4096))
def test_prose_of_any_shape_is_read_without_error(text):
    prose = read_prose(text)
    assert all(v is None or (math.isfinite(v) and v >= 0) for v in (prose.wait, prose.limit, prose.requested))


def test_names_of_headers_are_kept_as_they_were_sent_and_not_without_end() -> None:
    places = HeaderPlaces({b"retry-after": (-1, 1)})
    assert [places[name] for name in (b"Retry-After", b"retry-after", b"Server")] == [(-1, 1), (-1, 1), None]
    assert set(places) == {b"Retry-After", b"retry-after", b"Server"}
    for number in range(2000):
        assert places[b"X-%d" % number] is None
    assert places[b"RETRY-AFTER"] == (-1, 1)
    assert len(places) == 512
    assert HeaderPlaces({})[b"x" * 65] is None
