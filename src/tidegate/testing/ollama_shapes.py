"""Ollama's chat, which streams lines of JSON unless it is asked not to, as ollama 0.6 parses it."""

from __future__ import annotations

from typing import Any

from tidegate.testing.replies import Body, Endpoint, Question, Reply, Stream, bound_of, dumps, texts_of, tokens_in

LINES = "application/x-ndjson"


def read_chat(body: Body) -> Question:
    """`messages`, `options.num_predict`."""
    texts = texts_of(body.get("messages"))
    bound = bound_of(body.get("options") or {}, "num_predict")
    return Question(texts[-1] if texts else "", tokens_in(sum(map(len, texts))), bound)


def _line(reply: Reply, text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"model": reply.model, "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False}


def whole_chat(body: Body, reply: Reply) -> dict[str, Any]:
    """The answer in one line."""
    counts = {"prompt_eval_count": reply.input_tokens, "eval_count": reply.output_tokens}
    reason = "length" if reply.cut_short else "stop"
    return _line(reply, reply.text) | {"done": True, "done_reason": reason, **counts}


def stream_chat(body: Body, reply: Reply) -> Stream:
    """A line for each piece; the last has the counts."""
    last = whole_chat(body, reply) | {"message": {"role": "assistant", "content": ""}}
    return Stream(
        head=b"",
        pieces=[dumps(_line(reply, piece)) + b"\n" for piece in reply.pieces],
        tail=dumps(last) + b"\n",
        broken=dumps({"error": "an error was encountered while running the model"}) + b"\n",
        content_type=LINES,
    )


def _streams(body: Body) -> bool:
    return bool(body.get("stream", True))


CHAT = Endpoint("none", read_chat, whole_chat, stream_chat, _streams)
