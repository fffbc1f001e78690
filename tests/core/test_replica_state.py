"""The checkpoint of a key: the whole state, whatever happened to it, and on any clock."""

from __future__ import annotations

import json
import math
import zlib
from typing import Any

import pytest

from tests.core.replica_play import BEGINS, REGIMES, Play, Regime, plain, replica_of
from tidegate.core.admission_controller import AccountController
from tidegate.core.checkpoint import (
    ACCOUNT,
    INSTANTS,
    KEPT,
    OWN,
    SHARED,
    TABLE,
    StateDecoder,
    StateEncoder,
    StateTable,
    UnknownState,
    read_checkpoint,
    slots_of,
)
from tidegate.core.replicated_controller import ADDED, ReplicatedKey
from tidegate.core.values import Cost

SHIFT = 4096.0

by_regime = pytest.mark.parametrize("regime", REGIMES, ids=lambda each: each.name)


@by_regime
def test_a_member_that_joins_in_mid_run_decides_as_the_others(regime: Regime) -> None:
    for seed in range(3):
        _join_in_mid_run(Play(regime, seed), 40 + 150 * seed)


def _join_in_mid_run(play: Play, steps: int) -> None:
    play.run(steps)
    joiner = replica_of(1, play.clock)
    payload = play.replica.dump(play.clock)
    assert payload is not None
    joiner.load(payload, play.clock, play.clock)
    play.replayers.append(joiner)
    twin = joiner.controllers[""]

    def same() -> None:
        for cost in (Cost(), Cost(tokens=150.0, input_tokens=150.0)):
            assert twin.ready_at(cost, play.clock) == play.controller.ready_at(cost, play.clock)

    same()
    play.run(300, same)
    assert plain(joiner, play.clock) == plain(play.replica, play.clock)


@by_regime
def test_a_checkpoint_moves_all_its_instants_to_the_clock_of_its_reader(regime: Regime) -> None:
    for seed in range(2):
        here, there = Play(regime, seed), Play(regime, seed, SHIFT)
        here.run(300)
        there.run(300)
        assert len(here.log) == len(there.log), "both clocks have the same history"
        moved = replica_of(1, here.clock)
        payload = there.replica.dump(there.clock)
        assert payload is not None
        moved.load(payload, here.clock, here.clock)
        for each, clock in ((here.replica, here.clock), (there.replica, there.clock), (moved, here.clock)):
            # A look books what was charged, and keeps the cost that was asked last.
            each.controllers[""].ready_at(Cost(), clock)
        differences = list(
            _differences(plain(here.replica, here.clock), plain(moved, here.clock), plain(there.replica, there.clock))
        )
        assert differences == []


def _differences(here: Any, moved: Any, there: Any, path: str = "") -> list[str]:
    """Places where a moved state is not the one that began here; zero stands for no instant."""
    if isinstance(here, dict):
        found = []
        for name in here:
            found += _differences(here[name], moved[name], there[name], f"{path}.{name}")
        return found
    if isinstance(here, list):
        if len(here) != len(moved):
            return [f"{path}: {here!r} {moved!r}"]
        names = None
        if here[:1] == ["o"]:
            names = [here[1], "", "", *(slot for slot, _ in TABLE.fields[here[1]])]
        return [
            line
            for number, each in enumerate(zip(here, moved, there, strict=True))
            for line in _differences(*each, f"{path}.{names[0] + ' ' + names[number] if names else number}")
        ]
    numbers = isinstance(here, float) and isinstance(moved, float) and not math.isinf(here)
    if numbers and (there == 0.0 or math.isclose(here, moved, rel_tol=1e-9, abs_tol=1e-5)):
        return []
    return [] if here == moved else [f"{path}: {here!r} {moved!r}"]


def test_every_field_of_a_controller_is_shared_or_its_own() -> None:
    fields = {*slots_of(ReplicatedKey)} - {"__weakref__", "__dict__"}
    assert fields == {*SHARED, *OWN, *ADDED}
    assert not {*SHARED} & {*OWN}
    assert {*slots_of(AccountController)} == {*ACCOUNT, "earlier", "key", "models", "names"}


def test_every_field_that_the_tables_name_exists() -> None:
    for name, fields in [*INSTANTS.items(), *KEPT.items()]:
        assert {*fields} <= {*TABLE.kept[name], *(field for field, _ in TABLE.fields[name])}


def test_every_class_of_state_has_all_its_fields_in_slots() -> None:
    for name, cls in TABLE.classes.items():
        if TABLE.fields[name] and not issubclass(cls, tuple):
            assert not hasattr(cls, "__dict__") or "__dict__" not in slots_of(cls), name
            assert all("__slots__" in vars(each) for each in cls.__mro__[:-1] if each.__module__ != "abc"), name


def test_a_class_that_is_not_in_the_table_is_refused() -> None:
    table = StateTable([], {}, {})
    with pytest.raises(UnknownState, match="Cost"):
        StateEncoder(table, {}).encode(Cost())
    with pytest.raises(UnknownState, match="Popen"):
        StateDecoder(TABLE, {}).decode(["o", "Popen", "", "ls"])


def test_a_checkpoint_of_another_version_is_refused() -> None:
    text = plain(replica_of(0), BEGINS) | {"revision": "of another version"}
    with pytest.raises(UnknownState, match="version"):
        read_checkpoint(zlib.compress(json.dumps(text).encode()))


@pytest.mark.parametrize("regime", REGIMES[::4], ids=lambda each: each.name)
def test_a_checkpoint_that_is_damaged_changes_nothing(regime: Regime) -> None:
    play = Play(regime, 5)
    play.run(250)
    payload = play.replica.dump(play.clock)
    assert payload is not None
    text = zlib.decompress(payload)
    other = Play(regime, 6)
    other.run(120)
    before = plain(other.replica, other.clock)
    for each in range(0, len(text), max(1, len(text) // 60)):
        for damaged in (text[:each], text[:each] + b"7" + text[each + 1 :], text[:each] + b'"' + text[each:]):
            try:
                other.replica.load(zlib.compress(damaged), other.clock, other.clock)
            except Exception:
                assert plain(other.replica, other.clock) == before
            else:
                other.controller.ready_at(Cost(), other.clock)
                back = Play(regime, 6)
                back.run(120)
                other = back  # the damage was none that a reader could see: the state is odd, and decides
                before = plain(other.replica, other.clock)
