"""When the last of those who wait will be let through, gate by gate."""

from __future__ import annotations

import pytest

from tidegate.core.wait_text import Eta, HeadWait, QueueForecast, QuotaForecast, estimate_eta, head_wait


def requests(level: float, boundary_in: float | None = None, amount: float = 1.0) -> QuotaForecast:
    return QuotaForecast("requests", level, 60.0, 60.0, boundary_in, amount)


def test_a_pause_holds_all_of_them() -> None:
    assert estimate_eta(QueueForecast(3, closed_for=7.0, closed_by="pause", slots=5)) == Eta(7.0, "pause")


def test_while_a_probe_is_out_nothing_can_be_said() -> None:
    assert estimate_eta(QueueForecast(3, closed_for=float("inf"), closed_by="breaker", slots=5)) == Eta(None, "breaker")


def test_a_bucket_lets_them_through_as_it_refills() -> None:
    assert estimate_eta(QueueForecast(30, slots=99, quotas=(requests(10.0),))) == Eta(20.0, "quota requests")


def test_a_bucket_refills_during_a_pause_but_not_beyond_its_limit() -> None:
    assert estimate_eta(
        QueueForecast(70, closed_for=500.0, closed_by="pause", slots=99, quotas=(requests(10.0),))
    ) == Eta(510.0, "quota requests")


@pytest.mark.parametrize(("waiting", "seconds"), [(10, 0.0), (11, 4.0), (70, 4.0), (71, 64.0)])
def test_a_window_lets_a_whole_limit_through_at_each_boundary(waiting: int, seconds: float) -> None:
    assert estimate_eta(QueueForecast(waiting, slots=99, quotas=(requests(10.0, boundary_in=4.0),))).seconds == seconds


@pytest.mark.parametrize(("waiting", "seconds"), [(1, 1.0), (2, 2.0), (3, 3.0), (4, 5.0), (5, 6.0), (7, 9.0)])
def test_slots_are_taken_in_the_order_in_which_they_are_given_back(waiting: int, seconds: float) -> None:
    assert estimate_eta(QueueForecast(waiting, slots=3, flights=(3.0, 2.0, 1.0), latency=4.0)) == Eta(
        seconds, "concurrency"
    )


def test_before_any_answer_nobody_knows_when_a_slot_is_free() -> None:
    assert estimate_eta(QueueForecast(5, slots=3, flights=(1.0,))) == Eta(None, "concurrency")


def test_the_next_call_waits_for_the_pause_though_slots_bind_those_behind_it() -> None:
    paused = QueueForecast(50, closed_for=600.0, closed_by="pause", tried_in=118.0, stated=600.0, slots=20, latency=1.0)
    assert head_wait(paused) == HeadWait("pause", 118.0, 600.0)
    assert estimate_eta(paused) == Eta(602.0, "concurrency")


def test_the_next_call_of_an_open_key_waits_for_its_own_gate() -> None:
    assert head_wait(QueueForecast(30, slots=99, quotas=(requests(-5.0),))) == HeadWait("quota requests", 6.0)
    assert head_wait(QueueForecast(9, slots=1, flights=(1.0,), latency=3.0)) == HeadWait("concurrency", None)
    assert head_wait(QueueForecast(9, slots=99, pace=4.0, paced_for=7.5)) == HeadWait("pace", 7.5)
    assert head_wait(QueueForecast(0, slots=9)) == HeadWait("", 0.0)
    down = QueueForecast(9, closed_for=float("inf"), closed_by="breaker")
    assert head_wait(down) == HeadWait("breaker", None)


def test_nobody_knows_when_a_provider_that_is_down_comes_back() -> None:
    down = QueueForecast(3, closed_for=2.0, closed_by="breaker", tried_in=2.0, cause="status 500")
    assert estimate_eta(down) == Eta(None, "breaker")
    assert head_wait(down) == HeadWait("breaker", 2.0, 0.0, "status 500")


def test_a_paced_queue_moves_from_the_instant_of_its_head_on() -> None:
    assert estimate_eta(QueueForecast(11, slots=99, pace=2.0, paced_for=20.0)) == Eta(25.0, "pace")
