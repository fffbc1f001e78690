"""A log with any bytes at any place: no step raises, loops or reads beyond the file, and every call continues."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import effort
from tests.shared_log.members import NAME, START, Peer, ends, log_file, peers
from tidegate.shared_log.carrier import ALONE, ENDED, Head, Record
from tidegate.shared_log.host import HostCarrier
from tidegate.shared_log.host_file import (
    FILE_BYTES,
    HEADS_AT,
    MAX_MEMBERS,
    MAX_PAYLOAD_BYTES,
    PAGE_BYTES,
    RING_AT,
    RING_BYTES,
    ROWS_AT,
    TAIL,
)

HEAD = Head(0, 0, START, (1.0,) * 10)

PLACES = st.one_of(
    st.integers(0, 40).map(lambda word: 8 * word),
    st.integers(ROWS_AT, ROWS_AT + 16 * 4),
    st.integers(HEADS_AT, HEADS_AT + 400),
    st.integers(RING_AT, RING_AT + 400),
    st.integers(0, FILE_BYTES - 1),
)
ODD_WORDS = st.sampled_from([0, 1, 2, 13, RING_BYTES, RING_BYTES + 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1])
CONTENTS = st.one_of(
    st.binary(min_size=1, max_size=64),
    st.one_of(ODD_WORDS, st.integers(0, 5000)).map(lambda word: word.to_bytes(8, "little")),
    st.sampled_from([float("nan"), float("inf"), float("-inf"), 1e300, -1e300]).map(
        lambda value: __import__("struct").pack("<d", value)
    ),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), PLACES, CONTENTS),
        st.tuples(st.just("step"), st.integers(0, 2), st.sampled_from([b"", b"said", b"x" * 5000])),
        st.tuples(st.just("wait"), st.floats(0.0, 2.0), st.none()),
        st.tuples(
            st.just("cut"), st.one_of(st.just(0), st.integers(0, PAGE_BYTES), st.integers(0, FILE_BYTES)), st.none()
        ),
    ),
    min_size=3,
    max_size=40,
)


def one_step(peer: Peer, said: bytes, now: float) -> None:
    step = peer.log.enter(now)
    if step is None:
        return
    assert len(step.entries) <= RING_BYTES // 14
    assert sum(len(entry.payload) for entry in step.entries) <= RING_BYTES
    assert all(len(entry.payload) <= MAX_PAYLOAD_BYTES for entry in step.entries)
    assert 1 <= step.members <= MAX_MEMBERS
    assert len(step.heads) <= MAX_MEMBERS
    instants = [entry.at for entry in step.entries]
    assert instants == sorted(instants)
    peer.log.leave([Record(now, said)] if said else [], HEAD if said else None)


@settings(max_examples=effort(100, 300))
@given(STEPS)
def test_no_content_of_the_file_reaches_a_call(steps: list[tuple[str, object, object]]) -> None:
    with tempfile.TemporaryDirectory() as name, peers(Path(name), 3) as found:
        now = START
        file = os.open(log_file(Path(name)), os.O_RDWR)
        try:
            for number, peer in enumerate(found):
                one_step(peer, b"sound %d" % number, now)
            for kind, value, content in steps:
                if kind == "write":
                    os.pwrite(file, content, value)  # type: ignore[arg-type]
                elif kind == "cut":
                    os.ftruncate(file, value)  # type: ignore[arg-type]
                elif kind == "wait":
                    now += value  # type: ignore[operator]
                else:
                    one_step(found[value], content, now)  # type: ignore[call-overload, arg-type]
            for peer in found:
                one_step(peer, b"", now + 2.0)
                if peer.log.ended:
                    assert peer.log.enter(now) is ENDED
                    peer.log.leave([Record(now, b"alone")], None)
        finally:
            os.close(file)
        with HostCarrierOf(Path(name)) as joiner:
            joiner.join(NAME, now)


class HostCarrierOf:
    """A process that finds the file as it is, and joins or says why it does not."""

    def __init__(self, folder: Path) -> None:
        self._carrier = HostCarrier.at(folder / "log")

    def __enter__(self) -> HostCarrierOf:
        return self

    def __exit__(self, *_: object) -> None:
        self._carrier.close()

    def join(self, name: bytes, now: float) -> None:
        log = self._carrier.join(name, now)
        if log is None:
            assert self._carrier.reason
            return
        for moment in range(5):
            if log.enter(now + moment) is not None:
                log.leave([Record(now + moment, b"joined")], None)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"\0" * PAGE_BYTES, b"\xff" * PAGE_BYTES, b"\xff" * FILE_BYTES, os.urandom(FILE_BYTES)]
)
def test_a_file_of_anything_without_members_is_reset(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log").mkdir(0o700)
    log_file(tmp_path).touch(0o600)
    log_file(tmp_path).write_bytes(content)
    with peers(tmp_path, 1) as (one,):
        assert one.step(b"alone") is ALONE
        two = Peer(tmp_path / "log")
        one.step(b"a")
        two.step()
        assert two.state == [b"a"]
        two.carrier.close()


def test_a_log_that_turns_bad_says_so_once_and_is_found_gone_by_others(tmp_path: Path) -> None:
    with peers(tmp_path, 3) as (one, two, three):
        number = one.log.member
        two.step(b"sound")
        file = os.open(log_file(tmp_path), os.O_RDWR)
        os.pwrite(file, b"\xff\xff\xff\xff", RING_AT)
        tail = int.from_bytes(os.pread(file, 8, 8 * TAIL), "little")
        os.close(file)
        assert 0 < tail < RING_BYTES
        assert one.step(b"mine") is ENDED
        assert "larger than what was appended" in one.log.ended
        assert one.step(b"mine") is ENDED
        # The one who wrote it has read it already, so it is not touched by it.
        step = two.step(now=START + 1.5)
        assert step is not None
        assert number in ends(step)
        assert three.step(now=START + 1.5) is ENDED
