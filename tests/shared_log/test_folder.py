"""The private folder: found, made, refused with a reason, and cleaned."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tidegate.shared_file import VERSION
from tidegate.shared_log import host
from tidegate.shared_log.carrier import Unshared
from tidegate.shared_log.folder import IDLE_FILE_SECONDS, PrivateFolder, candidates
from tidegate.shared_log.host import HostCarrier
from tidegate.shared_log.lives import Lives


def test_the_runtime_folder_goes_before_memory_before_the_temporary_folder() -> None:
    environ = {"XDG_RUNTIME_DIR": "/run/user/7", "TMPDIR": "/scratch", "HOME": "/home/a"}
    name = f"tidegate-{os.geteuid()}"
    assert list(candidates(environ)) == [
        Path("/run/user/7/tidegate"),
        Path("/dev/shm") / name,
        Path("/scratch") / name,
    ]


def test_no_place_is_below_the_home_directory(tmp_path: Path) -> None:
    places = list(candidates({"TMPDIR": str(tmp_path / "tmp"), "HOME": str(tmp_path)}))
    assert not [place for place in places if place.is_relative_to(tmp_path)]
    # Where the home directory is the root, as in containers, everything is below it.
    assert tmp_path / f"tidegate-{os.geteuid()}" in candidates({"TMPDIR": str(tmp_path), "HOME": "/"})


def test_a_place_that_cannot_be_made_gives_way_to_the_next(tmp_path: Path) -> None:
    folder = PrivateFolder.find({"XDG_RUNTIME_DIR": str(tmp_path / "absent")})
    try:
        assert not folder.path.is_relative_to(tmp_path)
    finally:
        folder.close()


def test_a_folder_is_made_private_and_is_found_again(tmp_path: Path) -> None:
    for _ in range(2):
        folder = PrivateFolder.find({"XDG_RUNTIME_DIR": str(tmp_path)})
        assert folder.path == tmp_path / "tidegate"
        assert folder.path.stat().st_mode & 0o777 == 0o700
        folder.close()


def test_a_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tidegate").mkdir(0o755)
    with pytest.raises(Unshared, match=r"tidegate is open to other users \(mode 0755\)"):
        PrivateFolder.find({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "tidegate").symlink_to(tmp_path / "real")
    with pytest.raises(Unshared, match="symbolic link"):
        HostCarrier.find({"XDG_RUNTIME_DIR": str(tmp_path)})


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tidegate").write_text("")
    with pytest.raises(Unshared, match="is not a folder"):
        HostCarrier.at(tmp_path / "tidegate")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tidegate").mkdir(0o700)
    shutil.chown(tmp_path / "tidegate", "nobody")
    with pytest.raises(Unshared, match="belongs to user"):
        HostCarrier.at(tmp_path / "tidegate")


def test_a_folder_that_cannot_be_made_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(Unshared, match=r"absent/inner is not usable: No such file"):
        HostCarrier.at(tmp_path / "absent" / "inner")


@pytest.mark.parametrize("kind", ["link", "pipe", "open to others"])
def test_a_file_that_is_not_private_is_refused(tmp_path: Path, kind: str) -> None:
    folder = PrivateFolder(tmp_path / "own")
    place = folder.path / "name"
    if kind == "link":
        (tmp_path / "target").write_bytes(b"")
        place.symlink_to(tmp_path / "target")
    elif kind == "pipe":
        os.mkfifo(place, 0o600)
    else:
        place.write_bytes(b"")
        place.chmod(0o640)
    with pytest.raises(Unshared):
        folder.open_file("name", os.O_CREAT)
    folder.close()


def test_all_processes_of_a_folder_have_one_secret(tmp_path: Path) -> None:
    first, second = PrivateFolder(tmp_path / "own"), PrivateFolder(tmp_path / "own")
    secret = first.secret()
    assert len(secret) == 32
    assert second.secret() == secret
    assert PrivateFolder(tmp_path / "other").secret() != secret
    assert [path.name for path in first.path.iterdir()] == ["secret"]
    assert (first.path / "secret").stat().st_mode & 0o777 == 0o600


def test_the_secret_of_a_faster_process_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = PrivateFolder(tmp_path / "own"), PrivateFolder(tmp_path / "own")
    made: list[bytes] = []
    write = os.write

    def overtaken(descriptor: int, content: bytes) -> int:
        monkeypatch.setattr(os, "write", write)
        made.append(fast.secret())
        return write(descriptor, content)

    monkeypatch.setattr(os, "write", overtaken)
    assert [slow.secret()] == made == [fast.secret()]


def test_a_secret_of_another_length_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir(0o700)
    (tmp_path / "own" / "secret").touch(0o600)
    with pytest.raises(Unshared, match="has 0 bytes, not 32"):
        HostCarrier.at(tmp_path / "own")


def test_a_life_lasts_as_long_as_its_descriptor(tmp_path: Path) -> None:
    one, other = Lives(PrivateFolder(tmp_path / "own")), Lives(PrivateFolder(tmp_path / "own"))
    number = one.begin()
    assert one.begin() == number
    assert other.holds(number)
    assert not other.holds(number + 2)
    one.after_fork()  # closes the descriptor and leaves the file, as the end of a process does
    assert not other.holds(number)
    other.clean()
    assert list((tmp_path / "own" / "lives").iterdir()) == []


def test_a_removed_life_is_replaced(tmp_path: Path) -> None:
    lives = Lives(PrivateFolder(tmp_path / "own"))
    number = lives.begin()
    shutil.rmtree(tmp_path / "own" / "lives")
    (tmp_path / "own" / "lives").mkdir(0o700)
    with pytest.raises(OSError, match="No such file"):
        lives.begin()  # its folder was removed too: the log ends, and the call does not
    lives = Lives(PrivateFolder(tmp_path / "own"))
    number = lives.begin()
    (tmp_path / "own" / "lives" / f"{number:016x}").unlink()
    assert lives.begin() != number


def test_only_idle_files_without_members_are_removed(tmp_path: Path) -> None:
    left = HostCarrier.at(tmp_path / "own")
    assert left.join(b"idle", 1.0)
    assert left.join(b"new", 1.0)
    used, idle, new = (tmp_path / "own" / f"{name.hex()}.{VERSION}" for name in (b"used", b"idle", b"new"))
    contents = {path: path.read_bytes() for path in (idle, new)}
    left.close()
    for path, content in contents.items():
        # As a process that is killed leaves it.
        path.write_bytes(content)
        path.chmod(0o600)
    carrier = HostCarrier.at(tmp_path / "own")
    assert carrier.join(b"used", 1.0)
    for path in (used, idle):
        os.utime(path, (0, path.stat().st_mtime - IDLE_FILE_SECONDS - 60))
    HostCarrier.at(tmp_path / "own").close()
    assert (used.exists(), idle.exists(), new.exists()) == (True, False, True)
    carrier.close()


def test_files_of_killed_processes_make_room_where_the_budget_is_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "BUDGET_BYTES", 10 * 4096)
    left = HostCarrier.at(tmp_path / "own")
    assert all(left.join(bytes([number]), 1.0) for number in range(8))
    contents = {path: path.read_bytes() for path in (tmp_path / "own").glob(f"*.{VERSION}")}
    left.close()
    for path, content in contents.items():
        # As processes that are killed leave them.
        path.write_bytes(content)
        path.chmod(0o600)
    carrier = HostCarrier.at(tmp_path / "own")
    assert all(carrier.join(bytes([number]), 1.0) for number in range(100, 106))
    assert not any(path.exists() for path in contents)
    carrier.close()
