"""Cohere's chat of version 2, whole and streamed, as cohere 7.3 parses it."""

from __future__ import annotations

from typing import Any

from tidegate.testing.openai_shapes import read_chat
from tidegate.testing.replies import Body, Endpoint, Reply, Stream, event


def _usage(reply: Reply) -> dict[str, Any]:
    counts = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
    return {"billed_units": counts, "tokens": counts}


def _finish(reply: Reply) -> str:
    return "MAX_TOKENS" if reply.cut_short else "COMPLETE"


def whole_chat(body: Body, reply: Reply) -> dict[str, Any]:
    """A `V2ChatResponse`."""
    message = {"role": "assistant", "content": [{"type": "text", "text": reply.text}]}
    return {"id": reply.id, "finish_reason": _finish(reply), "message": message, "usage": _usage(reply)}


def stream_chat(body: Body, reply: Reply) -> Stream:
    """The events from `message-start` to `message-end`."""

    def typed(name: str, **fields: Any) -> bytes:
        return event({"type": name, **fields}, name)

    def delta(text: str) -> dict[str, Any]:
        return {"message": {"content": {"text": text}}}

    head = typed("message-start", id=reply.id, delta={"message": {"role": "assistant", "content": []}})
    head += typed("content-start", index=0, delta={"message": {"content": {"type": "text", "text": ""}}})
    ended = {"finish_reason": _finish(reply), "usage": _usage(reply)}
    broken = {"finish_reason": "ERROR", "error": "internal server error"}
    return Stream(
        head=head,
        pieces=[typed("content-delta", index=0, delta=delta(piece)) for piece in reply.pieces],
        tail=typed("content-end", index=0) + typed("message-end", delta=ended),
        broken=typed("message-end", delta=broken),
    )


CHAT = Endpoint("none", read_chat, whole_chat, stream_chat)
