"""The body of a refusal: its codes, its message, the wait it names. Never raises, whatever the body is."""

from __future__ import annotations

import json
from typing import NamedTuple

from tidegate.providers import _parse
from tidegate.providers._quota_failure import Exceeded, read_details

_MAX_BODY = 1 << 18
_MAX_TEXT = 4096
_MAX_CODE = 128
_MAX_QUOTED = 64
_CODE_KEYS = ("code", "type", "status", "error_code", "error_type")
_TEXT_KEYS = ("message", "detail", "title", "error_description", "error")


class Refusal(NamedTuple):
    """A refusal in words that rows compare with: lower case, white space collapsed. `wait` is in seconds.

    `headers` are those that the body quotes (`error.metadata.headers`, capture openrouter-429-free-day).
    `exceeded` are the quotas that the body lists as exceeded.
    """

    codes: frozenset[str] = frozenset()
    text: str = ""
    wait: float | None = None
    status: int | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    exceeded: tuple[Exceeded, ...] = ()


NOTHING = Refusal()


def refusal_of(body: bytes | None) -> Refusal:
    """The refusal that a body describes: a JSON object, an array of one, a JSON string, or plain text.

    HTML is nobody's message (a proxy wrote it), so nothing is read from it.
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
    return NOTHING if start[:1] in (b"{", b"[") else Refusal(text=plain(body[:_MAX_TEXT].decode("utf-8", "ignore")))


def refusal_in(document: object) -> Refusal:
    """The refusal that a parsed document describes; `NOTHING` for one of an unknown shape."""
    if isinstance(document, list):
        document = document[0] if document else None
    if isinstance(document, str):
        return Refusal(text=plain(document))
    if not isinstance(document, dict):
        return NOTHING
    inner = document.get("error")
    response = document.get("response")
    if inner is None and isinstance(response, dict):
        inner = response.get("error")
    layers = [layer for layer in (inner, document) if isinstance(layer, dict)]
    nested = _nested(layers)
    if nested is not None:
        layers.insert(0, nested)
    codes: set[str] = set()
    for layer in layers:
        codes |= _codes(layer)
    waits = [wait for layer in layers if (wait := _wait(layer.get("retry_after"))) is not None]
    listed: tuple[Exceeded, ...] = ()
    for layer in layers:
        if isinstance(layer.get("details"), list):
            wait, exceeded, reasons = read_details(layer["details"])
            codes |= reasons
            listed += exceeded
            waits += [wait] if wait is not None else []
    status = next((code for layer in layers for key in ("code", "status") if _is_status(code := layer.get(key))), None)
    return Refusal(frozenset(codes), _text(layers), waits[0] if waits else None, status, _quoted(layers), listed)


def parsed(body: bytes | str) -> object:
    """The JSON document, or None for what is not one, or is nested too deeply to read."""
    try:
        document: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return document


def plain(text: str) -> str:
    """The text as rows compare it: cut, lower case, white space collapsed, typographic apostrophes straight."""
    return " ".join(text[:_MAX_TEXT].lower().replace("\u2019", "'").split())


def _nested(layers: list[dict[str, object]]) -> dict[str, object] | None:
    """The upstream's error where a gateway put its JSON into the message as a string (capture gemini-429-free-tpm)."""
    for layer in layers:
        message = layer.get("message")
        if isinstance(message, str) and message[:64].lstrip()[:1] == "{" and len(message) <= _MAX_BODY:
            document = parsed(message)
            if isinstance(document, dict):
                inner = document.get("error")
                return inner if isinstance(inner, dict) else document
    return None


def _codes(layer: dict[str, object]) -> set[str]:
    values = [layer.get(key) for key in _CODE_KEYS]
    details = layer.get("details")
    if isinstance(details, dict):
        values += [details.get(key) for key in _CODE_KEYS]
    metadata = layer.get("metadata")
    if isinstance(metadata, dict):
        values.append(metadata.get("limit_source"))
    return {
        str(value).lower()
        for value in values
        if (isinstance(value, str) and len(value) <= _MAX_CODE) or _is_status(value)
    }


def _quoted(layers: list[dict[str, object]]) -> tuple[tuple[bytes, bytes], ...]:
    for layer in layers:
        metadata = layer.get("metadata")
        headers = metadata.get("headers") if isinstance(metadata, dict) else None
        if isinstance(headers, dict):
            pairs = [(name, str(value)) for name, value in headers.items() if isinstance(value, str | int | float)]
            quoted = [(name.encode("ascii", "replace"), value.encode("ascii", "replace")) for name, value in pairs]
            return tuple(quoted[:_MAX_QUOTED])
    return ()


def _text(layers: list[dict[str, object]]) -> str:
    for layer in layers:
        for key in _TEXT_KEYS:
            value = layer.get(key)
            if isinstance(value, str) and value:
                return plain(value)
    return ""


def _wait(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _parse.MAX_SECONDS else None


def _is_status(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599
