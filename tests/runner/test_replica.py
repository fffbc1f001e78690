"""Replicas on one machine see whether another one's process is gone; of any other they say nothing."""

from __future__ import annotations

import os
import subprocess
import sys

from tidegate.experiments.engine.replica import is_dead, replica_name


def test_names_are_unlike() -> None:
    assert len({replica_name() for _ in range(100)}) == 100


def test_a_process_that_lives_is_not_gone() -> None:
    assert not is_dead(replica_name())


def test_a_process_that_has_ended_is_gone() -> None:
    code = "from tidegate.experiments.engine.replica import replica_name; print(replica_name())"
    source = os.pathsep.join(sys.path)
    env = {**os.environ, "PYTHONPATH": source}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert is_dead(done.stdout.strip())


def test_nothing_is_said_of_another_machine_or_of_a_name_that_is_none() -> None:
    place, process, chance = replica_name().split("-")
    assert not is_dead(f"{'0' * len(place)}-999999999-{chance}")
    for name in (None, "", "x", place, f"{place}-", f"{place}-x-y", f"-{process}-"):
        assert not is_dead(name)
