"""Calls that were abandoned and asked again: the same request waits twice, and only the last is wanted."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable

import pytest

from bench.world import VirtualCall, World
from tests.core.values import KEY, PlainCall, bucket, refusal
from tidegate.admission.callers import Callers
from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.wait_queue import Waiter, WaitQueue
from tidegate.core.exchange import AttemptResult, CallPolicy
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Kind, Outcome
from tidegate.settings import Settings
from tidegate.testing import VirtualClock

OK = Outcome(Kind.OK)


class ThreadStub:
    """The waker of a thread, or of a task of an event loop."""

    blocks = False

    def __init__(self, thread: int, loop: object) -> None:
        self.thread, self.loop = thread, loop

    def wake(self) -> bool:
        return True

    def arm(self, until: float) -> bool:
        return True


class Request(Waiter):
    """A call of its own thread that sends `body`."""

    threads = iter(range(1, 10_000))

    def __init__(self, body: Hashable, loop: object = None, priority: int = 0, deadline: float = 3600.0) -> None:
        waker = ThreadStub(next(self.threads), loop)
        super().__init__(lambda: waker, priority)
        self.body, self.deadline = body, deadline

    def identity(self) -> Hashable | None:
        return self.body


class Line:
    """A key of one slot that is taken, and the calls that wait for it."""

    def __init__(self, clock: VirtualClock) -> None:
        settings, self.clock = Settings(max_concurrency=1), clock
        self.registry = RateLimitRegistry(settings, clock=clock, draw=lambda: 0.5)
        permit = self.registry.try_admit(KEY)
        assert isinstance(permit, Permit)
        self.permit = permit
        self.waiting: list[Request] = []

    def join(self, *requests: Request) -> None:
        for request in requests:
            assert self.registry.enqueue(request, KEY, 60.0) is None
            self.waiting.append(request)

    def serve(self, outcome: Outcome = OK) -> Request:
        """End the call in flight; return the next one."""
        self.registry.settle(self.permit, outcome)
        return self.next()

    def next(self) -> Request:
        """Return the call that is admitted now."""
        for request in self.waiting:
            permit = self.registry.poll(request)
            if permit is not None:
                self.waiting.remove(request)
                self.permit = permit
                return request
        raise AssertionError("no call was admitted")

    def serve_all(self) -> list[Request]:
        return [self.serve() for _ in list(self.waiting)]


@pytest.fixture
def line() -> Line:
    return Line(VirtualClock())


LOOP = object()
executors = pytest.mark.parametrize(
    "loops", [(None, None), (LOOP, LOOP), (LOOP, object()), (LOOP, None)], ids=["threads", "loop", "loops", "both"]
)
"""Executors of two calls: another thread may wait for the call of a loop, and abandon it."""


@executors
def test_the_same_request_takes_the_place_of_the_one_before_which_goes_last(
    line: Line, loops: tuple[object, object]
) -> None:
    first, again = (Request("a", loop=loop) for loop in loops)
    second, third = Request("b", loop=LOOP), Request("c")
    line.join(first, second, third, again)
    assert line.serve_all() == [again, second, third, first]


def test_each_repetition_has_the_place_of_the_first_one(line: Line) -> None:
    tries = [Request("a") for _ in range(6)]
    line.join(tries[0], Request("b"), *tries[1:])
    assert line.serve() is tries[-1]


def test_a_program_that_gives_up_and_asks_again_gets_every_answer_in_the_first_round(line: Line) -> None:
    """Each of its requests is repeated once per round; the abandoned ones wait on for nobody."""
    wanted = {name: Request(name) for name in range(20)}
    line.join(*wanted.values())
    served = []
    while wanted:
        name = line.serve().body
        served.append(name)
        del wanted[name]  # type: ignore[arg-type]
        if len(served) % 5 == 0:
            for each in wanted:
                wanted[each] = Request(each)
            line.join(*wanted.values())
    assert served == list(range(20))


def test_a_call_whose_twin_is_in_flight_goes_before_the_abandoned_calls(line: Line) -> None:
    """A program abandons all its calls at one instant, also the one that is just in flight."""
    line.join(*[Request(name) for name in range(10)])
    sent = line.serve()
    line.clock.advance(3.0)
    again = [Request(name) for name in range(1, 10)]
    line.join(*again, last := Request(sent.body))
    assert {line.serve() for _ in range(10)} == {*again, last}


def test_refused_call_gives_its_place_to_its_twin_when_it_returns() -> None:
    line = Line(clock := VirtualClock())
    line.join(first := Request("a"), second := Request("b"))
    assert line.serve() is first
    line.join(again := Request("a"))
    assert line.registry.settle(line.permit, refusal(1.0), first)
    line.waiting.append(first)
    clock.advance(2.0)
    order = [line.next()]
    while line.waiting:
        line.registry.settle(line.permit, OK)
        clock.advance(60.0)
        order.append(line.next())
    assert order == [again, second, first]


def test_repetition_of_a_call_that_went_last_goes_before_the_abandoned_calls(line: Line) -> None:
    """Its first try was answered just after the program had abandoned it, so the second one found no twin."""
    line.join(*[Request(name) for name in range(10)])
    answered = line.serve()
    line.clock.advance(3.0)
    line.join(*[Request(name) for name in range(1, 10)])
    line.serve()
    line.registry.dequeue(answered)
    line.join(Request(answered.body))
    line.clock.advance(3.0)
    line.join(last := Request(answered.body))
    assert last in [line.serve() for _ in range(9)]


@pytest.mark.parametrize("loop", [None, LOOP], ids=["threads", "loop"])
def test_equal_requests_that_are_all_wanted_are_all_served(line: Line, loop: object) -> None:
    samples = [Request("a", loop=loop) for _ in range(9)]
    line.join(*samples)
    assert set(line.serve_all()) == set(samples)


def test_workers_that_repeat_one_request_all_get_their_turn(line: Line) -> None:
    turns = dict.fromkeys(range(6), 0)
    workers = {}
    for worker in turns:
        workers[request := Request("a")] = worker
        line.join(request)
    for _ in range(60):
        worker = workers.pop(line.serve())
        turns[worker] += 1
        workers[request := Request("a")] = worker
        line.join(request)
    assert min(turns.values()) >= 5, turns


@pytest.mark.parametrize("other", [Request(None), Request("b"), Request("a", priority=-1)])
def test_a_call_with_no_equal_goes_last(line: Line, other: Request) -> None:
    first, second = Request("a"), Request("c")
    line.join(first, second, other)
    assert line.serve_all() == [first, second, other]


def test_an_equal_one_that_left_or_was_sent_has_no_place_to_give(line: Line) -> None:
    gone, second, again = Request("a"), Request("b"), Request("a")
    line.join(gone, second)
    line.registry.dequeue(gone)
    line.waiting.remove(gone)
    line.registry.catch_up()
    line.join(again)
    assert line.serve_all() == [second, again]


@executors
def test_each_call_keeps_its_own_deadline(loops: tuple[object, object]) -> None:
    clock = VirtualClock()
    line = Line(clock)
    first, again = Request("a", loops[0], deadline=5.0), Request("a", loops[1], deadline=50.0)
    line.join(first, again)
    clock.advance(6.0)
    assert line.registry.poll(first) is None
    assert line.registry.snapshot().waiting == 1
    line.waiting.remove(first)
    assert line.serve() is again


def test_calls_that_end_while_a_twin_is_looked_for_disturb_nobody() -> None:
    """A call that ends leaves the table without the lock of the key."""
    callers = Callers()

    class Ending(Request):
        """A call that another one ends beside, as soon as it is looked at."""

        other: Request | None = None

        @property
        def is_queued(self) -> bool:  # type: ignore[override]
            if self.other is not None:
                callers.forget(self.other)
            return False

        @is_queued.setter
        def is_queued(self, value: bool) -> None: ...

    made = [Ending("body", loop=None) for _ in range(4)]
    for each in made:
        callers.replace_twin(each, WaitQueue(), 0.0)
    made[3].other = made[0]
    callers.replace_twin(Request("body"), WaitQueue(), 1.0)
    for each in made:
        callers.nested[each] = None
    made[0].other = made[1]
    assert callers.next_nested([]) == []


def test_call_goes_last_once_only() -> None:
    """Two threads that repeat one prompt are both served, however often the other one sends a new call."""
    line = Line(VirtualClock())
    first, numbers = Request("same"), iter(range(1_000))
    line.join(first, *[Request(next(numbers)) for _ in range(3)], Request("same"))
    for _ in range(20):
        served = line.serve()
        if served is first:
            return
        # Its thread sends its next call.
        line.join(Request("same" if served.body == "same" else next(numbers)))
    raise AssertionError("one call is never served")


class ThreadedCall(VirtualCall):
    """A call of its own thread."""

    loop = None


class RowCall(PlainCall):
    """The call of one row of a program."""

    __slots__ = ("row",)

    row: Hashable

    def identity(self) -> Hashable | None:
        return self.row


class Harness(World):
    """A program that gives a thread `patience` seconds for its row, then abandons it and asks again from another one.

    The provider admits 120 requests a minute, five at once. `resets` returns the reset that an answer states, by the
    requests that are left.
    """

    ROWS = 60
    CONTENT = 5.0
    PER_SECOND = 2.0

    def __init__(
        self, patience: float, resets: Callable[[float], float | None], seed: int, headers: bool = True
    ) -> None:
        super().__init__(Settings(), seed)
        self.patience, self.resets, self.headers = patience, resets, headers
        self.left, self.left_at = self.CONTENT, 0.0
        self.newest: dict[int, int] = {}
        self.answered: set[int] = set()
        self.paid = self.refused = self.asked = 0
        for row in range(self.ROWS):
            self.ask(row)

    def ask(self, row: int) -> None:
        governed = RowCall(self.registry, KEY, CallPolicy(3600.0), 60.0, 0)
        governed.row, self.newest[row] = row, self.asked
        self.join(ThreadedCall(self, self.asked, governed), self.now + 0.05 * self.random.random())
        self.asked += 1
        if self.patience < math.inf:
            self.after(self.patience, lambda: row in self.answered or self.ask(row))

    def serve(self, call: VirtualCall, permit: Permit, reply: Callable[[AttemptResult], None]) -> None:
        self.after(0.2, lambda: self.answer(call, reply))

    def answer(self, call: VirtualCall, reply: Callable[[AttemptResult], None]) -> None:
        limit = 60.0 * self.PER_SECOND
        self.left = min(self.CONTENT, self.left + (self.now - self.left_at) * self.PER_SECOND)
        self.left_at, admitted = self.now, self.left >= 1.0
        self.left -= admitted
        facts = {"window": None, "reset_after": self.resets(self.left), "resolution": 0.1}
        readings = (bucket(limit, float(int(self.left)), **facts),) if self.headers else ()
        self.paid, self.refused = self.paid + admitted, self.refused + (not admitted)
        if admitted and self.newest[call.governed.row] == call.row:
            self.answered.add(call.governed.row)
        outcome = Outcome(Kind.OK, readings=readings) if admitted else refusal(1.0, *readings)
        self.after(0.002, lambda: reply(AttemptResult(outcome)))

    def play(self) -> None:
        """Play until every row is answered, or for three times as long as that takes a bare SDK."""
        while len(self.answered) < self.ROWS and self.timeline.step(90.0):
            pass


class Workers(World):
    """Fifty threads that ask one after another for all of 400 rows, at 2 calls a second: a row waits for 25 s."""

    ROWS, THREADS, PER_SECOND, CONTENT = 400, 50, 2.0, 5.0

    def __init__(self, prompt: Callable[[int], Hashable], seed: int) -> None:
        super().__init__(Settings(), seed)
        self.prompt, self.rows = prompt, iter(range(self.ROWS))
        self.left, self.left_at = self.CONTENT, 0.0
        self.began: dict[int, float] = {}
        self.waits: list[float] = []
        for _ in range(self.THREADS):
            self.ask(0.05 * self.random.random())

    def ask(self, delay: float = 0.0) -> None:
        row = next(self.rows, None)
        if row is not None:
            governed = RowCall(self.registry, KEY, CallPolicy(3600.0), 60.0, 0)
            governed.row, self.began[row] = self.prompt(row), self.now + delay
            self.join(ThreadedCall(self, row, governed), self.now + delay)

    def serve(self, call: VirtualCall, permit: Permit, reply: Callable[[AttemptResult], None]) -> None:
        self.after(0.2, lambda: self.answer(call, reply))

    def answer(self, call: VirtualCall, reply: Callable[[AttemptResult], None]) -> None:
        self.left = min(self.CONTENT, self.left + (self.now - self.left_at) * self.PER_SECOND)
        self.left_at, admitted = self.now, self.left >= 1.0
        self.left -= admitted
        if admitted:
            self.waits.append(self.now - self.began[call.row])
            self.after(0.002, self.ask)
        self.after(0.002, lambda: reply(AttemptResult(Outcome(Kind.OK) if admitted else refusal(1.0))))


PROMPTS: dict[str, Callable[[int], Hashable]] = {
    "all equal": lambda row: 0,
    "two of each": lambda row: row // 2,
    "five of each": lambda row: row // 5,
    "half equal": lambda row: 0 if row % 2 else row,
    "ten in turn": lambda row: row % 10,
}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
def test_equal_prompts_that_are_all_wanted_wait_about_as_long_as_others(prompt: Callable[[int], Hashable]) -> None:
    """157 of 400 waited for longer than 40 s while each call that had gone last once went last again."""
    for seed in range(3):
        workers = Workers(prompt, seed)
        workers.run()
        assert len(workers.waits) == workers.ROWS
        assert sum(wait > 40.0 for wait in workers.waits) <= 0.12 * workers.ROWS
        assert max(workers.waits) <= 75.0


def until_next(left: float) -> float:
    """Seconds until one more request fits; half a second where one does, as a fixed text."""
    return 0.5 if left >= 1.0 else round((1.0 - left) / Harness.PER_SECOND, 1)


def until_full(left: float) -> float:
    return round((Harness.CONTENT - left) / Harness.PER_SECOND, 1)


def until_limit(left: float) -> float:
    return round(60.0 - left / Harness.PER_SECOND, 1)


RESETS = [until_next, until_full, until_limit, lambda left: 1.0, lambda left: None]


@pytest.mark.parametrize("resets", RESETS, ids=["next", "full", "limit", "constant", "none"])
@pytest.mark.parametrize("patience", [3.0, 10.0])
def test_a_program_that_abandons_threads_pays_little_twice(
    patience: float, resets: Callable[[float], float | None]
) -> None:
    """With one seed in four the last rows stood behind all abandoned calls: 293 answers were paid for."""
    for seed in range(4):
        harness = Harness(patience, resets, seed)
        harness.play()
        assert len(harness.answered) == harness.ROWS
        assert harness.paid <= 1.5 * harness.ROWS


@pytest.mark.parametrize("resets", RESETS, ids=["next", "full", "limit", "constant", "none"])
def test_resets_that_tell_no_window_cost_few_refusals(resets: Callable[[float], float | None]) -> None:
    """A reset until the next request was taken for a window of half a second: 290 refusals of 60 calls."""
    harness = Harness(math.inf, resets, 0)
    harness.play()
    assert harness.paid == harness.ROWS
    assert harness.refused <= harness.ROWS
    (quota,) = harness.registry.snapshot().keys[KEY].quotas
    assert quota.window == 60.0


class SlowerHarness(Harness):
    """Its provider admits 60 requests a minute."""

    ROWS = 80
    PER_SECOND = 1.0


def test_refusals_refute_a_window_that_a_short_reset_seems_to_tell() -> None:
    """The inferred window was 0.4 s, and no smaller bucket explains the resets: 520 refusals of 80 calls."""
    harness = SlowerHarness(math.inf, lambda left: 0.0 if left >= 1.0 else round(1.0 - left, 2), 0)
    harness.play()
    assert harness.paid == len(harness.answered) == harness.ROWS
    assert harness.refused <= harness.ROWS / 2
    (quota,) = harness.registry.snapshot().keys[KEY].quotas
    # A shorter window may be on trial.
    assert 30.0 <= quota.window <= 60.0
