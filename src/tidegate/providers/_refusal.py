"""The refusal in a body: its codes, its words, and the time that it names. Pure; never raises.

Theory of operation. Services, gateways and frameworks wrap the same facts in objects of their own: `error`, `errors`,
`fault` (Apigee), `Response.Error` (Tencent), `ResponseMetadata.Error` (Volcengine), `detail` (FastAPI), `base_resp`
(MiniMax). Names of fields are compared without case and punctuation, so `errorCode`, `error_code` and `ErrorCode` are
one field. The innermost object is read first. Objects beside the message (`details`, `metadata`) give codes and waits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from tidegate.providers import _values
from tidegate.providers._error_text import Exceeded, read_details

_MAX_BODY = 1 << 18
"""Bytes of a refusal's body above which it is not parsed. Raising it spends more time on a hostile answer. Chosen: the
longest capture has 2,300 (as `_answer.MAX_BODY_BYTES`)."""

_MAX_TEXT = 4096
"""Characters of a message that are compared with the rows of a table. Raising it spends more time on long messages.
Chosen: longer than any captured refusal."""

_MAX_CODE = 128
"""Characters of an error code above which it is ignored. Raising it takes sentences for codes. Chosen: codes are one
word or a few joined ones."""

_MAX_QUOTED = 64
"""Headers that are read from a gateway's quotation of an upstream answer, and fields of one object. Raising it spends
more time on a hostile answer. Chosen: an answer of a provider has a few dozen headers."""

_MAX_DEPTH = 3
"""Objects around the innermost one that is read. Raising it spends more time on a hostile answer. Chosen: the deepest
refusal seen has two (`Response.Error`)."""

_AROUND = ("error", "fault", "detail", "response", "baseresp", "responsemetadata", "header")
"""Fields whose object holds the error. A list of `errors` is read after the message beside it."""

_BESIDE = ("details", "detail", "metadata", "params", "ratelimit", "innererror", "retryinfo")
"""Fields whose object adds codes and waits to the error that holds it."""

_CODES = ("code", "type", "status", "errorcode", "errortype", "errcode", "reason", "limitsource")
_STATUSES = ("code", "status", "statuscode")
_TEXTS = ("message", "detail", "msg", "errormessage", "errormsg", "errmsg", "faultstring", "title", "errordescription",
          "statusmsg", "error", "errors")  # fmt: skip

_WAIT = re.compile(
    r"(?:quota|ratelimit)?(?:retry|resets?|wait|cooldown|clears|available|unlocks)"
    r"(?:(?:after|in|delay|time(?:stamp)?|at|date)(?:milliseconds?|millis|ms|seconds?|secs?|s)?|seconds?|secs?|ms)"
)
"""Names of fields that state when to try again: `retry_after`, `resetsInSeconds`, `quotaResetDelay`, `reset_at`."""

_MILLISECONDS = re.compile(r"(?:milliseconds?|millis|ms)\Z")

_PUNCTUATION = str.maketrans("", "", "_-. ")


class RefusalDetails(NamedTuple):
    """A refusal in the form that rows are compared with: lower case, white space collapsed. `wait` is in seconds.

    `until` is the named end of the wait, in seconds since 1970. `headers` are those that the body quotes
    (`error.metadata.headers`, capture openrouter-429-free-day). `exceeded` are the quotas that the body lists as
    exceeded. `words` is `text` with the body's other texts, and what it quotes of an upstream's refusal.
    """

    codes: frozenset[str] = frozenset()
    text: str = ""
    wait: float | None = None
    status: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    exceeded: tuple[Exceeded, ...] = ()
    words: str = ""
    until: float | None = None


NOTHING = RefusalDetails()

Layer = dict[str, object]
"""The fields of one object, by their names without case and punctuation."""


def refusal_of(body: bytes | None) -> RefusalDetails:
    """Return the refusal in a body: a JSON object, an array of one, a JSON string, or plain text.

    Nothing is read from HTML, which a proxy wrote.
    """
    if not body:
        return NOTHING
    start = body[:64].lstrip()
    if start[:1] == b"<":
        return NOTHING
    if len(body) <= _MAX_BODY:
        document = parsed(body)
        if document is not None:
            return refusal_in(document)
    return NOTHING if start[:1] in (b"{", b"[") else refusal_in(body[:_MAX_TEXT].decode("utf-8", "ignore"))


def refusal_in(document: object) -> RefusalDetails:
    """Return the refusal in a parsed document; `NOTHING` for an unknown shape."""
    if isinstance(document, list):
        document = document[0] if document else None
    if isinstance(document, str):
        return RefusalDetails(text=plain(document), words=plain(document))
    if not isinstance(document, dict):
        return NOTHING
    layers = list(_layers(document, 0))
    nested = _nested(layers)
    if nested is not None:
        layers.insert(0, nested)
    beside = [_named(inner) for layer in layers for key in _BESIDE if isinstance(inner := layer.get(key), dict)]
    codes = {code for layer in (*layers, *beside) for code in _codes(layer)}
    waits: list[float] = []
    ends: list[float] = []
    listed: tuple[Exceeded, ...] = ()
    for layer in (*layers, *beside):
        _read_times(layer, waits, ends)
        if isinstance(layer.get("details"), list):
            wait, exceeded, reasons = read_details(layer["details"])
            codes |= reasons
            listed += exceeded
            waits += [wait] if wait is not None else []
    status = next((code for layer in layers for key in _STATUSES if (code := _status(layer.get(key)))), None)
    texts = [text for layer in layers for key in _TEXTS if isinstance(text := layer.get(key), str) and text]
    words = plain(" ".join(dict.fromkeys([*texts, _quoted_text(layers)]))) if texts else ""
    return RefusalDetails(
        frozenset(codes),
        plain(texts[0]) if texts else "",
        waits[0] if waits else None,
        status,
        _quoted(layers),
        listed,
        words,
        ends[0] if ends else None,
    )


def parsed(body: bytes | str) -> object:
    """Return the JSON document, or None if the text is not JSON or too deeply nested."""
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document


def plain(text: str) -> str:
    """Return the text as rows compare it: cut, lower case, white space collapsed, typographic apostrophes straight."""
    return " ".join(text[:_MAX_TEXT].lower().replace("\u2019", "'").split())


def _named(fields: dict[str, object]) -> Layer:
    named = {str(name).lower().translate(_PUNCTUATION): value for name, value in islice(fields.items(), _MAX_QUOTED)}
    return {name: value for name, value in named.items() if value is not None}


def _layers(document: object, depth: int) -> Iterator[Layer]:
    """Yield the objects of a refusal, innermost first."""
    if isinstance(document, list):
        document = document[0] if document else None
    if not isinstance(document, dict) or depth > _MAX_DEPTH:
        return
    layer = _named(document)
    for name in _AROUND:
        yield from _layers(layer.get(name), depth + 1)
    yield layer
    yield from _layers(layer.get("errors"), depth + 1)


def _nested(layers: list[Layer]) -> Layer | None:
    """Return the upstream provider's error object that a gateway put, as JSON text, into its own `message`; else None.

    Seen in the recorded answer gemini-429-free-tpm.
    """
    for layer in layers:
        message = layer.get("message")
        if isinstance(message, str) and message[:64].lstrip()[:1] == "{" and len(message) <= _MAX_BODY:
            found = list(_layers(parsed(message), _MAX_DEPTH - 1))
            if found:
                return found[0]
    return None


def _codes(layer: Layer) -> Iterator[str]:
    for key in _CODES:
        value = layer.get(key)
        if isinstance(value, bool) or not isinstance(value, str | int):
            continue
        code = str(value).lower()
        if len(code) <= _MAX_CODE:
            yield code
            # Copilot adds the plan to a code: `user_global_rate_limited:pro`.
            yield code.partition(":")[0]
    status = layer.get("statuscode")
    if "statusmsg" in layer and isinstance(status, int):
        yield str(status)


def _read_times(layer: Layer, waits: list[float], ends: list[float]) -> None:
    """Add the times of the fields that state when to try again: to `waits` in seconds, to `ends` since 1970."""
    for name, value in layer.items():
        if isinstance(value, bool) or not isinstance(value, int | float | str) or not _WAIT.fullmatch(name):
            continue
        text = f"{value:f}" if isinstance(value, float) else str(value)
        time = _values.time(text[:_MAX_CODE].encode("ascii", "replace"))
        if time is None:
            continue
        if time.form == "instant":
            ends.append(time.seconds)
        elif not name.endswith(("at", "date", "time", "timestamp")):
            waits.append(time.seconds / 1000.0 if _MILLISECONDS.search(name) else time.seconds)


def _quoted(layers: list[Layer]) -> tuple[tuple[bytes, bytes], ...]:
    for layer in layers:
        metadata = layer.get("metadata")
        headers = metadata.get("headers") if isinstance(metadata, dict) else None
        if isinstance(headers, dict):
            pairs = [(name, str(value)) for name, value in headers.items() if isinstance(value, str | int | float)]
            quoted = [(name.encode("ascii", "replace"), value.encode("ascii", "replace")) for name, value in pairs]
            return tuple(quoted[:_MAX_QUOTED])
    return ()


def _quoted_text(layers: list[Layer]) -> str:
    """Return what a gateway quotes of its upstream's refusal (`error.metadata.raw` of OpenRouter and OpenCode)."""
    for layer in layers:
        metadata = layer.get("metadata")
        raw = metadata.get("raw") if isinstance(metadata, dict) else None
        if isinstance(raw, str):
            return raw[:_MAX_TEXT]
    return ""


def _status(value: object) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isdecimal() and value.isascii():
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599 else None
