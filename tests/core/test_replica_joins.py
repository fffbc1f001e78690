"""Members that join or return in mid-run: whose state becomes that of all, and when."""

from __future__ import annotations

import itertools

import pytest

from tests.core.replica_play import BEGINS, plain, replica_of
from tidegate.core.replica import STATE, STATE_HEAD, Replica
from tidegate.core.values import Cost

Entries = list[tuple[int, float, bytes]]


class Log:
    """A log, and members of it, each of which begins to hear it where its end is."""

    def __init__(self, members: int = 1) -> None:
        self.entries: Entries = []
        self.now = BEGINS
        self.read: dict[int, int] = {}
        self.members: list[Replica] = []
        for _ in range(members):
            self.join()

    def join(self) -> Replica:
        member = replica_of(len(self.members), self.now)
        self.members.append(member)
        self.begin(member)
        return member

    def begin(self, member: Replica) -> None:
        """Let a member hear the log from its end on, as at its return; the first one has nobody to ask."""
        self.read[member.member] = len(self.entries)
        member.hear_from(len(self.entries), self.now)
        self.append(member)

    def append(self, member: Replica) -> None:
        self.entries += [(member.member, at, payload) for at, payload in member.said]
        member.said.clear()

    def hear(self, member: Replica) -> list[bool]:
        """Let a member read what the others appended; return for each state whether it was taken."""
        first, self.read[member.member] = self.read[member.member], len(self.entries)
        taken = []
        for place, (who, at, payload) in enumerate(self.entries[first:], first):
            if who == member.member:
                continue
            if payload.startswith(STATE):
                taken.append(member.take_state(who, at, payload, self.now))
            else:
                member.replay(who, at, payload, place)
        return taken

    def answer(self, member: Replica, place: int | None = None) -> bool:
        """Let a member append its state, if one is to be appended; it has read the log up to a place."""
        state = member.answer(self.read[member.member] if place is None else place, self.now)
        if state is not None:
            self.entries.append((member.member, self.now, state))
        return state is not None

    def admit(self, member: Replica) -> None:
        member.controllers[""].admit(Cost(), self.now, 0.0, None)
        self.append(member)

    def step(self, member: Replica) -> list[bool]:
        taken = self.hear(member)
        self.append(member)
        self.answer(member)
        return taken


def flights(member: Replica) -> set[tuple[int, int]]:
    return set(member.flights)


def test_a_joiner_begins_with_what_it_has_and_takes_the_state_when_it_comes() -> None:
    log = Log()
    (one,) = log.members
    log.admit(one)
    two = log.join()
    log.admit(two)
    three = log.join()
    assert log.step(three) == []
    # The second knows less than the first, which does not step; it is better than nothing.
    log.step(two)
    assert log.step(three) == [True]
    assert flights(three) == {(1, 1)}
    log.now += 1.0
    log.admit(three)
    log.step(one)
    assert [log.step(each) for each in (two, three)] == [[True], [True]]
    assert flights(one) == flights(two) == flights(three) == {(0, 1), (1, 1), (2, 1)}
    assert plain(one, log.now) == plain(two, log.now) == plain(three, log.now)
    size = len(log.entries)
    for _ in range(3):
        for each in log.members:
            log.now += 1.0
            log.step(each)
    assert len(log.entries) == size, "nobody asks or answers any more"


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_members_that_return_together_have_one_state_again(order: tuple[int, ...]) -> None:
    log = Log(3)
    for each in log.members:
        log.admit(each)
    log.entries.clear()
    # All of them begin at the same place, as where a server has lost its content.
    for each in log.members:
        log.read[each.member] = 0
        each.hear_from(0, log.now)
    for each in log.members:
        log.append(each)
    for _ in range(3):
        for number in order:
            log.now += 1.0
            log.step(log.members[number])
    assert {each.since for each in log.members} == {(0, 0)}
    for each in log.members:
        assert flights(each) == {(0, 1), (1, 1), (2, 1)}


def test_entries_of_others_before_an_answer_that_lacks_them_are_replayed_after_it() -> None:
    log = Log(2)
    one, two = log.members
    log.step(two)
    log.step(one)
    log.step(two)
    three = log.join()
    log.hear(one)
    place = log.read[one.member]
    # A server stores the answer only after what the second says meanwhile.
    log.admit(two)
    log.admit(one)
    log.now += 1.0
    assert log.answer(one, place)
    log.hear(three)
    assert flights(three) == {(0, 1), (1, 1)}


def test_an_answer_from_before_the_beginning_of_a_joiner_is_not_taken() -> None:
    log = Log(2)
    one, two = log.members
    log.hear(one)
    place = log.read[one.member]
    log.admit(two)
    three = log.join()
    log.answer(one, place)
    assert log.hear(three) == [False], "it lacks an entry that the joiner has not read"
    log.now += 1.0
    log.step(one)
    assert log.hear(three) == [True]
    assert flights(three) == {(1, 1)}


def test_a_member_does_not_answer_where_another_has() -> None:
    log = Log(2)
    one, two = log.members
    log.step(one)
    log.step(two)
    three = log.join()
    log.now += 1.0
    log.step(two)
    log.hear(one)
    assert not log.answer(one)
    assert log.hear(three) == [True]


def test_states_do_not_push_other_entries_out_of_a_log_however_many_join() -> None:
    log = Log()
    (one,) = log.members
    joiners, answers = [], []
    for _ in range(1000):
        joiners.append(log.join())
        log.hear(one)
        if log.answer(one):
            answers.append(len(log.entries[-1][2]))
    # Half of what a host's log keeps.
    assert sum(answers) < 256 * 1024
    assert len(answers) > 1
    log.now += 1.0
    # One answer is for all who have asked.
    assert log.answer(one)
    assert all(any(log.hear(each)) for each in joiners)


def test_a_state_that_is_none_changes_nothing() -> None:
    log = Log()
    (one,) = log.members
    log.admit(one)
    two = log.join()
    before = plain(two, log.now)
    for content in (b"", b"short", STATE_HEAD.pack(9, -1, 0), STATE_HEAD.pack(9, -1, 0) + b"\0" * 99):
        with pytest.raises(Exception):  # noqa: B017, PT011  # whatever a reader of the content raises
            two.take_state(0, log.now, STATE + content, log.now)
        assert plain(two, log.now) == before
    log.step(one)
    assert log.hear(two) == [True]
