"""History of the limits of all live runs: one sample of each key a second, for ten minutes.

Theory of operation. A counter file has sums since the beginning of a run. The use of a quota within its window is the
difference of two sums. A change of a limit, a pause and an opened breaker show as the difference of two samples. So a
governed program keeps no history, and a page that is opened later begins with the first sample of its server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidegate.core.display import printable
from tidegate.core.snapshot import estimate_eta, head_wait
from tidegate.core.wait_text import CLOSED, wait_text
from tidegate.launch.runs import ProgramRun
from tidegate.launch.totals import KeyTotal

PERIOD = 1.0
"""Seconds between two samples. Raising it shows shorter pauses less often. Chosen: an eye follows it, and a sample of
20 runs takes some milliseconds."""

SAMPLES = 600
"""Samples that are kept of each key. Raising it needs more memory, 200 bytes each. Chosen: ten minutes."""

CHANGES = 200
"""Changes that are kept of all keys together. Raising it lengthens the first answer to a page."""

FORGOTTEN_AFTER = 60
"""Samples for which an ended run is still shown. Raising it shows ended runs for longer. Chosen: a minute, in which the
user may look at the end of a run."""

NOTICED = 0.01
"""Least relative change of a limit that is noted. Raising it hides small corrections. Chosen: less than a pixel of the
chart."""


class Sample(NamedTuple):
    """State of a key: `used` and `limits` have the units of each quota within its window, by the order of their names.

    `used` is None where the window is longer than the history, and the run is older.
    """

    number: int
    in_flight: int
    waiting: int
    slots: int
    refused: int
    used: tuple[float | None, ...]
    limits: tuple[float, ...]


class Change(NamedTuple):
    """Change of a key, noted with sample `number`: its kind, and the values before and after where it has some."""

    number: int
    key_id: int
    kind: str
    subject: str
    before: float | None
    after: float | None
    cause: str


@dataclass(slots=True)
class KeyHistory:
    """Samples of one key in one run; `gates` are those that were closed at the last one."""

    key_id: int
    quotas: tuple[str, ...] = ()
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    sums: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    gates: frozenset[str] = frozenset()
    facts: dict[str, Any] = field(default_factory=dict)
    number: int = 0


@dataclass(slots=True)
class RunHistory:
    """One run; `ended` tells that it was not found at the last sample."""

    pid: int
    command: str
    unreadable: str = ""
    elapsed: float = 0.0
    number: int = 0
    ended: bool = False
    keys: dict[str, KeyHistory] = field(default_factory=dict)


class LimitHistory:
    """History of all keys of all live runs; `wall` is the clock of the page, in seconds since 1970."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._runs: dict[tuple[int, str], RunHistory] = {}
        self._changes: deque[Change] = deque(maxlen=CHANGES)
        self._keys = 0
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
                run = known
            else:
                # A shorter run is another one: the system gave its process the same number.
                run = self._runs[identity] = RunHistory(each.pid, printable(each.command))
            run.unreadable, run.elapsed = each.unreadable, each.elapsed
            run.number, run.ended = self.number, False
            for total in each.totals.keys.values():
                self._note(run, total, now)
        ago = self.number - FORGOTTEN_AFTER
        self._runs = {identity: run for identity, run in self._runs.items() if run.number > ago}

    def answer(self, since: int) -> dict[str, Any]:
        """Return the state as plain values, with the samples after number `since`.

        A `since` of another server, which is above the newest number, gets all of them.
        """
        first = since if 0 <= since <= self.number else 0
        runs = sorted(self._runs.values(), key=lambda each: (each.ended, -each.elapsed))
        return {
            "sample": self.number,
            "since": first,
            "as_of": self.taken_at,
            "period": PERIOD,
            "runs": [self._shown(run, first) for run in runs],
            "changes": [change._asdict() for change in self._changes if change.number > first],
        }

    def _note(self, run: RunHistory, total: KeyTotal, now: float) -> None:
        key = run.keys.get(total.key)
        if key is None:
            self._keys += 1
            key = run.keys[total.key] = KeyHistory(self._keys)
        names = tuple(total.quotas)
        if names != key.quotas:
            # A quota that appears moves no other one: the readers of the samples go by their own order.
            key.quotas = (*key.quotas, *(name for name in names if name not in key.quotas))
        sums = {name: quota.used for name, quota in total.quotas.items()}
        used = tuple(self._used(key, run, total, name, now) for name in key.quotas)
        limits = tuple(total.quotas[name].limit if name in total.quotas else 0.0 for name in key.quotas)
        sample = Sample(self.number, total.in_flight, total.waiting, total.slots, total.counts["refused"], used, limits)
        self._compare(key, sample, total, now)
        key.samples.append(sample)
        key.sums.append(sums)
        key.number = self.number
        key.facts = facts_of(total, now)

    def _used(self, key: KeyHistory, run: RunHistory, total: KeyTotal, name: str, now: float) -> float | None:
        quota = total.quotas.get(name)
        if quota is None:
            return None
        back = max(1, round(quota.window / PERIOD))
        if back <= len(key.sums):
            return max(0.0, quota.used - key.sums[-back].get(name, 0.0))
        if now - quota.since <= quota.window:
            # Before its first reading, units were used that only the provider counted.
            return max(0.0, quota.used + quota.limit - quota.stood)
        return max(0.0, quota.used) if len(key.sums) >= run.elapsed / PERIOD else None

    def _compare(self, key: KeyHistory, sample: Sample, total: KeyTotal, now: float) -> None:
        seen = total.outlook(now)
        gates = frozenset({seen.closed_by} & CLOSED if seen.closed_for > 0.0 else ())
        if key.samples:
            last = key.samples[-1]
            refused = sample.refused - last.refused
            cause = f"{refused} refused" if refused > 0 else ""
            for name, before, after in zip(key.quotas, last.limits, sample.limits, strict=False):
                if before and after and abs(after - before) > NOTICED * before:
                    self._changes.append(Change(self.number, key.key_id, "limit", name, before, after, cause))
            if last.slots and sample.slots and sample.slots < last.slots:
                self._changes.append(
                    Change(self.number, key.key_id, "slots", "in flight", last.slots, sample.slots, cause)
                )
            for gate in sorted(gates - key.gates):
                self._changes.append(
                    Change(self.number, key.key_id, "closed", gate, None, seen.closed_for, _cause(total, seen.stated))
                )
            for gate in sorted(key.gates - gates):
                self._changes.append(Change(self.number, key.key_id, "opened", gate, None, None, ""))
        key.gates = gates

    def _shown(self, run: RunHistory, since: int) -> dict[str, Any]:
        return {
            "pid": run.pid,
            "command": run.command,
            "elapsed": run.elapsed,
            "unreadable": run.unreadable,
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
                "refused": [sample.refused for sample in new],
                "quotas": [
                    {
                        "name": name,
                        "used": [sample.used[place] if place < len(sample.used) else None for sample in new],
                        "limit": [sample.limits[place] if place < len(sample.limits) else None for sample in new],
                    }
                    for place, name in enumerate(key.quotas)
                ],
            },
        }


def facts_of(total: KeyTotal, now: float) -> dict[str, Any]:
    """Return the present state of a key as plain values; durations are in seconds."""
    seen = total.outlook(now)
    head, ahead = head_wait(seen), estimate_eta(seen)
    latencies = [row.latency for row in total.here if row.latency > 0.0]
    return {
        "key": total.key,
        "blocked": wait_text(*head) if total.waiting or head.gate in CLOSED else "",
        "gate": head.gate,
        "next_in": head.seconds,
        "eta": ahead.seconds,
        "in_flight": total.in_flight,
        "waiting": total.waiting,
        "slots": total.slots,
        "members": total.members,
        "latency": sum(latencies) / len(latencies) if latencies else None,
        "counts": {
            "calls": total.calls,
            "answered": total.counts["answered"],
            "refused": total.counts["refused"],
            "retried": total.counts["absorbed"],
            "given_up": total.counts["given_up"],
            "failed": total.counts["failed_calls"],
            "abandoned": total.abandoned,
        },
        "quotas": [
            {"name": each.name, "level": each.level, "limit": each.limit, "window": each.window} for each in seen.quotas
        ],
    }


def _cause(total: KeyTotal, stated: float) -> str:
    return f"the provider asks for {stated:.0f} s" if stated > 0.0 else ""
