"""The file of an SQLite database: notices that it was deleted, moved or replaced, and saves what it holds.

Theory of operation. A file that is open outlives its name: SQLite goes on writing into it, and all of it is gone when
the last connection closes. A connection of this module's own holds the file open from `hold` to `close`. The device and
inode of the name, of the write-ahead log and of its index are noted once that connection has read; none of them changes
while any connection is open. What the connection still sees is copied by `VACUUM INTO` to a new file.
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
"""Files beside a database in WAL mode: without them its newest transactions cannot be read by anybody else."""

MOST_NAMES = 1000
"""Names that are tried for a saved file in one folder before the next folder is."""


class SQLiteFile:
    """One database file that is held open. Every method may be called from any thread."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._noted: dict[Path, tuple[int, int]] = {}
        self._mode = 0o600
        self._saved: Path | None = None
        self._saved_as: tuple[int, ...] = ()

    def hold(self) -> None:
        """Open the file and note which one it is. Raises `sqlite3.Error` or `OSError` where it is not there."""
        with self._lock:
            uri = f"{self.path.as_uri()}?mode=rw"
            connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=30.0)
            try:
                # The log and its index are opened by the first reading.
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
        """Return what became of the file; None where it is in its place, or nobody can tell."""
        for path, noted in self._noted.items():
            try:
                now = _identity(path)
            except (FileNotFoundError, NotADirectoryError):
                return _told(path, self.path, "was deleted or moved")
            except OSError:
                # A permission or a network that fails: the file may well be in its place.
                continue
            if now is not None and now != noted:
                return _told(path, self.path, "was replaced by another file")
        return None

    def require(self) -> None:
        """Raise `DatabaseFileLost` where the file is not in its place."""
        if (what := self.lost()) is not None:
            raise DatabaseFileLost(self.path, what, saved=self._saved)

    def save(self) -> Path:
        """Copy what the file holds into a new file, beside it where that can be, and return that one's path.

        A later call replaces the copy of the call before it, unless somebody has changed that. Nothing else is ever
        overwritten. Raises `OSError` or `sqlite3.Error` with the first reason where no folder takes the copy.
        """
        with self._lock:
            failure: Exception | None = None
            folders = _folders(self.path) if self._saved is None else [self._saved.parent, *_folders(self.path)]
            for folder in folders:
                try:
                    return self._saved_in(folder)
                except (OSError, sqlite3.Error) as error:
                    failure = failure or error
            raise failure or OSError(f"there is no folder for a copy of {self.path}")

    def close(self) -> None:
        """Close the connection; repeating it does nothing."""
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
            raise sqlite3.ProgrammingError("the database is closed")
        self._connection.execute("VACUUM INTO ?", (str(target),))

    def _target(self, folder: Path) -> Path:
        """A name that this call may use: the last copy's, where nobody has changed it, or a new one."""
        if self._saved is not None and self._saved.parent == folder:
            with contextlib.suppress(OSError):
                if _state(self._saved) == self._saved_as:
                    return self._saved
        for target in _names(folder, self.path):
            with contextlib.suppress(FileExistsError):
                # Made here, and by nobody else: what is put in its place is put over an empty file.
                os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
                return target
        raise FileExistsError(f"every name for a copy of {self.path} in {folder} is in use")


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
    for number in range(2, MOST_NAMES):
        yield folder / f"{path.stem}.saved-{number}{path.suffix}"


def _folders(path: Path) -> list[Path]:
    """Folders for a copy, the best first: the file's own or the nearest above it, the home folder, the temporary."""
    there = [each for each in path.parents if each.is_dir()][:1]
    more = []
    with contextlib.suppress(RuntimeError):
        more.append(Path.home())
    return list(dict.fromkeys([*there, *more, Path(tempfile.gettempdir())]))


def _synchronized(path: Path) -> None:
    """Have the system write a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
