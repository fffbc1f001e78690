"""One member's end of a host's log: joining, the steps under the file's lock, and the ways out of sharing.

Once in `PROBE_SECONDS` a member looks whether its file still has its name. Where it was removed or replaced, the member
joins the file that has the name now, as if the log had lost its content.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence

from tidegate.shared_file import lock, unlock
from tidegate.shared_log.carrier import (
    ALONE,
    ENDED,
    CorruptLog,
    Head,
    Record,
    Step,
    Unshared,
)
from tidegate.shared_log.folder import PrivateFolder
from tidegate.shared_log.host_file import (
    FILE_BYTES,
    GENERATION,
    LAST_AT,
    PAGE_BYTES,
    POPULATION,
    PROBED_AT,
    STEPS,
    TAIL,
    LogFile,
    Member,
    append_entries,
    check_header,
    due_members,
    peek,
    read_entries,
    read_heads,
    set_clock,
    sound_members,
    write_head,
)
from tidegate.shared_log.lives import Lives

LOCK_WAIT_SECONDS = 0.05
"""Seconds for which a member waits for the lock. Chosen: 500 times the longest step."""

MAX_LOCK_WAIT_SECONDS = 1.0
"""Seconds for which a member waits for a lock that others take in turns. Chosen: at a free lock in half of the looks, a
thousand looks fail never."""

MAX_AWAY_SECONDS = 1.0
"""Seconds at most after which a member that found the lock taken looks again; it begins with `LOCK_WAIT_SECONDS`, as
the holder may only have lost its processor. Chosen: a look takes some 50 us."""

PROBE_SECONDS = 1.0
"""Seconds in which each member is looked at once, whether it is dead. A look takes 10 us under the lock. Chosen: calls
of a dead member take about as long at the provider."""

KEPT_RECORDS = 4096
"""Records kept while the lock cannot be had. Chosen: the events of 1,000 calls."""


class LockPatience:
    """Looks of a member at a lock that others hold, until it goes on alone for a while; `again_at` is the next look."""

    def __init__(self) -> None:
        self.again_at = float("-inf")
        self.is_tried = False
        self._from = self._since = self._last = float("-inf")
        self._steps = -1
        self._away_for = LOCK_WAIT_SECONDS

    def is_over(self, now: float, steps: int) -> bool:
        """Note that the lock is held after `steps` of all members; return whether to wait no longer."""
        self.is_tried = True
        moved = steps != self._steps
        rare = self._last == float("-inf") or (moved and now > self._last + LOCK_WAIT_SECONDS)
        if rare or not self._from <= now:
            # A lock that was free between two rare looks was not taken for long. One whose holder ended no step was.
            self._from = self._since = now
        elif moved:
            # Another member ends its steps: the lock is taken often, but not by a member that stands still.
            self._since = now
        self._last, self._steps = now, steps
        if now - self._since < LOCK_WAIT_SECONDS and now - self._from < MAX_LOCK_WAIT_SECONDS:
            return False
        self.again_at = now + self._away_for
        self._away_for = min(MAX_AWAY_SECONDS, 2.0 * self._away_for)
        return True


class HostLog:
    """One member's end. Every method returns at once; no method raises.

    `has_room` says whether the folder's budget has room for some bytes, and `forget` takes note that the log was left.
    """

    def __init__(
        self,
        folder: PrivateFolder,
        lives: Lives,
        name: str,
        has_room: Callable[[int], bool],
        forget: Callable[[HostLog], object],
    ) -> None:
        self.member = -1
        self._folder, self._lives, self._name = folder, lives, name
        self._has_room, self._forget = has_room, forget
        self.ended = ""
        """Reason why this log is no longer shared, empty while it is."""
        self._closed = self._returned = False
        self.keeps = True
        self.joins_until = float("-inf")
        self._blank()

    def _blank(self) -> None:
        self._file: LogFile | None = None
        self._descriptor, self._sole_word = -1, b""
        self._named_at = float("-inf")
        self._me: Member | None = None
        self._generation = 0
        self._held = self._away = False
        self._live: list[Member] = []
        self._cursor = 0
        self._last_at = float("-inf")
        # A step finds nothing to do where these two words are the same, and no member is due to be looked at.
        self._quiet_words = (-1, -1)
        self._quiet_from = self._quiet_until = float("-inf")
        self._patience = LockPatience()
        self._away_until = float("-inf")
        self._kept: list[Record] = []

    def attach(self, now: float) -> None:
        """Join the log, or leave that to the first step where its lock is taken; raise `Unshared`."""
        if not self._lock():
            return
        try:
            if self._me is None:
                self._join(now)
        finally:
            self._unlock()

    def is_alone(self, now: float) -> bool:
        """Return whether there is no other member, by one read of eight bytes."""
        if not self._sole_word or not self._named_at <= now < self._named_at + PROBE_SECONDS:
            return False
        try:
            # Written out because every call of a lone member runs this.
            return os.pread(self._descriptor, 8, 8 * POPULATION) == self._sole_word
        except OSError:
            return False

    def enter(self, now: float) -> Step | None:
        """Lock the log and read it; one read of eight bytes for a member without others."""
        if self.is_alone(now):
            return ALONE
        if self.ended or self._closed:
            return ENDED if self.ended else ALONE
        if now < self._away_until:
            return Step(members=max(1, len(self._live)), away=True)
        try:
            if not self._lock():
                if self._patience.is_over(now, peek(self._file, STEPS)):
                    self._away, self._away_until = True, self._patience.again_at
                    return Step(members=max(1, len(self._live)), away=True)
                return None
            if self._patience.is_tried:
                self._patience, self._away = LockPatience(), False
            step = self._step(now)
        except Exception as error:  # Whatever a hostile file causes: sharing ends, and the call continues.
            self._end(error)
            return ENDED
        except BaseException:
            # An interrupt of the program: its next step may be far away.
            self._unlock()
            raise
        if step is None or step is ALONE:
            self._unlock()
            return step
        self._held = True
        return step

    def leave(self, records: Sequence[Record], head: Head | None) -> None:
        """Append the records and unlock. While the lock could not be had, keep them."""
        if not self._held:
            if self._away and records:
                self._kept += records[: max(0, KEPT_RECORDS - len(self._kept))]
            return
        self._held = False
        file, me = self._file, self._me
        assert file is not None
        assert me is not None
        try:
            file.words[STEPS] = (file.words[STEPS] + 1) & 0x7FFF_FFFF
            if len(self._live) == 1:
                # Stop appending: there is no other member.
                file.shrink()
                self._kept.clear()
                self._note_sole(file)
            else:
                if self._kept or records:
                    append_entries(file, me.number, [*self._kept, *records] if self._kept else records)
                    self._kept.clear()
                    self._cursor = file.words[TAIL]
                    self._last_at = file.second(LAST_AT)
                write_head(file, me.row, head)
        except Exception as error:
            self._end(error)
        finally:
            self._unlock()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            self._leave_log()
        self._drop()
        self._forget(self)

    def after_fork(self) -> None:
        # A lock belongs to the open file, which parent and child share: the child must not unlock it.
        self._held = False
        self.member = -1
        if not self.ended and not self._closed:
            self._drop()

    def _lock(self) -> bool:
        if self._file is None:
            self._file = LogFile(self._folder.open_file(self._name, os.O_CREAT))
        return lock(self._file.descriptor)

    def _unlock(self, commits: bool = True) -> None:
        if self._file is not None:
            try:
                if commits:
                    self._file.commit()
            except OSError:
                pass  # The file is gone or cut off, which the next step finds.
            finally:
                with contextlib.suppress(OSError):
                    unlock(self._file.descriptor)

    def _step(self, now: float) -> Step | None:
        file, me = self._file, self._me
        assert file is not None
        if me is not None and not self._named_at <= now < self._named_at + PROBE_SECONDS:
            if not self._folder.holds(self._name, file.descriptor):
                # What the others do is not known any more, nor the own attempts to those at the new file.
                self._unlock()
                self._drop()
                self._returned = True
                return None
            self._named_at = now
        if me is None or not self._is_member(file, me):
            # Either it never joined, or the others took it for dead.
            me = self._join(now)
            if me is None:
                return None
        if self._returned:
            self._returned = False
            return self._read(file, me, now)._replace(returned=True)
        if self._sole_word and file.words[POPULATION] == int.from_bytes(self._sole_word, sys.byteorder):
            return ALONE
        self._sole_word = b""
        return self._read(file, me, now)

    def _is_member(self, file: LogFile, me: Member) -> bool:
        file.load()
        if not file.is_log:
            raise CorruptLog("its first bytes are not those of a log")
        return file.words[GENERATION] == self._generation and file.life(me.row) == me.life

    def _join(self, now: float) -> Member | None:
        """Become a member; None where the file was removed while its lock was free."""
        file = self._file
        assert file is not None
        if not self._folder.holds(self._name, file.descriptor):
            self._drop()
            return None
        self._named_at = now
        life = self._lives.begin()
        fresh = not file.attach()
        # One is enough: the dead ones are found later, one at a time.
        others = [] if fresh else [each for each in sound_members(file) if each.life != life]
        is_used = any(self._lives.holds(each.life) for each in others)
        if not is_used:
            if fresh and not self._has_room(PAGE_BYTES):
                self._remove(file)
                raise Unshared("the shared files of this user have reached their budget")
            file.reset()
            set_clock(file)
        else:
            check_header(file)
            if file.size < FILE_BYTES:
                if not self._has_room(FILE_BYTES - PAGE_BYTES):
                    raise Unshared("the shared files of this user have reached their budget")
                file.grow()
            for each in file.members():
                if each.life == life:
                    # A copy of a file that this process used before.
                    append_entries(file, each.number, [(now, b"")])
                    file.remove_member(each)
        me = file.add_member(life)
        if me is None:
            # Processes that end quickly may fill all rows before the dead ones are found.
            self._end_dead(file, file.members(reread=True), now)
            me = file.add_member(life)
        if me is None:
            raise Unshared("it has the largest number of members already")
        self._generation = file.words[GENERATION]
        self._cursor, self._last_at = file.words[TAIL], file.second(LAST_AT)
        self._me, self.member = me, me.number
        self._live = file.members()
        if not is_used:
            self._note_sole(file)
        return me

    def _read(self, file: LogFile, me: Member, now: float) -> Step:
        words = file.words
        if (
            words[TAIL] == self._cursor
            and (words[POPULATION], words[PROBED_AT]) == self._quiet_words
            and self._quiet_from <= now < self._quiet_until
        ):
            return Step((), read_heads(file, me.row), len(self._live), self._cursor)
        live = file.members()
        suspects = due_members(file, live, now, PROBE_SECONDS)
        if suspects:
            live = self._probe(file, me, suspects, now)
        self._live = live
        if self._cursor > words[TAIL]:
            raise CorruptLog("its end is before what was read already")
        lapped = not file.reaches(self._cursor)
        if lapped:
            self._cursor = words[TAIL]
        entries = read_entries(file, self._cursor, max(now, time.monotonic()), self._last_at)
        self._cursor = words[TAIL]
        if entries:
            self._last_at = entries[-1].at
        entries = [each for each in entries if each.member != me.number]
        heads = read_heads(file, me.row)
        # The next steps have nothing to do but to read entries until then, unless a word changes.
        self._quiet_words = (words[POPULATION], words[PROBED_AT]) if len(live) > 1 else (-1, -1)
        self._quiet_from, each_for = file.second(PROBED_AT), PROBE_SECONDS / len(live)
        self._quiet_until = each_for * (int(self._quiet_from / each_for) + 1)
        return Step(entries, heads, len(live), self._cursor, returned=lapped)

    def _probe(self, file: LogFile, me: Member, suspects: Sequence[Member], now: float) -> list[Member]:
        """Append the end of each dead member among some; return those that live."""
        self._end_dead(file, [each for each in suspects if each.row != me.row], now)
        file.set_second(PROBED_AT, now)
        if me.life != self._lives.begin():
            # The own life file was removed: the others take this member for dead unless it shows the new one.
            self._me = me._replace(life=self._lives.number)
            file.set_life(me.row, self._lives.number)
        return file.members()

    def _end_dead(self, file: LogFile, suspects: Sequence[Member], now: float) -> None:
        """Append the end of each dead member among some, and free its row."""
        known = {each.row: each for each in file.members(reread=True)}
        for each in suspects:
            # A member that left without the lock has another life in its row by now.
            present = known.get(each.row)
            if present is not None and not self._lives.holds(present.life):
                append_entries(file, present.number, [(now, b"")])
                file.remove_member(present)

    def _note_sole(self, file: LogFile) -> None:
        """Note that there is no other member until the number of the members changes."""
        self._descriptor, self._sole_word = file.descriptor, file.words[POPULATION].to_bytes(8, sys.byteorder)

    def _leave_log(self) -> None:
        file, me = self._file, self._me
        if file is None or me is None:
            return
        self._held = self._held or lock(file.descriptor)
        file.load()
        if file.words[GENERATION] != self._generation or file.life(me.row) != me.life:
            return
        if not self._held:
            # No process has this number: the others find this member dead.
            file.set_life(me.row, secrets.randbits(63) | 1)
        elif self._is_member(file, me):
            others = [each for each in file.members() if each.row != me.row]
            if any(self._lives.holds(each.life) for each in others):
                append_entries(file, me.number, [*self._kept, (self._last_at, b"")])
                file.remove_member(me)
            else:
                self._remove(file)

    def _remove(self, file: LogFile) -> None:
        """Remove the file, whose lock this member holds: a process that waits for the lock finds it removed."""
        if self._folder.holds(self._name, file.descriptor):
            self._folder.remove(self._name)

    def _drop(self) -> None:
        """Close the file, which gives the lock back unless a parent process holds it too."""
        file = self._file
        if self._held:
            self._unlock()
        self._blank()
        if file is not None:
            with contextlib.suppress(OSError):
                file.close()

    def _end(self, error: Exception) -> None:
        """Share no more: the file is not to be relied on."""
        self.ended = str(error) or type(error).__name__
        file, me = self._file, self._me
        with contextlib.suppress(Exception):
            if file is not None and me is not None:
                file.load()
                if file.life(me.row) == me.life:
                    file.set_life(me.row, secrets.randbits(63) | 1)
        self._unlock(commits=False)
        self._drop()
