"""Anthropic's messages, whole and streamed, as its SDK parses them.

Bedrock's converse and invoke, whole and streamed, as boto3 and the Bedrock clients of other SDKs parse them.

The path decides whether an answer streams. `invoke` uses Anthropic's messages for any model.

Streams are in Amazon's event stream, `application/vnd.amazon.eventstream`. A message is its length and that of its
headers, a checksum of the two, the headers, the payload, and a checksum of all. Numbers are big-endian, checksums
CRC-32. botocore 1.44.5 `eventstream.py` reads it.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from tidegate.testing.dialects import TOO_MANY_TOKENS
from tidegate.testing.formats.base import (
    AnswerForm,
    Body,
    SimulatedEndpoint,
    SimulatedQuestion,
    SimulatedReply,
    SimulatedStream,
    always,
    bound_of,
    dumps,
    read_conversation,
    typed,
)


def read_messages(body: Body) -> SimulatedQuestion:
    """Read `messages`, `system`, `max_tokens` (required, as it is there), and `output_config.format`."""
    bound = bound_of(body, "max_tokens")
    question = read_conversation(body, bound)
    if bound is None:
        raise ValueError("max_tokens: Field required")
    wanted = (body.get("output_config") or {}).get("format") or {}
    form = AnswerForm(wanted.get("schema") or {}) if wanted.get("type") == "json_schema" else None
    return replace(question, form=form)


STOPS = ("max_tokens", "end_turn")
"""Words for the end of an answer: at its bound, and of itself."""


def _message(reply: SimulatedReply, content: list[dict[str, Any]], stop: str | None, produced: int) -> dict[str, Any]:
    return {
        "id": reply.id,
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {
            "input_tokens": reply.input_tokens - reply.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": reply.cached_tokens,
            "output_tokens": produced,
            "service_tier": "standard",
        },
    }


def whole_message(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    return _message(reply, [{"type": "text", "text": reply.text}], reply.finish(*STOPS), reply.output_tokens)


def stream_message(body: Body, reply: SimulatedReply) -> SimulatedStream:
    def delta(piece: str) -> bytes:
        return typed("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})

    head = typed("message_start", message=_message(reply, [], None, 1))
    head += typed("content_block_start", index=0, content_block={"type": "text", "text": ""}) + typed("ping")
    tail = typed("content_block_stop", index=0)
    stopped = {"stop_reason": reply.finish(*STOPS), "stop_sequence": None}
    tail += typed("message_delta", delta=stopped, usage={"output_tokens": reply.output_tokens})
    tail += typed("message_stop")
    broken = typed("error", error={"type": "overloaded_error", "message": "Overloaded"})
    return SimulatedStream(head, [delta(piece) for piece in reply.pieces], tail, broken)


MESSAGES = SimulatedEndpoint("anthropic", read_messages, whole_message, stream_message)


CONTENT_TYPE = "application/vnd.amazon.eventstream"

_TEXT = 7
"""Type of a header whose value is text, the only type that Bedrock sends."""


def framed(headers: dict[str, str], payload: bytes) -> bytes:
    named = b"".join(_frame_header(name, value) for name, value in headers.items())
    prelude = struct.pack(">II", 16 + len(named) + len(payload), len(named))
    begun = prelude + struct.pack(">I", zlib.crc32(prelude)) + named + payload
    return begun + struct.pack(">I", zlib.crc32(begun))


def frame(name: str, value: object) -> bytes:
    return framed({":event-type": name, ":content-type": "application/json", ":message-type": "event"}, dumps(value))


def exception(name: str, text: str) -> bytes:
    """Return the exception `name`, which ends a stream."""
    headers = {":exception-type": name, ":content-type": "application/json", ":message-type": "exception"}
    return framed(headers, dumps({"message": text}))


def _frame_header(name: str, value: str) -> bytes:
    return struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", _TEXT, len(value)) + value.encode()


BEDROCK_PREFIX = "/model/"

BEDROCK_BROKEN = exception("throttlingException", TOO_MANY_TOKENS)
"""Error of a broken stream: a refusal after a 200."""


def read_converse(body: Body) -> SimulatedQuestion:
    config = body.get("inferenceConfig")
    return read_conversation(body, bound_of(config, "maxTokens") if isinstance(config, Mapping) else None)


def _measured(reply: SimulatedReply) -> dict[str, Any]:
    total = reply.input_tokens + reply.output_tokens
    usage = {"inputTokens": reply.input_tokens, "outputTokens": reply.output_tokens, "totalTokens": total}
    return {"usage": usage, "metrics": {"latencyMs": 1}}


def whole_converse(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"text": reply.text}]}
    return {"output": {"message": message}, "stopReason": reply.finish(*STOPS), **_measured(reply)}


def stream_converse(body: Body, reply: SimulatedReply) -> SimulatedStream:
    def delta(piece: str) -> bytes:
        return frame("contentBlockDelta", {"delta": {"text": piece}, "contentBlockIndex": 0})

    tail = frame("contentBlockStop", {"contentBlockIndex": 0})
    tail += frame("messageStop", {"stopReason": reply.finish(*STOPS)})
    return SimulatedStream(
        head=frame("messageStart", {"role": "assistant"}),
        pieces=[delta(piece) for piece in reply.pieces],
        tail=tail + frame("metadata", _measured(reply)),
        broken=BEDROCK_BROKEN,
        content_type=CONTENT_TYPE,
    )


def stream_invoke(body: Body, reply: SimulatedReply) -> SimulatedStream:
    """Return Anthropic's events, each in the bytes of a `chunk`."""
    plain = stream_message(body, reply)
    return SimulatedStream(
        head=_chunks(plain.head),
        pieces=[_chunks(piece) for piece in plain.pieces],
        tail=_chunks(plain.tail),
        broken=BEDROCK_BROKEN,
        content_type=CONTENT_TYPE,
    )


def _chunks(events: bytes) -> bytes:
    lines = [line.removeprefix(b"data: ") for line in events.splitlines() if line.startswith(b"data: ")]
    return b"".join(frame("chunk", {"bytes": base64.b64encode(line).decode()}) for line in lines)


BEDROCK_ENDPOINTS: dict[str, SimulatedEndpoint] = {
    "converse": SimulatedEndpoint("bedrock", read_converse, whole_converse, None),
    "converse-stream": SimulatedEndpoint("bedrock", read_converse, whole_converse, stream_converse, streams=always),
    "invoke": SimulatedEndpoint("bedrock", read_messages, whole_message, None),
    "invoke-with-response-stream": SimulatedEndpoint(
        "bedrock", read_messages, whole_message, stream_invoke, streams=always
    ),
}


def bedrock_endpoint(path: str) -> tuple[SimulatedEndpoint | None, str]:
    model, _, action = path.removeprefix(BEDROCK_PREFIX).rpartition("/")
    return BEDROCK_ENDPOINTS.get(action), unquote(model)
