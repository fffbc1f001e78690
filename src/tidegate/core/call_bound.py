"""Bound of the calls in flight of one key, above which its concurrency limit does not grow."""

from __future__ import annotations

FIRST = 1000
"""First bound without a configured one (openai, anthropic: max_connections=1000)."""

MOST = 100_000
"""Highest bound without a configured one."""


class CallBound:
    """Bound of one key: the `configured` one, else one that rises; at most the connections of the client's `pool`.

    A call beyond the pool would wait in the client, where a short timeout fails it, instead of in the queue. `pool` is
    None while no pool is known, or if several clients share the key.
    """

    __slots__ = ("configured", "pool", "risen")

    def __init__(self, configured: int | None, start: int) -> None:
        self.configured = configured
        self.risen = max(FIRST, start)
        self.pool: int | None = None

    @property
    def highest(self) -> int:
        """Return the most calls that may be in flight."""
        highest = self.risen if self.configured is None else self.configured
        return highest if self.pool is None else max(1, min(highest, self.pool))

    @property
    def may_rise(self) -> bool:
        """Return whether the bound rises once it is reached."""
        return self.configured is None and self.risen < MOST and (self.pool is None or self.pool > self.risen)

    def rise(self, most: int) -> None:
        """Double the bound, up to `most` calls, which the machine carries; it never falls."""
        self.risen = max(self.risen, min(2 * self.risen, most, MOST))
