"""What a driver is told and what it tells, one line of JSON each, over standard input and output.

The runner writes the work; the driver sets its peer up and says `ready`; the runner puts the provider back to 0 and
says `go`; the driver makes the calls and prints what became of them. What else a peer prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TextIO

TOKEN_CHARS = 4
"""Characters that the simulator counts as one token."""

WARM_SECONDS = 10.0

UNFINISHED = "unfinished"
"""Under which name the calls are lost that were still open at the deadline."""

Call = Callable[[int, str], Awaitable[object]]
"""Makes the call of this number with this prompt; whatever it raises is a lost call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The calls to make.

    base_url  of an OpenAI client
    sizes     the prompts' sizes in tokens, in order
    callers   how many calls the script has open at once
    deadline  seconds after which what is left is given up
    options   the peer's own, from its row of the catalogue
    limits    what the provider enforces, as its scenario has it; empty for peers that are not told
    """

    base_url: str
    api_key: str
    model: str
    sizes: tuple[int, ...]
    callers: int
    deadline: float
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: tuple[Mapping[str, Any], ...] = ()

    def prompt(self, number: int) -> str:
        """The prompt of the call of this number, which begins with the number."""
        return f"{number} ".ljust(self.sizes[number] * TOKEN_CHARS, "x")

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """The prompt as a chat."""
        return [{"role": "user", "content": prompt}]

    @property
    def trial(self) -> Work:
        """The same for another key, so that a first call loads what is loaded late and teaches the peer nothing."""
        return dataclasses.replace(self, api_key="trial")


class Channel:
    """The driver's end of the dialogue; takes standard output away from everybody else."""

    def __init__(self) -> None:
        self._out: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        told = json.loads(sys.stdin.readline())
        self.work = Work(**{**told, "sizes": tuple(told["sizes"]), "limits": tuple(told["limits"])})

    def wait(self) -> None:
        """Says that the peer is set up, and returns when the calls may begin."""
        self._tell("ready")
        if sys.stdin.readline() != "go\n":
            os._exit(3)

    def tell(self, outcome: Outcome) -> NoReturn:
        """Says what became of the calls, and ends the process, with whatever the peer has left running in it."""
        self._tell(json.dumps(dataclasses.asdict(outcome)))
        os._exit(0)

    def _tell(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()


@dataclass(slots=True)
class Outcome:
    """What became of the calls: answered, lost by the exception's class, and the seconds of wall and CPU they took."""

    ok: int = 0
    lost: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @contextlib.contextmanager
    def measured(self, work: Work) -> Iterator[None]:
        """Takes the time, of all threads; what has no outcome at the end is unfinished."""
        began, spent = time.monotonic(), time.process_time()
        yield
        self.wall_s, self.cpu_s = time.monotonic() - began, time.process_time() - spent
        self.give_up(work)

    def lose(self, why: str, calls: int = 1) -> None:
        """So many calls are lost to an exception of this class."""
        self.lost[why] = self.lost.get(why, 0) + calls

    def give_up(self, work: Work) -> None:
        """What has no outcome by now is unfinished."""
        left = len(work.sizes) - self.ok - sum(self.lost.values())
        if left:
            self.lose(UNFINISHED, left)


def play(peer: Callable[[Work], AbstractAsyncContextManager[Call]]) -> None:
    """A whole driver for an async peer: `peer(work)` sets it up, and is left when the calls are over."""
    asyncio.run(_play(Channel(), peer))


async def _play(channel: Channel, peer: Callable[[Work], AbstractAsyncContextManager[Call]]) -> None:
    work, outcome = channel.work, Outcome()
    async with peer(work.trial) as call:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(call(0, "trial"), WARM_SECONDS)
    async with peer(work) as call:
        channel.wait()
        with outcome.measured(work):
            await _make(work, call, outcome)
        channel.tell(outcome)


async def _make(work: Work, call: Call, outcome: Outcome) -> None:
    left = iter(range(len(work.sizes)))

    async def caller() -> None:
        for number in left:
            try:
                await call(number, work.prompt(number))
            except Exception as error:
                outcome.lose(type(error).__name__)
            else:
                outcome.ok += 1

    callers = [asyncio.create_task(caller()) for _ in range(work.callers)]
    await asyncio.wait(callers, timeout=work.deadline)
