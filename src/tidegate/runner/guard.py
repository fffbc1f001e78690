"""Stops a run that cannot succeed: so many permanent failures of one kind in a row.

A dead provider is the breaker's affair and never comes here: it pauses one key and loses no row. What comes here are
failures that another attempt cannot mend: a wrong credential, an empty account, a template that fits no row.
"""

from __future__ import annotations


class Guard:
    """Counts the consecutive permanent failures of one stage; any success, or another kind, begins anew."""

    __slots__ = ("count", "kind", "threshold", "tripped")

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold
        self.kind = ""
        self.count = 0
        self.tripped = False

    def succeeded(self) -> None:
        """An answer: whatever failed before was not the workload."""
        self.kind = ""
        self.count = 0

    def failed(self, kind: str) -> bool:
        """Return whether this failure is the one that stops the run; once it has tripped, it never says so again."""
        self.count = self.count + 1 if kind == self.kind else 1
        self.kind = kind
        if self.tripped or self.count < self.threshold:
            return False
        self.tripped = True
        return True
