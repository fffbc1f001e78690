"""Texts about the state of calls: the row while a command runs, which `status` draws, and the line at its end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len, set_cell_size

from tidegate.admission.hooks import NO_HOST
from tidegate.core.safe_text import printable
from tidegate.core.token_totals import tokens_text
from tidegate.core.wait_text import (
    CLOSED,
    amount,
    awaited,
    clock,
    counted,
    never_answered,
    refusals_text,
    shared_by,
    sized,
    wait_text,
)
from tidegate.launch.totals import KeyTotal, Totals
from tidegate.transports.imports import remedy

if TYPE_CHECKING:
    from tidegate.launch.runs import Ungoverned


SPANS = (2.0, 60.0)
"""Shortest and longest period over which a rate is measured, in seconds. Between them, it is the quota's window.
Chosen: several updates of the line, and a minute, which is the usual window."""

HOSTS = 5
"""Most hosts that the last line names; its counts include all. Chosen: the line stays readable."""

REASONS = 3
"""Most reasons that the last line names. Chosen: one run seldom has more."""

COLUMNS = 10_000
"""Columns of a line that nothing cuts. Chosen: wider than any line."""


class Part(NamedTuple):
    """Part of the line. The parts with the highest `rank` are dropped first where the line is too long."""

    rank: int
    text: str


class StatusText:
    """Builder of the line while the command runs. It keeps recent totals, from which it measures rates."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, Totals]] = deque()

    def line(self, totals: Totals, now: float, columns: int = COLUMNS) -> str:
        """Return the state of the busiest key in at most `columns` characters; empty before the first call.

        `now` is in monotonic seconds. A line that is too long loses the parts that explain least.
        """
        self._looks.append((now, totals))
        while len(self._looks) > 2 and self._looks[1][0] <= now - SPANS[1]:
            self._looks.popleft()
        key = totals.busiest
        if key is None or not (key.calls or key.waiting):
            return ""
        others = sum(1 for each in totals.keys.values() if each is not key and each.in_flight + each.waiting)
        parts = list(self._parts(key, now))
        if others:
            parts.append(Part(6, counted(others, "more key")))
        return _fitting(parts, key.key, columns)

    def _parts(self, key: KeyTotal, now: float) -> Iterator[Part]:
        outlook = key.outlook(now)
        head, ahead = key.head_wait(outlook), key.eta(outlook)
        closed = head.gate in CLOSED
        if closed:
            yield Part(0, wait_text(*head))
        yield Part(3, self._rate(key, now))
        yield Part(5, f"{key.in_flight} in flight")
        behind = f" for {awaited(head.gate)}" if key.waiting and not closed else ""
        yield Part(1, f"{key.waiting} waiting{behind}")
        if key.waiting and ahead.seconds is not None:
            yield Part(2, f"ETA {clock(ahead.seconds)}{without_others(key)}")
        if key.members > 1:
            yield Part(7, shared_by(key.members, key.carrier))

    def _rate(self, key: KeyTotal, now: float) -> str:
        quota = key.binding
        if quota is None:
            past = self._before(key, now, SPANS[1])
            return f"{key.counts['answered'] - (past.counts['answered'] if past else 0)} answered/min"
        span = min(SPANS[1], max(SPANS[0], quota.window))
        past = self._before(key, now, span)
        used = quota.used - (past.quotas[quota.name].used if past and quota.name in past.quotas else 0.0)
        # A burst that the provider allows beyond its rate is still all of the limit.
        rate = min(quota.limit, max(0.0, used) * quota.window / span)
        return f"{amount(rate)} of {sized(quota.name, quota.limit, quota.window)}"

    def _before(self, key: KeyTotal, now: float, span: float) -> KeyTotal | None:
        """Return the key's totals of `span` seconds ago, or of the first look."""
        past = next(totals for at, totals in self._looks if at >= now - span)
        return past.keys.get(key.key)


def _fitting(parts: list[Part], key: str, columns: int) -> str:
    """Return the parts and the key, without those of the highest ranks where they do not fit.

    The key is last; it is cut to its model before anything else is dropped.
    """
    names = key.split(" · ")
    kept = [*parts, Part(4, key)]
    if len(names) > 3:
        short = [*parts, Part(4, names[2])]
        kept = kept if cell_len(_joined(kept)) <= columns else short
    while len(kept) > 1 and cell_len(_joined(kept)) > columns:
        kept.remove(max(kept))
    return set_cell_size(_joined(kept), columns).rstrip() if cell_len(_joined(kept)) > columns else _joined(kept)


def _joined(parts: list[Part]) -> str:
    return "tidegate  " + " · ".join(part.text for part in parts)


def end_line(totals: Totals, ungoverned: Ungoverned | None = None, command: str = "CMD…") -> str:
    """Return the line at the end: the governed calls, then the ungoverned processes and calls.

    `command` is what was run, for a remedy.
    """
    missed = list(_missed(ungoverned)) if ungoverned is not None else []
    if not totals.pythons:
        why = (
            "no Python process loaded tidegate (`tidegate docs run` lists the causes; --gateway governs other programs)"
        )
        governed = f"no LLM call was governed: {why}"
    elif not totals.calls and missed:
        governed = "no LLM call was governed"
    elif not totals.calls and ungoverned is not None and ungoverned.ways:
        modules = ", ".join(sorted(ungoverned.ways))
        governed = f"no LLM call was seen; {modules} cannot be governed: {remedy(ungoverned.ways, printable(command))}"
    else:
        governed = _counted(totals)
    return "; ".join([governed, *missed])


def _missed(ungoverned: Ungoverned) -> Iterator[str]:
    """Yield texts about ungoverned processes and calls, each with its reason or remedy."""
    if ungoverned.processes:
        reasons = list(dict.fromkeys(map(printable, ungoverned.processes)))
        further = f" | and {len(reasons) - REASONS} more" if len(reasons) > REASONS else ""
        yield f"some processes ran ungoverned: {' | '.join(reasons[:REASONS])}{further}"
    hosts = ungoverned.hosts.copy()
    if lost := hosts.pop(NO_HOST, 0):
        yield f"{counted(lost, 'call')} had a URL without a host (does the base URL begin with https://?)"
    if calls := ungoverned.calls - lost:
        named = [printable(host) for host, _ in hosts.most_common(HOSTS)]
        more = len(hosts) > HOSTS or ungoverned.others
        which = ", ".join([*named, "more"] if more else named)
        number_of = f"{len(hosts)}{' or more' if ungoverned.others else ''} {'host' if len(hosts) == 1 else 'hosts'}"
        were = "call to 1 host was" if (calls, number_of) == (1, "1 host") else f"calls to {number_of} were"
        yield f"{calls} {were} not governed: {which} (set TIDEGATE_HOSTS={','.join(named)} to govern such calls)"
    if refused := ungoverned.refused.total():
        what = "request to another endpoint was" if refused == 1 else "requests to other endpoints were"
        which = _named(ungoverned.refused)
        yield f"{refused} {what} refused with status 429: {which} (only calls for inference are governed)"
    if ungoverned.sockets:
        sessions, hosts = ungoverned.sockets.total(), ungoverned.sockets
        which = _named(hosts)
        why = "Realtime and the Responses API over a websocket; only calls over HTTP can be governed"
        what = f"{counted(sessions, 'websocket session')} with {counted(len(hosts), 'host')}"
        yield f"{what} {'was' if sessions == 1 else 'were'} not governed: {which} ({why})"


def _named(hosts: Counter[str]) -> str:
    return ", ".join([printable(host) for host, _ in hosts.most_common(HOSTS)] + ["more"] * (len(hosts) > HOSTS))


def _counted(totals: Totals) -> str:
    if not totals.calls:
        return "no LLM call was seen; `tidegate doctor` lists what is governed"
    parts = [
        counted(totals.calls, "call"),
        *_endings(totals),
        refusals_text(totals.sum("refused"), totals.sum("absorbed")),
    ]
    never = (never_answered(key.counts["answered"], key.counts["refused"]) for key in totals.keys.values())
    parts += filter(
        None,
        (_share(totals), _bound(totals), tokens_text(totals.tokens), _shared(totals), next(filter(None, never), "")),
    )
    return ", ".join(parts)


def _endings(totals: Totals) -> Iterator[str]:
    """Yield what became of the calls; the numbers add up to them."""
    yield f"{totals.sum('answered')} answered"
    yield f"{totals.sum('given_up')} given up"
    if failed := totals.sum("failed_calls"):
        why = next((key.cause for key in totals.keys.values() if key.cause), "")
        yield f"{failed} failed{_reasons(totals.failures) or (f' ({why})' if why else '')}"
    if abandoned := sum(key.abandoned for key in totals.keys.values()):
        yield f"{abandoned} abandoned"
    if flying := sum(key.in_flight for key in totals.keys.values()):
        yield f"{flying} in flight"
    if queued := sum(key.queued for key in totals.keys.values()):
        yield f"{queued} waiting at the end"


def _reasons(failures: Counter[str]) -> str:
    """Return the most frequent reasons of failed calls in brackets; without their numbers where there is one alone."""
    most = failures.most_common()
    if not most:
        return ""
    told = [f"{number} × {text or 'other'}" for text, number in most[:REASONS]]
    told += ["more"] if len(most) > REASONS else []
    return f" ({printable(most[0][0] if len(most) == 1 else ', '.join(told))})"


def _shared(totals: Totals) -> str:
    """Return the largest number of processes that shared a key, empty where none did."""
    most, carrier = max(((key.most_members, key.carrier) for key in totals.keys.values()), default=(1, ""))
    return shared_by(most, carrier) if most > 1 else ""


def _share(totals: Totals) -> str:
    key = max(totals.keys.values(), key=lambda each: each.calls)
    of = f" by {key.key}" if len(totals.keys) > 1 else ""
    if any(key.counts[f"{fate}_day"] for fate in ("handed_back", "given_up")):
        # The provider announces no such quota, and says by its refusal that it is spent.
        return f"100% of the day quota used{of}"
    quota = key.binding
    if quota is None or quota.share is None or not key.counts["answered"]:
        return ""
    return f"{quota.share:.0%} of the limit used ({sized(quota.name, quota.limit, quota.window)}){of}"


def _bound(totals: Totals) -> str:
    """Return what bound the key that calls waited for longest."""
    key = max(totals.keys.values(), key=lambda each: (sum(each.held.values()), each.calls))
    of = f" at {key.key}" if len(totals.keys) > 1 else ""
    return f"{text}{of}" if (text := key.binding_text) else ""


def without_others(key: KeyTotal) -> str:
    """Return how many processes that share a key an ETA leaves out, since their waiting calls are not known."""
    unseen = key.unseen_members
    return f" without {counted(unseen, 'other process')}" if unseen else ""
