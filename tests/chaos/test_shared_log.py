"""Thousands of kills and forks, and many stops, of processes at one log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.shared_log.hammering import hammered

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("members", ["inherits", "fresh"])
def test_two_thousand_kills_break_nothing(tmp_path: Path, members: str) -> None:
    found = hammered(tmp_path, "kills", 2000, 11, members)
    assert found["free"]


def test_members_stopped_inside_their_steps_hold_nobody_up(tmp_path: Path) -> None:
    assert hammered(tmp_path, "stops", 20, 13, "fresh")["moved"] == 20


@pytest.mark.parametrize("members", ["inherits", "fresh"])
def test_storms_of_forks_break_nothing(tmp_path: Path, members: str) -> None:
    assert hammered(tmp_path, "storms", 50, 17, members)["storms_failed"] == 0
