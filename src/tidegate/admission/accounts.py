"""Accounts whose models share quotas, and the queues of these models, whose heads go in order of arrival.

Theory of operation. A key names its account by provider, address, credential and endpoint family, and by the group of
models that share, as provider tables and `Settings.scopes` say. A key whose provider shares nothing has none.

Each model has its own wait queue. A head that a shared quota holds is *held by the account*. Of these heads the
earliest goes first, and no later call of any model goes before it. A head that a limiter of its own model holds does
not stand in the way of others. After each step at one model, `run` pumps the queue of the earliest held head until that
one still has to wait. So every change of a shared quota reaches the head that it concerns.

Only the earliest held head waits for the instant at which the quota has room. The others look a second later, in case
its executor (event loop or thread) does not run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple, TypeAlias

from tidegate import providers
from tidegate.admission.key_queue import KeyQueue
from tidegate.admission.wait_queue import UNTAKEN_SECONDS, ExecutorGroup, Waiter
from tidegate.core.admission_controller import AccountController, ModelController
from tidegate.core.limiter_state import Out
from tidegate.core.quota import SharedNames
from tidegate.core.snapshot import AccountSnapshot, account_snapshot
from tidegate.core.values import INFINITY, Cost, Key
from tidegate.settings import Settings

Rank: TypeAlias = tuple[int, int]
"""Order of a queued call over all models: its priority, negated, then its place."""


class AccountQueue:
    """The queues of the models of one account (`core.admission_controller.EarlierHeads`).

    `held` has the queues whose heads the account holds, each with the instant at which its head may go. `asked` has the
    cost of a call outside the queues that was told to ask again, and that instant. `next_place` returns the place of a
    call that arrives now at any of the models.
    """

    __slots__ = ("asked", "held", "next_place", "queues")

    def __init__(self, next_place: Callable[[], int]) -> None:
        self.next_place = next_place
        self.queues: dict[ModelController, ModelQueue] = {}
        self.held: dict[ModelQueue, float] = {}
        self.asked: dict[ModelQueue, tuple[Cost, float]] = {}

    def first(self) -> ModelQueue | None:
        """Return the queue with the earliest head that the account holds."""
        first: ModelQueue | None = None
        least: Rank | None = None
        for queue in list(self.held):
            rank = queue.rank
            if rank is None:
                del self.held[queue]
            elif least is None or rank < least:
                first, least = queue, rank
        return first

    def opens_at(self, model: ModelController, now: float) -> tuple[float, str]:
        """Return when the earliest held head before those of `model` may go, and its gate; `now` and '' without one."""
        if not self.held:
            return now, ""
        first, own = self.first(), self.queues.get(model)
        if first is None or first is own:
            return now, ""
        rank = own.rank if own is not None else None
        if rank is not None and first.rank is not None and rank < first.rank:
            return now, ""
        return self.held[first], first.gate

    def waiting_elsewhere(self, model: ModelController) -> int:
        return sum(queue.waiting.count for each, queue in self.queues.items() if each is not model)

    def run(self, pumped: ModelQueue, now: float, out: Out) -> list[Waiter]:
        """Admit held heads in order of arrival after a step at `pumped`; return the waiters to wake."""
        to_wake: list[Waiter] = []
        done = pumped if self.first() is pumped else None
        while (first := self.first()) is not None and first is not done:
            rank = first.rank
            to_wake = _in_order(to_wake, first.pump_alone(now, out))
            done = first if self.first() is first and first.rank == rank else None
        for queue, (cost, ready) in list(self.asked.items()):
            if queue.model.ready_at(cost, now)[0] < ready:
                # The quota opens earlier than was said: the one who asked may ask again.
                del self.asked[queue]
                to_wake += queue.ready_callbacks.values()
                queue.ready_callbacks.clear()
        return to_wake


class ModelQueue(KeyQueue):
    """The admission controller and the wait queue of one model whose account has shared quotas."""

    __slots__ = ("account_queue", "model")

    is_shared = True

    def __init__(self, model: ModelController, account_queue: AccountQueue) -> None:
        super().__init__(model)
        self.model = model
        self.account_queue = account_queue
        account_queue.queues[model] = self

    @property
    def rank(self) -> Rank | None:
        """Return the order of the head, None without one."""
        head = self.waiting.head()
        return (-head.priority, head.place) if head is not None else None

    def pump(self, now: float, out: Out, outside_waiters: int = 0) -> list[Waiter]:
        """Admit calls from the head, as the base class, then those of other models that a shared quota held."""
        to_wake: list[Waiter] = []
        if self.waiting.count or self.ready_callbacks or self.admission.untaken:
            to_wake = self.pump_alone(now, out, outside_waiters)
        return _in_order(to_wake, self._run_account(now, out))

    def pump_alone(self, now: float, out: Out, outside_waiters: int = 0) -> list[Waiter]:
        """Admit calls from the head of this queue; note whether the account holds the next one."""
        to_wake = super().pump(now, out, outside_waiters)
        head = self.waiting.head()
        if head is not None and self.model.account.holds(self.gate, now):
            self.account_queue.held[self] = self.model.ready_at(head.cost, now)[0]
        else:
            self.account_queue.held.pop(self, None)
        return to_wake

    def poll(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Look on behalf of a waiting call, as the base class; an expired head may have held those of other models."""
        return _in_order(super().poll(waiter, now, out), self._run_account(now, out))

    def dequeue(self, waiter: Waiter, now: float, out: Out) -> list[Waiter]:
        """Take a call out of the queue, as the base class; it may have held those of other models."""
        return _in_order(super().dequeue(waiter, now, out), self._run_account(now, out))

    def note_asked(self, cost: Cost, ready: float, gate: str, now: float) -> None:
        """Note that a call outside the queue was told to ask again at `ready`."""
        if self.model.account.holds(gate, now):
            self.account_queue.asked[self] = cost, ready
        else:
            self.account_queue.asked.pop(self, None)

    def forget(self) -> None:
        """Forget waiting calls and permits not taken yet, as the base class."""
        super().forget()
        self._leave()

    def close(self) -> None:
        """Leave the account and the log; the controllers of a log stay until then, as others may use the models."""
        self._leave()
        del self.account_queue.queues[self.model]
        if self.log is None:
            self.model.account.models.remove(self.model)
        elif self.log.leave(self):
            self.model.account.models.clear()

    def _leave(self) -> None:
        self.account_queue.held.pop(self, None)
        self.account_queue.asked.pop(self, None)

    def _run_account(self, now: float, out: Out) -> list[Waiter]:
        queues = self.account_queue
        return queues.run(self, now, out) if queues.held or queues.asked else []

    def _time_head(
        self,
        group: ExecutorGroup,
        head: Waiter,
        ready: float,
        now: float,
        out: Out,
        to_wake: list[Waiter],
    ) -> bool:
        """Set the timer of the head's group, as the base class; later where the head of another model goes first."""
        if ready < INFINITY and self.account_queue.opens_at(self.model, now)[1]:
            ready += UNTAKEN_SECONDS
        return super()._time_head(group, head, ready, now, out, to_wake)


def _in_order(earlier: list[Waiter], later: list[Waiter]) -> list[Waiter]:
    """Return both lists as one; a call that is in both got its permit in the later step, and is woken there."""
    if not earlier or not later:
        return earlier or later
    again = {id(waiter) for waiter in later}
    return [*(waiter for waiter in earlier if id(waiter) not in again), *later]


SHARED = "shared"
"""Endpoint family of the key of an account, after the family of its models, if they have one."""


class SharingModels(NamedTuple):
    """The controller of the quotas that models share, and the queues of these models."""

    controller: AccountController
    queue: AccountQueue


class AccountTable:
    """The accounts of a registry, by their keys; they are used under the key table's lock."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._accounts: dict[Key, SharingModels] = {}

    def of(
        self, key: Key, window: float, now: float, seed: Callable[[AccountController, float], None]
    ) -> SharingModels | None:
        """Return the account of a key, None if it shares no quota; `seed` loads the knowledge of an earlier run."""
        found = shared_by(key, self._settings)
        if found is None:
            return None
        group, names = found
        parent = account_of(key, group)
        account = self._accounts.get(parent)
        if account is None:
            self._forget_unused()
            queue = AccountQueue(itertools.count(1).__next__)
            controller = AccountController(parent, names, self._settings, window, queue)
            account = self._accounts[parent] = SharingModels(controller, queue)
            seed(controller, now)
        return account

    def controllers(self) -> Iterator[tuple[Key, AccountController]]:
        """Yield the controller of each account with its key."""
        for key, account in self._accounts.items():
            yield key, account.controller

    def names(self) -> list[Key]:
        return [*self._accounts]

    def snapshot(self, name: Key, now: float) -> AccountSnapshot | None:
        """Return the state of an account; None if it is forgotten."""
        account = self._accounts.get(name)
        if account is None:
            return None
        waiting = sum(each.waiting.count for each in account.queue.queues.values())
        return account_snapshot(account.controller, waiting, now)

    def _forget_unused(self) -> None:
        for key, account in list(self._accounts.items()):
            if not account.controller.models:
                del self._accounts[key]


def account_of(key: Key, group: str) -> Key:
    """Return the key of the quotas that a key shares with the models of `group`."""
    return key._replace(scope=group, family=f"{key.family}/{SHARED}" if key.family else SHARED)


def shared_by(key: Key, settings: Settings) -> tuple[str, SharedNames] | None:
    """Return the group of models with which a key shares quotas ('': all), and the names of these quotas.

    None says that it shares nothing. `Settings.scopes` replaces what the provider's table says.
    """
    given = settings.scopes.get(key.provider)
    if isinstance(given, str):
        return None
    if given is not None:
        shared = {quota: level for quota, level in given.items() if level != "model"}
        level = next(iter(shared.values()), "")
        if not shared or (level != "account" and not _covers(key.scope, level)):
            return None
        names = SharedNames(frozenset(shared), frozenset(given) - frozenset(shared))
        return ("" if level == "account" else level), names
    provider = providers.named(key.provider)
    for each in provider.shared if provider is not None else ():
        if any(_covers(key.scope, pattern) for pattern in each.models):
            return each.name, SharedNames(frozenset(each.quotas))
    return None


def _covers(scope: str, pattern: str) -> bool:
    """Return whether the model in a key's scope is one of a pattern; a project or location may precede it."""
    return fnmatchcase(scope, pattern) or fnmatchcase(scope, f"*/{pattern}")
