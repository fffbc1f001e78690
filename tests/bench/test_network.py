"""Connections in virtual time."""

from __future__ import annotations

import pytest

from bench.network import SETUP, TRAVEL, Network
from bench.world import Timeline


def test_connections_are_set_up_one_after_another_and_whoever_finds_one_idle_overtakes_them() -> None:
    timeline, arrived = Timeline(), []
    network = Network(timeline)
    network.release()
    for name in "abcd":
        network.carry(lambda name=name: arrived.append((name, timeline.now)))
    while timeline.step():
        pass
    network.carry(lambda: arrived.append(("e", timeline.now)))
    began = timeline.now
    while timeline.step():
        pass
    instants = dict(arrived)
    assert [instants[name] for name in "abcd"] == pytest.approx([TRAVEL + SETUP * number for number in range(4)])
    assert instants["e"] == pytest.approx(began + TRAVEL + SETUP)


def test_an_answer_travels_as_long_as_a_request_on_a_connection_that_is_there() -> None:
    timeline, arrived = Timeline(), []
    Network(timeline).bring_back(lambda: arrived.append(timeline.now))
    assert timeline.step()
    assert arrived == [TRAVEL]
