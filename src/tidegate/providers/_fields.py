"""Quotas in headers that describe themselves: the IETF's RateLimit fields, and names made of words.

Theory of operation. `read_fields` reads the fields of drafts 03-06, 07, and 08 and later. One function reads all
drafts, because servers mix them. A member is a list of strings and a set of parameters, and the parameters show the
draft. Source: draft-ietf-httpapi-ratelimit-headers, read 2026-11-20 (provider-facts.md section 0), and the Hugging Face
Hub's actual fields (capture hf-hub-200-ietf: two strings before the parameters).

`place_of` reads a name that no row of a table lists. Gateways build names from the window and the policy that an
operator configures: `x-ai-ratelimit-remaining-minute-openai` (Kong), `x-ai-ratelimit-limit-<instance>` (APISIX),
`x-rate-limit-remaining-request-per-minute`. Such a name is a list of words: one of limit, remaining and reset; a
window; perhaps a unit; else the name of a policy. A limit of concurrency has no window (`x-concurrent-limit-max`). A
name is read once, when it is first seen.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from tidegate.core.values import QuotaReading, ResetInstant, Unit
from tidegate.providers import _values
from tidegate.providers._schema import CODE, LIMIT, REMAINING, RESET, WAIT, HeaderRow
from tidegate.providers._values import window_name
from tidegate.providers.refusal_limits import window_of

_MAX_FIELD = 1024
"""Bytes of an IETF field above which it is ignored. Chosen: longer than any field of `_MAX_MEMBERS` usual policies."""

_MAX_MEMBERS = 16
"""Policies of one IETF field that are read; further ones are ignored. Chosen: providers state two to four quotas."""

MAX_NAME = 64
"""Characters that are kept of a policy's name, and of the longest header's name that is kept. Chosen: names are words
such as `requests`."""

_PART = re.compile(r'"(?:[^"\\]|\\.){0,256}"|[^",;]|[,;]|"')

UNNAMED = "ratelimit"
"""Name of a quota that neither a policy nor a window names."""

_WINDOW_KEYS = frozenset({"w", "window"})
"""Parameters that state a policy's window: the draft's, and the one in the collected answer whoop-200-windows."""

_FIELD_UNITS: dict[str, Unit] = {
    "requests": "requests",
    "request": "requests",
    "tokens": "tokens",
    "concurrent-requests": "concurrent_requests",
}
"""Units by the value of `qu`, or of Helicone's `u`; other values (`content-bytes`, `cents`) are dropped."""


class _Member(NamedTuple):
    names: tuple[str, ...]
    parameters: dict[str, str]


class StatedReset(NamedTuple):
    """Reset of a quota as a header states it: as in `QuotaReading`, which describes each field."""

    after: float | None = None
    resolution: float = 1.0
    from_receipt: bool = False
    instant: ResetInstant | None = None


UNSTATED = StatedReset()
"""Reset of an answer that states none."""


class _Policy(NamedTuple):
    names: tuple[str, ...]
    limit: float
    window: float | None
    unit: Unit


def read_fields(
    limit: bytes | None,
    remaining: bytes | None,
    reset: bytes | None,
    combined: bytes | None,
    policy: bytes | None,
    answered: tuple[float, float],
) -> tuple[list[QuotaReading], int]:
    """Return the readings of the RateLimit fields, and the number of unusable values.

    `combined` is the field RateLimit. `answered` is the time of the response as `origin` returns it, for servers whose
    reset is an instant.
    """
    policies, bad = _policies(_members(policy))
    if combined is not None:
        readings, worse = _items(_members(combined), policies, answered)
    elif not policies and not bad and _members(policy):
        readings, worse = [], 0  # the fields count in a unit that is not read
    else:
        readings, worse = _triplet(_members(limit), policies, remaining, reset, answered)
    return readings, bad + worse + sum(_unreadable(field) for field in (limit, combined, policy))


def _unreadable(field: bytes | None) -> bool:
    return field is not None and not _members(field)


def _members(field: bytes | None) -> list[_Member]:
    if field is None or len(field) > _MAX_FIELD or not field.isascii():
        return []
    members: list[_Member] = []
    for text in _split(field.decode("ascii"), ",")[:_MAX_MEMBERS]:
        names: list[str] = []
        parameters: dict[str, str] = {}
        for part in _split(text, ";"):
            key, equals, value = part.partition("=")
            if part.startswith('"') or not equals:
                names.append(part.strip('"')[:MAX_NAME])
            else:
                parameters[key.strip().lower()] = value.strip().strip('"')
        members.append(_Member(tuple(name for name in names if name), parameters))
    return [member for member in members if member.names or member.parameters]


def _split(text: str, separator: str) -> list[str]:
    parts = [""]
    for token in _PART.findall(text):
        if token == separator:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def _policies(members: list[_Member]) -> tuple[list[_Policy], int]:
    """Return the policies of any draft: `100;w=10`, and `"name";q=100;w=60;qu="requests"`."""
    policies: list[_Policy] = []
    bad = 0
    for names, parameters in members:
        bare = names[0] if names and "q" not in parameters else None
        limit = _number(parameters.get("q", bare))
        window = _number(parameters.get("w", parameters.get("window")))
        unit = _FIELD_UNITS.get(parameters.get("qu") or parameters.get("u", "requests"))
        if unit is None:
            continue
        if limit is None or limit <= 0 or (not window and not parameters.keys().isdisjoint(_WINDOW_KEYS)):
            bad += 1
            continue
        policies.append(_Policy(() if bare is not None else names, limit, window, unit))
    return policies, bad


def _items(
    members: list[_Member], policies: list[_Policy], answered: tuple[float, float]
) -> tuple[list[QuotaReading], int]:
    """Read RateLimit of draft 07 (`limit=100, remaining=50, reset=5`) or of draft 08 and later (`"name";r=50;t=30`)."""
    merged = {key: value for member in members for key, value in member.parameters.items()}
    if "r" not in merged and ("remaining" in merged or "limit" in merged):
        limits = _members(merged["limit"].encode("ascii")) if "limit" in merged else []
        values = [merged[key].encode("ascii") if key in merged else None for key in ("remaining", "reset")]
        return _triplet(limits, policies, values[0], values[1], answered)
    left = list(policies)
    readings: list[QuotaReading] = []
    bad = 0
    for names, parameters in members:
        remaining = _number(parameters.get("r"))
        reset = _reset(parameters.get("t"), answered)
        bad += (remaining is None and "r" in parameters) + (reset.after is None and "t" in parameters)
        if remaining is None and reset.after is None:
            continue
        policy = next((p for p in left if set(p.names) & set(names)), None)
        if policy is not None:
            left.remove(policy)
            readings.append(_reading(policy, remaining, reset))
        else:
            name = plain_name(names[-1], UNNAMED) if names else UNNAMED
            readings.append(_quota(name, None, remaining, reset))
    return readings + [_reading(policy) for policy in left], bad


def _triplet(
    limits: list[_Member],
    policies: list[_Policy],
    remaining: bytes | None,
    reset: bytes | None,
    answered: tuple[float, float],
) -> tuple[list[QuotaReading], int]:
    """Read the three fields of drafts 03-06. Remaining and reset belong to the first member of the limit."""
    first = _number(limits[0].names[0]) if limits and limits[0].names else None
    others, bad = _policies(limits[1:])
    listed = [field.split(b",") if field is not None else [] for field in (remaining, reset)]
    if len(policies) > 1 and len(listed[0]) == len(policies):
        resets = listed[1] if len(listed[1]) == len(policies) else [b""] * len(policies)
        return [
            _reading(policy, _values.amount(left), _reset(after.decode("ascii", "replace").strip(), answered))
            for policy, left, after in zip(policies, listed[0], resets, strict=True)
        ], bad
    policies = policies + others
    left = _values.amount(remaining)
    stated = _reset(reset.decode("ascii", "replace") if reset is not None else None, answered)
    bad += (left is None and remaining is not None) + (stated.after is None and reset is not None)
    if limits and (first is None or first <= 0):
        return [_reading(policy) for policy in policies], bad + 1
    current = next((policy for policy in policies if policy.limit == first), None)
    if current is None and len(policies) == 1 and first is None:
        current = policies[0]
    if current is None:
        known = not (first is None and left is None and stated.after is None)
        own = [_quota(UNNAMED, first, left, stated)] if known else []
        return own + [_reading(policy) for policy in policies], bad
    return [_reading(policy, left, stated) if policy is current else _reading(policy) for policy in policies], bad


def _reading(policy: _Policy, remaining: float | None = None, reset: StatedReset = UNSTATED) -> QuotaReading:
    window = f"-{window_name(policy.window)}" if policy.window else ""
    unnamed = f"{policy.unit}{window}"
    name = plain_name(policy.names[-1], unnamed) if policy.names else unnamed
    return _quota(name, policy.limit, remaining, reset, policy.unit, policy.window or None)


def _quota(
    name: str,
    limit: float | None,
    remaining: float | None,
    reset: StatedReset,
    unit: Unit = "requests",
    window: float | None = None,
) -> QuotaReading:
    left = remaining if remaining is None or limit is None else min(remaining, limit)
    after, resolution, from_receipt, instant = reset
    return QuotaReading(name, unit, "fixed", limit, left, after, window, resolution, 1.0, from_receipt, instant)


def _number(text: str | None) -> float | None:
    return _values.amount(text.encode("ascii", "replace")) if text is not None else None


def _reset(text: str | None, answered: tuple[float, float]) -> StatedReset:
    """Return the reset of the drafts, in delta seconds; some servers send an instant."""
    when = _values.time(text.encode("ascii", "replace")) if text is not None else None
    if when is None:
        return UNSTATED
    reset = from_instant(when, answered) if when.form == "instant" else StatedReset(when.seconds)
    return reset if reset.after is not None and reset.after <= _values.MAX_SECONDS else UNSTATED


def from_instant(when: _values.Time, answered: tuple[float, float]) -> StatedReset:
    """Return the reset that an instant states, counted from the time of the response (`origin`)."""
    at, rounding = answered
    instant = ResetInstant(when.seconds, when.resolution, at) if rounding else None
    return StatedReset(max(0.0, when.seconds - at), max(when.resolution, rounding), True, instant)


_SOURCE = "public GitHub files 8662842399, 62474950406 (Kong AI gateway) and 2517053470 (APISIX), read 2026-11-23"

_ROLES = {"limit": LIMIT, "remaining": REMAINING, "reset": RESET}

_REASONS = frozenset({"type", "exceeded", "reason", "scope", "resource", "bucket", "rule"})
"""Words of names whose value says which limit refused (GitHub Models: `x-ratelimit-type: UserByModelByDay`)."""

_UNITS: dict[str, Unit] = {
    **dict.fromkeys(("request", "requests", "req", "reqs", "calls"), "requests"),
    **dict.fromkeys(("token", "tokens"), "tokens"),
}

_CONCURRENT = frozenset({"concurrent", "concurrency"})

_USED = frozenset({"current", "used", "active", "reset", "after", "type", "exceeded"})
"""Words of names whose value is no limit of concurrency, and not what is left of it."""

_UNCOUNTED = frozenset({"cost", "credits", "usd", "bytes", "characters", "seconds", "images", "unified"})
"""Words of names whose quota is not counted here: money, sizes, and shares of a plan."""

_MEASURED: dict[str, Unit] = {"audio-seconds": "audio_seconds", "input-characters": "input_characters"}
"""Units of sizes that are counted (captures mistral-200-audio and mistral-200-tts, which gateways pass on)."""

_WINDOW = re.compile(r"second|sec|minute|min|hour(?:ly)?|day|daily|week(?:ly)?|month(?:ly)?")

_SPAN = re.compile(r"([1-9][0-9]{0,6})(s|m|h|d|w|second|minute|hour|day)?")
_TENS = re.compile(r"[1-9][0-9]{1,2}")
"""Number before a window's word (`10-second`). A smaller one is a model's (`gpt-4-minute`)."""

_PLAIN = re.compile(r"[0-9]{0,6}[A-Za-z]?[a-z]{0,10}(?:[ ._-][0-9]{0,6}[A-Za-z]?[a-z]{0,10}){0,7}")
"""Names that are words and counts (`100-in-15min`). A credential is no such text: it has longer or mixed words."""


def plain_name(name: str, otherwise: str) -> str:
    """Return a name that a provider writes, or `otherwise` and a digest where it may hold a credential.

    Names of quotas are in shared logs, files and metrics, and a server may put any text there.
    """
    if _PLAIN.fullmatch(name):
        return name
    return f"{otherwise}-{hashlib.blake2b(name.encode('utf-8', 'replace'), digest_size=3).hexdigest()}"


class NamedPlace(NamedTuple):
    """The place of a header's value: in a row that its name describes, or among the headers of no quota."""

    place: int
    row: HeaderRow | None


def place_of(header: str) -> NamedPlace | None:
    """Return the place of a header by its name in lower case; None if the name describes no limit."""
    words = header.replace("rate-limit", "ratelimit").split("-")
    if not _CONCURRENT.isdisjoint(words) and _USED.isdisjoint(words):
        place = REMAINING if "remaining" in words else LIMIT
        row = HeaderRow("concurrent-requests", "concurrent_requests", _SOURCE, limit=(header,))
        return NamedPlace(place, row)
    if "ratelimit" not in words:
        return None
    if "retry" in words and "after" in words:
        return NamedPlace(WAIT, None) if "ms" not in words else None
    if not _REASONS.isdisjoint(words):
        return NamedPlace(CODE, None)
    roles = [word for word in words if word in _ROLES]
    window = _window(words)
    measured = next((unit for size, unit in _MEASURED.items() if f"-{size}-" in header), None)
    if len(roles) != 1 or window is None or (measured is None and not _UNCOUNTED.isdisjoint(words)):
        return None
    counted = next((_UNITS[word] for word in words if word in _UNITS), "tokens" if "ai" in words else "requests")
    unit = measured or counted
    if unit == "tokens" and not {"input", "output"}.isdisjoint(words):
        unit = "input_tokens" if "input" in words else "output_tokens"
    name = plain_name("-".join(word for word in words if word not in ("x", "ratelimit", *roles)), unit)
    row = HeaderRow(name, unit, _SOURCE, limit=(header,), refill="fixed", bare="seconds", window=window)
    return NamedPlace(_ROLES[roles[0]], row)


def _window(words: list[str]) -> float | None:
    """Return the window among the words in seconds: `minute`, `10-second`, `5h`, or minutes as seconds (`300`)."""
    for number, word in enumerate(words):
        if _WINDOW.fullmatch(word):
            before = words[number - 1]
            return window_of(before if _TENS.fullmatch(before) else None, word)
        span = _SPAN.fullmatch(word)
        if span is not None and (span[2] or int(span[1]) % 60 == 0):
            return window_of(span[1], span[2] or "s")
    return None
