"""Virtual time: a clock that moves only on request."""

from __future__ import annotations

from tidegate.errors import ConfigurationError


class VirtualClock:
    """Clock for tests: a call returns the instant, in seconds; `advance` moves it and returns the new instant.

    It has the signature of `time.monotonic`, so it can replace it wherever a clock is a parameter.
    """

    __slots__ = ("_now",)

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    @property
    def now(self) -> float:
        """Return the current instant, in seconds."""
        return self._now

    def advance(self, seconds: float) -> float:
        """Move forward by `seconds`, and return the new instant. Raise ConfigurationError if negative."""
        if not seconds >= 0:
            raise ConfigurationError("seconds", seconds, "it must be 0 or more: a clock only moves forward")
        self._now += seconds
        return self._now

    def advance_to(self, instant: float) -> float:
        """Move to `instant`, unless it is already past, and return the current instant."""
        self._now = max(self._now, instant)
        return self._now
