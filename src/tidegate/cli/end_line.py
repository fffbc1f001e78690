"""Line at the end of a run: what became of its calls, and what was not governed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tidegate.admission.hooks import NO_HOST
from tidegate.core.safe_text import printable
from tidegate.core.token_totals import tokens_text
from tidegate.core.wait_text import counted, never_answered, refusals_text, shared_by, sized
from tidegate.launch.runs import Ungoverned
from tidegate.launch.totals import Totals
from tidegate.transports.imports import NOWHERE_ELSE, remedy

NAMED_HOSTS = 5
"""Most hosts that the last line names; its counts include all. Chosen: the line stays readable."""

NAMED_REASONS = 3
"""Most reasons that the last line names. Chosen: one run seldom has more."""


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
    elif not totals.calls and ungoverned is not None and ungoverned.at_own_hosts:
        governed = f"no LLM call was seen; {', '.join(sorted(ungoverned.at_own_hosts))}: {NOWHERE_ELSE}"
    else:
        governed = _counted(totals)
    return "; ".join([governed, *missed])


def _missed(ungoverned: Ungoverned) -> Iterator[str]:
    """Yield texts about ungoverned processes and calls, each with its reason or remedy."""
    if ungoverned.processes:
        reasons = list(dict.fromkeys(map(printable, ungoverned.processes)))
        further = f" | and {len(reasons) - NAMED_REASONS} more" if len(reasons) > NAMED_REASONS else ""
        yield f"some processes ran ungoverned: {' | '.join(reasons[:NAMED_REASONS])}{further}"
    hosts = ungoverned.hosts.copy()
    if lost := hosts.pop(NO_HOST, 0):
        yield f"{counted(lost, 'call')} had a URL without a host (does the base URL begin with https://?)"
    if calls := ungoverned.calls - lost:
        named = [printable(host) for host, _ in hosts.most_common(NAMED_HOSTS)]
        more = len(hosts) > NAMED_HOSTS or ungoverned.others
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
    return ", ".join(
        [printable(host) for host, _ in hosts.most_common(NAMED_HOSTS)] + ["more"] * (len(hosts) > NAMED_HOSTS)
    )


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
    told = [f"{number} × {text or 'other'}" for text, number in most[:NAMED_REASONS]]
    told += ["more"] if len(most) > NAMED_REASONS else []
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
