"""Processes of a run that are ungoverned, and hosts whose inference calls are not governed.

A process that cannot install tidegate writes the reason to a file in the run's folder, and removes it after a later
success. A process with ungoverned calls to inference paths counts them in its counter file by host alone: without path,
query and header.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tidegate.admission.hooks import REFUSED, SOCKET
from tidegate.launch import IMPORTED, UNGOVERNED
from tidegate.transports.other_stacks import SHARED, UNGOVERNABLE

WITHOUT = "without-"
"""Prefix of the files that `site/sitecustomize.py` writes for a Python without tidegate."""


class Ungoverned(NamedTuple):
    """Ungoverned calls by host, calls to further hosts, and the reason of each ungoverned process.

    `sockets` counts websocket sessions with inference servers by host, `refused` the refused requests to their other
    endpoints. `imported` are the modules by which the processes could send calls, governed and others.
    """

    hosts: Counter[str]
    others: int = 0
    processes: tuple[str, ...] = ()
    sockets: Counter[str] = Counter()  # noqa: RUF012  # never changed
    imported: frozenset[str] = frozenset()
    refused: Counter[str] = Counter()  # noqa: RUF012  # never changed

    @property
    def ways(self) -> frozenset[str]:
        """Return the imported modules that cannot be governed; the ones with many uses only where no other is."""
        others = self.imported & UNGOVERNABLE.keys()
        return others - SHARED or (others if others == self.imported else frozenset())

    @property
    def calls(self) -> int:
        return self.hosts.total() + self.others


def read(folder: Path, counts: Counter[str]) -> Ungoverned:
    """Return the reasons of a run's processes, with their counts of ungoverned calls by host."""
    found: dict[str, Counter[str]] = {SOCKET: Counter(), REFUSED: Counter(), "": Counter()}
    for name, number in counts.items():
        prefix = next(prefix for prefix in found if name.startswith(prefix))
        found[prefix][name.removeprefix(prefix)] += number
    hosts = found[""]
    others = hosts.pop("", 0)
    left = (*sorted(folder.glob(f"{UNGOVERNED}*")), *sorted(folder.glob(f"{WITHOUT}*")))
    reasons = tuple(path.read_text("utf-8", "replace") for path in left)
    imported = frozenset(path.name.removeprefix(IMPORTED) for path in folder.glob(f"{IMPORTED}*"))
    return Ungoverned(hosts, others, reasons, found[SOCKET], imported, found[REFUSED])
