"""Counts of all processes of a run so far, by key."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from functools import reduce
from pathlib import Path
from typing import Any

from tidegate.core.held_time import LEAST_TOLD_SHARE, binding_shares, binding_text, program_use
from tidegate.core.rejection import DAY
from tidegate.core.token_totals import TokenTotals, token_facts
from tidegate.core.wait_text import (
    Eta,
    HeadWait,
    QueueForecast,
    QuotaForecast,
    estimate_eta,
    head_wait,
    never_answered,
    per,
)
from tidegate.launch import counter_row
from tidegate.launch.counter_file import SUFFIX, FileCounts, pid_of, read
from tidegate.launch.counter_row import KeyRow, QuotaRow
from tidegate.shared_file import UnreadableFile

ROOM_CALLS = 2.0
"""Calls of each process that still fit while a shared quota is used up. Measured: two processes at 120 requests a
minute leave 2.0 to 4.0 requests."""


class QuotaTotal:
    """One quota over all processes: `used` units from `since` to `until`; `stood` were left at `since`.

    Instants are monotonic seconds of this machine.
    """

    __slots__ = ("limit", "name", "since", "stood", "until", "used", "window")

    def __init__(
        self, name: str, limit: float, window: float, used: float, since: float, stood: float, until: float
    ) -> None:
        self.name = name
        self.limit, self.window, self.used = limit, window, used
        self.since, self.stood, self.until = since, stood, until

    @property
    def share(self) -> float | None:
        """Return the used share of the available units: those left at `since`, and the refill until `until`."""
        there_was = self.stood + self.limit / self.window * max(0.0, self.until - self.since)
        return min(1.0, max(0.0, self.used) / there_was) if there_was > 0.0 else None

    def add(self, row: QuotaRow, until: float, shared: bool = False) -> None:
        """Add the row of one more process; a `shared` one has counted what the others used as well."""
        self.used = max(self.used, row.used) if shared else self.used + row.used
        if row.since < self.since:
            self.since, self.stood = row.since, row.stood
        if until >= self.until:
            self.until, self.limit, self.window = until, row.limit, row.window


class KeyTotal:
    """One key over all processes; `in_flight`, `waiting` and `slots` count only processes that still run.

    `members` processes share its limits now, and `most_members` did at one time, by a `carrier` (empty: another one).
    `cause` is the last refusal or failure in words, where it holds, or held to the end, the calls of a process back.
    Its processes used the key for `elapsed` seconds in sum, in `held` of which each gate held the first waiting call.
    An answer took `latency` seconds on average (0: none came).
    `others` are the rows of those members that belong to other runs of this machine; `note_others` fills them in.
    """

    def __init__(self, key: str, in_flight: int = 0, waiting: int = 0, members: int = 1) -> None:
        self.key = key
        self.counts = dict.fromkeys(counter_row.SUMS, 0)
        self.quotas: dict[str, QuotaTotal] = {}
        self.in_flight, self.waiting, self.slots = in_flight, waiting, 0
        self.members, self.most_members = members, 1
        self.carrier = self.cause = ""
        self.elapsed = self.latency = 0.0
        self.held: Counter[str] = Counter()
        self.here: list[KeyRow] = []
        self.others: list[KeyRow] = []

    @property
    def unseen_members(self) -> int:
        """Return the number of processes that share the key and whose waiting calls are not known here."""
        return max(0, self.members - len(self.here) - len(self.others))

    @property
    def calls(self) -> int:
        return self.counts["attempts"] - self.counts["resent"] + self.counts["unsent"]

    @property
    def abandoned(self) -> int:
        """Return the calls that their callers ended, or that were in flight when their process ended."""
        ended = sum(self.counts[name] for name in ("answered", "refused", "failed", "abandoned"))
        cut = max(0, self.counts["attempts"] - ended - self.in_flight)
        return self.counts["abandoned"] + self.counts["left"] + cut

    @property
    def queued(self) -> int:
        """Return the calls that neither ended nor are in flight: they wait, or waited when their process ended."""
        ended = self.counts["answered"] + self.counts["given_up"] + self.counts["failed_calls"] + self.abandoned
        return max(0, self.calls - ended - self.in_flight)

    @property
    def tokens(self) -> TokenTotals:
        return TokenTotals(*(self.counts[name] for name in counter_row.TOKENS))

    @property
    def binding(self) -> QuotaTotal | None:
        known = [(quota.share, quota) for quota in self.quotas.values() if quota.share is not None]
        return max(known, key=lambda each: each[0])[1] if known else None

    @property
    def fastest(self) -> float:
        """Return the calls a second that the known quotas admit at the charge of the calls so far; 0: unknown."""
        answered = self.counts["answered"]
        # A quota that is hardly used binds nothing, and its window may be inferred wrongly.
        used = [quota for quota in self.quotas.values() if (quota.share or 0.0) >= LEAST_TOLD_SHARE]
        return min((quota.limit / quota.window * answered / quota.used for quota in used), default=0.0)

    @property
    def binding_text(self) -> str:
        """Return what bound the calls in words; empty for a short run."""
        names = {quota.name: per(quota.name, quota.window) for quota in self.quotas.values()}
        use = program_use(self.counts["answered"], self.latency, self.elapsed, self.fastest)
        return binding_text(self.held, self.elapsed, names, use)

    def outlook(self, now: float) -> QueueForecast:
        """Return the forecast for the waiting calls of all processes, by the newest view of each quota."""
        tried, by, stated, until = 0.0, "", 0.0, 0.0
        for row in self.here:
            paused, broken, day = row.paused_until - now, row.broken_until - now, row.day_until - now
            tried, by = max((tried, by), (paused, "pause"), (broken, "breaker"), (day, DAY))
            if paused > 0.0 and row.stated_until - now > until:
                stated, until = row.stated, row.stated_until - now
        paces = [row.pace for row in self.here]
        # The first process of several that paces by itself sends next.
        paced = min((row.paced_until for row in self.here if row.pace > 0.0), default=0.0)
        never = never_answered(self.counts["answered"], self.counts["refused"])
        latencies = [row.latency for row in self.here if row.latency > 0.0]
        latency = sum(latencies) / len(latencies) if latencies else None
        return QueueForecast(
            waiting=self.waiting,
            closed_for=max(tried, until),
            closed_by=by,
            slots=self.slots,
            flights=tuple((latency or 0.0) * (number + 0.5) / self.in_flight for number in range(self.in_flight)),
            latency=latency,
            quotas=tuple(self._ahead(name, now) for name in dict.fromkeys(q.name for r in self.here for q in r.quotas)),
            pace=max(paces, default=0.0) if self.members > 1 else sum(paces),
            tried_in=tried,
            stated=stated if by == "pause" else 0.0,
            paced_for=max(0.0, paced - now),
            cause="; ".join(filter(None, (self.cause, never))),
        )

    def head_wait(self, seen: QueueForecast) -> HeadWait:
        """Return what holds back the next call; a shared key needs room for the next call of each process."""
        head = head_wait(seen)
        if head.gate or self.members < 2:
            return head
        for quota in seen.quotas:
            room = min(quota.limit, quota.amount * self.members * ROOM_CALLS)
            if quota.boundary_in is None and quota.level <= room and quota.amount * seen.waiting > room:
                needed = min(quota.limit, quota.amount * self.members)
                return HeadWait(f"quota {quota.name}", max(0.0, needed - quota.level) * quota.window / quota.limit)
        return head

    def eta(self, seen: QueueForecast) -> Eta:
        """Return when the last waiting call of this run is admitted, given the present outlook.

        Processes take turns, so each other process sends at most as many calls as the longest queue here.
        """
        if not self.others or not seen.waiting:
            return estimate_eta(seen)
        longest = max((row.counts["waiting"] for row in self.here), default=0)
        before = sum(min(longest, row.counts["waiting"]) for row in self.others)
        flying = sum(row.in_flight for row in self.others)
        flights = tuple((seen.latency or 0.0) * (number + 0.5) / flying for number in range(flying))
        return estimate_eta(seen._replace(waiting=seen.waiting + before, flights=seen.flights + flights))

    def _ahead(self, name: str, now: float) -> QuotaForecast:
        seen = [(row, quota) for row in self.here for quota in row.quotas if quota.name == name]
        row, quota = max(seen, key=lambda each: each[0].looked_at)
        weights = [max(1, row.counts["waiting"]) for row, _ in seen]
        amount = sum(each.amount * weight for (_, each), weight in zip(seen, weights, strict=True)) / sum(weights)
        rate = quota.limit / quota.window
        if quota.back_at == counter_row.CONTINUOUS:
            level = min(quota.limit, quota.level + rate * max(0.0, now - row.looked_at))
            return QuotaForecast(name, level, quota.limit, quota.window, None, amount, margin=quota.margin)
        passed = max(0.0, (now - quota.back_at) // quota.window + 1)
        level = quota.limit if passed else quota.level
        return QuotaForecast(
            name, level, quota.limit, quota.window, quota.back_at + passed * quota.window - now, amount
        )

    def add(self, row: KeyRow, running: bool) -> None:
        self.most_members = max(self.most_members, row.counts["most_members"])
        self.carrier = row.carrier or self.carrier
        self.cause = row.cause or self.cause
        for name in counter_row.SUMS:
            self.counts[name] += row.counts[name]
        if row.began_at:
            self.elapsed += max(0.0, row.changed_at - row.began_at)
        self.latency = max(self.latency, row.latency)
        for gate, seconds in row.held.items():
            self.held[gate] += seconds  # type: ignore[assignment]
        for quota in row.quotas:
            total = self.quotas.get(quota.name)
            if total is None:
                self.quotas[quota.name] = QuotaTotal(*quota[:6], row.changed_at)
            else:
                total.add(quota, row.changed_at, self.most_members > 1)
        if running:
            self.here.append(row)
            self.in_flight += row.in_flight
            self.waiting += row.counts["waiting"]
            self.members = max(self.members, row.counts["members"])
            slots = row.counts["slots"]
            self.slots = max(self.slots, slots) if self.members > 1 else self.slots + slots


class Totals:
    """All keys by name; `pythons` states whether any Python process with tidegate has started.

    The counts of the processes in `unreadable` are missing; it maps each process to the reason. `pids` are the
    processes with counts that still run. `failures` are the failed calls by reason, as far as it is known, and `hosts`
    the ungoverned calls by host.
    """

    def __init__(
        self,
        keys: dict[str, KeyTotal] | None = None,
        pythons: bool = False,
        unreadable: dict[int, str] | None = None,
        failures: Counter[str] | None = None,
    ) -> None:
        self.keys = {} if keys is None else keys
        self.pythons = pythons
        self.unreadable = {} if unreadable is None else unreadable
        self.pids: set[int] = set()
        self.failures: Counter[str] = Counter() if failures is None else failures
        self.hosts: Counter[str] = Counter()

    def add(self, pid: int, found: FileCounts) -> None:
        """Add the counts of a file of process `pid`."""
        for row in found.rows:
            self.keys.setdefault(row.key, KeyTotal(row.key)).add(row, found.is_live)
        self.failures += found.failures
        self.hosts += found.hosts
        if found.is_live:
            self.pids.add(pid)

    def sum(self, name: str) -> int:
        return sum(each.counts[name] for each in self.keys.values())

    @property
    def calls(self) -> int:
        return sum(each.calls for each in self.keys.values())

    @property
    def tokens(self) -> TokenTotals:
        return reduce(TokenTotals.plus, (each.tokens for each in self.keys.values()), TokenTotals())

    @property
    def busiest(self) -> KeyTotal | None:
        """Return the key with the most calls in flight or waiting; at a tie, the one with the most calls so far."""
        return max(self.keys.values(), key=lambda each: (each.in_flight + each.waiting, each.calls), default=None)


def note_others(runs: Iterable[Totals]) -> None:
    """Give each shared key the rows of the processes of the other runs that share it, too."""
    sharing: dict[tuple[str, str], list[KeyTotal]] = {}
    for totals in runs:
        for total in totals.keys.values():
            if total.members > 1:
                sharing.setdefault((total.key, total.carrier), []).append(total)
    for shared in sharing.values():
        for total in shared:
            total.others = [row for other in shared if other is not total for row in other.here]


def facts_of(total: KeyTotal, now: float) -> dict[str, Any]:
    """Return one key as plain values. Durations are in seconds, None where they cannot be estimated.

    The limits are those of `members` processes, whichever program they belong to, which are `shared_through` a file, a
    server or Ray.

    `calls` are answered, given up, failed, abandoned, in flight or waiting. `retried` of the `refused` attempts were
    followed by another.
    """
    seen = total.outlook(now)
    head, ahead = total.head_wait(seen), total.eta(seen)
    return {
        "key": total.key,
        "in_flight": total.in_flight,
        "limit": total.slots,
        "waiting": total.waiting,
        "calls": total.calls,
        "answered": total.counts["answered"],
        "given_up": total.counts["given_up"],
        "failed": total.counts["failed_calls"],
        "abandoned": total.abandoned,
        "refused": total.counts["refused"],
        "retried": total.counts["absorbed"],
        "members": total.members,
        "shared_through": total.carrier if total.members > 1 else "",
        "gate": head.gate,
        "next_in": head.seconds,
        "stated_wait": head.stated,
        "eta": ahead.seconds,
        "eta_gate": ahead.gate,
        "eta_without": total.unseen_members,
        "tokens": token_facts(total.tokens),
        "bound_by": {each.gate: each.share for each in binding_shares(total.held, total.elapsed)},
        "bound_text": total.binding_text,
        "quotas": [{"name": q.name, "level": q.level, "limit": q.limit, "window": q.window} for q in seen.quotas],
    }


class Folder:
    """Folder of a run, read repeatedly; the counter files of ended processes are read once and removed.

    An `onlooker` removes nothing, because the run's own parent has yet to read those files.
    """

    def __init__(self, path: Path, onlooker: bool = False) -> None:
        self._path = path
        self._onlooker = onlooker
        self._ended = Totals()

    def totals(self) -> Totals:
        """Return the current counts."""
        live: list[tuple[int, FileCounts]] = []
        unreadable: dict[int, str] = {}
        for path in sorted(self._path.glob(f"*{SUFFIX}")):
            pid = pid_of(path)
            try:
                found = read(path)
            except UnreadableFile as error:
                unreadable[pid] = str(error)
                continue
            if found.is_live:
                live.append((pid, found))
            elif not self._onlooker:
                self._ended.add(pid, found)
                path.unlink(missing_ok=True)
        totals = copy.deepcopy(self._ended)
        totals.pythons, totals.unreadable = (self._path / "started").exists(), unreadable
        for pid, found in live:
            totals.add(pid, found)
        return totals
