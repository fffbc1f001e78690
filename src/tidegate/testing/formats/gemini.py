"""Gemini's generateContent, embeddings and interactions, as google-genai 3.4 parses them.

The path decides whether an answer streams. It also has the model, except for interactions. `route` reads both.

Chat endpoints of Cohere (version 2) and Ollama, whole and streamed, as cohere 7.3 and ollama 0.6 parse them.

Ollama's chat streams lines of JSON unless the request declines.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import Any

from tidegate.testing.formats.base import (
    Body,
    SimulatedEndpoint,
    SimulatedQuestion,
    SimulatedReply,
    SimulatedStream,
    always,
    bound_of,
    dumps,
    event,
    read_conversation,
    text_of,
    tokens_in,
    typed,
)
from tidegate.testing.formats.openai import DIMENSIONS, read_chat

_PATH = re.compile(
    r"/v1(?:beta|alpha|beta1)?/(?:projects/[^/]+/locations/[^/]+/)?(?:publishers/[^/]+/)?models/(.+):(\w+)"
)


def _parts(content: object) -> str:
    return text_of(content.get("parts")) if isinstance(content, Mapping) else text_of(content)


def read_generate(body: Body) -> SimulatedQuestion:
    contents = body.get("contents")
    if not isinstance(contents, list):
        raise ValueError("contents: a list of contents is required")
    texts = [_parts(content) for content in contents]
    size = sum(map(len, texts)) + len(_parts(body.get("systemInstruction")))
    bound = bound_of(body.get("generationConfig") or {}, "maxOutputTokens")
    return SimulatedQuestion(texts[-1] if texts else "", tokens_in(size), bound)


def _candidate(reply: SimulatedReply, text: str, finish: str | None) -> dict[str, Any]:
    candidate = {"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}
    return {
        "candidates": [candidate | ({"finishReason": finish} if finish else {})],
        "usageMetadata": {
            "promptTokenCount": reply.input_tokens,
            "candidatesTokenCount": reply.output_tokens,
            "totalTokenCount": reply.input_tokens + reply.output_tokens,
        },
        "modelVersion": reply.model,
        "responseId": reply.id,
    }


def whole_content(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    return _candidate(reply, reply.text, reply.finish("MAX_TOKENS", "STOP"))


def stream_content(body: Body, reply: SimulatedReply) -> SimulatedStream:
    """Return one response for each piece; the last has the reason for the end."""
    overloaded = {"code": 503, "message": "The model is overloaded. Please try again later.", "status": "UNAVAILABLE"}
    return SimulatedStream(
        head=b"",
        pieces=[event(_candidate(reply, piece, None)) for piece in reply.pieces],
        tail=event(_candidate(reply, "", reply.finish("MAX_TOKENS", "STOP"))),
        broken=event({"error": overloaded}),
    )


def read_embed(body: Body) -> SimulatedQuestion:
    return SimulatedQuestion("", tokens_in(sum(map(len, _embedded(body)))), 0)


def _embedded(body: Body) -> list[str]:
    if "requests" not in body:
        return [_parts(body.get("content"))]
    asked = body["requests"]
    if not isinstance(asked, list) or not all(isinstance(each, Mapping) for each in asked):
        raise ValueError("requests: a list of requests is required")
    return [_parts(each.get("content")) for each in asked]


def whole_embeddings(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    rows = []
    for text in _embedded(body):
        generator = random.Random(text)
        rows.append({"values": [generator.uniform(-1.0, 1.0) for _ in range(DIMENSIONS)]})
    return {"embeddings": rows} if "requests" in body else {"embedding": rows[0]}


def read_interaction(body: Body) -> SimulatedQuestion:
    given = body.get("input")
    text = given if isinstance(given, str) else text_of(given)
    return SimulatedQuestion(
        text, tokens_in(len(text)), bound_of(body.get("generation_config") or {}, "max_output_tokens")
    )


def whole_interaction(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    return {
        "id": reply.id,
        "status": "completed",
        "model": reply.model,
        "created": "2026-01-01T00:00:00Z",
        "updated": "2026-01-01T00:00:00Z",
        "steps": [{"type": "model_output", "content": [{"type": "text", "text": reply.text}]}],
        "usage": {
            "total_input_tokens": reply.input_tokens,
            "total_output_tokens": reply.output_tokens,
            "total_tokens": reply.input_tokens + reply.output_tokens,
        },
    }


def count_tokens(body: Body) -> dict[str, Any]:
    """Return the answer of `countTokens`; it is no inference, and is not limited here."""
    return {"totalTokens": read_generate(body).input_tokens}


GENERATE = SimulatedEndpoint("gemini", read_generate, whole_content, None)
STREAM = SimulatedEndpoint("gemini", read_generate, whole_content, stream_content, always)
EMBED = SimulatedEndpoint("gemini", read_embed, whole_embeddings, None)
INTERACTIONS = SimulatedEndpoint("gemini", read_interaction, whole_interaction, None)

METHODS = {
    "generateContent": GENERATE,
    "streamGenerateContent": STREAM,
    "embedContent": EMBED,
    "batchEmbedContents": EMBED,
}


def route(path: str) -> tuple[str, str]:
    """Return model and method of a path of Gemini or Vertex AI, both empty for any other."""
    match = _PATH.fullmatch(path)
    return (match[1], match[2]) if match is not None else ("", "")


def _cohere_usage(reply: SimulatedReply) -> dict[str, Any]:
    counts = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
    return {"billed_units": counts, "tokens": counts}


def whole_cohere_chat(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"type": "text", "text": reply.text}]}
    return {
        "id": reply.id,
        "finish_reason": reply.finish("MAX_TOKENS", "COMPLETE"),
        "message": message,
        "usage": _cohere_usage(reply),
    }


def stream_cohere_chat(body: Body, reply: SimulatedReply) -> SimulatedStream:
    def delta(text: str) -> dict[str, Any]:
        return {"message": {"content": {"text": text}}}

    head = typed("message-start", id=reply.id, delta={"message": {"role": "assistant", "content": []}})
    head += typed("content-start", index=0, delta={"message": {"content": {"type": "text", "text": ""}}})
    ended = {"finish_reason": reply.finish("MAX_TOKENS", "COMPLETE"), "usage": _cohere_usage(reply)}
    broken = {"finish_reason": "ERROR", "error": "internal server error"}
    return SimulatedStream(
        head=head,
        pieces=[typed("content-delta", index=0, delta=delta(piece)) for piece in reply.pieces],
        tail=typed("content-end", index=0) + typed("message-end", delta=ended),
        broken=typed("message-end", delta=broken),
    )


COHERE_CHAT = SimulatedEndpoint("none", read_chat, whole_cohere_chat, stream_cohere_chat)


OLLAMA_LINES = "application/x-ndjson"


def read_ollama_chat(body: Body) -> SimulatedQuestion:
    return read_conversation(body, bound_of(body.get("options") or {}, "num_predict"))


def _ollama_line(reply: SimulatedReply, text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"model": reply.model, "created_at": "2026-01-01T00:00:00Z", "message": message, "done": False}


def whole_ollama_chat(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    counts = {"prompt_eval_count": reply.input_tokens, "eval_count": reply.output_tokens}
    reason = reply.finish("length", "stop")
    return _ollama_line(reply, reply.text) | {"done": True, "done_reason": reason, **counts}


def stream_ollama_chat(body: Body, reply: SimulatedReply) -> SimulatedStream:
    """Return a line for each piece; the last line has the counts."""
    last = whole_ollama_chat(body, reply) | {"message": {"role": "assistant", "content": ""}}
    return SimulatedStream(
        head=b"",
        pieces=[dumps(_ollama_line(reply, piece)) + b"\n" for piece in reply.pieces],
        tail=dumps(last) + b"\n",
        broken=dumps({"error": "an error was encountered while running the model"}) + b"\n",
        content_type=OLLAMA_LINES,
    )


def _ollama_streams(body: Body) -> bool:
    return bool(body.get("stream", True))


OLLAMA_CHAT = SimulatedEndpoint("none", read_ollama_chat, whole_ollama_chat, stream_ollama_chat, _ollama_streams)
