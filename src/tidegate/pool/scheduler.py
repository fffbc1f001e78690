"""Scheduler of a pool: it pulls rows, starts their functions in free slots, and gives their ends in order.

Theory of operation. All state belongs to the thread of one event loop: the consumer's own for `amap`, a private one for
`map`. A consumer takes ended rows from `outbox`; the puller of the source asks `wanted` and calls `pull`. Nothing is
polled: a submitted, ended or delayed row, an opened key or a freed slot calls `wake`, and the scheduler then checks
once.

A fresh row asks for a permit of the key that earlier rows asked (`tidegate.pool.key_gates`). That key is a guess.
If it is closed, a row may still belong to another key, so some rows go ahead without a permit. Such a *scout* waits
inside its call, and lends its slot, if its key is the closed one. Where all rows had one key, one scout goes at a time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.core.limiter_state import Permit
from tidegate.core.values import INFINITY, Cost, Key, NextStep
from tidegate.errors import PoolDeadlineExceeded
from tidegate.pool.execution import CancelReason, Execution
from tidegate.pool.failure_class import FailureClass
from tidegate.pool.flow import UNKNOWN_KEY, RowFlow, close_source
from tidegate.pool.key_gates import CapacityDeadline, KeyGates
from tidegate.pool.options import PoolOptions
from tidegate.pool.retrying import RowFunction, capacity_timeout, deadline_error, delay_of_failed, raisable
from tidegate.pool.rows import PoolRow

FIRST_CALL_SECONDS = 0.1
"""Seconds for which the first row goes alone without a call. Chosen: a first call takes milliseconds."""

SCOUT_SECONDS = 0.25
"""Seconds for which the first key stays closed before scouts go, while no row has ended; later it is a row's mean time.
Raising it delays rows of other keys. Lowering it sends scouts into the pauses of a paced key. Chosen:
above steps of 200 ms of a busy event loop."""

MAX_KEYS = 16
"""Keys that are remembered for the permits of fresh rows. Precedent: `tidegate.admission.handoff.MAX_KEYS`."""


class Timers:
    """Timers of a pool by name; `fail` gets the exception of a function that one calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fail: Callable[[BaseException], None]) -> None:
        self._loop = loop
        self._fail = fail
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def set(self, name: str, at: float, function: Callable[[], object]) -> None:
        """Call a function at an instant of the loop, in place of the former timer of this name."""
        timer = self._handles.pop(name, None)
        if timer is not None:
            timer.cancel()
        self._handles[name] = self._loop.call_at(at, self._run, name, function)

    def when(self, name: str) -> float | None:
        """Return the instant of a timer; None where it is not set."""
        timer = self._handles.get(name)
        return timer.when() if timer is not None else None

    def clear(self) -> None:
        for timer in self._handles.values():
            timer.cancel()
        self._handles.clear()

    def _run(self, name: str, function: Callable[[], object]) -> None:
        del self._handles[name]
        try:
            function()
        except Exception as error:
            self._fail(error)


@dataclass(slots=True, eq=False)
class RowExecution(Execution[PoolRow, RowFunction]):
    """One execution of a row; a `scout` went ahead of a closed key."""

    scout: bool = False


class RowScheduler(RowFlow):
    """Scheduler of one pool. Methods run in the loop's thread, except where they say otherwise.

    `fatal` is an interrupt of a function, a cancellation of its task by others, or an internal error: it ends the pool
    at once.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, function: RowFunction, options: PoolOptions, notify: Callable[[], None]
    ) -> None:
        super().__init__(loop, options, notify)
        self.fatal: BaseException | None = None
        self._function = function
        self._ended = self._scouts = 0
        self._run_seconds = 0.0
        self._delayed: dict[PoolRow, asyncio.TimerHandle] = {}
        self._gates = KeyGates(options.registry, self._queue, loop, self.wake, options.registry.draw)
        self._deadlines = CapacityDeadline(self._gates, options.max_wait)
        self._key_known = options.key is not None
        if options.key is not None:
            self._keys[options.key] = None
            self._gates.add_user(options.key)
        self._blocked_at: float | None = None
        self._timers = Timers(loop, self._fail)

    def begin(self, iterator: Iterator[Any] | None = None, stream: AsyncIterable[Any] | None = None) -> None:
        """Begin in the loop's thread, and pull rows from `iterator` or `stream`; without them another thread does."""
        self._thread = threading.get_ident()
        self._iterator = iterator
        if self.options.deadline < INFINITY:
            self._timers.set("deadline", self.loop.time() + self.options.deadline, self._expire)
        if stream is not None:
            self._stream = self.loop.create_task(self._read(stream), context=self.context.copy())
            # A task that is cancelled before its first step never runs.
            self._stream.add_done_callback(self._on_stream_ended)
        self.wake()

    def close(self) -> None:
        """Start nothing more, cancel what is in flight, and drop the rows that were not taken; may be repeated."""
        if self.closed:
            return
        self.closed = True
        self._stop()
        self.meter.note_load(0, False, self.loop.time())
        self._stats = self.stats
        self._open.clear()
        self._gates.end()
        self._tell()
        self._tell_if_drained()

    # Methods of `ExecutionOwner`.

    def on_key_used(self, function: RowFunction, key: Key, cost: Cost) -> None:
        if key not in self._keys:
            self.in_loop(self._learn_key, key, cost)

    def in_call(self, job: RowExecution, calling: bool) -> None:
        """Do nothing: the size of the pool is given, whatever its functions do."""

    def on_slot_lent(self, job: RowExecution) -> None:
        """Lend the slot of a row that waits inside a call, or take it back."""
        self._functions.lend(1 if job.slot_lent else -1)
        if job.slot_lent and self._waits_too_long(job):
            job.recall()
        self.wake()

    def on_job_done(self, job: RowExecution) -> None:
        self._in_flight.discard(job)
        if job.slot_lent:
            self._functions.lend(-1)
        self._functions.ended(job)
        self._scouts -= job.scout
        try:
            self._conclude(job)
        except Exception as error:
            self._fail(error)
        job.forget()
        self.wake()
        self._tell_if_drained()

    # Dispatch.

    def check(self) -> None:
        self._check_scheduled = False
        if not self.closed and not self.expired:
            try:
                self._dispatch()
                while self._fill():
                    self._dispatch()
                if self.options.max_wait < INFINITY and self._timers.when("waits") is None and self._open:
                    self._timers.set("waits", self.loop.time() + self.options.max_wait, self._check_waits)
            except Exception as error:
                self._fail(error)
            self._tell()
        self._note_load()

    def _dispatch(self) -> None:
        while self._functions.has_room():
            fresh_gate = self._fresh_gate()
            turn = self._queue.next(fresh_gate)
            if turn is None:
                if not self._queue.fresh or not self._send_scout(fresh_gate):
                    return
                continue
            row, gate = turn
            cost = row.cost if row.cost is not None else self._keys.get(gate) if isinstance(gate, Key) else None
            permit = self._gates.request_permit(gate, cost)
            if permit is False:
                self._on_gate_closed(row, gate)
                continue
            self._queue.take(row, gate)
            if gate == fresh_gate:
                self._blocked_at = None
            self._start(row, None if permit is True else permit, scout=False)

    def _on_gate_closed(self, row: PoolRow, gate: Hashable) -> None:
        closing = self._gates.closed(gate)
        if closing is not None and closing.reason == "pause":
            self.meter.peak_pause = max(self.meter.peak_pause, closing.until - self.loop.time())
        if row.key is not None and self._opens_too_late(self._gates.closed_until_known(gate)):
            # Its key is known to open only after the end of the pool.
            late = [each for each, behind in self._queue.waiting(None) if behind == gate]
            self._queue.discard(set(late))
            for each in late:
                self._finish(each, NextStep.PARKED, deadline_error(self.options, each, self.loop.time()))

    def _send_scout(self, gate: Hashable) -> bool:
        """Start a fresh row behind a closed key, if it may belong to another one; return whether it started."""
        closing = self._gates.closed(gate)
        if self.options.key is not None or not isinstance(gate, Key) or closing is None:
            return False
        # Rows of one key so far make another key less likely.
        size = self.options.pool_size
        if self._scouts >= (size if len(self._keys) > 1 else max(1, size - self._ended)):
            return False
        if not self._ended and closing.until == INFINITY:
            return False
        # A key that admits rows one by one is closed in between.
        patience = self._run_seconds / self._ended if self._ended else SCOUT_SECONDS
        now = self.loop.time()
        if self._blocked_at is None:
            self._blocked_at = now
        due = self._blocked_at + patience
        if now < due:
            self._timers.set("scout", due, self._on_scout_due)
            return False
        self._start(self._queue.fresh.popleft(), None, scout=True)
        return True

    def _on_scout_due(self) -> None:
        self._blocked_at = -INFINITY
        self.wake()

    def _start(self, row: PoolRow, permit: Permit | None, *, scout: bool) -> None:
        job = RowExecution(row, self._function, self, self.options.registry, permit, scout=scout)
        self._scouts += scout
        if not row.begun:
            row.begun = True
            self._begun += 1
        if not self._key_known:
            self._gates.close_stage(UNKNOWN_KEY, "its first call")
            self._timers.set("first", self.loop.time() + FIRST_CALL_SECONDS, self._open_unknown)
        self._in_flight.add(job)
        self._functions.started(job)
        self.meter.max_concurrent = max(self.meter.max_concurrent, len(self._in_flight))
        job.start(self.loop, row.context.copy())

    def _open_unknown(self) -> None:
        if not self._key_known:
            self._key_known = True
            self._gates.open(UNKNOWN_KEY)

    def _learn_key(self, key: Key, cost: Cost) -> None:
        if self.closed:
            return
        if self.options.key is None:
            if key not in self._keys:
                self._gates.add_user(key)
                if len(self._keys) >= MAX_KEYS:
                    oldest = next(iter(self._keys))
                    del self._keys[oldest]
                    self._gates.remove_user(oldest)
                self._open_unknown()
            else:
                del self._keys[key]
        if self.options.key in (None, key):
            self._keys[key] = cost
        self.wake()

    # Ends of rows.

    def _conclude(self, job: RowExecution) -> None:
        row, handoff = job.item, job.handoff
        seconds = max(0.0, job.seconds - handoff.waited_seconds())
        row.seconds += seconds
        self._ended += 1
        self._run_seconds += seconds
        if handoff.first is not None:
            row.key, row.cost = handoff.first, handoff.keys[handoff.first]
            self._learn_key(row.key, row.cost)
        else:
            self._open_unknown()
        if isinstance(job.error, KeyboardInterrupt | SystemExit):
            self._fail(job.error)
            return
        if row.done or job.cancel_reason is CancelReason.STOP or self.closed:
            return
        if (
            job.cancel_reason is None
            and isinstance(job.error, asyncio.CancelledError)
            and job.task is not None
            and job.task.cancelling()
        ):
            # Others cancel its task, as the end of `asyncio.run` does: a further row would start in a loop that ends.
            self._fail(raisable(job.error, f"row {row.index}"))
            return
        failure = job.failure_class()
        if failure.next_step is NextStep.ANSWERED:
            row.attempts += 1
            row.value, row.error = job.value, None
            if row.key is None:
                self._gates.answered(UNKNOWN_KEY)
            self._finish(row, NextStep.ANSWERED, None)
            return
        if job.cancel_reason is CancelReason.TIMEOUT:
            said = f"row {row.index} not answered: no answer within {job.stage.timeout:g} s (timeout)"
            row.error = TimeoutError(said)
        else:
            row.error = None if job.error is None else raisable(job.error, f"row {row.index}")
        if failure.next_step is NextStep.CAPACITY and not job.recalled:
            self._refused(job, failure)
        elif (
            failure.next_step is NextStep.CAPACITY
            and row.key is not None
            and self._opens_too_late(self._gates.unavailable(row.key).stated_for)
        ):
            self._finish(row, NextStep.PARKED, deadline_error(self.options, row, self.loop.time()))
        elif failure.next_step is NextStep.CAPACITY:
            self._give_up(row)
        elif failure.next_step is NextStep.PARKED:
            self._close_for_day(job, failure)
        else:
            row.attempts += 1
            delay = delay_of_failed(self.options, row, failure, None if row.is_attempt else handoff.outcome, job.error)
            if delay is None:
                self._finish(row, failure.next_step, row.error)
            else:
                self.meter.transient_retries += 1
                self._delay(row, delay, for_capacity=False)

    def _refused(self, job: RowExecution, failure: FailureClass) -> None:
        row = job.item
        gate = gate_of(self.options, row)
        row.capacity_retries += 1
        self.meter.capacity_retries += 1
        delay = self._deadlines.delay_of_refused(row, gate, self.loop.time(), failure, job.handoff.refused)
        if delay is None:
            self._give_up(row)
        elif delay:
            self._delay(row, delay, for_capacity=True)
        else:
            self._queue.put_back(row, gate)

    def _close_for_day(self, job: RowExecution, failure: FailureClass) -> None:
        row, at, reset = job.item, job.handoff.outcome_at, failure.retry_after
        if at is None or at != row.key or reset is None or reset > self.options.max_wait or self._opens_too_late(reset):
            self._finish(row, NextStep.PARKED, row.error)
            return
        self._gates.close_for_day(at, reset)
        row.capacity_retries += 1
        self.meter.capacity_retries += 1
        self._deadlines.refused(row, at, self.loop.time())
        self._queue.put_back(row, at)

    def _delay(self, row: PoolRow, seconds: float, *, for_capacity: bool) -> None:
        def again() -> None:
            del self._delayed[row]
            self._backing_off -= for_capacity
            self._queue.put_back(row, gate_of(self.options, row))
            self.wake()

        self._backing_off += for_capacity
        self._delayed[row] = self.loop.call_later(seconds, again)

    def _give_up(self, row: PoolRow) -> None:
        last = self._gates.unavailable(gate_of(self.options, row)).last
        self._finish(row, NextStep.CAPACITY, capacity_timeout(self.options, row, last, self.loop.time()))

    # Time.

    def _check_waits(self) -> None:
        if self.closed or self.expired:
            return
        now = self.loop.time()
        overdue = self._deadlines.overdue(self._queue.waiting(self._fresh_gate()), now)
        if overdue:
            self._queue.discard(set(overdue))
            for row in overdue:
                self._give_up(row)
        waiting = [job for job in self._in_flight if job.slot_lent and not job.recalled]
        late = self._deadlines.overdue_in_call(((job, gate_of(self.options, job.item)) for job in waiting), now)
        for job in [*late, *filter(self._waits_too_long, waiting)]:
            job.recall()
        if self._open:
            self._timers.set("waits", now + self._deadlines.period, self._check_waits)
        self._tell()

    def _waits_too_long(self, job: RowExecution) -> bool:
        return any(self._opens_too_late(self._gates.unavailable(key).stated_for) for key in job.handoff.waiting_keys())

    def _opens_too_late(self, seconds: float) -> bool:
        deadline = self._timers.when("deadline")
        return deadline is not None and seconds > 0 and self.loop.time() + seconds > deadline

    def _expire(self) -> None:
        self.expired = True
        self._stop()
        self._note_load()
        for row in sorted(self._open, key=lambda row: row.index):
            self._finish(row, NextStep.PARKED, deadline_error(self.options, row, self.loop.time()))
        if not self.source_ended:
            self._end_source(PoolDeadlineExceeded(index=None, key=None, waited=0.0, deadline=self.options.deadline))
        self._tell()

    def _stop(self) -> None:
        self._timers.clear()
        for timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        self._backing_off = 0
        self._queue.clear()
        for job in list(self._in_flight):
            job.recall()
            job.cancel(CancelReason.STOP)
        if self._stream is not None:
            self._stream.cancel()
        close_source(self._iterator)
        self._iterator = None

    def _fail(self, error: BaseException) -> None:
        if self.fatal is None:
            self.fatal = error
        self.close()


def gate_of(options: PoolOptions, row: PoolRow) -> Hashable:
    return row.key if row.key is not None else options.key or UNKNOWN_KEY
