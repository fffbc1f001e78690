"""The key that a stage's function asks first: learned from its calls, so that it can be asked before the next one."""

from __future__ import annotations

from tidegate.core.values import Cost, Key


class Habit:
    """The knowledge of one stage: nothing at first, then the key and cost of its latest first request.

    A function that ended without asking any key makes no governed calls, as far as is known: `known` without a `key`.
    """

    __slots__ = ("cost", "key", "known")

    def __init__(self) -> None:
        self.known = False
        self.key: Key | None = None
        self.cost: Cost | None = None

    def asked(self, key: Key, cost: Cost) -> bool:
        """A call of the function asked this key first; returns whether that is news."""
        news = not self.known or key != self.key
        self.known = True
        self.key = key
        self.cost = cost
        return news

    def ended(self) -> bool:
        """A call ended that asked no key; returns whether that is news."""
        news = not self.known
        self.known = True
        return news
