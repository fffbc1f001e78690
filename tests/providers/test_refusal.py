"""Refusals in the envelopes of services and gateways."""

import json

import pytest

from tidegate.providers.refusal_body import NOTHING, refusal_in, refusal_of

ENVELOPES = [
    {"error": {"code": "slow", "message": "Too fast"}},
    {"errors": [{"code": "slow", "message": "Too fast"}], "success": False},
    {"fault": {"faultstring": "Too fast", "detail": {"errorcode": "slow"}}},
    {"detail": {"status": "slow", "message": "Too fast"}},
    {"Response": {"Error": {"Code": "slow", "Message": "Too fast"}, "RequestId": "1"}},
    {"ResponseMetadata": {"Error": {"Code": "slow", "Message": "Too fast"}}},
    {"header": {"code": "slow", "message": "Too fast"}},
    {"errorCode": "slow", "errorMessage": "Too fast"},
    {"error_code": "slow", "error_msg": "Too fast"},
    {"status": "slow", "detail": "Too fast"},
]


@pytest.mark.parametrize("document", ENVELOPES)
def test_every_envelope_gives_the_code_and_the_message(document):
    refusal = refusal_of(json.dumps(document).encode())
    assert refusal.text == "too fast"
    assert "slow" in refusal.codes


@pytest.mark.parametrize(
    ("fields", "wait", "until"),
    [
        ({"retry_after": 7}, 7, None),
        ({"retryAfter": "30s"}, 30, None),
        ({"retryAfterMs": 1500}, 1.5, None),
        ({"resetsInSeconds": 60}, 60, None),
        ({"clears_in": 252}, 252, None),
        ({"reset_at": 1767225600}, None, 1767225600),
        ({"resetAt": "2026-01-01T00:00:00Z"}, None, 1767225600),
        ({"details": {"retry_after_seconds": 5}}, 5, None),
        ({"nextAccessTime": "2026-Jan-01 02:00:00+0200 UTC"}, None, 1767225600),
        ({"nextAccessTime": "2026-Jan-41 02:00:00+0200 UTC"}, None, None),
        ({"retry": 3, "reset": 4, "waiting": 5, "retry_after": "soon"}, None, None),
    ],
)
def test_a_field_names_the_wait_or_its_end(fields, wait, until):
    refusal = refusal_in({"error": {"message": "x", **fields}})
    assert (refusal.wait, refusal.until) == (wait, until)


def test_all_texts_are_words_and_the_innermost_is_the_message():
    refusal = refusal_in(
        {"title": "Too Many Requests", "error": {"message": "Daily limit", "metadata": {"raw": "Raw"}}}
    )
    assert refusal.text == "daily limit"
    assert refusal.words == "daily limit too many requests raw"


def test_a_list_of_errors_is_read_after_the_message_beside_it():
    refusal = refusal_in({"error": {"message": "Outer", "errors": [{"message": "Inner", "reason": "why"}]}})
    assert refusal.text == "outer"
    assert "why" in refusal.codes


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"error": "RATE_LIMIT_EXCEEDED", "message": "Slow down"}, "rate_limit_exceeded"),
        ({"error": {"code": "MonthlyQuotaExceeded"}}, "monthly_quota_exceeded"),
        ({"error": {"code": "MonthlyQuotaExceeded"}}, "monthlyquotaexceeded"),
        ({"error": {"code": "rate-limited:pro"}}, "rate-limited"),
    ],
)
def test_a_code_is_read_in_the_place_of_a_message_and_with_its_words_apart(document, code):
    assert code in refusal_in(document).codes


def test_one_ordinary_word_is_no_code():
    assert refusal_in({"error": "Overloaded"}).codes == frozenset()


def test_messages_in_lists_and_in_objects_beside_the_error_are_words():
    assert (
        refusal_in({"error": {"message": "No", "details": ["Rate limit interval"]}}).words == "no rate limit interval"
    )
    debug = {"error": {"code": "resource_exhausted", "debug": {"title": "High Load"}}}
    assert refusal_in(debug).words == "high load"


@pytest.mark.parametrize(
    ("fields", "unit", "window", "limit"),
    [
        ({"limit": 20, "window": "60s"}, "requests", 60, 20),
        ({"limit": "1000r/s"}, "requests", 1, 1000),
        ({"limit": "40k tokens/min"}, "tokens", 60, 40000),
        ({"limit": 100, "limit_type": "per_minute"}, "requests", 60, 100),
        ({"limit": 5, "period": "daily"}, "requests", 86400, 5),
        ({"limit": "7", "interval": "hour", "unit": "tokens"}, "tokens", 3600, 7),
        ({"max_requests": 5, "window_seconds": 10}, "requests", 10, 5),
    ],
)
def test_fields_state_a_limit_and_its_window(fields, unit, window, limit):
    assert refusal_in({"error": {"message": "x", **fields}}).exceeded == ((unit, window, limit),)


@pytest.mark.parametrize(
    "fields",
    [{"limit": 20}, {"limit": True, "window": 60}, {"limit": "all", "window": "x"}, {"limit": 5, "window": -1},
     {"limit": 5, "window": True}, {"limit": 0, "window": "60s"}, {"limit": 5, "window": "a" * 999}],
)  # fmt: skip
def test_a_limit_without_a_window_is_none(fields):
    assert refusal_in({"error": {"message": "x", **fields}}).exceeded == ()


@pytest.mark.parametrize("body", [None, b"", b"<html>", b"{cut", b"[]", b"3"])
def test_other_bodies_hold_no_refusal(body):
    assert refusal_of(body) in (NOTHING, NOTHING._replace(text="3", words="3"))


def test_a_deeply_nested_error_is_not_followed():
    document = {"error": {"error": {"error": {"error": {"error": {"message": "deep"}}}}}}
    assert refusal_in(document).text == ""
