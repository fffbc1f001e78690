"""Private folder of a user, where the processes of one host keep their shared logs.

Everything in it is opened relative to a descriptor of the folder, without following links, and checked by `fstat`:
another user must not be able to place a file here, or to read one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tidegate.shared_file import CAN_LOCK
from tidegate.shared_log.carrier import Unshared, Unsupported

SECRET_BYTES = 32
"""Bytes of the digest key. Chosen: 256 bits."""

SCANNED_FILES = 4096
"""Files of the folder that one look goes through. Measured: 2 us a file."""

IDLE_FILE_SECONDS = 86_400.0
"""Seconds after which an unused file is removed: after a day, a checkpoint of the limits is of no use."""

OPEN = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags of every open here. A named pipe in the place of a file must not block the caller."""


def unsupported() -> str:
    """Return the reason why this platform has no shared folder, empty where it has one."""
    if not CAN_LOCK or not hasattr(os, "O_NOFOLLOW") or not hasattr(os, "geteuid"):
        return f"{sys.platform} has no flock"
    return ""


def candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    """Return the places of the folder, best first. None is below the home directory, which may be on a network."""
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if Path(runtime).is_absolute():
        yield Path(runtime) / "tidegate"
    name = f"tidegate-{os.geteuid()}"
    yield Path("/dev/shm") / name
    temporary = Path(environ.get("TMPDIR", "") or "/tmp")
    if temporary.is_absolute() and not _below_home(temporary, environ):
        yield temporary / name


def _below_home(folder: Path, environ: Mapping[str, str]) -> bool:
    home = Path(environ.get("HOME", "")).resolve()
    return home != Path("/") and folder.resolve().is_relative_to(home)


class PrivateFolder:
    """A private folder that is open. `path` is for messages: all files are found by the descriptor."""

    def __init__(self, path: Path) -> None:
        reason = unsupported()
        if reason:
            raise Unsupported(reason)
        self.path = path
        with contextlib.suppress(FileExistsError):
            path.mkdir(0o700)
        self.descriptor = self._open_folder(path)

    @classmethod
    def find(cls, environ: Mapping[str, str]) -> PrivateFolder:
        """Return the first usable folder of `candidates`; one that exists and is not private raises `Unshared`."""
        reason = unsupported()
        if reason:
            raise Unsupported(reason)
        for path in candidates(environ):
            try:
                return cls(path)
            except OSError as error:
                reason = f"{path} is not usable: {error.strerror or error}"
        raise Unshared(reason)

    def open_file(self, name: str, *flags: int) -> int:
        """Return a descriptor of a private file; raise `Unshared` where others may write it, `OSError` otherwise."""
        mode = OPEN
        for flag in flags:
            mode |= flag
        try:
            descriptor = os.open(name, mode, 0o600, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Unshared(f"{self.path / name} is a symbolic link") from None
            raise
        try:
            _check_private(os.fstat(descriptor), f"{self.path / name}", stat.S_ISREG)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def holds(self, name: str, descriptor: int) -> bool:
        """Return whether a descriptor is of the file that has this name now: another process may have removed it."""
        try:
            named = os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(named, os.fstat(descriptor))

    def subfolder(self, name: str) -> PrivateFolder:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.descriptor)
        inner = PrivateFolder.__new__(PrivateFolder)
        inner.path = self.path / name
        inner.descriptor = self._open_folder(Path(name), self.descriptor)
        return inner

    def secret(self) -> bytes:
        """Return the digest key of this folder's processes; the first of them makes it."""
        with contextlib.suppress(FileNotFoundError):
            return self._read_secret()
        temporary = f"secret.{secrets.token_hex(8)}"
        descriptor = self.open_file(temporary, os.O_CREAT, os.O_EXCL)
        try:
            os.write(descriptor, secrets.token_bytes(SECRET_BYTES))
            # A link does not replace the file of a process that was faster; a rename would.
            with contextlib.suppress(FileExistsError):
                os.link(temporary, "secret", src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        finally:
            os.close(descriptor)
            os.unlink(temporary, dir_fd=self.descriptor)
        return self._read_secret()

    def _read_secret(self) -> bytes:
        descriptor = self.open_file("secret")
        try:
            content = os.pread(descriptor, SECRET_BYTES + 1, 0)
        finally:
            os.close(descriptor)
        if len(content) != SECRET_BYTES:
            raise Unshared(f"{self.path / 'secret'} has {len(content)} bytes, not {SECRET_BYTES}")
        return content

    def files(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self.descriptor) as entries:
            for _, entry in zip(range(SCANNED_FILES), entries, strict=False):
                if entry.is_file(follow_symlinks=False):
                    yield entry

    def remove(self, name: str) -> None:
        """Remove a file whose lock the caller holds, under a name that no other process opens."""
        trash = f"removed.{secrets.token_hex(8)}"
        os.rename(name, trash, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        os.unlink(trash, dir_fd=self.descriptor)

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    @staticmethod
    def _open_folder(path: Path, inside: int | None = None) -> int:
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path, flags, dir_fd=inside)
        except NotADirectoryError:
            raise Unshared(f"{path} is not a folder, or is a symbolic link") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise Unshared(f"{path} is a symbolic link") from None
            raise
        try:
            _check_private(os.fstat(descriptor), str(path), stat.S_ISDIR)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _check_private(found: os.stat_result, path: str, kind: Callable[[int], bool]) -> None:
    if not kind(found.st_mode):
        raise Unshared(f"{path} is of another kind")
    if found.st_uid != os.geteuid():
        raise Unshared(f"{path} belongs to user {found.st_uid}")
    if found.st_mode & 0o077:
        raise Unshared(f"{path} is open to other users (mode {stat.S_IMODE(found.st_mode):04o})")
