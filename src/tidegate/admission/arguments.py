"""Checks of the arguments that callers pass to `execute`, `aexecute`, `try_admit` and `wrap`.

A wrong argument must fail at the call that passes it. Later it would fail in another call's step, or corrupt a key.
"""

from __future__ import annotations

from tidegate.core.values import CUSTOM, INFINITY, MAX_AMOUNT, Cost, Key
from tidegate.errors import ConfigurationError

NUMBERS = frozenset({int, float})
"""Types of the amounts that are checked all at once; a bool, or a subclass, is checked separately."""


def checked_cost(cost: Cost | None) -> Cost:
    """Return `cost`, or one request for None; raise `ConfigurationError` for a cost that no quota can be charged."""
    if cost is None:
        return ONE_REQUEST
    try:
        if type(cost) is Cost and NUMBERS.issuperset(map(type, cost)) and cost.sound:
            return cost
    except OverflowError:
        pass  # an integer beyond every float: the check of each amount below names it
    if not isinstance(cost, Cost):
        raise ConfigurationError("cost", cost, "a Cost")
    for name, amount in zip(Cost._fields, cost, strict=True):
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount <= MAX_AMOUNT:
            raise ConfigurationError(f"cost.{name}", amount, f"a number from 0 to {MAX_AMOUNT:g}")
    if cost.weight <= 0:
        raise ConfigurationError("cost.weight", cost.weight, "a number above 0")
    return cost


def checked_key(key: Key | str) -> Key:
    """Return `key`, or the key of a plain name; raise `ConfigurationError` for anything else."""
    if isinstance(key, Key):
        return key
    if not isinstance(key, str) or not key.strip():
        raise ConfigurationError("key", key, "a tidegate.Key, or a name")
    return Key(provider=CUSTOM, base_url=key)


def checked_max_wait(max_wait: float) -> float:
    """Return `max_wait` (seconds, also infinity); raise `ConfigurationError` for any other value."""
    if isinstance(max_wait, bool) or not isinstance(max_wait, int | float) or not 0 <= max_wait <= INFINITY:
        raise ConfigurationError("max_wait", max_wait, "a number of seconds, 0 or more")
    return max_wait


def checked_priority(priority: int) -> int:
    """Return `priority`; raise `ConfigurationError` unless it is an integer."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise ConfigurationError("priority", priority, "a whole number")
    return priority


ONE_REQUEST = Cost()
