"""The choice of the mirror for a quota, by its readings and by the fate of the last copy."""

from __future__ import annotations

from tidegate.core.bucket import Bucket
from tidegate.core.mirror import Mirror
from tidegate.core.rolling import Rolling
from tidegate.core.vocabulary import Reading, Refill
from tidegate.core.window import Window


def measurable(reading: Reading) -> bool:
    """Return whether a reading says enough to begin a mirror with."""
    # A limit without its level (prose) is nothing to stand on; a level without its limit says nothing of the refill,
    # and "0 remaining" of no limit is how some gateways write "unlimited".
    if reading.remaining is None:
        return False
    return reading.limit is not None or (reading.refill == "fixed" and reading.remaining > 0)


def mirror_of(reading: Reading, now: float, default_window: float) -> Mirror:
    """A mirror of a quota that is read for the first time; `default_window` (seconds) where nothing says another."""
    if reading.refill == "fixed":
        return Window(reading, now, default_window)
    if reading.window is None and reading.reset_after is None:
        # Nothing tells how it comes back. A window promises least, and shows soon whether it is one.
        return Window(reading, now, default_window, supposed=True)
    return Bucket(reading, now, default_window)


def turned_into(
    refill: Refill, mirror: Mirror, reading: Reading, sent_at: float, now: float, default_window: float
) -> Mirror:
    """Another kind of mirror in the place of one whose quota comes back otherwise; what was charged stays."""
    turned: Mirror
    if refill == "fixed":
        turned = Window(reading, now, default_window)
    elif refill == "rolling" and isinstance(mirror, Bucket):
        turned = Rolling(reading, now, mirror.period.returns_after, mirror.period.taken_before(sent_at))
    else:
        turned = Bucket(reading, now, default_window)
    turned.ledger, turned.reserved = mirror.ledger, mirror.reserved
    if isinstance(turned, Rolling):
        turned.spread()
    turned.used, turned.since, turned.stood = mirror.used, mirror.since, mirror.stood
    return turned
