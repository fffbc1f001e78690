"""Carrier of one host: a file for each log, in a private folder of the user. No server, thread or setting."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

from tidegate.shared_file import VERSION, lock
from tidegate.shared_log.carrier import Carrier, Unshared, Unsupported
from tidegate.shared_log.folder import IDLE_FILE_SECONDS, SCANNED_FILES, PrivateFolder
from tidegate.shared_log.host_file import LogFile
from tidegate.shared_log.host_log import HostLog
from tidegate.shared_log.lives import Lives, clock_replaced

BUDGET_BYTES = 64 * 1024 * 1024
"""Bytes of all files of a user. Chosen: the size of `/dev/shm` in a container; it holds 100 logs with several members,
or 4,000 with one."""

COUNT_SECONDS = 10.0
"""Seconds between two counts of the folder's bytes. Measured: 2 us a file."""

DESCRIPTORS_DIVISOR = 8
"""Divisor of the file descriptors that logs may take: a program's own connections need the rest."""


def descriptor_limit() -> int:
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            return soft
    return 1024


class HostCarrier(Carrier):
    """The logs of this process in one folder; its `secret` is the digest key that all processes of the folder have."""

    kind = "file"

    def __init__(self, folder: PrivateFolder, *, is_chosen: bool = True) -> None:
        self.is_chosen = is_chosen
        if clock_replaced():
            raise Unsupported("the clock of this process was replaced")
        self.folder, self.place = folder, str(folder.path)
        self.reason = ""
        self.secret = folder.secret()
        self._lives = Lives(folder)
        self._logs: set[HostLog] = set()
        self._most = max(1, descriptor_limit() // DESCRIPTORS_DIVISOR)
        self._used, self._counted_at, self._cleared_at = 0, -math.inf, -math.inf
        super().__init__()
        with contextlib.suppress(OSError, Unshared):
            self._lives.clean()
            self._remove_all_unused(time.time() - IDLE_FILE_SECONDS)

    @classmethod
    def find(cls, environ: Mapping[str, str] | None = None) -> HostCarrier:
        """Return the carrier in this user's folder; raise `Unshared` with the reason where there is none."""
        try:
            return cls(PrivateFolder.find(os.environ if environ is None else environ), is_chosen=False)
        except OSError as error:
            raise Unshared(str(error)) from error

    @classmethod
    def at(cls, path: Path) -> HostCarrier:
        """Return the carrier in a given folder; raise `Unshared` with the reason where it is not usable."""
        try:
            return cls(PrivateFolder(path))
        except OSError as error:
            raise Unshared(f"{path} is not usable: {error.strerror or error}") from error

    def join(self, name: bytes, now: float) -> HostLog | None:
        if len(self._logs) >= self._most:
            self.reason = f"{len(self._logs)} logs are shared already, and each takes file descriptors"
            return None
        log = HostLog(self.folder, self._lives, f"{name.hex()[:64]}.{VERSION}", self.has_room, self._logs.discard)
        try:
            log.attach(now)
        except (OSError, Unshared, ValueError) as error:
            self.reason = getattr(error, "strerror", None) or str(error)
            log.close()
            return None
        self._logs.add(log)
        self.reason = ""
        return log

    def has_room(self, size: int) -> bool:
        """Return whether the folder's budget has room for these bytes, and take them."""
        now = time.monotonic()
        if not self._counted_at <= now < self._counted_at + COUNT_SECONDS:
            self._counted_at, self._used = now, self._count()
        if self._used + size > BUDGET_BYTES and not self._cleared_at <= now < self._cleared_at + COUNT_SECONDS:
            # Files of processes that were killed are of no use to any other one.
            self._cleared_at = now
            self._remove_all_unused(math.inf)
            self._used = self._count()
        if self._used + size > BUDGET_BYTES:
            return False
        self._used += size
        return True

    def _count(self) -> int:
        """Return the bytes of all files; the whole budget where they are too many to look at."""
        used = 0
        for count, entry in enumerate(self.folder.files(), 1):
            if count == SCANNED_FILES:
                return BUDGET_BYTES
            with contextlib.suppress(OSError):
                used += entry.stat(follow_symlinks=False).st_size
        return used

    def after_fork(self) -> None:
        for log in list(self._logs):
            log.after_fork()
        self._lives.after_fork()

    def close(self) -> None:
        for log in list(self._logs):
            log.close()
        self._lives.close()
        self.folder.close()

    def _remove_all_unused(self, since: float) -> None:
        """Remove the files without members that were not written after the wall-clock time `since`."""
        for entry in self.folder.files():
            with contextlib.suppress(OSError, Unshared):
                if entry.name.endswith(f".{VERSION}") and entry.stat().st_mtime < since:
                    self._remove_unused(entry.name)

    def _remove_unused(self, name: str) -> None:
        file = LogFile(self.folder.open_file(name))
        try:
            unused = lock(file.descriptor) and self.folder.holds(name, file.descriptor)
            if unused and not (file.attach() and any(self._lives.holds(each.life) for each in file.members())):
                self.folder.remove(name)
        finally:
            file.close()
