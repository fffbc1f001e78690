"""The reserve of a bucket, so that what nobody can know exactly does not overdraw it."""

from __future__ import annotations

from tidegate.core.ledger import INFINITY

MARGIN_REQUESTS = 0.5
MARGIN_SHARE = 0.002
MARGIN_SECONDS = 0.25
"""Kept in hand so that jitter between two sends does not overdraw: half a request, or what comes back in a quarter of a
second where that is less; 0.2 % of a token limit."""

LONG_WINDOW = 3600.0
"""Seconds; the refusal of a longer one is final for its call (a day's), so nothing is spared there."""

UNSURE_MOST = 1.0
UNSURE_SECONDS = 0.5
"""Requests kept in hand for what cannot be known of the anchor's instant: it was admitted within the time by which its
answer took longer than the quickest, but within the second time. A client that is slow to send (busy loops, new
connections) is seen by that."""

SLACK_SHARE = 0.005
SLACK_MOST = 0.05
"""Kept in hand on top after each unexpected refusal: one request, or 0.5 % of a token limit; halved in each window."""


class Margin:
    """The margin of one bucket, of `requests` or of tokens."""

    __slots__ = ("_quickest", "_requests", "_slack", "_unsure")

    def __init__(self, requests: bool) -> None:
        self._requests = requests
        self._slack = 0.0
        self._quickest = INFINITY
        self._unsure = 0.0

    def kept(self, limit: float, rate: float, window: float, noise: float) -> float:
        """Units to be kept in hand, with the `noise` of what is charged by estimate."""
        if not self._requests:
            base = limit * MARGIN_SHARE + noise
        elif window <= LONG_WINDOW:
            base = min(MARGIN_REQUESTS, MARGIN_SECONDS * rate)
        else:
            base = MARGIN_REQUESTS
        return base + self._slack + self._unsure

    def refused(self, limit: float) -> None:
        """The provider refused although there seemed to be room."""
        step = 1.0 if self._requests else limit * SLACK_SHARE
        self._slack = min(self._slack + step, limit * SLACK_MOST)

    def anchored(self, rate: float, window: float, since: float, took: float) -> None:
        """The bucket has a new anchor, `since` seconds after the last one; its answer `took` so long."""
        self._slack *= 0.5 ** (max(0.0, since) / window)
        if self._requests:
            self._quickest = min(self._quickest, took)
            longest = UNSURE_SECONDS if window <= LONG_WINDOW else INFINITY
            self._unsure = min(UNSURE_MOST, rate * min(longest, took - self._quickest))
