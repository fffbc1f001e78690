"""What `tidegate run` says: one line while the command runs, and one when it has ended."""

from __future__ import annotations

from collections import deque

from tidegate.launch.totals import KeyTotal, QuotaTotal, Totals

SPANS = (2.0, 60.0)
"""Seconds over which a rate is read off, at the least and at the most: the quota's own window in between."""

PACE_SPAN = 30.0
"""Seconds of answers by which the end is foreseen."""

WINDOWS = {1.0: "s", 60.0: "min", 3600.0: "h", 86_400.0: "day"}


class Status:
    """The line while it runs, told from one look to the next."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Totals]] = deque()

    def line(self, totals: Totals, now: float) -> str:
        """The busiest key and what it does now; empty before the first call. `now` is in monotonic seconds."""
        self._looks.append((now, totals))
        while len(self._looks) > 2 and self._looks[1][0] <= now - SPANS[1]:
            self._looks.popleft()
        key = totals.busiest
        if key is None or not (key.calls or key.waiting):
            return ""
        parts = [self._rate(key, now), f"{key.in_flight} in flight", f"{key.waiting} waiting"]
        eta = self._eta(key, now)
        if eta is not None:
            parts.append(f"ETA {clock(eta)}")
        others = sum(1 for each in totals.keys.values() if each is not key and each.in_flight + each.waiting)
        if others:
            parts.append(f"{others} more {'key' if others == 1 else 'keys'}")
        # The key comes last: a narrow terminal cuts the line there.
        return "tidegate  " + " · ".join([*parts, key.key])

    def _rate(self, key: KeyTotal, now: float) -> str:
        quota = key.binding
        if quota is None:
            past, _ = self._before(key, now, SPANS[1])
            return f"{key.counts['answered'] - (past.counts['answered'] if past else 0)} answered/min"
        span = min(SPANS[1], max(SPANS[0], quota.window))
        past, _ = self._before(key, now, span)
        used = quota.used - (past.quotas[quota.name].used if past and quota.name in past.quotas else 0.0)
        return f"{amount(max(0.0, used) * quota.window / span)} of {_limit(quota)}"

    def _eta(self, key: KeyTotal, now: float) -> float | None:
        past, seconds = self._before(key, now, PACE_SPAN)
        answered = key.counts["answered"] - (past.counts["answered"] if past else 0)
        left = key.in_flight + key.waiting
        return left * seconds / answered if answered > 0 and seconds > 0.0 and key.waiting else None

    def _before(self, key: KeyTotal, now: float, span: float) -> tuple[KeyTotal | None, float]:
        """The key as it stood `span` seconds ago, or at the first look, and how long that is."""
        at, past = next(look for look in self._looks if look[0] >= now - span)
        return past.keys.get(key.key), now - at


def farewell(totals: Totals) -> str:
    """The line at the end."""
    if not totals.pythons:
        return "nothing was governed: no Python process with tidegate was started (see docs/run.md)"
    if not totals.calls:
        return "no LLM call was seen; `tidegate doctor` says what is governed"
    counted = {name: totals.sum(name) for name in ("answered", "given_up", "absorbed", "abandoned")}
    lost = totals.sum("failed") - (totals.sum("resent") - counted["absorbed"])
    parts = [
        f"{totals.calls} {'call' if totals.calls == 1 else 'calls'}",
        f"{counted['answered']} answered",
        f"{counted['given_up']} given up",
        f"{counted['absorbed']} {'429' if counted['absorbed'] == 1 else '429s'} absorbed",
    ]
    if lost > 0:
        parts.append(f"{lost} failed")
    if counted["abandoned"]:
        parts.append(f"{counted['abandoned']} abandoned")
    share = _share(totals)
    return ", ".join([*parts, share] if share else parts)


def _share(totals: Totals) -> str:
    key = max(totals.keys.values(), key=lambda each: each.calls)
    quota = key.binding
    if quota is None or quota.share is None:
        return ""
    of = f" by {key.key}" if len(totals.keys) > 1 else ""
    return f"{quota.share:.0%} of the limit used ({_limit(quota)}){of}"


def _limit(quota: QuotaTotal) -> str:
    window = WINDOWS.get(quota.window, f"{quota.window:.3g} s")
    return f"{amount(quota.limit)} {quota.name.replace('_', ' ')}/{window}"


def amount(number: float) -> str:
    """A number in at most four digits."""
    for unit, size in (("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / (1e6 if unit == 'M' else 1e3):.3g}{unit}"
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
