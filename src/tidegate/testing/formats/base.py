"""Facts of a request that an endpoint reads, and of its answer, without any provider's format."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

Body = Mapping[str, Any]

EVENTS = "text/event-stream; charset=utf-8"

CHARS_PER_TOKEN = 4
"""Characters of English in a token: the prior of `core.cost_estimator`, so that first estimates are near."""

_PIECE = re.compile(r"\s*\S+\s*?")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """Form of an answer: JSON that fits `schema`, as its text or as the arguments of the function `tool`."""

    schema: Mapping[str, Any]
    tool: str = ""


@dataclass(frozen=True, slots=True)
class SimulatedQuestion:
    """Question: the text that decides the answer, its input tokens, the bound on the output, and its form."""

    prompt: str
    input_tokens: int
    max_tokens: int | None
    form: AnswerForm | None = None


@dataclass(frozen=True, slots=True)
class SimulatedReply:
    """Answer; `cut_short` if the request's bound was reached; `created` is in seconds of wall time.

    With a `tool`, the text is the arguments of a call of it. `cached_tokens` is the part of the input that was read
    from a cache.
    """

    id: str
    model: str
    text: str
    input_tokens: int
    output_tokens: int
    cut_short: bool
    created: int
    tool: str = ""
    cached_tokens: int = 0

    @property
    def pieces(self) -> list[str]:
        """Return the text in its streamed pieces: words with the space before them."""
        return _PIECE.findall(self.text) or [self.text]


@dataclass(frozen=True, slots=True)
class SimulatedStream:
    """Streamed answer: its head, pieces and tail; `broken` is an error in its middle."""

    head: bytes
    pieces: list[bytes]
    tail: bytes
    broken: bytes
    content_type: str = EVENTS


def asks_stream(body: Body) -> bool:
    return bool(body.get("stream"))


def always(body: Body) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class SimulatedEndpoint:
    """One endpoint: `read` a body (ValueError if unusable), answer `whole`, or as a `stream` where it can.

    `dialect` is that of its refusals; `streams` returns for a body whether the answer is streamed.
    """

    dialect: str
    read: Callable[[Body], SimulatedQuestion]
    whole: Callable[[Body, SimulatedReply], dict[str, Any]]
    stream: Callable[[Body, SimulatedReply], SimulatedStream] | None
    streams: Callable[[Body], bool] = asks_stream


def dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def event(value: object, name: str = "") -> bytes:
    return (b"event: %b\n" % name.encode() if name else b"") + b"data: %b\n\n" % dumps(value)


def tokens_in(text_length: int) -> int:
    """Return the tokens that a text of this length counts as: a quarter, rounded up, at least 1."""
    return max(1, math.ceil(text_length / CHARS_PER_TOKEN))


def text_of(content: object) -> str:
    """Return the text of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""


def texts_of(messages: object) -> list[str]:
    """Return the texts of messages in order; raise ValueError if they are not a list of messages."""
    if not isinstance(messages, list) or not all(isinstance(message, Mapping) for message in messages):
        raise ValueError("messages: a list of objects is required")
    return [text_of(message.get("content")) for message in messages]


def prompt_of(messages: object) -> str:
    """Return the text of the user's last message; without one, of the last message."""
    texts = texts_of(messages)
    asked = [text for text, message in zip(texts, cast("list[Body]", messages), strict=True) if _is_users(message)]
    return (asked or texts or [""])[-1]


def _is_users(message: Body) -> bool:
    return message.get("role") == "user"


def bound_of(body: Body, *names: str) -> int | None:
    """Return the first of these fields that is a whole number; None without one."""
    for name in names:
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
