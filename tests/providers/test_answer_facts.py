"""Finish reasons and request ids of answers, in the words of each provider."""

from __future__ import annotations

import json

import pytest

from tidegate.providers import finish_reason_of, request_id_of


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"choices": [{"finish_reason": "length"}], "usage": {}}, "length"),
        ({"content": [], "stop_reason": "end_turn", "stop_sequence": None}, "end_turn"),
        ({"candidates": [{"finishReason": "MAX_TOKENS"}]}, "MAX_TOKENS"),
        ({"output": {}, "stopReason": "tool_use"}, "tool_use"),
        ({"object": "response", "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
         "max_output_tokens"),
        ({"object": "response", "status": "completed", "incomplete_details": None}, "completed"),
        ({"object": "list", "data": []}, None),
        ({"choices": [{"finish_reason": None}]}, None),
    ],
)  # fmt: skip
def test_reason_of_every_dialect(body: object, reason: str | None) -> None:
    assert finish_reason_of(json.dumps(body).encode()) == reason
    assert finish_reason_of(json.dumps(body, indent=1).encode()) == reason


def test_last_chunk_of_a_stream_has_the_reason() -> None:
    chunks = [
        {"choices": [{"delta": {}, "finish_reason": None}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
    ]
    stream = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in chunks) + b"data: [DONE]\n\n"
    assert finish_reason_of(stream) == "stop"
    assert finish_reason_of(b"\xff" * 100_000) is None


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([(b"X-Request-Id", b"req_1")], "req_1"),
        ([(b"request-id", b"req_2"), (b"x-other", b"1")], "req_2"),
        ([(b"x-amzn-RequestId", b"abc")], "abc"),
        ([(b"request-id", b"second"), (b"x-request-id", b"first")], "first"),
        ([(b"x-request-id", b"a\x00b")], None),
        ([(b"x-request-id", b"")], None),
        ([], None),
    ],
)
def test_request_id_of_every_header(headers: list[tuple[bytes, bytes]], found: str | None) -> None:
    assert request_id_of(headers) == found


def test_a_long_request_id_is_cut() -> None:
    assert len(request_id_of([(b"x-request-id", b"x" * 1_000)]) or "") == 128
