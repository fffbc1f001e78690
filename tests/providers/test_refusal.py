"""Refusals in the envelopes of services and gateways."""

import json

import pytest

from tidegate.providers._refusal import NOTHING, refusal_in, refusal_of

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


@pytest.mark.parametrize("body", [None, b"", b"<html>", b"{cut", b"[]", b"3"])
def test_other_bodies_hold_no_refusal(body):
    assert refusal_of(body) in (NOTHING, NOTHING._replace(text="3", words="3"))


def test_a_deeply_nested_error_is_not_followed():
    document = {"error": {"error": {"error": {"error": {"error": {"message": "deep"}}}}}}
    assert refusal_in(document).text == ""
