"""Has this process tell what its keys do, so that `tidegate status` and `experiment show` see it from elsewhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tidegate.admission import key_hook
from tidegate.launch.totals import KeyTotal


@contextlib.contextmanager
def published(name: str, replica: str) -> Iterator[None]:
    """Keeps the counts of every key that is opened meanwhile in a folder of this run; where it cannot, nothing is told.

    A process below `tidegate run` tells its own run already.
    """
    if os.name != "posix":
        yield
        return
    from tidegate.launch.arrivals import Openings
    from tidegate.launch.environment import running
    from tidegate.launch.folders import run_folder
    from tidegate.launch.runs import COMMAND

    with contextlib.ExitStack() as stack:
        if not running(os.environ):
            with contextlib.suppress(OSError):
                folder = stack.enter_context(run_folder())
                (Path(folder) / COMMAND).write_text(f"{os.getpid()} {_command(name, replica)}\n", "utf-8", "replace")
                before = key_hook.told
                stack.callback(setattr, key_hook, "told", before)
                key_hook.told = Openings(folder).told
        yield


def told_by(replica: str) -> list[KeyTotal]:
    """Return what the keys of a replica's process do now, where it is one of this user's on this machine."""
    from tidegate.launch.runs import under_way

    for run in under_way():
        if run.command.endswith(_of(replica)):
            return sorted(run.totals.keys.values(), key=lambda each: each.key)
    return []


def _command(name: str, replica: str) -> str:
    return f"tidegate experiment {name} {_of(replica)}"


def _of(replica: str) -> str:
    return f"(replica {replica})"
