"""Hook of Inspect AI: waits in the queue count as waiting time of the sample, and the log gets a summary of the calls.

Inspect loads this module by its entry point in every process, so it imports nothing else of tidegate until a run begins
with the hook enabled. Read from inspect_ai 0.3.285: `hooks/_hooks.py`, `_util/working.py`, `log/_edit.py`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

from inspect_ai.hooks import Hooks, RunEnd, RunStart, SampleStart, hooks

VARIABLE = "TIDEGATE_INSPECT"
"""`1` installs tidegate at the start of a run, `0` disables the hook; unset, an installation enables it."""

OFF = ("0", "false", "no", "off")


@hooks(name="limits", description="tidegate: LLM calls at the provider's limit, waits not counted as working time")
class WaitingTimeHook(Hooks):
    """Hook of all runs of the process; Inspect makes the one instance."""

    def __init__(self) -> None:
        self._before: Any = None
        # Appended to without a lock: a signal handler may make a call.
        self._waits: list[float] = []

    def enabled(self) -> bool:
        """Return whether tidegate is installed or the variable asks for it."""
        word = os.environ.get(VARIABLE, "").strip().lower()
        if word in OFF:
            return False
        # The module is there as soon as anything was installed.
        governance = sys.modules.get("tidegate.transports.governance")
        return bool(word) or (governance is not None and governance.Installation.binding is not None)

    async def on_run_start(self, data: RunStart) -> None:
        """Install where the variable asks for it, and begin to report waits."""
        self._begin()

    async def on_sample_start(self, data: SampleStart) -> None:
        """Begin to report waits where tidegate was installed after the start of the run."""
        if self._before is None:
            self._begin()

    def _begin(self) -> None:
        from tidegate.admission import hooks
        from tidegate.integrations.call_totals import read_keys
        from tidegate.transports.governance import Installation
        from tidegate.transports.install import install

        if Installation.binding is None:
            install()
        self._before, self._waits = read_keys(), []
        suspended = waiting_time()
        hooks.around_wait = lambda: self._wait(suspended)

    @contextmanager
    def _wait(self, suspended: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
        began = time.monotonic()
        try:
            with suspended():
                yield
        finally:
            self._waits.append(time.monotonic() - began)

    async def on_run_end(self, data: RunEnd) -> None:
        """Stop reporting waits, and put the summary into the metadata of the run's logs."""
        from tidegate.admission import hooks
        from tidegate.integrations.call_totals import read_keys, totals_since

        hooks.around_wait = None
        before, self._before = self._before, None
        if before is None:
            return
        totals = totals_since(before, read_keys())
        if totals.counts["calls"]:
            await write_summary(data.logs, summary(totals, sum(self._waits)))


def waiting_time() -> Callable[[], AbstractContextManager[object]]:
    """Return a function whose context counts as waiting time of the running sample.

    The public one of Inspect counts a wait while it lasts. An older Inspect takes a wait only when it is over, so a
    limit can still end a sample in the middle of a wait that alone is longer than the limit.
    """
    try:
        from inspect_ai.util import suspend_working_limit
    except ImportError:
        report: Callable[[float], None] = import_module("inspect_ai._util.working").report_sample_waiting_time

        @contextmanager
        def reported() -> Iterator[None]:
            began = time.monotonic()
            try:
                yield
            finally:
                report(time.monotonic() - began)

        return reported
    function: Callable[[], AbstractContextManager[object]] = suspend_working_limit
    return function


def summary(totals: Any, waited: float) -> dict[str, Any]:
    """Return the counts of a run as plain values; `waited` is the sum over calls, in seconds."""
    counts = totals.counts
    return {
        "calls": counts["calls"],
        "answered": counts["answered"],
        "given_up": counts["given_up"],
        "failed": counts["failed_calls"],
        "abandoned": counts["abandoned_calls"],
        "refused": counts["refused"],
        "retried": counts["absorbed"],
        "waited_seconds": round(waited, 3),
        "limits": [
            {"provider": state.key.provider, "model": state.key.scope, "quota": quota.name, "limit": quota.limit}
            | {"window_seconds": quota.window}
            for state in totals.used
            for quota in state.quotas
        ],
    }


async def write_summary(logs: Any, facts: dict[str, Any]) -> None:
    """Write the facts into the metadata of each log, below `tidegate`; samples are not read or written again."""
    try:
        from inspect_ai.log import MetadataEdit, ProvenanceData, edit_eval_log
        from inspect_ai.log import read_eval_log_async as read
        from inspect_ai.log import write_eval_log_async as write
    except ImportError:
        # An Inspect without edits of logs: the samples alone have what can be said.
        return
    edits = [MetadataEdit(metadata_set={"tidegate": facts})]
    origin = ProvenanceData(author="tidegate", reason="calls of the run")
    for number, log in enumerate(logs):
        if log.status == "started" or not log.location:
            continue
        stored = edit_eval_log(await read(log.location, header_only=True), edits, origin)
        await write(stored, log.location, header_only=True)
        # The caller of `eval` gets this list.
        logs[number] = edit_eval_log(log, edits, origin)
