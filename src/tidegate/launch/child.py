"""The command as a process: how it is found, started, told of signals, and how its end becomes ours.

Theory of operation. The command stays in our process group, with our terminal and our files: what the terminal sends
(Ctrl-C, Ctrl-Z, a resize) reaches it without us. Signals that were sent to us alone are passed on. We block them all
and take them one by one, each with its origin, so nothing of ours is ever interrupted; the command starts with the mask
that we were given.
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

NOT_EXECUTABLE = 126
NOT_FOUND = 127
"""Exit codes of a command that could not be started (POSIX shells, env, timeout)."""

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
"""Signals that Python ignores and no other program expects to find ignored (subprocess: `restore_signals`)."""

OWN = frozenset({0, signal.SIGCHLD, signal.SIGCONT})
TYPED = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH})
SLEEP = 0.05
"""Seconds between two looks where signals cannot be waited for with a timeout."""

FROM_KERNEL = 0x80
"""`si_code` of a signal that no process sent: the terminal's (Linux: SI_KERNEL)."""


class Unstartable(Exception):
    """A command that cannot be started, with the exit code that says so."""

    def __init__(self, complaint: str, code: int) -> None:
        super().__init__(complaint)
        self.code = code


def find(name: str) -> str:
    """The file of a command: on PATH as a shell finds it, else beside our own interpreter; raises `Unstartable`."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name) or (None if os.sep in name else shutil.which(name, path=beside))
    if found is not None:
        return found
    if os.sep in name and Path(name).is_dir():
        raise Unstartable(f"{name}: is a directory", NOT_EXECUTABLE)
    if shutil.which(name, os.F_OK) is not None:
        raise Unstartable(f"{name}: permission denied", NOT_EXECUTABLE)
    raise Unstartable(f"{name}: command not found", NOT_FOUND)


def replace(command: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Becomes the command, where there is nothing to do besides; raises `Unstartable`."""
    path = find(command[0])
    for number in RESTORED:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(path, list(command), dict(environ))
    except OSError as error:
        raise _unstartable(command[0], error) from None


class Child:
    """The command under way."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        """Starts it; raises `Unstartable`."""
        path = find(command[0])
        self._taken = {*FORWARDED, signal.SIGCHLD}
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._taken)
        self._status: int | None = None
        # Whoever started us may ignore it, and then no exit code is kept for us to ask for.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            self.pid = os.posix_spawn(path, list(command), dict(environ), setsigmask=mask, setsigdef=RESTORED)
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            raise _unstartable(command[0], error) from None

    def wait(self, tick: Callable[[], None], suspend: Callable[[], None], every: float) -> int:
        """The wait status of the command once it has ended; calls `tick` each `every` seconds.

        `suspend` is called before this process stops with its terminal's job.
        """
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
        """The next signal, 0 where none comes, and whether it was sent to us and not to our terminal's whole job."""
        if hasattr(signal, "sigtimedwait"):
            taken = signal.sigtimedwait(self._taken, patience)
            return (taken.si_signo, taken.si_code != FROM_KERNEL) if taken is not None else (0, False)
        # macOS: a signal does not say where it comes from. In the foreground, what a terminal sends is taken for its.
        end = time.monotonic() + patience
        while not (pending := signal.sigpending() & self._taken):
            if time.monotonic() > end or self._ended() is not None:
                return 0, False
            time.sleep(SLEEP)
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
        """The exit code of the command; does not return where a signal ended it: then it ends us as well."""
        if not os.WIFSIGNALED(status):
            return os.waitstatus_to_exitcode(status)
        number = os.WTERMSIG(status)
        # The core that there may be is the command's.
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
    return Unstartable(f"{name}: {what}", NOT_FOUND if missing else NOT_EXECUTABLE)
