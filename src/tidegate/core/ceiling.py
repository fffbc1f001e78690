"""Ceiling of the user's own on the calls of one key, below whatever its provider admits.

Theory of operation. `60/min` admits at most so many attempts in any minute. `50%` admits that share of each announced
quota in any window of it, as a copy of the quota with a part of its limit. Both are rolling windows of this key's own
attempts, refused ones included. No answer changes them, and a refusal is never explained by one. Processes that share
the key's limits count the attempts of all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from tidegate.core.quota import KeyQuotas, QuotaSet
from tidegate.core.quota_base import LoggedCharge
from tidegate.core.quota_charges import expected_charge
from tidegate.core.rolling_window import RollingWindowMirror
from tidegate.core.values import Cost, Key, QuotaReading, Unit

ALL_KEYS = "*"
"""Pattern of a ceiling that holds for every key."""

PERIODS = {"s": 1.0, "min": 60.0, "h": 3600.0, "day": 86_400.0}
"""Seconds of the periods of a ceiling, by the names that texts of quotas use."""

RATE = re.compile(r"(\d+)\s*/\s*(s|min|h|day)")
SHARE = re.compile(r"(\d+(?:\.\d+)?)\s*%")


WINDOW_PARTS = 1000
"""Charges that a window is divided into at most. Chosen: a call comes back a thousandth of the window late."""

MAX_UNSENT_ATTEMPTS = 4096
"""Newest attempts whose charges can be taken back. Chosen: far above those that have a permit and are not sent yet."""


class CeilingRule(NamedTuple):
    """At most `calls` attempts in any `window` seconds, or the `share` of each announced quota where that is not 0."""

    calls: int = 0
    window: float = 0.0
    share: float = 0.0

    @classmethod
    def parse(cls, text: str) -> CeilingRule:
        """Return the rule of `60/min` or `50%`; raise `ValueError` for another text."""
        if (found := RATE.fullmatch(text.strip())) and int(found[1]):
            return cls(int(found[1]), PERIODS[found[2]])
        if (found := SHARE.fullmatch(text.strip())) and 0.0 < float(found[1]) <= 100.0:
            return cls(share=float(found[1]) / 100.0)
        raise ValueError("a number of calls per s, min, h or day (60/min), or a share of announced quotas (50%)")


def rule_for(key: Key, ceilings: Mapping[str, str]) -> CeilingRule | None:
    """Return the rule of the first pattern that fits the model, the host, the provider or the whole name of a key.

    That for all keys is the last one.
    """
    host = key.base_url.partition("://")[2].partition("/")[0]
    names = (key.scope, host, host.partition(":")[0], key.provider, str(key))
    for pattern, text in ceilings.items():
        if pattern != ALL_KEYS and any(fnmatchcase(name, pattern) for name in names):
            return CeilingRule.parse(text)
    return CeilingRule.parse(ceilings[ALL_KEYS]) if ALL_KEYS in ceilings else None


class CeilingMirror(RollingWindowMirror):
    """One rolling window of a ceiling.

    Attempts of a `WINDOW_PARTS`-th of the window are one charge, which comes back a window after the last of them. So a
    long window keeps few charges.
    """

    __slots__ = ()

    def __init__(self, reading: QuotaReading, now: float, window: float) -> None:
        super().__init__(reading, now, window)
        self.charging = None

    def take(self, amount: float, order: int, now: float) -> LoggedCharge:
        """Charge an attempt, perhaps with those right before it."""
        amount, entries = min(amount, self.limit), self.ledger.entries
        self.used += amount
        if not entries or now >= entries[-1].charged_at + self.window / WINDOW_PARTS:
            return self.debit(amount, 0.0, order, now)
        self.ledger.amend(entries[-1], entries[-1].amount + amount)
        entries[-1].charged_at = self._arrival(now)
        return entries[-1]


class CeilingCharge(NamedTuple):
    """Charge of one attempt to one window."""

    mirror: CeilingMirror
    debit: LoggedCharge
    amount: float


class Ceiling:
    """Ceiling of one key; `quotas` has its rolling windows.

    `_unsent` has the charges of the newest attempts by their order: one that is withdrawn was never sent.
    """

    __slots__ = ("_unsent", "quotas", "rule")

    def __init__(self, rule: CeilingRule, now: float) -> None:
        self.rule = rule
        self.quotas = QuotaSet()
        self._unsent: dict[int, list[CeilingCharge]] | None = None
        if rule.calls:
            self._set("requests (your ceiling)", "requests", float(rule.calls), rule.window, now)

    def follow(self, quotas: KeyQuotas, now: float) -> None:
        """Follow the announced quotas, of which the rule admits a share."""
        if not self.rule.share:
            return
        for name, mirror in quotas.counted.items():
            window = quotas.provenance[name].reported_window
            label = f"{name} (your {100.0 * self.rule.share:g}%)"
            self._set(label, mirror.unit, max(1.0, self.rule.share * mirror.limit), window, now)

    def gate(self, ready: float, gate: str, cost: Cost, now: float) -> tuple[float, str]:
        """Return when a call may go that other gates let go at `ready`, and the last gate to do so."""
        opens, name = self.quotas.ready_at(cost, now)
        return (opens, f"quota {name}") if opens > ready else (ready, gate)

    def charge(self, cost: Cost, order: int, now: float) -> None:
        """Count an attempt, whatever becomes of it."""
        charges = [
            CeilingCharge(mirror, mirror.take(amount, order, now), amount)
            for mirror in self.quotas.mirrors.values()
            if isinstance(mirror, CeilingMirror) and (amount := expected_charge(mirror, cost)) > 0.0
        ]
        known = self._unsent if self._unsent is not None else {}
        known[order] = charges
        if len(known) > MAX_UNSENT_ATTEMPTS:
            del known[next(iter(known))]
        self._unsent = known

    def withdraw(self, order: int) -> None:
        """Take back an attempt that was never sent."""
        for mirror, debit, amount in (self._unsent or {}).pop(order, ()):
            mirror.used -= amount
            mirror.ledger.amend(debit, max(0.0, debit.amount - amount))

    def _set(self, name: str, unit: Unit, limit: float, window: float, now: float) -> None:
        mirror = self.quotas.mirrors.get(name)
        if mirror is None:
            mirror = CeilingMirror(QuotaReading(name, unit, "rolling", limit, limit), now, window)
            self.quotas.add(mirror)
        assert isinstance(mirror, CeilingMirror), "a ceiling has no other windows"
        mirror.limit, mirror.window = limit, window
        self.quotas.provenance[name].reported_window = window
