"""Accounts whose models share quotas, as provider tables and `Settings.scopes` say.

Theory of operation. A key names its account by provider, address, credential and endpoint family, and by the group of
models that share. `AccountTable.of` finds or makes the account when the queue of a key is made. A key whose provider
shares nothing has none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from tidegate import providers
from tidegate.admission.account_queue import AccountQueue
from tidegate.core.snapshot import AccountSnapshot, account_snapshot
from tidegate.core.two_levels import AccountController, SharedNames
from tidegate.core.values import Key
from tidegate.settings import Settings

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

    def snapshot(self, now: float) -> dict[Key, AccountSnapshot]:
        """Return the state of each account."""
        return {
            key: account_snapshot(controller, sum(each.waiting.count for each in queue.queues.values()), now)
            for key, (controller, queue) in self._accounts.items()
        }

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
