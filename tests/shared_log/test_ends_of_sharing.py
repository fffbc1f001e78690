"""Registries whose log ends, or is left: what the others did there no longer counts, and nothing of it is kept."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from tests.memory_log import MemoryCarrier, MemoryStore
from tidegate import Settings
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.events import Event, ShareLost
from tidegate.core.limiter_state import Permit
from tidegate.core.values import Key, Kind, Outcome
from tidegate.shared_file import VERSION
from tidegate.shared_log import host, host_log
from tidegate.shared_log.host_file import POPULATION, LogFile
from tidegate.testing import VirtualClock

KEY = Key("provider", "https://provider.test", "0123456789abcdef", "model")

GIVEN_UP = 30.0
"""Seconds until a call that is not admitted fails the test."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.mkdir(mode=0o700)
    return path


def sharing(folder: Path) -> tuple[RateLimitRegistry, RateLimitRegistry, list[Event]]:
    """Two registries with their logs in one folder, and the events of the first."""
    settings = Settings(share=str(folder), telemetry=False, status=False)
    own, other = RateLimitRegistry(settings), RateLimitRegistry(settings)
    told: list[Event] = []
    own.subscribe(told.append)
    return own, other, told


def admitted(registry: RateLimitRegistry) -> Permit:
    """Return a permit of the key: a member that joins waits for a state first."""
    ends = time.monotonic() + GIVEN_UP
    while time.monotonic() < ends:
        permit = registry.try_admit(KEY)
        if isinstance(permit, Permit):
            return permit
        time.sleep(0.001)
    raise AssertionError("no call is admitted")


def call(*registries: RateLimitRegistry) -> None:
    for registry in registries:
        registry.settle(admitted(registry), Outcome(Kind.OK))


@pytest.mark.parametrize("members", [1, 2])
def test_a_corrupt_log_ends_with_the_attempts_of_the_others(folder: Path, members: int) -> None:
    own, other, told = sharing(folder)
    call(own)
    if members == 2:
        call(other, own, other)
        admitted(other)
        call(own)
        assert own.snapshot().keys[KEY].members == 2
    (log,) = (path for path in folder.iterdir() if path.suffix == f".{VERSION}")
    with log.open("r+b") as content:
        # The first word is the magic number. A member without others looks when the number of members changes.
        content.write(b"garbage!")
        content.seek(8 * POPULATION)
        content.write(b"garbage!")
    call(own, own)
    seen = own.snapshot().keys[KEY]
    assert (seen.members, bool(seen.share_lost)) == (1, True)
    assert [each.reason for each in told if isinstance(each, ShareLost)] == [seen.share_lost]
    assert own._shared is not None
    (session,) = own._shared.sessions.values()
    assert not session.replica.flights, "an attempt of another process would hold a slot for ever"


def test_processes_whose_file_was_removed_share_again_with_later_ones(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_log, "PROBE_SECONDS", 0.01)
    own, other, told = sharing(folder)
    call(own, other, own, other)
    flying = admitted(other)
    call(own)
    (log,) = (path for path in folder.iterdir() if path.suffix == f".{VERSION}")
    log.unlink()
    late = RateLimitRegistry(Settings(share=str(folder), telemetry=False, status=False))
    call(late)
    ends = time.monotonic() + GIVEN_UP
    while {each.snapshot().keys[KEY].members for each in (own, other, late)} != {3}:
        assert time.monotonic() < ends, "they do not find each other"
        call(own, other, late)
    call(own, late)
    for each in (own, late):
        assert each._shared is not None
        (session,) = each._shared.sessions.values()
        assert len(session.replica.flights) == 1, "the attempt in flight of the other process is known, once"
    other.settle(flying, Outcome(Kind.OK))
    call(other, own, late, own)
    assert own._shared is not None
    (session,) = own._shared.sessions.values()
    assert not session.replica.flights
    assert not [each for each in told if isinstance(each, ShareLost)]


def no_space(log: LogFile) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("full", ["budget", "file system"])
def test_a_log_that_cannot_be_joined_is_told_with_its_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    own, other, told = sharing(folder)
    call(other)
    if full == "budget":
        monkeypatch.setattr(host, "BUDGET_BYTES", 0)
    else:
        monkeypatch.setattr(LogFile, "grow", no_space)
    call(own, own)
    reason = own.snapshot().keys[KEY].share_lost
    assert ("budget" if full == "budget" else "No space left") in reason
    assert [each.reason for each in told if isinstance(each, ShareLost)] == [reason]
    assert other.snapshot().keys[KEY].share_lost == ""


@pytest.mark.constants(MAX_REGISTRY_KEYS=3)
def test_keys_that_are_forgotten_leave_nothing_behind() -> None:
    settings = Settings(telemetry=False, status=False)
    registry = RateLimitRegistry(settings, clock=VirtualClock(), carrier=MemoryCarrier(MemoryStore()))
    for number in range(20):
        permit = registry.try_admit(KEY._replace(credential=f"{number:016x}"))
        assert isinstance(permit, Permit)
        registry.settle(permit, Outcome(Kind.OK))
    assert len(registry.snapshot().keys) == 3
    assert registry._shared is not None
    assert len(registry._shared.sessions) <= 4


@pytest.mark.parametrize("is_chosen", [True, False])
def test_a_key_that_a_program_names_is_shared_where_the_settings_name_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_chosen: bool
) -> None:
    folder = tmp_path / "tidegate"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    settings = Settings(share=str(folder) if is_chosen else "auto", telemetry=False, status=False)
    one, two = RateLimitRegistry(settings), RateLimitRegistry(settings)
    named = Key("custom", "my-service")
    for _ in range(3):
        for registry in (one, two):
            call(registry)
            assert registry.execute("my-service", lambda: 42) == 42
    seen = one.snapshot().keys
    assert seen[KEY].members == 2
    assert seen[named].members == (2 if is_chosen else 1)
