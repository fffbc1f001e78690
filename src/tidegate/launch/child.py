"""The command as a child process: search, start, signals, and its exit status as ours.

Theory of operation. The command stays in our process group, with our terminal and our files. Signals of the terminal
(Ctrl-C, Ctrl-Z, a resize) reach it directly; signals that another process sent to us alone are forwarded. This process
blocks them all and takes them one by one, each with its origin, so that none interrupts it. The command starts with the
signal mask that this process was given.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

NOT_EXECUTABLE_CODE = 126
"""Exit code of a command that was found but could not be started (POSIX shells, env, timeout)."""
NOT_FOUND_CODE = 127
"""Exit code of a command that was not found (POSIX shells, env, timeout)."""

FORWARDED = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGALRM,
        signal.SIGWINCH,
        signal.SIGCONT,
        signal.SIGTSTP,
    }
)
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores and that other programs do not expect to be ignored (subprocess: `restore_signals`)."""

OWN = frozenset({0, signal.SIGCHLD, signal.SIGCONT})
TYPED = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH})

SIGNAL_LOOK_SECONDS = 0.05
"""Seconds between two checks where the system cannot wait for signals with a timeout (macOS). Chosen: a person notices
no delay, and twenty checks a second cost little."""

FROM_KERNEL_CODE = 0x80
"""`si_code` of a signal of the terminal, which no process sent (Linux: SI_KERNEL)."""


class Unstartable(Exception):
    """Command that cannot be started, with the matching exit code."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


def find(name: str) -> str:
    """Return the file of a command: on PATH as a shell finds it, else next to this Python; raise `Unstartable`."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name) or (None if os.sep in name else shutil.which(name, path=beside))
    if found is not None:
        return found
    if os.sep in name and Path(name).is_dir():
        raise Unstartable(f"command {name} not started: it is a directory", NOT_EXECUTABLE_CODE)
    if shutil.which(name, os.F_OK) is not None:
        hint = f"; did you mean `tidegate run python {name}`?" if name.endswith(".py") else ""
        raise Unstartable(f"command {name} not started: the file is not executable{hint}", NOT_EXECUTABLE_CODE)
    if name.endswith(".py") and Path(name).is_file():
        raise Unstartable(f"command {name} not found; did you mean `tidegate run python {name}`?", NOT_FOUND_CODE)
    where = "there is no such file" if os.sep in name else "it is neither on PATH nor next to this Python"
    raise Unstartable(f"command {name} not found: {where}", NOT_FOUND_CODE)


def replace(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command, where nothing else is to be done; raise `Unstartable`."""
    path = find(command[0])
    for number in RESTORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(path, list(command), dict(environ))
    except OSError as error:
        raise _unstartable(command[0], error) from None


class Child:
    """Running command."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        path = find(command[0])
        self._taken = {*FORWARDED, signal.SIGCHLD}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)
        self._status: int | None = None
        # A parent may have set this signal to be ignored; the kernel would then keep no exit code.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            self.pid = os.posix_spawn(path, list(command), dict(environ), setsigmask=mask, setsigdef=RESTORED)
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise _unstartable(command[0], error) from None

    def wait(self, tick: Callable[[], None], suspend: Callable[[], None], every: float) -> int:
        """Return the wait status of the command; call `tick` every `every` seconds, `suspend` before a job stop."""
        while True:
            number, ours = self._next(every)
            status = self._ended()
            if status is not None:
                return status
            if ours and number not in OWN:
                self._tell(number)
            if number == signal.SIGTSTP:
                suspend()
                os.kill(os.getpid(), signal.SIGSTOP)
            elif number in (0, signal.SIGWINCH):
                tick()

    def _next(self, patience: float) -> tuple[int, bool]:
        """Return the next signal (0 where none arrives in time), and whether it was sent to this process alone."""
        if hasattr(signal, "sigtimedwait"):
            taken = signal.sigtimedwait(self._taken, patience)
            # CPython returns a random number where this process was stopped until the time was over.
            if taken is None or taken.si_signo not in self._taken:
                return 0, False
            return taken.si_signo, taken.si_code != FROM_KERNEL_CODE
        # macOS: a signal does not state its origin. In the foreground, signals that a terminal can send count as the
        # terminal's.
        end = time.monotonic() + patience
        while not (pending := signal.sigpending() & self._taken):
            if time.monotonic() > end or self._ended() is not None:
                return 0, False
            time.sleep(SIGNAL_LOOK_SECONDS)
        number = signal.sigwait(pending)
        return number, not (number in TYPED and _foreground())

    def _ended(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status

    def _tell(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return

    def end_alike(self, status: int) -> int:
        """Return the exit code of the command; where a signal ended it, end this process by the same signal."""
        if not os.WIFSIGNALED(status):
            return os.waitstatus_to_exitcode(status)
        number = os.WTERMSIG(status)
        # A core file, if there is one, is the command's.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        return 128 + number


def _foreground() -> bool:
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(fd) == os.getpgrp()
    return False


def _unstartable(name: str, error: OSError) -> Unstartable:
    missing = error.errno == errno.ENOENT
    what = "its interpreter was not found" if missing else (error.strerror or str(error)).lower()
    return Unstartable(f"command {name} not started: {what}", NOT_FOUND_CODE if missing else NOT_EXECUTABLE_CODE)
