"""The IETF's RateLimit fields as readings: drafts 03-06, 07, and 08 and later.

Source: draft-ietf-httpapi-ratelimit-headers, read 2026-11-20 (PROVIDERS.md section 0), with what the Hugging Face Hub
really writes (capture hf-hub-200-ietf: two strings before the parameters). One function for all drafts, since servers
mix them: a member is a list of strings and a set of parameters, and which parameters it has says which draft it is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tidegate.core.values import Reading, Unit
from tidegate.providers import _parse
from tidegate.providers._windows import window_name

_MAX_FIELD = 1024
_MAX_MEMBERS = 16
_MAX_NAME = 64
_PART = re.compile(r'"(?:[^"\\]|\\.){0,256}"|[^",;]|[,;]|"')

_UNITS: dict[str, Unit] = {"requests": "requests", "tokens": "tokens", "concurrent-requests": "concurrent_requests"}
"""`qu` values that a quota can be kept for; others (`content-bytes`) are dropped."""


class _Member(NamedTuple):
    names: tuple[str, ...]
    parameters: dict[str, str]


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
    now: float,
) -> tuple[list[Reading], int]:
    """The readings of RateLimit-Limit, -Remaining, -Reset, RateLimit and RateLimit-Policy, and how many were unusable.

    `now` is the response's own time in seconds since 1970, for servers that send an instant as reset.
    """
    policies, bad = _policies(_members(policy))
    if combined is not None:
        readings, worse = _items(_members(combined), policies, now)
    else:
        readings, worse = _triplet(_members(limit), policies, remaining, reset, now)
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
                names.append(part.strip('"')[:_MAX_NAME])
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
    """Policies of any draft: `100;w=10`, and `"name";q=100;w=60;qu="requests"`."""
    policies: list[_Policy] = []
    bad = 0
    for names, parameters in members:
        bare = names[0] if names and "q" not in parameters else None
        limit = _number(parameters.get("q", bare))
        window = _number(parameters.get("w"))
        unit = _UNITS.get(parameters.get("qu", "requests"))
        if unit is None:
            continue
        if limit is None or limit <= 0 or ("w" in parameters and not window):
            bad += 1
            continue
        policies.append(_Policy(() if bare is not None else names, limit, window, unit))
    return policies, bad


def _items(members: list[_Member], policies: list[_Policy], now: float) -> tuple[list[Reading], int]:
    """RateLimit of draft 07 (`limit=100, remaining=50, reset=5`) or of draft 08 and later (`"name";r=50;t=30`)."""
    merged = {key: value for member in members for key, value in member.parameters.items()}
    if "r" not in merged and ("remaining" in merged or "limit" in merged):
        limits = _members(merged["limit"].encode("ascii")) if "limit" in merged else []
        values = [merged[key].encode("ascii") if key in merged else None for key in ("remaining", "reset")]
        return _triplet(limits, policies, values[0], values[1], now)
    left = list(policies)
    readings: list[Reading] = []
    bad = 0
    for names, parameters in members:
        remaining = _number(parameters.get("r"))
        after = _seconds(parameters.get("t"), now)
        bad += (remaining is None and "r" in parameters) + (after is None and "t" in parameters)
        if remaining is None and after is None:
            continue
        policy = next((p for p in left if set(p.names) & set(names)), None)
        if policy is not None:
            left.remove(policy)
            readings.append(_reading(policy, remaining, after))
        else:
            name = names[-1] if names else "ratelimit"
            readings.append(Reading(name, "requests", "fixed", None, remaining, after, None, 1.0))
    return readings + [_reading(policy, None, None) for policy in left], bad


def _triplet(
    limits: list[_Member], policies: list[_Policy], remaining: bytes | None, reset: bytes | None, now: float
) -> tuple[list[Reading], int]:
    """The three fields of drafts 03-06: the first member of the limit is the one that remaining and reset speak of."""
    first = _number(limits[0].names[0]) if limits and limits[0].names else None
    others, bad = _policies(limits[1:])
    policies = policies + others
    left = _parse.amount(remaining)
    after = _seconds(reset.decode("ascii", "replace") if reset is not None else None, now)
    bad += (left is None and remaining is not None) + (after is None and reset is not None)
    if limits and (first is None or first <= 0):
        return [_reading(policy, None, None) for policy in policies], bad + 1
    current = next((policy for policy in policies if policy.limit == first), None)
    if current is None and len(policies) == 1 and first is None:
        current = policies[0]
    if current is None:
        known = not (first is None and left is None and after is None)
        own = [Reading("ratelimit", "requests", "fixed", first, _least(left, first), after, None, 1.0)] if known else []
        return own + [_reading(policy, None, None) for policy in policies], bad
    return [_reading(policy, *((left, after) if policy is current else (None, None))) for policy in policies], bad


def _reading(policy: _Policy, remaining: float | None, after: float | None) -> Reading:
    window = f"-{window_name(policy.window)}" if policy.window else ""
    name = policy.names[-1] if policy.names else f"{policy.unit}{window}"
    return Reading(
        name, policy.unit, "fixed", policy.limit, _least(remaining, policy.limit), after, policy.window or None, 1.0
    )


def _least(remaining: float | None, limit: float | None) -> float | None:
    return remaining if remaining is None or limit is None else min(remaining, limit)


def _number(text: str | None) -> float | None:
    return _parse.amount(text.encode("ascii", "replace")) if text is not None else None


def _seconds(text: str | None, now: float) -> float | None:
    """Delta seconds as the drafts ask; an instant, as some servers send, counts from `now`."""
    when = _parse.time(text.encode("ascii", "replace")) if text is not None else None
    if when is None:
        return None
    after = max(0.0, when.seconds - now) if when.form == "instant" else when.seconds
    return after if after <= _parse.MAX_SECONDS else None
