"""Facts of a request that an endpoint reads, and of its answer, without any provider's format.

Smallest JSON value that fits a JSON Schema: a simulated model's answer if the request bounds its form.

The functions are pure. They read the `response_format` and `tools` of SDKs and frameworks (JSON Schema 2020-12). They
read types, enum, const, `$ref` within the schema, anyOf, oneOf, allOf and required properties. They also read the
bounds of numbers, texts and arrays, and common formats. They do not read `pattern`, `not`, `if` and `uniqueItems`.
"""

from __future__ import annotations

import contextlib
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

    def finish(self, cut: str, whole: str) -> str:
        """Return the word for the end of the answer: `cut` where the bound was reached, else `whole`."""
        return cut if self.cut_short else whole

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


def error_body(message: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    """Return an error in a body that the SDKs of both OpenAI and Anthropic read."""
    return {"type": "error", "error": {"message": message, "type": kind, "param": None, "code": None}}


def event(value: object, name: str = "") -> bytes:
    return (b"event: %b\n" % name.encode() if name else b"") + b"data: %b\n\n" % dumps(value)


def typed(name: str, /, **fields: Any) -> bytes:
    """Return an event that has its name in its data too."""
    return event({"type": name, **fields}, name)


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


def read_conversation(body: Body, bound: int | None) -> SimulatedQuestion:
    """Return the question in `messages` and `system`: the text of the last message decides the answer."""
    texts = texts_of(body.get("messages"))
    size = sum(map(len, texts)) + len(text_of(body.get("system")))
    return SimulatedQuestion(texts[-1] if texts else "", tokens_in(size), bound)


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


Schema = Mapping[str, Any]

FORMATS = {
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "duration": "P1D",
    "email": "a@example.com",
    "hostname": "example.com",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "time": "00:00:00Z",
    "uri": "https://example.com",
    "uuid": "00000000-0000-4000-8000-000000000000",
}


def fitted(text: str, schema: Schema) -> str:
    """Return `text` if it is a JSON object already, else the smallest instance of `schema` as JSON."""
    try:
        if isinstance(json.loads(text), dict):
            return text
    except ValueError:
        pass
    return json.dumps(smallest(schema), ensure_ascii=False)


def smallest(schema: Schema) -> Any:
    """Return only required parts, and the shortest of alternatives; raise ValueError if no instance was found."""
    return _Search(schema).instance(schema, ())


class _Search:
    """One search through a schema; `seen` are the references on the path to the present place."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def instance(self, schema: Any, seen: tuple[str, ...]) -> Any:
        if schema is True or schema == {}:
            return None
        if not isinstance(schema, Mapping):
            raise ValueError(f"{schema!r} is not a schema")
        if "$ref" in schema:
            return self._referred(schema, seen)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        if "allOf" in schema:
            return self.instance(self._joined(schema, seen), seen)
        branches = schema.get("anyOf") or schema.get("oneOf")
        if branches:
            return self._shortest([self._merged(schema, branch) for branch in branches], seen)
        kinds = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kinds, list):
            return self._shortest([{**schema, "type": kind} for kind in kinds], seen)
        return self._of_kind(kinds, schema, seen)

    def _referred(self, schema: Schema, seen: tuple[str, ...]) -> Any:
        name = schema["$ref"]
        if name in seen:
            raise ValueError(f"{name} contains itself")
        others = {key: value for key, value in schema.items() if key != "$ref"}
        return self.instance({**self._target(name), **others}, (*seen, name))

    def _target(self, name: str) -> Schema:
        place: Any = self._root
        for part in name.removeprefix("#").split("/")[1:]:
            place = place[part.replace("~1", "/").replace("~0", "~")]
        if not isinstance(place, Mapping):
            raise ValueError(f"{name} is not a schema")
        return place

    def _merged(self, schema: Schema, branch: Schema) -> Schema:
        base = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "allOf")}
        joined = {**base, **branch}
        if "properties" in base and "properties" in branch:
            joined["properties"] = {**base["properties"], **branch["properties"]}
        if "required" in base and "required" in branch:
            joined["required"] = [*base["required"], *branch["required"]]
        return joined

    def _joined(self, schema: Schema, seen: tuple[str, ...]) -> Schema:
        joined = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            name = part.get("$ref")
            if name in seen:
                raise ValueError(f"{name} contains itself")
            joined = dict(self._merged(joined, self._target(name) if name else part))
        return joined

    def _shortest(self, branches: list[Schema], seen: tuple[str, ...]) -> Any:
        found = []
        for branch in branches:
            with contextlib.suppress(ValueError):
                found.append(self.instance(branch, seen))
        if not found:
            raise ValueError(f"none of {branches!r} has an instance")
        return min(found, key=lambda value: len(json.dumps(value)))

    def _of_kind(self, kind: str, schema: Schema, seen: tuple[str, ...]) -> Any:
        if kind == "object":
            known = schema.get("properties", {})
            return {name: self.instance(known.get(name, True), seen) for name in schema.get("required", ())}
        if kind == "array":
            return self._array(schema, seen)
        if kind in ("integer", "number"):
            return _number(schema, whole=kind == "integer")
        if kind == "string":
            return _text(schema)
        if kind in ("boolean", "null"):
            return False if kind == "boolean" else None
        raise ValueError(f"{kind!r} is not a type of JSON Schema")

    def _array(self, schema: Schema, seen: tuple[str, ...]) -> list[Any]:
        first = [self.instance(part, seen) for part in schema.get("prefixItems", ())]
        missing = schema.get("minItems", 0) - len(first)
        return first + [self.instance(schema.get("items", True), seen) for _ in range(missing)]


def _text(schema: Schema) -> str:
    text = FORMATS.get(schema.get("format", ""), "")
    return text.ljust(schema.get("minLength", 0), "x")


def _number(schema: Schema, *, whole: bool) -> float:
    """Return the fitting number nearest to 0, of 0, the multiples next to the bounds, and the middle between them."""
    step = schema.get("multipleOf", 1)
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    candidates: list[float] = [0]
    for bound in (max(low, above), min(high, below)):
        if math.isfinite(bound):
            candidates += [(math.floor(bound / step) + count) * step for count in (-1, 0, 1, 2)]
            candidates += [] if whole or "multipleOf" in schema else [bound]
    if not whole and "multipleOf" not in schema and math.isfinite(middle := (max(low, above) + min(high, below)) / 2):
        candidates.append(middle)
    fitting = [each for each in candidates if low <= each <= high and above < each < below]
    if not fitting:
        raise ValueError(f"no number fits {dict(schema)!r}")
    return min(fitting, key=abs)
