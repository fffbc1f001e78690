"""The ideals and the bars of the limiters' check; its servers run in `make test-real`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.limiters import ideals, page, servers
from conformance.limiters.__main__ import main
from conformance.limiters.catalogue import ROWS
from conformance.limiters.judging import ANNOUNCED, SHORT, SILENT, Outcome, middle, missed, outcome_of, refusals_in
from conformance.limiters.servers import NotStartedError, Place, program

GOOD = Outcome(300, 300, 21.0, 3, 0)


def admissions(ideal: ideals.Ideal, calls: int) -> list[float]:
    return [round(instant, 6) for instant in ideal(calls, lambda: 0.0)]


def test_a_bucket_passes_its_burst_at_once_and_then_its_rate() -> None:
    assert admissions(ideals.bucket(10.0, 3), 5) == [0.0, 0.0, 0.0, 0.1, 0.2]


def test_windows_pass_their_limit_at_each_begin() -> None:
    assert admissions(ideals.windows(2, 10.0), 5) == [0.0, 0.0, 10.0, 10.0, 20.0]
    assert admissions(ideals.windows(2, 10.0, 4.0), 5) == [0.0, 0.0, 4.0, 4.0, 14.0]


def test_a_sliding_counter_trickles_after_a_full_window() -> None:
    assert admissions(ideals.sliding_counter(2, 10.0), 5) == [0.0, 0.0, 15.0, 20.0, 25.0]
    assert admissions(ideals.sliding_counter(2, 10.0, 9.0), 4) == [0.0, 0.0, 14.0, 19.0]


def test_slots_are_taken_again_when_calls_end_and_no_faster_than_a_bucket() -> None:
    assert ideals.slots(2)(4, lambda: 1.0) == [1.0, 1.0, 2.0, 2.0]
    assert ideals.slots(2, 1.0)(3, lambda: 0.5) == [0.5, 1.5, 2.5]


def test_bursts_go_beside_the_short_windows() -> None:
    assert admissions(ideals.window_and_burst(1, 1.0, 2, 3.0), 8) == [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 3.0, 3.0]


def test_held_calls_end_after_their_delays() -> None:
    assert admissions(ideals.delays(2, 0.02), 4) == [0.0, 0.0, 0.06, 0.08]


def test_an_ideal_includes_the_latency_and_is_the_same_each_time() -> None:
    seconds = ideals.ideal_seconds(ideals.windows(100, 10.0), 300)
    assert 20.3 < seconds < 21.0
    assert seconds == ideals.ideal_seconds(ideals.windows(100, 10.0), 300)


def test_a_run_within_the_bars_misses_nothing() -> None:
    assert missed(GOOD, 20.5, ANNOUNCED) == []


@pytest.mark.parametrize(
    ("outcome", "bars", "reason"),
    [
        (GOOD._replace(answered=298), SILENT, "lost 2"),
        (GOOD._replace(exit_code=None), SILENT, "did not end"),
        (GOOD._replace(exit_code=1), SILENT, "exit code 1"),
        (GOOD._replace(seconds=24.6), SILENT, "time 1.20 > 1.1"),
        (GOOD._replace(refusals=46), SILENT, "refusals 0.153 > 0.15"),
        (GOOD._replace(refusals=10), ANNOUNCED, "refusals 0.033 > 0.03"),
        (GOOD._replace(answered=299, seconds=99.0), SHORT, "lost 1"),
        (GOOD._replace(refusals=301), SHORT, "refusals 1.003 > 1"),
    ],
)
def test_each_bar_that_is_missed_is_named(outcome: Outcome, bars: object, reason: str) -> None:
    assert missed(outcome, 20.5, bars) == [reason]  # type: ignore[arg-type]


def test_repeated_runs_count_by_their_medians_and_the_most_lost_calls() -> None:
    runs = [GOOD, GOOD._replace(seconds=30.0, answered=299), GOOD._replace(seconds=22.0, refusals=9)]
    assert middle(runs) == GOOD._replace(seconds=22.0, refusals=3, answered=299)


def test_a_program_without_a_report_answered_nothing() -> None:
    told = 'x\nLIMITERS {"answered": 2, "seconds": 1.5, "errors": {"E": 1}}\n'
    assert outcome_of(told, 0, 3, 9.0, 4) == Outcome(2, 3, 1.5, 4, 0, {"E": 1})
    assert outcome_of("", 1, 3, 9.0, 0).lost == 3


def test_refusals_are_the_calls_that_an_access_log_has_with_another_status() -> None:
    assert refusals_in("POST 200\nPOST 429\nGET 404\nPOST 503\n", servers.PLAIN_STATUS) == 2
    uvicorn = 'INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 503 Service Unavailable\nWARNING: 429\n'
    assert refusals_in(uvicorn, servers.UVICORN_STATUS) == 1


def test_the_catalogue_has_distinct_names_and_as_many_calls_as_the_check_promises() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 20
    assert all(120 <= row.calls <= 400 for row in ROWS)
    assert sum(row.ideal_seconds for row in ROWS if row.short) < 90.0


def test_a_configuration_gets_the_ports_of_its_place(tmp_path: Path) -> None:
    place = Place(tmp_path, 1234, 5678)
    for name in ("nginx.conf", "haproxy-table.cfg", "haproxy-queue.cfg", "throttle.vcl", "litellm.yaml"):
        text = place.write(name, {"zones": "", "limits": ""}).read_text()
        assert "5678" in text
        assert not re.search(r"@\w+@", text)


def test_a_program_that_is_not_installed_is_a_failure_with_its_package() -> None:
    with pytest.raises(NotStartedError, match=r"no-such-limiter not installed: .* apt-get install some-package"):
        program("no-such-limiter", "some-package")


def test_an_unknown_name_and_a_page_of_some_rows_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, reason in ((["nothing"], "no such limiter: nothing"), (["--page", "--short"], "needs all rows")):
        with pytest.raises(SystemExit):
            main(arguments)
        assert reason in capsys.readouterr().err


def test_the_page_keeps_what_is_outside_its_markers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "limiters.md"
    copy.write_text(f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    monkeypatch.setattr(page, "PAGE", copy)
    monkeypatch.setattr(page, "versions", lambda: ["nginx 1"])
    page.write(("limiter", ""), [["a", "plain"]], ROWS[:1], 1)
    text = copy.read_text()
    assert text.startswith(f"before\n{page.BEGIN}\n")
    assert text.endswith(f"{page.END}\nafter\n")
    assert "old" not in text
    assert "| a | plain |" in text
