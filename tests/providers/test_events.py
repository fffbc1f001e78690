"""Failures inside a good stream, and what only looks like one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.values import Kind
from tidegate.providers import COMPATIBLE, has_content, judge_event
from tidegate.providers.anthropic import ANTHROPIC
from tidegate.providers.openai import OPENAI


def event(document, name=""):
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(document)}\n\n".encode()


def chat(text):
    return event({"object": "chat.completion.chunk", "choices": [{"delta": {"content": text}}]})


@pytest.mark.parametrize(
    "text", ["an error", '"error"', '{"error": {"type": "overloaded_error"}}', 'event: error\ndata: {"error": 1}\n\n']
)
def test_what_a_model_writes_is_no_failure(text):
    assert judge_event(OPENAI, chat(text)) is None
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}
    assert judge_event(ANTHROPIC, event(delta, "content_block_delta")) is None


@pytest.mark.parametrize(
    "chunk",
    [
        b"",
        b": keep-alive\n\n",
        b"data: [DONE]\n\n",
        event({"choices": [], "error": None}),
        b'data: {"type":"response.completed","response":{"error":null,"usage":{}}}\n\n',
        event({"choices": [{"finish_reason": "error"}]}),
        event({"type": "response.output_item.done", "item": {"error": {"message": "tool"}}}),
        b'data: {"error": {"message": "cut in the mid',
        b'd": 5}}], "error": {"message": "x"}}\n\n',
        b'{"x": "error"}',
        b'data: ["error"]\n\n',
        b'data: {"error"' + b"[" * 100_000 + b"\n\n",
        b'{"error_code": 0, "error_msg": "", "result": "x"}',
        event({"choices": [{"delta": {}}], "base_resp": {"status_code": 0, "status_msg": ""}}),
        event({"choices": [{"delta": {"content": '"base_resp": {"status_code": 1002}'}}]}),
        b'{"choices": [{"message": {"base_resp": {"status_code": 1002}}}], "base_resp": {"status_code": 0}}',
        b'{"Response": {"Result": {"Error": null}, "RequestId": "a"}}',
        b'{"success": false}',
        event({"choices": [{"delta": {"content": '"success":false,"code":1302,"msg":"rate limit exceeded"'}}]}),
        event({"choices": [{"message": {"tool": {"success": False, "message": "rate limit exceeded"}}}]}),
        event({"success": False, "code": 1302, "msg": "rate limit exceeded", "choices": [{"delta": {"content": "5"}}]}),
        event({"error": {"message": "", "code": 0, "type": None, "details": {}}, "id": "x"}),
        b'{\n"choices": [\n{"success": false, "code": 1302, "msg": "rate limit exceeded"}\n]\n}',
    ],
)
def test_an_ordinary_chunk_is_no_failure(chunk):
    assert judge_event(COMPATIBLE, chunk) is None


@pytest.mark.parametrize(
    ("provider", "chunk", "kind"),
    [
        (ANTHROPIC, event({"type": "error", "error": {"type": "overloaded_error"}}, "error"), Kind.OVERLOADED),
        (ANTHROPIC, event({"type": "error", "error": {"type": "rate_limit_error"}}, "error"), Kind.RATE_LIMIT),
        (ANTHROPIC, event({"type": "error", "error": {"type": "api_error"}}, "error"), Kind.TRANSIENT),
        (OPENAI, event({"error": {"type": "server_error", "message": "x"}}), Kind.TRANSIENT),
        (OPENAI, event({"error": {"code": "insufficient_quota"}}), Kind.QUOTA_EXHAUSTED),
        (OPENAI, event({"type": "error", "code": "rate_limit_exceeded", "message": "x"}, "error"), Kind.RATE_LIMIT),
        (OPENAI, event({"type": "response.failed", "response": {"error": {"code": "server_error"}}}), Kind.TRANSIENT),
        (COMPATIBLE, event({"error": "The request queue is full.", "code": 503}), Kind.OVERLOADED),
        (COMPATIBLE, event({"error": {"code": 502, "message": "Provider returned error"}}), Kind.TRANSIENT),
        (COMPATIBLE, event({"error": {"error": {"code": 429, "message": "rate limit"}}}), Kind.RATE_LIMIT),
        (COMPATIBLE, b'{"error":"model overloaded"}\n', Kind.OVERLOADED),
        (COMPATIBLE, b'{\n "error": {\n  "code": "limit_burst_rate"\n }\n}', Kind.RATE_LIMIT),
        (COMPATIBLE, b'event:error\ndata:{"code":"limit_burst_rate","message":"x"}\n\n', Kind.RATE_LIMIT),
        (COMPATIBLE, b"event: error\ndata: gone\n\n", Kind.TRANSIENT),
        (COMPATIBLE, b"event: error\ndata: the model is overloaded\n\n", Kind.OVERLOADED),
        (COMPATIBLE, b'{"error_code": 18, "error_msg": "Open api qps request limit reached"}', Kind.RATE_LIMIT),
        (COMPATIBLE, event({"Response": {"Error": {"Code": "E", "Message": "No credits left"}}}), Kind.QUOTA_EXHAUSTED),
        (COMPATIBLE, b'{"success": false, "code": 1302, "msg": "rate limit exceeded"}', Kind.RATE_LIMIT),
        (COMPATIBLE, b'{"error_code": 336, "error_msg": "bad"}', Kind.PERMANENT),
        (COMPATIBLE, b'[{\n "error": {\n  "code": 503,\n  "message": "overloaded"\n }\n}\n]', Kind.OVERLOADED),
        (COMPATIBLE, chat("hello") + event({"error": {"message": "overloaded", "code": 503}}), Kind.OVERLOADED),
    ],
)
def test_a_failure_in_a_stream_is_judged_like_any_other(provider, chunk, kind):
    outcome = judge_event(provider, chunk)
    assert outcome.kind is kind
    assert outcome.status is None


@pytest.mark.parametrize(
    ("events", "found"),
    [
        (event({"type": "message_start", "message": {"role": "assistant", "content": []}}, "message_start"), False),
        (event({"type": "content_block_start", "content_block": {"type": "text", "text": ""}}), False),
        (event({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "5"}}), True),
        (event({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}), True),
        (event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}), False),
        (event({"choices": [{"index": 0, "delta": {"reasoning_content": "So"}}]}), True),
        (event({"type": "response.created", "response": {"output": [], "text": {"format": {"type": "text"}}}}), False),
        (event({"type": "response.output_text.delta", "delta": "5"}), True),
        (event({"candidates": [{"content": {"parts": [{"text": "5"}]}}]}), True),
        (b'{"model":"m","message":{"role":"assistant","content":"5"},"done":false}\n', True),
        (b':event-type\x07\x00\x05chunk{"bytes":"eyJ0eXBlIjoiY29udGVudCJ9"}', True),
        (event({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error"), False),
        (event({"text": "You have exceeded your rate limit.", "error_type": "rate"}, "error"), False),
        (b'event:error\r\nid: 3\r\ndata: {\r\ndata: "text": "Too fast"}\r\n\r\n', False),
        (event({"text": "Par"}, "text") + event({"text": "Too fast"}, "error"), True),
        (event({"text": "Too fast"}, "error") + event({"text": "Par"}, "text"), True),
    ],
)
def test_an_answer_has_begun_with_its_first_piece(events, found):
    assert has_content(events) is found


def test_the_wait_that_an_event_names_is_kept():
    failure = {"type": "response.failed", "response": {"error": {"message": "Please try again in 1.5s."}}}
    assert judge_event(OPENAI, event(failure)).retry_after == 1.5
    assert judge_event(OPENAI, event({"error": "x", "retry_after": 2})).retry_after == 2


def test_a_failure_too_long_to_read_is_still_a_failure_if_its_event_says_so():
    long = b'{"error": "' + b"a" * 300_000 + b'"}'
    assert judge_event(COMPATIBLE, b"event: error\ndata: " + long + b"\n\n").kind is Kind.TRANSIENT
    assert judge_event(COMPATIBLE, b"data: " + long + b"\n\n") is None


@given(st.binary(max_size=100) | st.text(max_size=60).map(lambda text: f'data: {{"error": {text}}}'.encode()))
def test_any_chunk_is_no_failure_or_a_judged_one(chunk):
    for each in (b"event: error\n" + chunk, chunk):
        outcome = judge_event(COMPATIBLE, each)
        assert outcome is None or outcome.kind is not Kind.OK
