"""Chat endpoints of Cohere (version 2) and Ollama, whole and streamed, as cohere 7.3 and ollama 0.6 parse them.

Ollama's chat streams lines of JSON unless the request declines.
"""

from __future__ import annotations

from typing import Any

from tidegate.testing.formats.base import (
    Body,
    SimulatedEndpoint,
    SimulatedQuestion,
    SimulatedReply,
    SimulatedStream,
    bound_of,
    dumps,
    event,
    texts_of,
    tokens_in,
)
from tidegate.testing.formats.openai import read_chat


def _usage(reply: SimulatedReply) -> dict[str, Any]:
    counts = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
    return {"billed_units": counts, "tokens": counts}


def _finish(reply: SimulatedReply) -> str:
    return "MAX_TOKENS" if reply.cut_short else "COMPLETE"


def whole_cohere_chat(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"type": "text", "text": reply.text}]}
    return {"id": reply.id, "finish_reason": _finish(reply), "message": message, "usage": _usage(reply)}


def stream_cohere_chat(body: Body, reply: SimulatedReply) -> SimulatedStream:
    def typed(name: str, **fields: Any) -> bytes:
        return event({"type": name, **fields}, name)

    def delta(text: str) -> dict[str, Any]:
        return {"message": {"content": {"text": text}}}

    head = typed("message-start", id=reply.id, delta={"message": {"role": "assistant", "content": []}})
    head += typed("content-start", index=0, delta={"message": {"content": {"type": "text", "text": ""}}})
    ended = {"finish_reason": _finish(reply), "usage": _usage(reply)}
    broken = {"finish_reason": "ERROR", "error": "internal server error"}
    return SimulatedStream(
        head=head,
        pieces=[typed("content-delta", index=0, delta=delta(piece)) for piece in reply.pieces],
        tail=typed("content-end", index=0) + typed("message-end", delta=ended),
        broken=typed("message-end", delta=broken),
    )


COHERE_CHAT = SimulatedEndpoint("none", read_chat, whole_cohere_chat, stream_cohere_chat)


LINES = "application/x-ndjson"


def read_ollama_chat(body: Body) -> SimulatedQuestion:
    texts = texts_of(body.get("messages"))
    bound = bound_of(body.get("options") or {}, "num_predict")
    return SimulatedQuestion(texts[-1] if texts else "", tokens_in(sum(map(len, texts))), bound)


def _line(reply: SimulatedReply, text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"model": reply.model, "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False}


def whole_ollama_chat(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    counts = {"prompt_eval_count": reply.input_tokens, "eval_count": reply.output_tokens}
    reason = "length" if reply.cut_short else "stop"
    return _line(reply, reply.text) | {"done": True, "done_reason": reason, **counts}


def stream_ollama_chat(body: Body, reply: SimulatedReply) -> SimulatedStream:
    """Return a line for each piece; the last line has the counts."""
    last = whole_ollama_chat(body, reply) | {"message": {"role": "assistant", "content": ""}}
    return SimulatedStream(
        head=b"",
        pieces=[dumps(_line(reply, piece)) + b"\n" for piece in reply.pieces],
        tail=dumps(last) + b"\n",
        broken=dumps({"error": "an error was encountered while running the model"}) + b"\n",
        content_type=LINES,
    )


def _streams(body: Body) -> bool:
    return bool(body.get("stream", True))


OLLAMA_CHAT = SimulatedEndpoint("none", read_ollama_chat, whole_ollama_chat, stream_ollama_chat, _streams)
