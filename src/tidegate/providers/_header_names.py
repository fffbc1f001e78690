"""Quotas that only the name of a header describes, where no row of a table names the header.

Theory of operation. Gateways build names from the window and the policy that an operator configures, so no table can
list them: `x-ai-ratelimit-remaining-minute-openai` (Kong), `x-ai-ratelimit-limit-<instance>` (APISIX),
`x-rate-limit-remaining-request-per-minute`. Such a name is a list of words: one of limit, remaining and reset; a
window; perhaps a unit; else the name of a policy. A limit of concurrency has no window (`x-concurrent-limit-max`). A
name is read once, when it is first seen.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from tidegate.core.values import Unit
from tidegate.providers._schema import CODE, LIMIT, REMAINING, RESET, WAIT, HeaderRow

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

_WINDOWS = {
    **dict.fromkeys(("second", "sec"), 1.0),
    **dict.fromkeys(("minute", "min"), 60.0),
    **dict.fromkeys(("hour", "hourly"), 3600.0),
    **dict.fromkeys(("day", "daily"), 86400.0),
    **dict.fromkeys(("week", "weekly"), 604800.0),
    **dict.fromkeys(("month", "monthly"), 2592000.0),
}

_SPAN = re.compile(r"([1-9][0-9]{0,6})(s|m|h|d|w|second|minute|hour|day)?")
_TENS = re.compile(r"[1-9][0-9]{1,2}")
"""Number before a window's word (`10-second`). A smaller one is a model's (`gpt-4-minute`)."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


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
    if len(roles) != 1 or window is None or not _UNCOUNTED.isdisjoint(words):
        return None
    unit = next((_UNITS[word] for word in words if word in _UNITS), "tokens" if "ai" in words else "requests")
    if unit == "tokens" and not {"input", "output"}.isdisjoint(words):
        unit = "input_tokens" if "input" in words else "output_tokens"
    name = plain_name("-".join(word for word in words if word not in ("x", "ratelimit", *roles)), unit)
    row = HeaderRow(name, unit, _SOURCE, limit=(header,), refill="fixed", bare="seconds", window=window)
    return NamedPlace(_ROLES[roles[0]], row)


def _window(words: list[str]) -> float | None:
    """Return the window among the words in seconds: `minute`, `10-second`, `5h`, or minutes as seconds (`300`)."""
    for number, word in enumerate(words):
        if word in _WINDOWS:
            before = words[number - 1]
            return _WINDOWS[word] * (float(before) if _TENS.fullmatch(before) else 1.0)
        span = _SPAN.fullmatch(word)
        if span is not None and (span[2] or int(span[1]) % 60 == 0):
            return float(span[1]) * _SECONDS[(span[2] or "s")[0]]
    return None
