"""File of an SQLite database: detection of its deletion, move or replacement, and rescue of its content.

Theory of operation. An open file survives its name: SQLite continues to write into it, and the content is gone when the
last connection closes. A separate connection of this module keeps the file open from `hold` to `close`. Once that
connection has read, the device and inode of the file, of the write-ahead log and of its index are noted. None of them
changes while any connection is open. `VACUUM INTO` copies what the connection still sees to a new file.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from tidegate.errors import DatabaseFileLost

SIDE_FILES = ("-wal", "-shm")
"""Files next to a database in WAL mode: without them no other process can read its newest transactions."""

MAX_NAMES = 1000
"""Exclusive bound on the number in the name of a saved file; beyond it the next folder is tried. Chosen: far above the
files that a user keeps."""


class SQLiteFile:
    """Database file that is kept open. Every method may be called from any thread."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._noted: dict[Path, tuple[int, int]] = {}
        self._mode = 0o600
        self._saved: Path | None = None
        self._saved_as: tuple[int, ...] = ()

    def hold(self) -> None:
        """Open the file and note its identity; raise `sqlite3.Error` or `OSError` where it does not exist."""
        with self._lock:
            uri = f"{self.path.as_uri()}?mode=rw"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=30.0)
            try:
                # The first read opens the log and its index.
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
                real = Path(connection.execute("PRAGMA database_list").fetchone()[2])
                self._mode = stat.S_IMODE(os.stat(self.path).st_mode) & 0o666  # noqa: PTH116
                for each in (self.path, *(real.with_name(real.name + end) for end in SIDE_FILES)):
                    with contextlib.suppress(OSError):
                        if (identity := _identity(each)) is not None:
                            self._noted[each] = identity
            except BaseException:
                connection.close()
                raise
            self._connection = connection

    def lost(self) -> str | None:
        """Return a description of the loss; None where the file is in its place, or that is unknown."""
        for path, noted in self._noted.items():
            try:
                now = _identity(path)
            except (FileNotFoundError, NotADirectoryError):
                return _told(path, self.path, "was deleted or moved")
            except OSError:
                # A permission or a network fails: the file may well be in its place.
                continue
            if now is not None and now != noted:
                return _told(path, self.path, "was replaced by another file")
        return None

    def require(self) -> None:
        """Raise `DatabaseFileLost` where the file is not in its place."""
        if (what := self.lost()) is not None:
            raise DatabaseFileLost(self.path, what, saved=self._saved)

    def save(self) -> Path:
        """Copy the content of the file into a new file, next to it where possible, and return the path of the copy.

        A later call replaces the earlier copy, unless that was changed since. Nothing else is ever overwritten. Raise
        `OSError` or `sqlite3.Error` with the first reason where no folder accepts the copy.
        """
        with self._lock:
            failure: Exception | None = None
            folders = _folders(self.path) if self._saved is None else [self._saved.parent, *_folders(self.path)]
            for folder in folders:
                try:
                    return self._saved_in(folder)
                except (OSError, sqlite3.Error) as error:
                    failure = failure or error
            raise failure or OSError(f"copy of {self.path} not made: there is no folder for it")

    def close(self) -> None:
        """Close the connection; a repeated call does nothing."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _saved_in(self, folder: Path) -> Path:
        descriptor, name = tempfile.mkstemp(prefix=f".{self.path.stem}.", suffix=".part", dir=folder)
        os.close(descriptor)
        part = Path(name)
        try:
            self._vacuum_into(part)
            _synchronized(part)
            part.chmod(self._mode)
            target = self._target(folder)
            part.replace(target)
            self._saved, self._saved_as = target, _state(target)
            with contextlib.suppress(OSError):
                _synchronized(folder)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return target

    def _vacuum_into(self, target: Path) -> None:
        if self._connection is None:
            raise sqlite3.ProgrammingError(f"copy of {self.path} not made: its connection is closed")
        self._connection.execute("VACUUM INTO ?", (str(target),))

    def _target(self, folder: Path) -> Path:
        """Return a name that this call may use: that of the last copy, if unchanged since, or a new one."""
        if self._saved is not None and self._saved.parent == folder:
            with contextlib.suppress(OSError):
                if _state(self._saved) == self._saved_as:
                    return self._saved
        for target in _names(folder, self.path):
            with contextlib.suppress(FileExistsError):
                # Create the name exclusively, so that the copy later replaces only this empty file.
                os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                return target
        raise FileExistsError(f"copy of {self.path} not made: every name for it in {folder} is in use")


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode; None where the file system has no inode numbers."""
    found = os.stat(path)  # noqa: PTH116
    return (found.st_dev, found.st_ino) if found.st_ino else None


def _state(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _told(path: Path, database: Path, what: str) -> str:
    return what if path == database else f"lost its {path.name}, which {what}"


def _names(folder: Path, path: Path) -> Iterator[Path]:
    yield folder / f"{path.stem}.saved{path.suffix}"
    for number in range(2, MAX_NAMES):
        yield folder / f"{path.stem}.saved-{number}{path.suffix}"


def _folders(path: Path) -> list[Path]:
    """Return folders for a copy, the best first: the file's own or nearest existing parent, home, temporary."""
    there = [each for each in path.parents if each.is_dir()][:1]
    more = []
    with contextlib.suppress(RuntimeError):
        more.append(Path.home())
    return list(dict.fromkeys([*there, *more, Path(tempfile.gettempdir())]))


def _synchronized(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
