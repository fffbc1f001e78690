"""Members of a host's log, in one process and in one thread: each carrier has files of its own."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.shared_log.members import NAME, START, Peer, ends, log_file, payloads, peers, shared
from tidegate.shared_file import VERSION
from tidegate.shared_log import host, host_file, host_log
from tidegate.shared_log.carrier import ALONE, ENDED, MAX_MEMBERS, Head, Record, Unshared
from tidegate.shared_log.host import HostCarrier
from tidegate.shared_log.host_file import FILE_BYTES, MAX_PAYLOAD_BYTES, NEXT_MEMBER, PAGE_BYTES, RING_BYTES
from tidegate.shared_log.host_log import PROBE_SECONDS
from tidegate.shared_log.lives import Lives

HEAD = Head(0, 3, START - 4.0, (1.0, 200.0, 0.0, 7.5, 0.0, 1.0, 0.0, 0.0, 0.0, 9.0))


def test_a_lone_member_says_nothing_and_holds_one_page(tmp_path: Path) -> None:
    with peers(tmp_path, 1) as (one,):
        for _ in range(3):
            assert one.step(b"event") is ALONE
        found = log_file(tmp_path).stat()
        assert found.st_size == PAGE_BYTES
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert not one.log.ended


def test_a_joiner_hears_what_is_said_from_then_on(tmp_path: Path) -> None:
    with peers(tmp_path, 1) as (one,):
        one.step(b"alone")
        two = Peer(tmp_path / "log")
        assert log_file(tmp_path).stat().st_size == FILE_BYTES
        assert shared(two.step(now=START + 0.01)).members == 2
        assert shared(one.step(b"shared")).members == 2
        step = shared(two.step(now=START + 0.02))
        assert (two.state, step.returned) == ([b"shared"], False)
        two.carrier.close()


def test_entries_come_once_in_order_to_all_others(tmp_path: Path) -> None:
    with peers(tmp_path, 3) as (one, two, three):
        one.step(b"a", b"b")
        assert payloads(two.step(b"c")) == [b"a", b"b"]
        step = shared(three.step())
        assert [(entry.member, entry.payload) for entry in step.entries] == [
            (one.log.member, b"a"),
            (one.log.member, b"b"),
            (two.log.member, b"c"),
        ]
        assert payloads(one.step()) == [b"c"]
        assert payloads(three.step()) == []
        assert len({one.log.member, two.log.member, three.log.member}) == 3


def test_an_entry_is_never_before_the_one_before(tmp_path: Path) -> None:
    with peers(tmp_path, 2) as (one, two):
        one.step(b"late", now=START + 5.0)
        two.enter(now=START + 4.0)
        two.log.leave([Record(START + 4.0, b"early"), Record(START + 6.0, b"last")], None)
        one.step(now=START + 6.0)
        assert one.instants == [START + 5.0, START + 6.0]


def test_heads_are_published_and_cleared(tmp_path: Path) -> None:
    with peers(tmp_path, 3) as (one, two, three):
        one.step(head=HEAD)
        expected = HEAD._replace(member=one.log.member)
        assert list(shared(two.step(head=HEAD._replace(priority=-1))).heads) == [expected]
        assert [head.priority for head in shared(three.step()).heads] == [3, -1]
        one.step()
        assert [head.member for head in shared(three.step()).heads] == [two.log.member]
        two.log.close()
        assert list(shared(three.step()).heads) == []


def test_a_step_under_way_makes_others_busy_and_none_waits(tmp_path: Path) -> None:
    with peers(tmp_path, 2) as (one, two):
        one.enter()
        assert two.enter() is None
        assert two.enter(START + 0.04) is None
        one.log.leave([Record(START, b"a")], None)
        assert payloads(two.step(now=START + 0.045)) == [b"a"]


def test_a_member_stopped_in_its_step_leaves_the_others_alone_until_it_ends(tmp_path: Path) -> None:
    with peers(tmp_path, 3) as (one, two, _):
        one.enter()
        assert two.step() is None
        assert two.step(now=START + 0.02) is None
        away = shared(two.step(b"said alone", now=START + 0.051))
        assert (away.away, away.members, away.entries) == (True, 3, ())
        assert shared(two.step(b"and again", now=START + 1.0)).away
        # It looks again after a second, and is not made to wait another time.
        assert shared(two.step(now=START + 1.06)).away
        one.log.leave([Record(START, b"a")], None)
        assert shared(two.step(now=START + 1.07)).away
        assert payloads(two.step(now=START + 2.2)) == [b"a"]
        assert payloads(one.step(now=START + 2.2)) == [b"said alone", b"and again"]


def test_a_member_that_comes_back_with_more_than_the_ring_holds_laps_the_others(tmp_path: Path) -> None:
    with peers(tmp_path, 3) as (one, two, three):
        one.enter()
        two.step()
        assert shared(two.step(now=START + 0.06)).away
        two.log.leave([Record(START, b"x" * 60_000)] * 12, None)
        one.log.leave([], None)
        assert not shared(two.step(now=START + 1.1)).returned
        step = shared(three.step(now=START + 1.1))
        assert (step.returned, step.entries) == (True, [])


def test_a_lock_that_moved_between_two_rare_looks_was_not_taken_for_long(tmp_path: Path) -> None:
    with peers(tmp_path, 2) as (one, two):
        one.enter()
        assert two.step() is None
        one.log.leave([], None)
        one.enter(START + 9.0)
        assert two.step(now=START + 9.0) is None
        one.log.leave([], None)


def test_a_dead_member_is_told_once_to_each_at_one_place(tmp_path: Path) -> None:
    with peers(tmp_path, 4) as (one, two, three, four):
        number = four.log.member
        four.step(b"last words", head=HEAD)
        four.die()
        assert shared(one.step(b"before", now=START)).members == 4
        step = shared(one.step(b"after", now=START + PROBE_SECONDS))
        assert (ends(step), step.members, list(step.heads)) == ([number], 3, [])
        assert ends(shared(one.step(now=START + 9.0))) == []
        for other in (two, three):
            step = shared(other.step(now=START + 9.0))
            order = [(entry.member == number, entry.payload) for entry in step.entries]
            assert order == [(True, b"last words"), (False, b"before"), (True, b""), (False, b"after")]
            assert other.gone == [number]


def test_a_step_looks_at_one_member_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with peers(tmp_path, 12) as (one, *others):
        looks: list[int] = []
        holds = Lives.holds
        monkeypatch.setattr(Lives, "holds", lambda lives, number: looks.append(number) or holds(lives, number))
        one.step(now=START + 1.0)
        looks.clear()
        most = 0
        for step in range(1, 101):
            before = len(looks)
            one.step(now=START + 1.0 + step * PROBE_SECONDS / 100)
            most = max(most, len(looks) - before)
        assert most == 1
        assert set(looks) >= {each.carrier._lives.number for each in others}, "each is looked at in this time"


def test_a_member_that_leaves_is_gone_at_once(tmp_path: Path) -> None:
    with peers(tmp_path, 3) as (one, two, three):
        number = three.log.member
        three.step(b"bye")
        three.log.close()
        three.log.close()
        assert three.log.enter(START) is ALONE
        step = shared(one.step())
        assert (ends(step), step.members) == ([number], 2)
        assert payloads(two.step()) == [b"bye", b""]


def test_a_member_that_leaves_while_the_lock_is_taken_is_found_gone(tmp_path: Path) -> None:
    with peers(tmp_path, 3) as (one, two, three):
        number = three.log.member
        one.enter()
        three.log.close()
        one.log.leave([], None)
        assert ends(shared(two.step(now=START + 1.5))) == [number]


def test_the_last_one_is_alone_again_and_gives_the_memory_back(tmp_path: Path) -> None:
    with peers(tmp_path, 2) as (one, two):
        one.step(b"a")
        two.die()
        step = shared(one.step(b"b", now=START + 1.5))
        assert (step.members, len(ends(step))) == (1, 1)
        assert one.step(b"c", now=START + 1.5) is ALONE
        assert log_file(tmp_path).stat().st_size == PAGE_BYTES
        third = Peer(tmp_path / "log", now=START + 2.0)
        third.step(now=START + 2.0)
        one.step(b"d", now=START + 2.0)
        third.step(now=START + 2.0)
        assert third.state == [b"d"]
        third.carrier.close()


def test_a_joiner_whose_first_member_died_goes_on(tmp_path: Path) -> None:
    with peers(tmp_path, 1) as (one,):
        two = Peer(tmp_path / "log")
        one.die()
        assert shared(two.step(now=START + 0.01)).members == 1
        assert len(two.gone) == 1
        assert two.step(now=START + 0.01) is ALONE
        two.carrier.close()


def test_a_member_passed_by_the_ring_returns_and_hears_what_is_said_from_then_on(tmp_path: Path) -> None:
    with peers(tmp_path, 3) as (one, two, three):
        for _ in range(2 * RING_BYTES // 60_000):
            one.step(b"x" * 60_000)
            assert not shared(two.step()).returned
        step = shared(three.step(b"here"))
        assert (step.returned, step.entries, three.log.ended) == (True, [], "")
        assert payloads(one.step(b"news")) == [b"here"]
        step = shared(three.step())
        assert (step.returned, payloads(step)) == (False, [b"news"])


def test_entries_go_round_the_end_of_the_ring(tmp_path: Path) -> None:
    with peers(tmp_path, 2) as (one, two):
        said = [os.urandom(size) for size in range(1, 9000, 37)]
        for payload in said * 2:
            one.enter()
            one.log.leave([Record(START, payload)], None)
            two.enter()
            two.log.leave([], None)
        assert two.state == said * 2
        assert not one.log.ended + two.log.ended


def test_a_record_that_does_not_fit_ends_sharing_and_no_call(tmp_path: Path) -> None:
    with peers(tmp_path, 2) as (one, two):
        one.enter()
        one.log.leave([Record(START, b"x" * (MAX_PAYLOAD_BYTES + 1))], None)
        assert "larger than" in one.log.ended
        assert one.step(b"alone") is ENDED
        two.step(now=START + 1.5)
        assert two.gone == [one.log.member]


def test_a_member_whose_life_file_was_removed_stays(tmp_path: Path) -> None:
    with peers(tmp_path, 2) as (one, two):
        numbers = {one.log.member, two.log.member}
        for path in (tmp_path / "log" / "lives").iterdir():
            path.unlink()
        one.step(now=START + 1.5)
        for _ in range(3):
            two.step(b"a", now=START + 3.0)
            one.step(b"b", now=START + 3.06)
        assert one.log.ended + two.log.ended == ""
        assert shared(one.step(now=START + 5.0)).members == 2
        assert two.log.member not in numbers  # it was taken for dead and came back as another member


def test_a_file_without_live_members_is_reset(tmp_path: Path) -> None:
    with peers(tmp_path, 2) as (one, two):
        one.step(b"old")
        one.die()
        two.die()
        three = Peer(tmp_path / "log")
        assert three.step() is ALONE
        assert log_file(tmp_path).stat().st_size == PAGE_BYTES
        three.carrier.close()


def test_a_file_that_was_removed_before_it_was_locked_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with peers(tmp_path, 1) as (one,):
        taken, lock = [], host_log.lock

        def removed_first(descriptor: int) -> bool:
            if not taken:
                taken.append(descriptor)
                log_file(tmp_path).unlink()
                log_file(tmp_path).touch(0o600)
            return lock(descriptor)

        monkeypatch.setattr(host_log, "lock", removed_first)
        two = HostCarrier.at(tmp_path / "log")
        log = two.join(NAME, START)
        assert log is not None
        log.enter(START)
        assert log_file(tmp_path).stat().st_size == PAGE_BYTES
        assert one.step() is ALONE
        two.close()


def test_no_more_than_the_largest_number_of_members_join(tmp_path: Path) -> None:
    with peers(tmp_path, 1) as (one,):
        joined = [Peer(tmp_path / "log") for _ in range(MAX_MEMBERS - 1)]
        carrier = HostCarrier.at(tmp_path / "log")
        assert carrier.join(NAME, START) is None
        assert "number of members" in carrier.reason
        joined[0].log.close()
        assert carrier.join(NAME, START) is not None
        assert shared(one.step()).members == MAX_MEMBERS
        for each in (*joined, carrier):
            (each.carrier if isinstance(each, Peer) else each).close()


def test_a_process_that_joins_takes_the_row_of_a_dead_one_where_all_are_in_use(tmp_path: Path) -> None:
    with peers(tmp_path, 1) as (one,):
        joined = [Peer(tmp_path / "log") for _ in range(MAX_MEMBERS - 1)]
        numbers = sorted(each.log.member for each in joined[:3])
        for each in joined[:3]:
            each.die()
        # No member makes a step in between that would look for the dead ones.
        late = Peer(tmp_path / "log")
        assert shared(one.step()).members == MAX_MEMBERS - 2
        assert sorted(one.gone) == numbers
        for each in (*joined[3:], late):
            each.carrier.close()


def test_a_number_of_a_live_member_is_not_given_again(tmp_path: Path) -> None:
    with peers(tmp_path, 2) as (one, two):
        file = os.open(log_file(tmp_path), os.O_RDWR)
        os.pwrite(file, (65_536 + one.log.member).to_bytes(8, "little"), 8 * NEXT_MEMBER)
        os.close(file)
        three = Peer(tmp_path / "log")
        assert len({one.log.member, two.log.member, three.log.member}) == 3
        three.carrier.close()


def test_beyond_the_budget_nothing_is_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with peers(tmp_path, 1) as (one,):
        monkeypatch.setattr(host, "BUDGET_BYTES", 100_000)
        carrier = HostCarrier.at(tmp_path / "log")
        assert carrier.join(NAME, START) is None
        assert "budget" in carrier.reason
        assert log_file(tmp_path).stat().st_size == PAGE_BYTES
        # A file of one page has room.
        assert carrier.join(b"other", START) is not None
        assert one.step() is ALONE
        carrier.close()


def test_a_full_file_system_leaves_the_joiner_unshared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with peers(tmp_path, 1) as (one,):
        write = os.pwrite

        def full(descriptor: int, content: bytes, offset: int) -> int:
            if offset > 2 * PAGE_BYTES:
                raise OSError(28, "No space left on device")
            return write(descriptor, content[: 2 * PAGE_BYTES], offset)

        monkeypatch.setattr(os, "pwrite", full)
        carrier = HostCarrier.at(tmp_path / "log")
        assert carrier.join(NAME, START) is None
        assert "No space" in carrier.reason
        assert log_file(tmp_path).stat().st_size == PAGE_BYTES
        assert one.step() is ALONE
        carrier.close()


def test_another_clock_does_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with peers(tmp_path, 1):
        carrier = HostCarrier.at(tmp_path / "log")
        with monkeypatch.context() as patch:
            patch.setattr(host_file, "clock_identity", lambda: 5)
            assert carrier.join(NAME, START) is None
            assert "another clock" in carrier.reason
        with monkeypatch.context() as patch:
            patch.setattr(host_log.time, "time", lambda: 1_000_000_000.0)
            assert carrier.join(NAME, START) is None
            assert "another clock" in carrier.reason
        with monkeypatch.context() as patch:
            patch.setattr(host_log.time, "monotonic", lambda: 100.0)
            with pytest.raises(Unshared, match="clock of this process was replaced"):
                HostCarrier.at(tmp_path / "log")
        assert carrier.join(NAME, START) is not None
        carrier.close()


def test_a_process_shares_only_as_many_logs_as_its_descriptors_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "descriptor_limit", lambda: 32)
    carrier = HostCarrier.at(tmp_path / "log")
    joined = [carrier.join(b"key %d" % number, START) for number in range(5)]
    assert [log is not None for log in joined] == [True, True, True, True, False]
    assert "file descriptors" in carrier.reason
    assert joined[0] is not None
    joined[0].close()
    assert carrier.join(b"another", START) is not None
    carrier.close()


def test_a_carrier_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0
    for _ in range(20):
        with peers(tmp_path, 2) as (one, two):
            one.step(b"a")
            two.step(b"b")
            one.log.after_fork()
    after = len(list(Path("/proc/self/fd").iterdir())) if before else 0
    assert after == before


def test_the_last_member_removes_the_file_and_leaves_none_that_was_not_used(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    first, second = HostCarrier.at(path), HostCarrier.at(path)
    logs = [each.join(b"n" * 16, 1.0) for each in (first, second)]
    files = [each for each in path.iterdir() if each.suffix == f".{VERSION}"]
    assert len(files) == 1
    for log, left in zip(logs, (True, False), strict=True):
        assert log is not None
        log.close()
        assert files[0].exists() is left
    third = first.join(b"n" * 16, 2.0)
    assert third is not None
    assert third.enter(2.0) is ALONE
    first.close()
    second.close()
    assert [each for each in path.iterdir() if each.suffix == f".{VERSION}"] == []


@pytest.mark.parametrize("left", [0, 1, 143, 144, 2047])
@pytest.mark.parametrize("count", [1, 2])
def test_a_file_that_is_cut_off_ends_its_sharing_and_no_process(tmp_path: Path, left: int, count: int) -> None:
    with peers(tmp_path, count) as found:
        os.truncate(log_file(tmp_path), left)
        now = START
        for each in found * 3:
            now += PROBE_SECONDS
            each.step(b"said", now=now)
        if left < 144 or count == 2:
            assert [bool(each.log.ended) for each in found] == [True] * count
        joiner = Peer(tmp_path / "log", now=now)
        assert joiner.step(now=now) is ALONE
        joiner.carrier.close()


def rejoined(found: list[Peer], now: float) -> None:
    """Let the peers step until all are members of one log."""
    for _ in range(6):
        for each in found:
            each.step(now=now)
            now += 0.03
    assert [len(each.log._live) for each in found] == [len(found)] * len(found)


@pytest.mark.parametrize("damage", ["removed", "replaced by a copy", "replaced by an empty file"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_members_of_a_file_that_was_removed_meet_at_the_new_one(tmp_path: Path, damage: str, count: int) -> None:
    with peers(tmp_path, count) as found:
        found[0].step(b"before")
        for each in found:
            each.step()
        file = log_file(tmp_path)
        copy = file.read_bytes()
        file.unlink()
        if damage != "removed":
            file.touch(0o600)
            file.write_bytes(copy if damage == "replaced by a copy" else b"")
        joiner = Peer(tmp_path / "log")
        joiner.step()
        now = START + PROBE_SECONDS
        returned = []
        for each in found * 3:
            step = each.step(now=now)
            returned += [each] if step is not None and step.returned else []
            joiner.step(now=now)
            now += 0.03
        assert [returned.count(each) for each in found] == [1] * count, "each announces its attempts again, once"
        rejoined([*found, joiner], now)
        found[0].step(b"after", now=now + 2.0)
        for each in (*found[1:], joiner):
            each.step(now=now + 2.0)
            assert each.state[-1] == b"after"
        assert [each.log.ended for each in (*found, joiner)] == [""] * (count + 1)
        joiner.carrier.close()


@pytest.mark.parametrize("damage", ["folder", "link", "directory"])
def test_a_file_that_cannot_be_opened_again_ends_its_sharing(tmp_path: Path, damage: str) -> None:
    with peers(tmp_path, 2) as found:
        file = log_file(tmp_path)
        if damage == "folder":
            shutil.rmtree(file.parent)
        else:
            file.unlink()
            file.mkdir() if damage == "directory" else file.symlink_to("/etc/passwd")
        for now in (START + PROBE_SECONDS, START + PROBE_SECONDS + 0.01):
            for each in found:
                each.step(now=now)
        assert [bool(each.log.ended) for each in found] == [True, True]
