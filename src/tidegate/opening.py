"""Who is told of each key that a registry opens: nobody, except under `tidegate run`, which counts in shared memory."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

told: Callable[[Any], None] | None = None
"""Called with the `Slots` of each new key, under the registry's lock; it must not fail."""
