"""Comparisons of two experiments for the page, each made by a process of its own, one at a time.

Theory of operation. A comparison of large experiments computes for seconds, and needs scipy. In another process it
delays no other answer, and its memory is free when it ends. The page asks each second, and the answers say how long it
has been computing. The last comparisons are kept, with the progress of both experiments at their start, so that the
page can say that results have been added since.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeAlias

from tidegate.experiments.screens.source import SourceProblem

COMPARE = ("from tidegate.cli.main import main; main()", "experiment", "compare", "--json")

ROWS = 20
"""Most different rows that are shown of each output. Chosen: one screen."""

KEPT = 16
"""Comparisons that are kept."""

SAID = 300
"""Characters that are shown of the reason why a comparison was not made."""

Pair: TypeAlias = tuple[int, int]


class ComparisonResult(NamedTuple):
    """Facts of a comparison, or the `problem` that prevented it; `made` is its time in seconds since 1970.

    `progress` is that of both experiments when it began.
    """

    facts: dict[str, Any] | None
    problem: str
    made: float
    progress: Hashable


@dataclass(slots=True)
class RunningComparison:
    """Comparison that is being made since `began`, by the clock."""

    pair: Pair
    began: float
    work: asyncio.Task[None]


class ExperimentComparisons:
    """Comparisons of experiments in the database at `url`. It belongs to one event loop."""

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._kept: dict[Pair, ComparisonResult] = {}
        self._running: RunningComparison | None = None

    def forget(self, pair: Pair) -> None:
        """Make the comparison of a pair again at its next request."""
        self._kept.pop(pair, None)

    def of(self, pair: Pair, names: tuple[str, str], progress: Hashable) -> dict[str, Any]:
        """Return what is known of a comparison, which begins if it is not kept and no other one is being made."""
        if find_spec("scipy") is None:
            raise SourceProblem("comparison not made: scipy not installed; run: pip install 'tidegate[compare]'")
        kept = self._kept.get(pair)
        if kept is not None:
            told = {"comparison": kept.facts, "failure": kept.problem, "made": kept.made}
            return {**told, "computing": None, "queued": False, "changed": kept.progress != progress}
        if self._running is None:
            work = asyncio.create_task(self._make(pair, names, progress))
            self._running = RunningComparison(pair, self._clock(), work)
        own = self._running.pair == pair
        computing = self._clock() - self._running.began if own else None
        told = {"comparison": None, "failure": "", "made": None, "changed": False}
        return {**told, "computing": computing, "queued": not own}

    async def close(self) -> None:
        if self._running is not None:
            work = self._running.work
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work

    async def _make(self, pair: Pair, names: tuple[str, str], progress: Hashable) -> None:
        try:
            facts, problem = await self._compared(names)
        except (OSError, ValueError) as error:
            facts, problem = None, f"comparison not made: {error}"
        finally:
            self._running = None
        self._kept.pop(pair, None)
        self._kept[pair] = ComparisonResult(facts, problem[:SAID], time.time(), progress)
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]

    async def _compared(self, names: tuple[str, str]) -> tuple[dict[str, Any] | None, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            # Without it, a file of the current folder could take the place of a module.
            "-P",
            "-c",
            *COMPARE,
            "--rows",
            str(ROWS),
            "--",
            *names,
            # Not an option: a URL may have a password, and commands are visible to all users.
            env=os.environ | {"TIDEGATE_DB": self._url},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = await process.communicate()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        if process.returncode == 0:
            facts: dict[str, Any] = json.loads(out)
            return facts, ""
        lines = [line.strip() for line in err.decode(errors="replace").splitlines() if line.strip()]
        said = lines[-1].removeprefix("tidegate: ") if lines else f"its process ended with code {process.returncode}"
        return None, said
