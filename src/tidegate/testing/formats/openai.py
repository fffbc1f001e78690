"""OpenAI's chat completions, responses and embeddings, as its SDK parses them.

A request may bound the form of its answer: a JSON Schema, or the arguments of a function. A function is called if
`tool_choice` forces it: the named one, or the first for `required`. With `auto`, the simulated model answers in words.
"""

from __future__ import annotations

import base64
import random
import struct
from collections.abc import Callable, Mapping
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
    prompt_of,
    text_of,
    texts_of,
    tokens_in,
)

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def chat_form(body: Body) -> AnswerForm | None:
    """Return the form of a chat completion: forced `tools`, else `response_format`; None for words."""
    functions = [tool.get("function") or {} for tool in body.get("tools") or () if tool.get("type") == "function"]
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        choice = {"name": (choice.get("function") or {}).get("name")}
    wanted = body.get("response_format") or {}
    schema = (wanted.get("json_schema") or {}).get("schema")
    return _forced(functions, choice) or _formatted(wanted.get("type"), schema)


def response_form(body: Body) -> AnswerForm | None:
    """Return the form of a response: forced `tools`, else `text.format`; None for words."""
    functions = [tool for tool in body.get("tools") or () if tool.get("type") == "function"]
    wanted = (body.get("text") or {}).get("format") or {}
    return _forced(functions, body.get("tool_choice")) or _formatted(wanted.get("type"), wanted.get("schema"))


def _forced(functions: list[Mapping[str, Any]], choice: object) -> AnswerForm | None:
    if isinstance(choice, Mapping):
        functions = [each for each in functions if each.get("name") == choice.get("name")]
    elif choice != "required":
        return None
    name = functions[0].get("name") if functions else None
    if not isinstance(name, str):
        raise ValueError("tool_choice: there is no such function among the tools")
    return AnswerForm(functions[0].get("parameters") or ANY_OBJECT, name)


def _formatted(kind: object, schema: Mapping[str, Any] | None) -> AnswerForm | None:
    if kind == "json_schema":
        return AnswerForm(schema or ANY_OBJECT)
    return AnswerForm(ANY_OBJECT) if kind == "json_object" else None


STREAM_ERROR = {
    "message": "The server had an error while processing your request.",
    "type": "server_error",
    "param": None,
    "code": "server_error",
}

DIMENSIONS = 8
"""Length of an embedding, if the request has no `dimensions`. Chosen: short, as no test reads the numbers."""


def read_chat(body: Body) -> SimulatedQuestion:
    messages = body.get("messages")
    size = sum(map(len, texts_of(messages)))
    bound = bound_of(body, "max_completion_tokens", "max_tokens")
    return SimulatedQuestion(prompt_of(messages), tokens_in(size), bound, chat_form(body))


def _chat_usage(reply: SimulatedReply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.input_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.input_tokens + reply.output_tokens,
        "prompt_tokens_details": {"cached_tokens": reply.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def _finish(reply: SimulatedReply) -> str:
    return reply.finish("length", "tool_calls" if reply.tool else "stop")


def _tool_call(reply: SimulatedReply, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{reply.id}", "type": "function", "function": {"name": reply.tool, "arguments": arguments}}


def whole_chat(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text, "refusal": None, "annotations": []}
    if reply.tool:
        message |= {"content": None, "tool_calls": [_tool_call(reply, reply.text)]}
    return {
        "id": reply.id,
        "object": "chat.completion",
        "created": reply.created,
        "model": reply.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": _finish(reply)}],
        "usage": _chat_usage(reply),
        "service_tier": "default",
        "system_fingerprint": "fp_tidegate",
    }


def stream_chat(body: Body, reply: SimulatedReply) -> SimulatedStream:
    """Return `chat.completion.chunk` events, with a last one for the usage if `stream_options.include_usage`."""
    with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
    frame = {"id": reply.id, "object": "chat.completion.chunk", "created": reply.created, "model": reply.model}
    frame |= {"service_tier": "default", "system_fingerprint": "fp_tidegate"}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event(frame | {"choices": [choice]} | ({"usage": None} if with_usage else {}))

    tail = chunk({}, _finish(reply))
    if with_usage:
        tail += event(frame | {"choices": [], "usage": _chat_usage(reply)})
    first: dict[str, Any] = {"role": "assistant", "content": "", "refusal": None}
    if reply.tool:
        first |= {"content": None, "tool_calls": [{"index": 0, **_tool_call(reply, "")}]}
    deltas = [_chat_delta(reply, piece) for piece in reply.pieces]
    return SimulatedStream(
        head=chunk(first),
        pieces=[chunk(delta) for delta in deltas],
        tail=tail + b"data: [DONE]\n\n",
        broken=event({"error": STREAM_ERROR}),
    )


def _chat_delta(reply: SimulatedReply, piece: str) -> dict[str, Any]:
    if reply.tool:
        return {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}
    return {"content": piece}


def read_responses(body: Body) -> SimulatedQuestion:
    given = body.get("input", "")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    size = sum(map(len, texts_of(items))) + len(text_of(body.get("instructions")))
    return SimulatedQuestion(
        prompt_of(items), tokens_in(size), bound_of(body, "max_output_tokens"), response_form(body)
    )


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _message(reply: SimulatedReply, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": f"msg_{reply.id}", "type": "message", "status": status, "role": "assistant", "content": content}


def _function_call(reply: SimulatedReply, status: str, arguments: str) -> dict[str, Any]:
    call = {"id": f"fc_{reply.id}", "type": "function_call", "status": status, "call_id": f"call_{reply.id}"}
    return call | {"name": reply.tool, "arguments": arguments}


def _response(body: Body, reply: SimulatedReply, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    usage = {
        "input_tokens": reply.input_tokens,
        "input_tokens_details": {"cached_tokens": reply.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": reply.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.input_tokens + reply.output_tokens,
    }
    return {
        "id": reply.id,
        "object": "response",
        "created_at": reply.created,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "model": reply.model,
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "temperature": 1.0,
        "text": body.get("text") or {"format": {"type": "text"}},
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None if status == "in_progress" else usage,
        "user": None,
        "metadata": body.get("metadata") or {},
    }


def whole_response(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    status = reply.finish("incomplete", "completed")
    item = _function_call(reply, status, reply.text) if reply.tool else None
    return _response(body, reply, status, [item or _message(reply, status, [_output_text(reply.text)])])


def stream_response(body: Body, reply: SimulatedReply) -> SimulatedStream:
    """Return the typed events from `response.created` to `response.completed`, numbered in sequence."""
    number = -1

    def typed(name: str, /, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return event({"type": name, "sequence_number": number, **fields}, name)

    begun = _response(body, reply, "in_progress", [])
    head = typed("response.created", response=begun) + typed("response.in_progress", response=begun)
    opening, pieces, closing = (_call_events if reply.tool else _message_events)(typed, reply)
    whole = whole_response(body, reply)
    closing += typed("response.output_item.done", output_index=0, item=whole["output"][0])
    closing += typed(f"response.{whole['status']}", response=whole)
    broken = event({"type": "error", "sequence_number": len(pieces), "error": STREAM_ERROR}, "error")
    return SimulatedStream(head + opening, pieces, closing, broken)


def _message_events(typed: Callable[..., bytes], reply: SimulatedReply) -> tuple[bytes, list[bytes], bytes]:
    at = {"item_id": f"msg_{reply.id}", "output_index": 0, "content_index": 0}
    opening = typed("response.output_item.added", output_index=0, item=_message(reply, "in_progress", []))
    opening += typed("response.content_part.added", part=_output_text(""), **at)
    pieces = [typed("response.output_text.delta", delta=piece, logprobs=[], **at) for piece in reply.pieces]
    closing = typed("response.output_text.done", text=reply.text, logprobs=[], **at)
    return opening, pieces, closing + typed("response.content_part.done", part=_output_text(reply.text), **at)


def _call_events(typed: Callable[..., bytes], reply: SimulatedReply) -> tuple[bytes, list[bytes], bytes]:
    at = {"item_id": f"fc_{reply.id}", "output_index": 0}
    opening = typed("response.output_item.added", output_index=0, item=_function_call(reply, "in_progress", ""))
    pieces = [typed("response.function_call_arguments.delta", delta=piece, **at) for piece in reply.pieces]
    done = typed("response.function_call_arguments.done", name=reply.tool, arguments=reply.text, **at)
    return opening, pieces, done


def read_embeddings(body: Body) -> SimulatedQuestion:
    inputs = _inputs(body)
    size = sum(len(item) if isinstance(item, str) else 4 * len(item) for item in inputs)
    return SimulatedQuestion("", tokens_in(size), 0)


def _inputs(body: Body) -> list[str | list[int]]:
    given = body.get("input")
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise ValueError("input: a text or a list is required")
    return [given] if isinstance(given[0], int) else given


def whole_embeddings(body: Body, reply: SimulatedReply) -> dict[str, Any]:
    """Return a list of vectors, of floats or base64 as the SDK asks; the same text has the same vector."""
    size = bound_of(body, "dimensions") or DIMENSIONS
    rows: list[dict[str, Any]] = []
    for index, item in enumerate(_inputs(body)):
        generator = random.Random(repr(item))
        vector: list[float] | str = [generator.uniform(-1.0, 1.0) for _ in range(size)]
        if body.get("encoding_format") == "base64":
            vector = base64.b64encode(struct.pack(f"<{size}f", *vector)).decode()
        rows.append({"object": "embedding", "index": index, "embedding": vector})
    usage = {"prompt_tokens": reply.input_tokens, "total_tokens": reply.input_tokens}
    return {"object": "list", "model": reply.model, "data": rows, "usage": usage}


CHAT = SimulatedEndpoint("openai", read_chat, whole_chat, stream_chat)
RESPONSES = SimulatedEndpoint("openai", read_responses, whole_response, stream_response)
EMBEDDINGS = SimulatedEndpoint("openai", read_embeddings, whole_embeddings, None)
