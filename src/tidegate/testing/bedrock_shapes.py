"""Bedrock's converse and invoke, whole and streamed, as boto3 and the Bedrock clients of other SDKs parse them.

Whether an answer streams is said by the path. `invoke` speaks Anthropic's messages, whatever the model is called.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from tidegate.testing import eventstream
from tidegate.testing.anthropic_shapes import read_messages, stream_message, whole_message
from tidegate.testing.bedrock_prose import TOO_MANY_TOKENS
from tidegate.testing.replies import (
    Body,
    Endpoint,
    Question,
    Reply,
    Stream,
    always,
    bound_of,
    text_of,
    texts_of,
    tokens_in,
)

PREFIX = "/model/"

BROKEN = eventstream.exception("throttlingException", TOO_MANY_TOKENS)
"""How a stream breaks: the refusal that comes after a 200."""


def read_converse(body: Body) -> Question:
    """`messages`, `system`, `inferenceConfig.maxTokens`."""
    texts = texts_of(body.get("messages"))
    config = body.get("inferenceConfig")
    size = sum(map(len, texts)) + len(text_of(body.get("system")))
    bound = bound_of(config, "maxTokens") if isinstance(config, Mapping) else None
    return Question(texts[-1] if texts else "", tokens_in(size), bound)


def _stop(reply: Reply) -> str:
    return "max_tokens" if reply.cut_short else "end_turn"


def _measured(reply: Reply) -> dict[str, Any]:
    total = reply.input_tokens + reply.output_tokens
    usage = {"inputTokens": reply.input_tokens, "outputTokens": reply.output_tokens, "totalTokens": total}
    return {"usage": usage, "metrics": {"latencyMs": 1}}


def whole_converse(body: Body, reply: Reply) -> dict[str, Any]:
    """A `ConverseResponse`."""
    message = {"role": "assistant", "content": [{"text": reply.text}]}
    return {"output": {"message": message}, "stopReason": _stop(reply), **_measured(reply)}


def stream_converse(body: Body, reply: Reply) -> Stream:
    """The events from `messageStart` to `metadata`."""

    def delta(piece: str) -> bytes:
        return eventstream.event("contentBlockDelta", {"delta": {"text": piece}, "contentBlockIndex": 0})

    tail = eventstream.event("contentBlockStop", {"contentBlockIndex": 0})
    tail += eventstream.event("messageStop", {"stopReason": _stop(reply)})
    return Stream(
        head=eventstream.event("messageStart", {"role": "assistant"}),
        pieces=[delta(piece) for piece in reply.pieces],
        tail=tail + eventstream.event("metadata", _measured(reply)),
        broken=BROKEN,
        content_type=eventstream.CONTENT_TYPE,
    )


def stream_invoke(body: Body, reply: Reply) -> Stream:
    """Anthropic's events, each in the bytes of a `chunk`."""
    plain = stream_message(body, reply)
    return Stream(
        head=_chunks(plain.head),
        pieces=[_chunks(piece) for piece in plain.pieces],
        tail=_chunks(plain.tail),
        broken=BROKEN,
        content_type=eventstream.CONTENT_TYPE,
    )


def _chunks(events: bytes) -> bytes:
    lines = [line.removeprefix(b"data: ") for line in events.splitlines() if line.startswith(b"data: ")]
    return b"".join(eventstream.event("chunk", {"bytes": base64.b64encode(line).decode()}) for line in lines)


ENDPOINTS: dict[str, Endpoint] = {
    "converse": Endpoint("bedrock", read_converse, whole_converse, None),
    "converse-stream": Endpoint("bedrock", read_converse, whole_converse, stream_converse, streams=always),
    "invoke": Endpoint("bedrock", read_messages, whole_message, None),
    "invoke-with-response-stream": Endpoint("bedrock", read_messages, whole_message, stream_invoke, streams=always),
}


def endpoint_of(path: str) -> tuple[Endpoint | None, str]:
    """The endpoint and the model, or inference profile, that a path under `PREFIX` names."""
    model, _, action = path.removeprefix(PREFIX).rpartition("/")
    return ENDPOINTS.get(action), unquote(model)
