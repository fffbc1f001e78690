"""Present state of a key as plain values for the page: waits, latencies, refusals, and where each limit is known from.

Every number is finite, or None where it is unknown. Durations and ages are in seconds.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from tidegate.core.provenance import STATED, Source
from tidegate.core.values import INFINITY
from tidegate.core.wait_text import CLOSED, wait_text
from tidegate.launch.change_ring import CAUSES
from tidegate.launch.counter_row import BREAKER_STATES, FATES, GROUPS, KeyRow, source_of
from tidegate.launch.totals import KeyTotal, facts_of

DIGITS = 3
"""Decimals of a number that is sent. Chosen: milliseconds."""

PLAIN = ("key", "gate", "eta_without", "in_flight", "waiting", "members", "tokens")
COUNTED = ("calls", "answered", "refused", "retried", "given_up", "failed", "abandoned")
"""Names of the facts of `tidegate status` that the page shows as they are."""


def finite(value: float | None) -> float | None:
    """Return a number as it is sent: rounded, and None where it is none."""
    if value is None or not isfinite(value):
        return None
    rounded = round(value, DIGITS)
    return int(rounded) if rounded == int(rounded) else rounded


def known_from(origin: float, known_at: float, now: float, holds_for: float = INFINITY) -> dict[str, Any]:
    """Return the origin of a limit: `stated`, `inferred`, `assumed` or `saved` (by an earlier run), and its age.

    It is `old` after `holds_for` seconds. `origin` is a code of a row; `known_at` is in monotonic seconds (0: never).
    """
    source = source_of(origin)
    if not known_at:
        badge = "saved" if source is Source.EARLIER_RUN else "assumed"
        return {"badge": badge, "origin": source.value, "age": None, "old": False}
    age = max(0.0, now - known_at)
    badge = "stated" if source in STATED else "inferred"
    return {"badge": badge, "origin": source.value, "age": finite(age), "old": age > holds_for}


def shown_facts(total: KeyTotal, now: float) -> dict[str, Any]:
    """Return the present state of a key; `now` is in monotonic seconds."""
    seen, known = total.outlook(now), facts_of(total, now)
    head = total.head_wait(seen)
    rows = sorted(total.here, key=lambda row: row.looked_at)
    newest = rows[-1] if rows else None
    rejected = _rejected(rows)
    return {
        **{name: known[name] for name in PLAIN},
        **{name: finite(known[name]) for name in ("next_in", "stated_wait", "eta")},
        "blocked": wait_text(*head) if total.waiting or head.gate in CLOSED else "",
        "slots": total.slots,
        "slots_from": known_from(newest.slots_origin, newest.slots_known_at, now) if newest else None,
        "carrier": total.carrier,
        "idle_for": finite(max(0.0, now - max(row.changed_at for row in rows))) if rows else None,
        "latency": _latency(rows),
        "pace": finite(seen.pace) or None,
        "pace_from": known_from(newest.pace_origin, newest.pace_known_at, now) if newest and seen.pace else None,
        "breaker": _breaker(rows, now),
        "rejected": rejected,
        "counts": {name: known[name] for name in COUNTED},
        "refusals": {fate: {group: total.counts[f"{fate}_{group}"] for group in GROUPS} for fate in FATES},
        "quotas": [
            {
                "name": each.name,
                "level": finite(each.level),
                "limit": finite(each.limit),
                "window": finite(each.window),
                "back_in": finite(each.boundary_in),
                **_quota_origin(rows, each.name, now),
            }
            for each in seen.quotas
        ],
    }


def _latency(rows: list[KeyRow]) -> dict[str, float | None] | None:
    """Return the latencies of the last answers: the mean of the processes, and the worst of their 99th percentiles."""
    known = [row for row in rows if row.latency > 0.0]
    if not known:
        return None
    return {
        "mean": finite(sum(row.latency for row in known) / len(known)),
        "p50": finite(sum(row.latency_p50 for row in known) / len(known)),
        "p99": finite(max(row.latency_p99 for row in known)),
    }


def _breaker(rows: list[KeyRow], now: float) -> dict[str, Any]:
    """Return the state of the circuit breaker, the least open of the processes' where they differ."""
    states = [row.counts["breaker"] for row in rows if 0 <= row.counts["breaker"] < len(BREAKER_STATES)]
    order = (0, 2, 1)  # half open is between closed and open
    state = max(states, key=order.index, default=0)
    opens_at = max((row.broken_until for row in rows), default=0.0)
    probe_in = finite(max(0.0, opens_at - now)) if state == 1 else None
    return {"state": BREAKER_STATES[state], "probe_in": probe_in}


def _rejected(rows: list[KeyRow]) -> str:
    code = rows[-1].counts["rejected"] if rows else 0
    return CAUSES[code].value if 0 < code < len(CAUSES) else ""


def _quota_origin(rows: list[KeyRow], name: str, now: float) -> dict[str, Any]:
    seen = [(quota.known_at, quota) for row in rows for quota in row.quotas if quota.name == name]
    if not seen:
        return {"from": None, "window_from": None}
    _, quota = max(seen, key=lambda each: each[0])
    window = known_from(quota.window_origin, quota.known_at if quota.window_origin else 0.0, now, quota.window)
    return {"from": known_from(quota.origin, quota.known_at, now, quota.window), "window_from": window["badge"]}
