"""Hooks for `tidegate run`, which counts in shared memory: called for each key and each call that is not governed."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

told: Callable[[Any], None] | None = None
"""Called with the `Slots` of each new key, under the registry's lock; it must not fail."""

passed: Callable[[str], None] | None = None
"""Called with the host of each call to an inference path that is not governed; it must not fail."""
