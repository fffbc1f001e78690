"""Shares of a key's time that each gate bound its run, and the share that the program itself did.

Theory of operation. A gate is one limiter that may hold a call back. While calls wait, the gate that holds the first of
them binds the run: no later call can go before it. While none waits, the program itself does: more calls at once would
go. So the time since the key's first call is divided completely. A queue notes each change of its gate, which costs
nothing while no call waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidegate.core.rejection import DAY, REJECTED

PROGRAM = "program"
"""Name of the program's own share among those of the gates."""

QUOTA = "quota "
"""Beginning of the name of a gate that is a quota."""

BINDING = {
    "concurrency": "calls at once",
    "pace": "the learned rate",
    "pause": "cooldowns",
    "breaker": "outages",
    DAY: "the quota of the day",
    REJECTED: "rejections of the key",
}
"""Gates other than quotas, in the words of a text on what bound a run."""

TOLD_FROM_SECONDS = 5.0
"""Seconds from which on the shares are told. Chosen: of a shorter run they say nothing that a person could change."""

LEAST_TOLD_SHARE = 0.01
"""Least share that a text names. Derived: a smaller one rounds to less than one per cent."""

SHOWN_SHARES = 3
"""Most shares that a text names. Chosen: the line stays readable, and the others are small."""

SPARE_LIMIT_RATIO = 1.2
"""Ratio of the calls in flight that would use a limit to the present ones, from which on a text names the former.
Chosen: below it the difference is within the noise of a mean latency."""


class HeldTime:
    """Seconds for which each gate held the first waiting call of one key, since `began_at` (monotonic seconds).

    `gate` holds the first call now; it is empty while none waits.
    """

    __slots__ = ("_since", "began_at", "gate", "seconds")

    def __init__(self, now: float) -> None:
        self.restart(now)

    def restart(self, now: float) -> None:
        self.began_at = self._since = now
        self.gate = ""
        self.seconds: dict[str, float] = {}

    def note(self, gate: str, now: float) -> None:
        """Record that from `now` on `gate` holds the first waiting call ('': none waits)."""
        before = self.gate
        if before:
            self.seconds[before] = self.seconds.get(before, 0.0) + max(0.0, now - self._since)
        self.gate, self._since = gate, now

    def until(self, now: float) -> dict[str, float]:
        """Return the seconds by gate, those of the present wait until `now` included."""
        seconds = dict(self.seconds)
        if self.gate:
            seconds[self.gate] = seconds.get(self.gate, 0.0) + max(0.0, now - self._since)
        return seconds


class BindingShare(NamedTuple):
    """Share of the time of one key, from 0 to 1, in which `gate` (or `PROGRAM`) bound the run."""

    gate: str
    share: float


def binding_shares(held: Mapping[str, float], elapsed: float) -> list[BindingShare]:
    """Return the shares of `elapsed` seconds in which each gate held calls, and the program's own, largest first."""
    # The wait that runs now may reach beyond the last event of the key.
    whole = max(elapsed, sum(held.values()))
    if whole <= 0.0:
        return []
    shares = [BindingShare(gate, seconds / whole) for gate, seconds in held.items()]
    shares.append(BindingShare(PROGRAM, max(0.0, 1.0 - sum(each.share for each in shares))))
    return sorted(shares, key=lambda each: -each.share)


class ProgramUse(NamedTuple):
    """Mean number of calls in flight of a program, and the number that would use its limit (0: unknown)."""

    mean_in_flight: float = 0.0
    needed: float = 0.0


UNKNOWN_USE = ProgramUse()


def program_use(answered: int, latency: float, elapsed: float, fastest: float = 0.0) -> ProgramUse:
    """Return the use that a program makes of its limit.

    It had `answered` calls of `latency` seconds each in `elapsed` seconds; the limit admits the `fastest` calls a
    second (0: no limit is known). As many calls are in flight on average as end in one latency.
    """
    return ProgramUse(answered * latency / elapsed, fastest * latency) if elapsed > 0.0 else ProgramUse()


def binding_text(
    held: Mapping[str, float], elapsed: float, names: Mapping[str, str], use: ProgramUse = UNKNOWN_USE
) -> str:
    """Return what bound the run in words; empty for a run that was too short.

    `names` has the words of each quota, by its name.
    """
    if max(elapsed, sum(held.values())) < TOLD_FROM_SECONDS:
        return ""
    told = [each for each in binding_shares(held, elapsed) if each.share >= LEAST_TOLD_SHARE][:SHOWN_SHARES]
    return "bound by " + ", ".join(f"{_named(each, names, use)}" for each in told)


def _named(each: BindingShare, names: Mapping[str, str], use: ProgramUse) -> str:
    if each.gate == PROGRAM:
        return f"your program {each.share:.0%}{_program(use)}"
    quota = each.gate.removeprefix(QUOTA)
    name = names.get(quota, quota.replace("_", " ")) if each.gate.startswith(QUOTA) else BINDING.get(each.gate)
    return f"{name or each.gate} {each.share:.0%}"


def _program(use: ProgramUse) -> str:
    if use.mean_in_flight <= 0.0:
        return ""
    kept = max(1, round(use.mean_in_flight))
    more = f"; {round(use.needed)} would use the limit" if use.needed >= SPARE_LIMIT_RATIO * kept else ""
    return f" (about {kept} in flight{more})"
