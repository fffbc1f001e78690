"""Programs and keys that `tidegate status` lists: which of them, in which order, and their lines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidegate.cli.status_text import without_others
from tidegate.core.safe_text import printable
from tidegate.core.token_totals import tokens_text
from tidegate.core.wait_text import (
    CLOSED,
    counted,
    duration,
    eta_text,
    queue_text,
    quota_left,
    shared_by,
    wait_text,
)
from tidegate.launch.totals import KeyTotal

if TYPE_CHECKING:
    from tidegate.launch.runs import ProgramRun

IDLE_SECONDS = 60.0
"""Seconds without a call from which a key is idle. Chosen: the window of most quotas, after which nothing is held."""

LEAST_COLUMNS = 24
"""Columns to which lines are folded at least. Chosen: a word beside the deepest indent has room."""

FOLDED_COLUMNS = 4
"""Columns by which the rest of a folded line is indented further. Chosen: more than between two levels of lines."""


class ListedRun(NamedTuple):
    """A program, its keys that are shown, worst first, and the number of its idle ones that are not."""

    run: ProgramRun
    keys: list[KeyTotal]
    idle: int = 0


class ListedLine(NamedTuple):
    """One line of the list, and its style for a terminal."""

    text: str
    style: str = ""


def listed(runs: Iterable[ProgramRun], now: float, wanted: str = "", *, everything: bool = False) -> list[ListedRun]:
    """Return the programs and keys that `wanted` names, worst first; an empty text names all.

    A number names a process. Any other text names programs whose command line has it, and keys that have it. Idle keys
    are only counted, unless the text names them, or `everything` is asked for.
    """
    found = []
    for run in runs:
        by_run = run.pid == int(wanted) if wanted.isdecimal() else _has(run.command, wanted)
        named = {each for each in run.totals.keys if wanted and not wanted.isdecimal() and _has(each, wanted)}
        keys = [key for name, key in sorted(run.totals.keys.items()) if by_run or name in named]
        shown = [key for key in keys if everything or key.key in named or not is_idle(key, now)]
        if by_run or keys:
            shown.sort(key=lambda key: _urgency(key, now), reverse=True)
            found.append(ListedRun(run, shown, len(keys) - len(shown)))
    return sorted(
        found, key=lambda each: max((_urgency(key, now) for key in each.keys), default=(False, -1)), reverse=True
    )


def _has(text: str, wanted: str) -> bool:
    return wanted.casefold() in text.casefold()


def is_idle(key: KeyTotal, now: float) -> bool:
    """Return whether no call of a key waits or is in flight, and the last one ended a minute ago or earlier."""
    last = max((row.changed_at for row in key.here), default=-math.inf)
    return not key.waiting and not key.in_flight and now - last >= IDLE_SECONDS


def _urgency(key: KeyTotal, now: float) -> tuple[bool, int, bool, int]:
    """Return a value that is higher for a key in more trouble: calls wait though none goes, or many wait."""
    is_closed = key.head_wait(key.outlook(now)).gate in CLOSED
    return is_closed and key.waiting > 0, key.waiting, is_closed, key.in_flight


def lines_of(programs: Iterable[ListedRun], now: float, *, with_outcomes: bool = False) -> Iterator[ListedLine]:
    """Yield the lines of programs, and at the end how idle keys are shown."""
    idle = 0
    for run, keys, hidden in programs:
        yield ListedLine(heading(run), "bold")
        for key in keys:
            yield from map(ListedLine, lines(key, now))
            if with_outcomes:
                yield ListedLine(f"    {outcomes(key)}", "red" if key.counts["given_up"] else "")
        if hidden:
            yield ListedLine(f"  {counted(hidden, 'idle key')}")
        yield from (ListedLine(text, "red") for text in unreadable(run))
        if not run.totals.keys and not run.totals.unreadable and not run.unreadable:
            yield ListedLine("  no call yet")
        idle += hidden
    if idle:
        yield ListedLine("idle: no call for a minute; `tidegate status --all` shows these keys", "dim")


def folded(line: ListedLine, columns: int) -> list[ListedLine]:
    """Return a line as several where it is wider than a terminal of so many columns."""
    indent = len(line.text) - len(line.text.lstrip()) + FOLDED_COLUMNS
    parts = textwrap.wrap(
        line.text, max(columns, LEAST_COLUMNS), subsequent_indent=" " * indent, break_on_hyphens=False
    )
    return [ListedLine(part, line.style) for part in parts]


def heading(run: ProgramRun) -> str:
    if run.unreadable:
        return printable(f"{run.command} unreadable: {run.unreadable}; use the `tidegate status` of its environment")
    return printable(f"{run.command} (pid {run.pid}, running for {duration(run.elapsed)})")


def unreadable(run: ProgramRun) -> Iterator[str]:
    for pid, why in run.totals.unreadable.items():
        yield f"  counts of process {pid} unreadable: {why}; they are not shown"


def lines(key: KeyTotal, now: float) -> Iterator[str]:
    """Yield one key as lines of text, with its quotas; the reason of a wait goes first."""
    seen = key.outlook(now)
    head, ahead = key.head_wait(seen), key.eta(seen)
    yield f"  {key.key}"
    if key.waiting or head.gate in CLOSED:
        yield f"    {wait_text(*head)}"
    eta = eta_text(ahead.seconds) + ("" if ahead.seconds is None else without_others(key))
    shared = shared_by(key.members, key.carrier) if key.members > 1 else ""
    yield f"    {queue_text(key.in_flight, key.slots, key.waiting, eta, shared)}"
    if text := tokens_text(key.tokens):
        yield f"    {text}"
    if text := key.binding_text:
        yield f"    {text} so far"
    for quota in seen.quotas:
        yield f"    {quota_left(quota.usable, quota.name, quota.limit, quota.window)}"


def outcomes(key: KeyTotal) -> str:
    """Return the calls by outcome; those that did not occur are left out, except the answered ones."""
    counts = key.counts
    parts = [f"{counts['answered']} of {counted(key.calls, 'call')} answered"]
    if counts["refused"]:
        parts.append(f"{counts['refused']} refused, {counts['absorbed']} tried again")
    for number, text in (
        (counts["given_up"], "given up"),
        (counts["failed_calls"], "failed"),
        (key.abandoned, "abandoned"),
    ):
        if number:
            parts.append(f"{number} {text}")
    return " · ".join(parts)
