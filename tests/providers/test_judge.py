"""What an answer comes to: the values to survive, the order of the rows, and that nothing raises."""

import json
import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.values import CAPACITY, Cause, Kind
from tidegate.providers import COMPATIBLE, TABLES, dimensions, judge
from tidegate.providers.anthropic import ANTHROPIC
from tidegate.providers.clouds import AZURE
from tidegate.providers.openai import OPENAI

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def answer(provider, status, headers=None, body=None, now=NOW):
    pairs = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    raw = json.dumps(body).encode() if isinstance(body, dict | list | str) else body
    return judge(provider, status, pairs, raw, now)


def only(outcome):
    (reading,) = outcome.readings
    return reading


def requests(**values):
    return {f"x-ratelimit-{key}-requests": value for key, value in values.items()}


def test_a_good_answer_without_headers_teaches_nothing():
    outcome = answer(OPENAI, 200)
    assert (outcome.kind, outcome.readings, outcome.retry_after, outcome.ignored) == (Kind.OK, (), None, 0)


@pytest.mark.parametrize("status", [200, 201, 204, 301, 304])
def test_retry_after_on_an_answer_that_is_no_refusal_is_never_acted_on(status):
    assert answer(ANTHROPIC, status, {"retry-after": "55", "retry-after-ms": "9"}).retry_after is None


def test_header_names_are_read_in_any_case():
    outcome = answer(OPENAI, 200, {"X-RateLimit-Limit-Requests": "10", "X-RATELIMIT-REMAINING-REQUESTS": "9"})
    assert (only(outcome).limit, only(outcome).remaining) == (10, 9)


@pytest.mark.parametrize(
    ("headers", "ignored"),
    [
        (requests(limit="-1", remaining="-1", reset="0"), 3),
        (requests(limit="0", remaining="0", reset="0"), 3),
        (requests(limit="NaN", remaining="5"), 2),
        (requests(limit="1e300"), 1),
        (requests(limit="inf"), 1),
        (requests(limit="10, 20"), 1),
        (requests(limit="9223372036854767616", remaining="9223372036854767616"), 2),
        (requests(limit="9" * 10_000), 1),
        (requests(limit="x" * 10_000), 1),
        (requests(remaining="-1"), 1),
        (requests(remaining="9223372036854767616"), 1),
        (requests(reset="-5s"), 1),
        (requests(reset="500"), 1),
        (requests(reset="9999999999999s"), 1),
    ],
)
def test_unusable_values_are_dropped_and_counted(headers, ignored):
    outcome = answer(OPENAI, 200, headers)
    assert outcome.readings == ()
    assert outcome.ignored == ignored


def test_unicode_digits_are_no_digits():
    outcome = judge(OPENAI, 200, [(b"x-ratelimit-limit-requests", "٣٤".encode())], None, NOW)
    assert (outcome.readings, outcome.ignored) == ((), 1)


def test_remaining_above_the_limit_is_clamped_and_counted():
    outcome = answer(OPENAI, 200, requests(limit="10", remaining="19"))
    assert (only(outcome).remaining, outcome.ignored) == (10, 1)


def test_a_header_sent_twice_with_two_values_is_a_list_and_unusable():
    pairs = [(b"x-ratelimit-remaining-requests", b"5"), (b"x-ratelimit-remaining-requests", b"7")]
    assert judge(OPENAI, 200, pairs, None, NOW).readings == ()
    assert only(judge(OPENAI, 200, pairs[:1] * 2, None, NOW)).remaining == 5


def test_policies_sent_in_two_lines_are_one_list():
    pairs = [(b"ratelimit-policy", b'"a";q=5;w=60'), (b"ratelimit-policy", b'"b";q=6;w=1')]
    assert [reading.name for reading in judge(COMPATIBLE, 200, pairs, None, NOW).readings] == ["a", "b"]


def test_a_reset_that_is_an_instant_counts_from_the_servers_own_date():
    reset = {"anthropic-ratelimit-requests-reset": "2025-06-01T12:00:30Z"}
    assert only(answer(ANTHROPIC, 200, {**reset, "date": "Sun, 01 Jun 2025 12:00:10 GMT"})).reset_after == 20
    ours = datetime(2025, 6, 1, 14, 0, 25, tzinfo=timezone(timedelta(hours=2)))
    assert only(answer(ANTHROPIC, 200, reset, now=ours)).reset_after == 5
    assert only(answer(ANTHROPIC, 200, {**reset, "date": "yesterday"}, now=ours)).reset_after == 5
    assert only(answer(ANTHROPIC, 200, {**reset, "date": "Sun, 01 Jun 2025 12:01:10 GMT"})).reset_after == 0


def test_a_token_level_in_thousands_has_a_quantum_of_a_thousand():
    def tokens(limit, remaining):
        return {"anthropic-ratelimit-tokens-limit": limit, "anthropic-ratelimit-tokens-remaining": remaining}

    assert only(answer(ANTHROPIC, 200, tokens("80000", "79000"))).quantum == 1000
    assert only(answer(ANTHROPIC, 200, tokens("80000", "19"))).quantum == 1
    assert only(answer(ANTHROPIC, 200, tokens("5000", "4000"))).quantum == 1


def test_a_quota_is_of_the_window_its_documents_or_headers_say_and_else_of_an_open_one():
    assert only(answer(ANTHROPIC, 200, {"anthropic-ratelimit-requests-limit": "5"})).window == 60
    assert only(answer(OPENAI, 200, requests(limit="5"))).window is None
    assert only(answer(AZURE, 200, requests(limit="5", renewalperiod="10"))).window == 10
    assert only(answer(COMPATIBLE, 200, {"x-ratelimit-limit-req-10-second": "5"})).window == 10
    assert answer(AZURE, 200, requests(limit="5", renewalperiod="-10")).ignored == 1


def test_azures_quota_refills_continuously_where_it_tells_its_period_and_else_at_once():
    assert only(answer(AZURE, 200, requests(limit="5", renewalperiod="60"))).refill == "continuous"
    assert only(answer(AZURE, 200, requests(limit="5", remaining="4"))).refill == "fixed"


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry-after": "1", "retry-after-ms": "0"}, 1),
        ({"retry-after": "1", "retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after": "315360000"}, 315360000),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "NaN"}, None),
        ({"retry-after": "1e300"}, None),
        ({"retry-after": "99999999999"}, None),
        ({"retry-after": "x" * 10_000}, None),
        ({"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT"}, 60),
        ({"retry-after": "Thu, 01 Jan 2026 00:01:00 GMT", "date": "Thu, 01 Jan 2026 00:00:50 GMT"}, 10),
    ],
)
def test_the_wait_is_the_larger_one_and_garbage_is_counted(headers, wait):
    outcome = answer(OPENAI, 429, headers)
    assert outcome.retry_after == wait
    assert outcome.ignored == (1 if wait is None else 0)


def test_headers_before_body_and_body_before_prose_name_the_wait():
    body = {"error": {"message": "try again in 3s"}, "retry_after": 2}
    assert answer(OPENAI, 429, {"retry-after": "1"}, body).retry_after == 1
    assert answer(OPENAI, 429, {}, body).retry_after == 2
    assert answer(OPENAI, 429, {}, {"error": {"message": "try again in 3s"}}).retry_after == 3


@pytest.mark.parametrize("wait", [-1, math.nan, math.inf, 1e300, True, "soon", [5]])
def test_an_unusable_wait_in_the_body_is_no_wait(wait):
    assert answer(OPENAI, 429, {}, {"retry_after": wait}).retry_after is None


def test_a_code_decides_before_the_message_does():
    body = {"error": {"code": "rate_limit_exceeded", "message": "you exceeded your current quota"}}
    assert answer(OPENAI, 429, {}, body).kind is Kind.RATE_LIMIT


@pytest.mark.parametrize("text", ["overloadedness", "requests per daylight", "reoverloaded"])
def test_phrases_are_found_as_whole_words_only(text):
    assert answer(COMPATIBLE, 503, {}, {"error": {"message": text}}).cause is Cause.UNAVAILABLE
    assert answer(COMPATIBLE, 429, {}, {"error": {"message": text}}).row == "common:rate_limit"


def test_an_invalid_request_that_quotes_a_refusal_is_no_refusal():
    body = {"error": {"type": "invalid_request_error", "message": "'Rate limit reached, overloaded' is too long"}}
    assert answer(OPENAI, 400, {}, body).kind is Kind.PERMANENT


def test_the_same_words_mean_money_at_openai_and_a_rate_elsewhere():
    body = {"error": {"message": "You exceeded your current quota, please check your plan and billing details."}}
    assert answer(OPENAI, 429, {}, body).cause is Cause.MONEY
    assert answer(COMPATIBLE, 429, {}, body).cause is Cause.RATE


def test_a_limit_in_prose_joins_the_quota_of_the_same_window_and_stands_alone_otherwise():
    tpm = {"error": {"message": "on tokens per min (TPM): Limit 30000, Used 1, Requested 2.", "type": "tokens"}}
    rpm = {"error": {"message": "on requests per min (RPM): Limit 30, Used 30, Requested 1.", "type": "requests"}}
    assert only(answer(OPENAI, 429, {}, tpm)).name == "tokens"
    assert only(answer(OPENAI, 429, {}, rpm)).name == "requests-minute"
    known = {"x-ratelimit-limit-tokens": "30000", "x-ratelimit-remaining-tokens": "7"}
    assert only(answer(OPENAI, 429, known, tpm)).remaining == 7
    other = {"x-ratelimit-limit-tokens": "90000", "x-ratelimit-remaining-tokens": "7"}
    assert only(answer(OPENAI, 429, other, tpm)).limit == 90000


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"[[]]", b"{}", b'"text"', b"5", b"not json", b"\xff\xfe\x00", b"{" * 100_000,
        b"[" * 100_000, b'{"error":' * 50_000, b'{"error": []}', b'{"error": {"message": {"a": 1}, "code": []}}',
        b'{"error": {"code": 429, "type": null, "message": 7}}', b'{"error": {"message": "{\\"error\\": 5}"}}',
        b'{"error": {"message": "{broken"}}', b"<html>429</html>", b'{"error": "' + b"a" * 1_000_000 + b'"}',
        b'{"retry_after": ' + b"9" * 5000 + b"}", b"a" * 1_000_000,
    ],
)  # fmt: skip
def test_a_429_is_a_rate_limit_whatever_its_body(body):
    outcome = answer(OPENAI, 429, {}, body)
    assert (outcome.kind, outcome.cause, outcome.retry_after) == (Kind.RATE_LIMIT, Cause.RATE, None)


def test_an_array_of_one_error_and_json_inside_a_message_are_read():
    inner = {"error": {"code": "insufficient_quota", "message": "x"}}
    assert answer(OPENAI, 429, {}, [inner]).cause is Cause.MONEY
    assert answer(OPENAI, 429, {}, {"error": {"message": json.dumps(inner)}}).cause is Cause.MONEY


@pytest.mark.parametrize("provider", TABLES, ids=lambda table: table.name)
def test_every_error_status_has_a_row(provider):
    for status in range(400, 600):
        outcome = answer(provider, status)
        assert outcome.kind is not Kind.OK
        assert outcome.row != "unknown"
        documented = outcome.row.startswith(f"{provider.name}:")
        assert documented or (outcome.kind in CAPACITY) == (status in (429, 503, 529))


def test_a_subscriptions_rate_limit_is_not_taken_for_a_throttle_of_the_servers():
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": "Rate limited"}}
    assert answer(ANTHROPIC, 429, {}, body).kind is Kind.OVERLOADED
    assert answer(ANTHROPIC, 429, {"anthropic-ratelimit-unified-status": "allowed"}, body).kind is Kind.RATE_LIMIT


def test_a_placeholder_shows_a_scrubbed_recording_of_which_nothing_is_real():
    scrubbed = requests(limit="X-RATELIMIT-LIMIT-REQUESTS-XXX")
    assert answer(OPENAI, 200, {**scrubbed, "x-ratelimit-limit-input-images": "50"}).readings == ()
    text = requests(limit="unlimited")
    assert len(answer(OPENAI, 200, {**text, "x-ratelimit-limit-input-images": "50"}).readings) == 1


def test_usage_is_read_from_the_body_of_a_good_answer():
    body = {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    assert answer(OPENAI, 200, {}, body).usage.output_tokens == 4


VALUES = st.one_of(
    st.integers(-10, 10**20).map(str),
    st.floats().map(str),
    st.sampled_from(["-1", "0", "6ms", "1h2m3s", "2026-01-01T00:00:10Z", "1783063800", "", "٣", "100, 100;w=10"]),
    st.text(max_size=30),
)
NAMES = st.sampled_from(sorted({name for table in TABLES for name in table.places}))


@given(
    st.sampled_from(TABLES),
    st.sampled_from([200, 400, 402, 413, 429, 500, 503, 529]),
    st.lists(st.tuples(NAMES, VALUES.map(lambda text: text.encode("utf-8", "replace")) | st.binary(max_size=20))),
    st.none() | st.binary(max_size=60) | st.text(max_size=60).map(lambda t: json.dumps({"error": t}).encode()),
)
def test_no_answer_raises_or_teaches_what_is_not_a_finite_positive_number(provider, status, headers, body):
    outcome = judge(provider, status, headers, body, NOW)
    numbers = [outcome.retry_after, outcome.ignored]
    for reading in outcome.readings:
        numbers += [reading.limit, reading.remaining, reading.reset_after, reading.window, reading.resolution]
        assert reading.limit is None or reading.limit > 0
        assert None in (reading.limit, reading.remaining) or reading.remaining <= reading.limit
    assert all(number is None or (math.isfinite(number) and number >= 0) for number in numbers)
    dimensions(outcome, provider)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "details", "retry_after", "status", "response"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(TABLES), st.sampled_from([400, 429, 503]), JSON)
def test_no_json_body_of_any_shape_raises(provider, status, document):
    outcome = judge(provider, status, [], json.dumps(document).encode(), NOW)
    assert outcome.retry_after is None or (math.isfinite(outcome.retry_after) and outcome.retry_after >= 0)
