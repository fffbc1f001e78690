"""History of the limits of all live runs: one sample of each key a second, for ten minutes.

Theory of operation. A counter file has sums since the beginning of a run. The use of a quota within its window is the
difference of two sums, without what a continuous refill has given back. So a governed program keeps no samples, and a
page that is opened later begins with the first sample of its server. The changes of a key come from the ring in its
row, also those before the server began.

Every number that is sent is finite, or None where it is unknown. Durations and ages are in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from tidegate.core.provenance import STATED
from tidegate.core.safe_text import printable
from tidegate.core.values import INFINITY, Source
from tidegate.core.wait_text import CLOSED, wait_text
from tidegate.launch.counter_row import BREAKER_STATES, CAUSES, FATES, GROUPS, KeyChange, KeyRow, source_of
from tidegate.launch.runs import ProgramRun
from tidegate.launch.totals import KeyTotal, facts_of

SENT_DECIMALS = 3
"""Decimals of a number that is sent. Chosen: milliseconds."""

PLAIN = ("key", "gate", "eta_without", "in_flight", "waiting", "members", "tokens")
COUNTED = ("calls", "answered", "refused", "retried", "given_up", "failed", "abandoned")
"""Names of the facts of `tidegate status` that the page shows as they are."""


def finite(value: float | None) -> float | None:
    """Return a number as it is sent: rounded, and None where it is none."""
    if value is None or not isfinite(value):
        return None
    rounded = round(value, SENT_DECIMALS)
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
        "binding": _binding(total),
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


def _binding(total: KeyTotal) -> dict[str, Any] | None:
    """Return the quota that was used most since the beginning, with its used share."""
    quota = total.binding
    if quota is None:
        return None
    share = finite(quota.share)
    return {"name": quota.name, "limit": finite(quota.limit), "window": finite(quota.window), "share": share}


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


SAMPLE_SECONDS = 1.0
"""Seconds between two samples. Chosen: an eye follows it, and a sample of 20 runs takes some milliseconds."""

KEPT_SAMPLES = 600
"""Samples that are kept of each key. Chosen: ten minutes."""

KEPT_CHANGES = 200
"""Changes that are kept of all keys together."""

FORGOTTEN_SAMPLES = 60
"""Samples for which an ended run is still shown. Chosen: a minute, in which the user may look at the end of a run."""

YOUNG_PROGRAM_SECONDS = 2.0 * SAMPLE_SECONDS
"""Seconds a program has run for at most when all of its attempts belong to the first sample."""

FINISHED_PROGRAMS = 100
"""Ended programs whose counts are kept. Chosen: the programs of a working day."""

TOTALED = ("calls", "answered", "retried", "given_up")
"""Counts that are added up over all runs that the server has seen, ended ones included."""

SAME_CHANGE_SECONDS = 5.0
"""Seconds within which the same change in several processes of a key is one. Chosen: processes that share a key learn
of a change with their next step."""


class Sample(NamedTuple):
    """State of a key: `used` and `limits` have the units of each quota within its window, by the order of their names.

    `used` is None where the window is longer than the history, and the run is older. `sent` and `refused` are the
    attempts since the sample before. `pace` is the learned rate in calls a second, None where none was learned.
    """

    number: int
    in_flight: int
    waiting: int
    slots: int
    sent: int
    refused: int
    pace: float | None
    used: tuple[float | None, ...]
    limits: tuple[float, ...]


class ShownChange(NamedTuple):
    """Change of a key at `at`, in seconds since 1970; `number` is the sample that found it, the rest as `KeyChange`.

    `id` counts the changes of all keys. `subject` is the name of the quota, where it is one that changed, and `window`
    its window in seconds.
    """

    id: int
    number: int
    key_id: int
    at: float
    kind: str
    subject: str
    window: float | None
    before: float | None
    after: float | None
    cause: str
    origin: str


@dataclass(slots=True)
class KeyHistory:
    """Samples of one key in one run; `rings` are the rings of changes at the last one, `noted` the newest changes.

    `attempts` and `refused` are the counts at the last sample.
    """

    key_id: int
    quotas: tuple[str, ...] = ()
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    sums: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=KEPT_SAMPLES))
    rings: frozenset[bytes] = frozenset()
    noted: deque[KeyChange] = field(default_factory=lambda: deque(maxlen=KEPT_CHANGES))
    attempts: int = 0
    refused: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    number: int = 0


@dataclass(slots=True)
class RunHistory:
    """One run; `ended` tells that it was not found at the last sample.

    The counts of its processes in `lost` cannot be read, for the reason there.
    """

    pid: int
    command: str
    unreadable: str = ""
    lost: dict[int, str] = field(default_factory=dict)
    elapsed: float = 0.0
    number: int = 0
    ended: bool = False
    keys: dict[str, KeyHistory] = field(default_factory=dict)


class LimitHistory:
    """History of all keys of all live runs; `wall` is the clock of the page, in seconds since 1970."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._runs: dict[tuple[int, str], RunHistory] = {}
        self._changes: deque[ShownChange] = deque(maxlen=KEPT_CHANGES)
        self._totals = dict.fromkeys(TOTALED, 0)
        self._finished: dict[tuple[int, str], dict[str, Any]] = {}
        self._keys = self._noted = 0
        self.number = 0
        self.taken_at = 0.0

    def take(self, found: Iterable[ProgramRun], now: float) -> None:
        """Take a sample of the runs; `now` is in monotonic seconds."""
        self.number += 1
        self.taken_at = self._wall()
        for run in self._runs.values():
            run.ended = True
        for each in found:
            identity = each.pid, each.command
            known = self._runs.get(identity)
            if known is not None and each.elapsed >= known.elapsed:
                run, watched = known, True
            else:
                # A shorter run is another one: the system gave its process the same number.
                run = self._runs[identity] = RunHistory(each.pid, printable(each.command))
                watched = each.elapsed <= YOUNG_PROGRAM_SECONDS
            run.unreadable, run.elapsed = each.unreadable, each.elapsed
            run.lost = each.totals.unreadable
            run.number, run.ended = self.number, False
            for total in each.totals.keys.values():
                try:
                    self._note(run, total, now, watched)
                except (ArithmeticError, ValueError) as error:
                    # A file with damaged numbers must not take the other programs from the page.
                    run.unreadable = f"its counts are damaged ({type(error).__name__})"
        self._note_ends()
        ago = self.number - FORGOTTEN_SAMPLES
        self._runs = {identity: run for identity, run in self._runs.items() if run.number > ago}

    def answer(self, since: int) -> dict[str, Any]:
        """Return the state and the samples after number `since`; all if `since` is from another server."""
        first = since if 0 <= since <= self.number else 0
        runs = sorted(self._runs.values(), key=lambda each: (each.ended, -each.elapsed))
        return {
            "sample": self.number,
            "since": first,
            "as_of": self.taken_at,
            "period": SAMPLE_SECONDS,
            "totals": dict(self._totals),
            "runs": [self._shown(run, first) for run in runs],
            "finished": [*reversed(self._finished.values())],
            "changes": [change._asdict() for change in self._changes if change.number > first],
        }

    def _note_ends(self) -> None:
        for identity, run in self._runs.items():
            if not run.ended:
                # A program that was only missed for a moment has not ended.
                self._finished.pop(identity, None)
            elif run.number == self.number - 1:
                end = _end_of(run, self.taken_at)
                if end["counts"]["calls"]:
                    self._finished[identity] = end
        for identity in list(self._finished)[:-FINISHED_PROGRAMS]:
            del self._finished[identity]

    def _note(self, run: RunHistory, total: KeyTotal, now: float, watched: bool) -> None:
        facts = shown_facts(total, now)
        attempts, refused = total.counts["attempts"], total.counts["refused"]
        key = run.keys.get(total.key)
        if key is None:
            self._keys += 1
            key = run.keys[total.key] = KeyHistory(self._keys)
            if not watched:
                # Nothing tells when the attempts before the first sample were sent.
                key.attempts, key.refused = attempts, refused
        names = tuple(total.quotas)
        if names != key.quotas:
            # A quota that appears moves no other one: the readers of the samples go by their own order.
            key.quotas = (*key.quotas, *(name for name in names if name not in key.quotas))
        sums = {name: quota.used for name, quota in total.quotas.items()}
        seen = {each["name"]: each for each in facts["quotas"]}
        used = tuple(_in_use(self._used(key, run, total, name, now), seen.get(name)) for name in key.quotas)
        limits = tuple(total.quotas[name].limit if name in total.quotas else 0.0 for name in key.quotas)
        # What a process counted that has ended since may be missing.
        sent, refusals = max(0, attempts - key.attempts), max(0, refused - key.refused)
        flying, waiting, slots = total.in_flight, total.waiting, total.slots
        key.samples.append(Sample(self.number, flying, waiting, slots, sent, refusals, facts["pace"], used, limits))
        key.attempts, key.refused = attempts, refused
        key.sums.append(sums)
        self._note_changes(key, total.here, now)
        # What a process counted that has ended since may be missing: only what is new is added.
        before = key.facts.get("counts", {})
        for name in TOTALED:
            self._totals[name] += max(0, facts["counts"][name] - before.get(name, 0))
        key.number = self.number
        key.facts = facts

    def _used(self, key: KeyHistory, run: RunHistory, total: KeyTotal, name: str, now: float) -> float | None:
        quota = total.quotas.get(name)
        if quota is None:
            return None
        back = max(1, round(quota.window / SAMPLE_SECONDS))
        if back <= len(key.sums):
            used = quota.used - key.sums[-back].get(name, 0.0)
        elif now - quota.since <= quota.window:
            # Before its first reading, units were used that only the provider counted.
            used = quota.used + quota.limit - quota.stood
        elif len(key.sums) >= run.elapsed / SAMPLE_SECONDS:
            used = quota.used
        else:
            return None
        known = finite(used)
        return None if known is None else max(0.0, known)

    def _note_changes(self, key: KeyHistory, rows: Iterable[KeyRow], now: float) -> None:
        # Most rings are as they were a second ago: only the others are read.
        before, key.rings = key.rings, frozenset(row.ring for row in rows)
        new = [(change, row) for row in rows if row.ring not in before for change in row.changes]
        for change, row in sorted(new, key=lambda each: each[0].at):
            if any(_is_same(change, other) for other in key.noted):
                continue
            key.noted.append(change)
            quota = row.quotas[change.quota] if change.kind == "limit" and change.quota < len(row.quotas) else None
            self._noted += 1
            self._changes.append(
                ShownChange(
                    self._noted,
                    self.number,
                    key.key_id,
                    finite(self.taken_at - (now - change.at)) or 0.0,
                    change.kind,
                    quota.name if quota is not None else "",
                    finite(quota.window) if quota is not None else None,
                    finite(change.before),
                    finite(change.after),
                    change.cause.value,
                    change.origin.value,
                )
            )

    def _shown(self, run: RunHistory, since: int) -> dict[str, Any]:
        return {
            "pid": run.pid,
            "command": run.command,
            "elapsed": run.elapsed,
            "unreadable": run.unreadable,
            "lost": [{"pid": pid, "why": why} for pid, why in run.lost.items()],
            "ended": run.ended,
            "keys": [self._shown_key(key, since) for key in run.keys.values()],
        }

    def _shown_key(self, key: KeyHistory, since: int) -> dict[str, Any]:
        new = [sample for sample in key.samples if sample.number > since]
        return {
            **key.facts,
            "id": key.key_id,
            "series": {
                "number": [sample.number for sample in new],
                "in_flight": [sample.in_flight for sample in new],
                "waiting": [sample.waiting for sample in new],
                "slots": [sample.slots for sample in new],
                "sent": [sample.sent for sample in new],
                "refused": [sample.refused for sample in new],
                "pace": [sample.pace for sample in new],
                "quotas": [
                    {
                        "name": name,
                        "used": [finite(sample.used[place]) if place < len(sample.used) else None for sample in new],
                        "limit": [
                            finite(sample.limits[place]) if place < len(sample.limits) else None for sample in new
                        ],
                    }
                    for place, name in enumerate(key.quotas)
                ],
            },
        }


def _end_of(run: RunHistory, at: float) -> dict[str, Any]:
    """Return an ended program as its last sample counted it; `at` is in seconds since 1970."""
    keys = [key.facts for key in run.keys.values()]
    bound = [facts["binding"] for facts in keys if facts["binding"] and facts["binding"]["share"] is not None]
    return {
        "pid": run.pid,
        "command": run.command,
        "at": finite(at),
        "elapsed": run.elapsed,
        "counts": {name: sum(facts["counts"][name] for facts in keys) for name in COUNTED},
        "binding": max(bound, key=lambda each: float(each["share"]), default=None),
    }


def _in_use(used: float | None, quota: Mapping[str, Any] | None) -> float | None:
    """Return the used units that have not come back, of those used within the window.

    A continuous quota gives units back at once: one window may use its burst and its refill.
    """
    if used is None or quota is None or quota["back_in"] is not None or None in (quota["level"], quota["limit"]):
        return used
    gone: float = quota["limit"] - quota["level"]
    return min(used, max(0.0, gone))


def _is_same(change: KeyChange, other: KeyChange) -> bool:
    """Return whether two records are of one change: read twice, or noted by several processes."""
    return abs(change.at - other.at) <= SAME_CHANGE_SECONDS and change[2:] == other[2:]
