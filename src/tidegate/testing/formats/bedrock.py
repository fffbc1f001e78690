"""Bedrock's converse and invoke, whole and streamed, as boto3 and the Bedrock clients of other SDKs parse them.

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
from typing import Any
from urllib.parse import unquote

from tidegate.testing.dialects import TOO_MANY_TOKENS
from tidegate.testing.formats.anthropic import read_messages, stream_message, whole_message
from tidegate.testing.formats.base import (
    Body,
    SimulatedEndpoint,
    SimulatedQuestion,
    SimulatedReply,
    SimulatedStream,
    always,
    bound_of,
    dumps,
    text_of,
    texts_of,
    tokens_in,
)

CONTENT_TYPE = "application/vnd.amazon.eventstream"

_TEXT = 7
"""Type of a header whose value is text, the only type that Bedrock sends."""


def message(headers: dict[str, str], payload: bytes) -> bytes:
    named = b"".join(_header(name, value) for name, value in headers.items())
    prelude = struct.pack(">II", 16 + len(named) + len(payload), len(named))
    begun = prelude + struct.pack(">I", zlib.crc32(prelude)) + named + payload
    return begun + struct.pack(">I", zlib.crc32(begun))


def event(name: str, value: object) -> bytes:
    return message({":event-type": name, ":content-type": "application/json", ":message-type": "event"}, dumps(value))


def exception(name: str, text: str) -> bytes:
    """Return the exception `name`, which ends a stream."""
    headers = {":exception-type": name, ":content-type": "application/json", ":message-type": "exception"}
    return message(headers, dumps({"message": text}))


def _header(name: str, value: str) -> bytes:
    return struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", _TEXT, len(value)) + value.encode()


PREFIX = "/model/"

BROKEN = exception("throttlingException", TOO_MANY_TOKENS)
"""Error of a broken stream: a refusal after a 200."""


def read_converse(body: Body) -> SimulatedQuestion:
    texts = texts_of(body.get("messages"))
    config = body.get("inferenceConfig")
    size = sum(map(len, texts)) + len(text_of(body.get("system")))
    bound = bound_of(config, "maxTokens") if isinstance(config, Mapping) else None
    return SimulatedQuestion(texts[-1] if texts else "", tokens_in(size), bound)


def _stop(reply: SimulatedReply) -> str:
    return "max_tokens" if reply.cut_short else "end_turn"


def _measured(reply: SimulatedReply) -> dict[str, Any]:
    total = reply.input_tokens + reply.output_tokens
    usage = {"inputTokens": reply.input_tokens, "outputTokens": reply.output_tokens, "totalTokens": total}
    return {"usage": usage, "metrics": {"latencyMs": 1}}


def whole_converse(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"text": reply.text}]}
    return {"output": {"message": message}, "stopReason": _stop(reply), **_measured(reply)}


def stream_converse(body: Body, reply: SimulatedReply) -> SimulatedStream:
    def delta(piece: str) -> bytes:
        return event("contentBlockDelta", {"delta": {"text": piece}, "contentBlockIndex": 0})

    tail = event("contentBlockStop", {"contentBlockIndex": 0})
    tail += event("messageStop", {"stopReason": _stop(reply)})
    return SimulatedStream(
        head=event("messageStart", {"role": "assistant"}),
        pieces=[delta(piece) for piece in reply.pieces],
        tail=tail + event("metadata", _measured(reply)),
        broken=BROKEN,
        content_type=CONTENT_TYPE,
    )


def stream_invoke(body: Body, reply: SimulatedReply) -> SimulatedStream:
    """Return Anthropic's events, each in the bytes of a `chunk`."""
    plain = stream_message(body, reply)
    return SimulatedStream(
        head=_chunks(plain.head),
        pieces=[_chunks(piece) for piece in plain.pieces],
        tail=_chunks(plain.tail),
        broken=BROKEN,
        content_type=CONTENT_TYPE,
    )


def _chunks(events: bytes) -> bytes:
    lines = [line.removeprefix(b"data: ") for line in events.splitlines() if line.startswith(b"data: ")]
    return b"".join(event("chunk", {"bytes": base64.b64encode(line).decode()}) for line in lines)


ENDPOINTS: dict[str, SimulatedEndpoint] = {
    "converse": SimulatedEndpoint("bedrock", read_converse, whole_converse, None),
    "converse-stream": SimulatedEndpoint("bedrock", read_converse, whole_converse, stream_converse, streams=always),
    "invoke": SimulatedEndpoint("bedrock", read_messages, whole_message, None),
    "invoke-with-response-stream": SimulatedEndpoint(
        "bedrock", read_messages, whole_message, stream_invoke, streams=always
    ),
}


def endpoint_of(path: str) -> tuple[SimulatedEndpoint | None, str]:
    model, _, action = path.removeprefix(PREFIX).rpartition("/")
    return ENDPOINTS.get(action), unquote(model)
