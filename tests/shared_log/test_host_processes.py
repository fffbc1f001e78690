"""Real processes at one log: killed, stopped and forked. `make chaos` does the same for longer."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.shared_log.hammering import hammered
from tests.shared_log.members import NAME, START, Peer, peers, shared
from tidegate.shared_log.carrier import ALONE, Head, Record
from tidegate.shared_log.host import HostCarrier
from tidegate.shared_log.host_file import LIMIT, RING_BYTES, TAIL


@pytest.mark.parametrize("members", ["inherits", "fresh"])
def test_kills_at_any_instant_break_no_sequence_and_free_the_lock(tmp_path: Path, members: str) -> None:
    found = hammered(tmp_path, "kills", 80, 7, members)
    assert found["free"]
    assert found["steps"] > 80


def test_nobody_waits_for_a_member_that_is_stopped_inside_its_step(tmp_path: Path) -> None:
    found = hammered(tmp_path, "stops", 2, 3, "fresh")
    assert found["moved"] == 2
    assert found["away"]


@pytest.mark.parametrize("members", ["inherits", "fresh"])
def test_forty_forks_at_once_break_no_sequence(tmp_path: Path, members: str) -> None:
    found = hammered(tmp_path, "storms", 3, 5, members)
    assert found["storms_failed"] == 0


WRITES = 5
"""Of one step that says records over the end of the ring and publishes a head: one before the records, two for them,
one for the head, and one that makes all of it visible."""


@pytest.mark.parametrize("write", range(WRITES + 1))
def test_a_member_killed_at_any_write_of_its_step_said_all_or_nothing(tmp_path: Path, write: int) -> None:
    with peers(tmp_path, 2) as (one, two):
        while not RING_BYTES - 40_000 < one.log._file.words[TAIL] < RING_BYTES - 10_000:  # type: ignore[union-attr]
            one.enter()
            one.log.leave([Record(START, b"x" * 20_000)], None)
            two.enter()
            two.log.leave([], None)
        one.state, two.state = [], []
        pid = os.fork()
        if not pid:
            _killed_at(tmp_path, write)
        os.waitpid(pid, 0)
        for each in (two, one):
            each.step(now=START + 1.5)
            each.step(b"later", now=START + 9.0)
        last = two.step(now=START + 9.0)
        assert shared(last).members == 2
        expected = [b"y" * 30_000] * 3 if write == WRITES else []
        assert [each for each in one.state if each != b"later"] == expected
        assert sorted(two.state) == sorted(one.state)
        assert len(one.gone) == len(two.gone) == 1
        three = Peer(tmp_path / "log", now=START + 9.0)
        assert shared(three.step(now=START + 9.0)).members == 3
        assert not one.log.ended + two.log.ended + three.log.ended
        three.carrier.close()


def test_entries_that_a_killed_member_overwrote_are_not_read(tmp_path: Path) -> None:
    with peers(tmp_path, 3) as (one, two, three):
        file = one.log._file
        assert file is not None
        behind = file.peek(TAIL)
        while file.peek(TAIL) - behind < RING_BYTES - 50_000:
            one.enter()
            one.log.leave([Record(START, b"x" * 20_000)], None)
        pid = os.fork()
        if not pid:
            _killed_at(tmp_path, 2)
        os.waitpid(pid, 0)
        three.step(b"saved")
        assert file.peek(TAIL) - behind <= RING_BYTES < file.peek(LIMIT) - behind
        assert shared(two.step(now=START + 1.5)).returned
        assert two.log.ended == ""


def _killed_at(folder: Path, write: int) -> None:
    """Takes a whole step as a new member, and is killed by itself before the write of that number; never returns."""
    try:
        peer = Peer(folder / "log")
        while peer.enter(time.monotonic()) is None:
            time.sleep(0.001)
        left, pwrite = [write], os.pwrite

        def deadly(*given: Any) -> int:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return pwrite(*given)

        os.pwrite = deadly
        head = Head(0, 0, START, (1.0,) * 10)
        peer.log.leave([Record(START, b"y" * 30_000)] * 3, head)
    finally:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_child_is_a_member_of_its_own_and_its_parent_stays(tmp_path: Path) -> None:
    one = Peer(tmp_path / "log", now=time.monotonic())
    one.step(b"before", now=time.monotonic())
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            # The parent does not step, so the child begins with the state that it has of it.
            while (step := one.step(b"child", now=(now := time.monotonic()))) is None:
                time.sleep(0.001)
            told = {
                "now": now,
                "members": step.members,
                "member": one.log.member,
                "state": [each.decode() for each in one.state],
            }
            os.write(write, json.dumps(told).encode())
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    told = json.loads(os.read(read, 10_000))
    os.close(read)
    os.close(write)
    assert told == {"now": told["now"], "members": 2, "member": told["member"], "state": ["before", "child"]}
    assert told["member"] != one.log.member
    step = shared(one.step(now=told["now"]))
    assert [entry.payload for entry in step.entries][:1] == [b"child"]
    later = shared(one.step(now=told["now"] + 2.0))
    assert one.gone == [told["member"]]
    assert later.members == 1
    assert one.step() is ALONE
    one.carrier.close()


def test_a_program_that_is_started_inherits_no_membership(tmp_path: Path) -> None:
    one = Peer(tmp_path / "log")
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "input(1)"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
    )
    try:
        assert sleeper.stdout is not None
        assert sleeper.stdout.read(1) == b"1"  # the program has begun
        one.die()
        two = Peer(tmp_path / "log")
        assert two.step() is ALONE
        two.carrier.close()
    finally:
        sleeper.communicate(b"\n")


def _spawned(folder: str) -> int:
    carrier = HostCarrier.at(Path(folder))
    log = carrier.join(NAME, time.monotonic())
    assert log is not None
    while (step := log.enter(time.monotonic())) is None:
        time.sleep(0.001)
    log.leave([], None)
    carrier.close()
    return step.members


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_multiprocessing_find_the_log(tmp_path: Path, method: str) -> None:
    one = Peer(tmp_path / "log")
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(_spawned, (str(tmp_path / "log"),)) == 2
    one.carrier.close()
