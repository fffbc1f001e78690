"""Anthropic's messages, whole and streamed, as its SDK parses them."""

from __future__ import annotations

from typing import Any

from tidegate.testing.formats.base import (
    AnswerForm,
    Body,
    SimulatedEndpoint,
    SimulatedQuestion,
    SimulatedReply,
    SimulatedStream,
    bound_of,
    event,
    text_of,
    texts_of,
    tokens_in,
)


def read_messages(body: Body) -> SimulatedQuestion:
    """Read `messages`, `system`, `max_tokens` (required, as it is there), and `output_config.format`."""
    texts = texts_of(body.get("messages"))
    bound = bound_of(body, "max_tokens")
    if bound is None:
        raise ValueError("max_tokens: Field required")
    size = sum(map(len, texts)) + len(text_of(body.get("system")))
    wanted = (body.get("output_config") or {}).get("format") or {}
    form = AnswerForm(wanted.get("schema") or {}) if wanted.get("type") == "json_schema" else None
    return SimulatedQuestion(texts[-1] if texts else "", tokens_in(size), bound, form)


def _stop(reply: SimulatedReply) -> str:
    return "max_tokens" if reply.cut_short else "end_turn"


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
    return _message(reply, [{"type": "text", "text": reply.text}], _stop(reply), reply.output_tokens)


def stream_message(body: Body, reply: SimulatedReply) -> SimulatedStream:
    def typed(name: str, **fields: Any) -> bytes:
        return event({"type": name, **fields}, name)

    def delta(piece: str) -> bytes:
        return typed("content_block_delta", index=0, delta={"type": "text_delta", "text": piece})

    head = typed("message_start", message=_message(reply, [], None, 1))
    head += typed("content_block_start", index=0, content_block={"type": "text", "text": ""}) + typed("ping")
    tail = typed("content_block_stop", index=0)
    stopped = {"stop_reason": _stop(reply), "stop_sequence": None}
    tail += typed("message_delta", delta=stopped, usage={"output_tokens": reply.output_tokens})
    tail += typed("message_stop")
    broken = typed("error", error={"type": "overloaded_error", "message": "Overloaded"})
    return SimulatedStream(head, [delta(piece) for piece in reply.pieces], tail, broken)


MESSAGES = SimulatedEndpoint("anthropic", read_messages, whole_message, stream_message)
