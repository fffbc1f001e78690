"""The rules by which a program's run with tidegate counts as worse than its plain run, and the rows that play them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.never_worse import servers
from conformance.never_worse.__main__ import compare, main, play
from conformance.never_worse.catalogue import PROGRAMS, ROWS, Row
from conformance.never_worse.judging import Ended, alike, ended_of, late, unlike
from conformance.never_worse.stub import Reply


def worse(plain: Ended, governed: Ended, hopeless: bool) -> list[str]:
    return [*unlike(plain, governed), *late(plain, governed, hopeless)]


PLAIN = Ended(30, 40, {"RateLimitError": 10}, 0, 10.0, frozenset())
WHOLE = PLAIN._replace(answered=40, errors={})


def test_a_run_that_answers_all_rows_is_no_worse() -> None:
    assert worse(PLAIN, WHOLE._replace(seconds=90.0), hopeless=False) == []
    assert worse(PLAIN._replace(exit_code=1), WHOLE, hopeless=False) == []


@pytest.mark.parametrize(
    ("governed", "reason"),
    [
        (PLAIN._replace(answered=29), "29 rows answered, plain 30"),
        (PLAIN._replace(exit_code=1), "exit code 1, plain 0"),
        (WHOLE._replace(exit_code=1), "exit code 1, plain 0"),
        (PLAIN._replace(exit_code=None), "did not end"),
        (PLAIN._replace(errors={"APIConnectionError": 10}), "raises APIConnectionError"),
        (PLAIN._replace(said=frozenset({"Traceback"})), "writes 'Traceback'"),
    ],
)
def test_what_a_user_sees_must_not_be_worse(governed: Ended, reason: str) -> None:
    assert worse(PLAIN, governed, hopeless=False) == [reason]


def test_time_counts_where_plain_answers_every_row() -> None:
    assert worse(WHOLE, WHOLE._replace(seconds=13.0), hopeless=False) == ["13.0 s, plain 10.0 s"]
    assert worse(WHOLE, WHOLE._replace(seconds=11.4), hopeless=False) == []


def test_rows_that_plain_loses_may_take_their_time_and_the_others_not() -> None:
    early, late = (*[9.0] * 29, 15.4, *[80.0] * 10), (*[9.0] * 29, 15.6, *[80.0] * 10)
    assert worse(PLAIN, WHOLE._replace(seconds=80.0, times=early), hopeless=False) == []
    assert worse(PLAIN, WHOLE._replace(seconds=80.0, times=late), hopeless=False) == [
        "30 rows took 15.6 s, plain 10.0 s"
    ]
    none = PLAIN._replace(answered=0)
    assert worse(none, WHOLE._replace(seconds=80.0, times=late), hopeless=False) == []


def test_a_run_that_gains_no_row_shows_its_errors_soon_after_plain_shows_them() -> None:
    assert worse(PLAIN, PLAIN._replace(seconds=41.0), hopeless=False) == []
    assert worse(PLAIN, PLAIN._replace(seconds=42.0), hopeless=False) == ["42.0 s, plain 10.0 s"]
    assert worse(PLAIN, PLAIN._replace(process=42.0), hopeless=False) == ["process of 42.0 s, plain 0.0 s"]


def test_the_start_and_the_end_of_the_process_count_too() -> None:
    begun = WHOLE._replace(process=10.5)
    assert worse(begun, begun._replace(process=12.0), hopeless=False) == []
    assert worse(begun, begun._replace(process=13.0), hopeless=False) == ["process of 13.0 s, plain 10.5 s"]


def test_an_error_that_no_wait_cures_shows_soon_after_plain_shows_it() -> None:
    assert worse(PLAIN, PLAIN._replace(seconds=41.0), hopeless=True) == []
    assert worse(PLAIN, PLAIN._replace(seconds=42.0), hopeless=True) == ["42.0 s, plain 10.0 s"]


def test_the_words_of_an_exception_are_compared_without_what_differs_between_runs() -> None:
    said = {
        "plain": "RateLimitError: Error code: 429 - try again in 1.25s (req_1a2b3c at 127.0.0.1:4101), 3 attempts",
        "alike": "RateLimitError: Error code: 429 - try again in 0.5s (req_99 at 127.0.0.1:5999), 5 attempts",
        "other": "RateLimitError: Error code: 503 - try again in 1.25s (req_1a2b3c at 127.0.0.1:4101), 3 attempts",
        "ours": "RateLimitError: Error code: 429 - tidegate: no request was sent: it waited 2.0 s of max_wait = 2 s.",
    }
    runs = {name: PLAIN._replace(messages=frozenset({alike(text)})) for name, text in said.items()}
    assert worse(runs["plain"], runs["alike"], hopeless=False) == []
    assert worse(runs["plain"], runs["ours"], hopeless=False) == []
    (reason,) = worse(runs["plain"], runs["other"], hopeless=False)
    assert reason.startswith("raises with other words 'RateLimitError: Error code: 503")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("at 0x7f12ab", "at 0x99"),
        ("the Converse operation (reached max retries: 4): Too many", "the Converse operation: Too many"),
        ("id 123e4567-e89b-12d3-a456-426614174000", "id 00000000-e89b-12d3-a456-426614174fff"),
        ("HTTPConnectionPool(host='127.0.0.1', port=81)", "HTTPConnectionPool(host='127.0.0.1', port=82)"),
        ("reset at 2026-01-01T10:00:00Z", "reset at 2026-01-01T10:00:07.5Z"),
        ("retry after Wed, 21 Oct 2015 07:28:00 GMT", "retry after Wed, 21 Oct 2015 07:29:00 GMT"),
        ("(reached max retries: 4)", "(reached max retries: 2)"),
    ],
)
def test_what_differs_between_runs_is_alike(one: str, other: str) -> None:
    assert alike(one) == alike(other)


def test_statuses_and_codes_differ() -> None:
    assert len({alike(f"Error code: {status}") for status in (400, 429, 503)}) == 3


def test_a_report_and_the_trouble_on_standard_error_are_read() -> None:
    told = {"rows": 3, "answered": 1, "errors": {"E": 2}, "messages": ["E: no"], "seconds": 2.5, "times": [2, 1]}
    complaints = (
        "tidegate: 3 calls\nTraceback (most recent call last):\nValueError: at 0x7f12\na.py:3: UserWarning: no\n"
    )
    ended = ended_of("x\nNEVER_WORSE " + json.dumps(told) + "\n", complaints, 1, 9.0, 7)
    assert (ended.answered, ended.rows, ended.errors, ended.requests) == (1, 3, {"E": 2}, 7)
    assert (ended.seconds, ended.process, ended.times) == (2.5, 9.0, (1, 2))
    assert ended.messages == {"E: no"}
    assert ended.said == {"Traceback (most recent call last):", "ValueError: at 0x0", "a.py:N: UserWarning: no"}


@pytest.mark.parametrize(
    ("runs", "failed"),
    [
        ({"plain": [WHOLE, WHOLE], "run": [WHOLE._replace(seconds=20.0), WHOLE]}, False),
        (
            {"plain": [WHOLE, WHOLE._replace(process=20.0, seconds=20.0)], "run": [WHOLE._replace(seconds=20.0)] * 2},
            False,
        ),
        ({"plain": [WHOLE, WHOLE], "run": [WHOLE._replace(seconds=20.0)] * 2}, True),
        ({"plain": [PLAIN], "run": [PLAIN._replace(answered=29)]}, True),
        ({"plain": [PLAIN], "run": [PLAIN._replace(answered=29, seconds=90.0)]}, True),
        ({"plain": [WHOLE, WHOLE], "run": [WHOLE._replace(seconds=20.0), WHOLE._replace(answered=39)]}, True),
    ],
)
def test_only_a_late_run_has_a_second_try(runs: dict[str, list[Ended]], failed: bool) -> None:
    left = {mode: list(ends) for mode, ends in runs.items()}
    lines, worse_than_plain = compare("row", ("plain", "run"), lambda mode: left[mode].pop(0))
    assert worse_than_plain == failed
    assert not any(left.values())
    assert (lines[1][-1] == "ok") != failed


def test_the_catalogue_names_programs_that_exist_and_has_sixty_of_them_from_25_libraries() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 60
    assert len({row.library for row in ROWS}) >= 25
    for row in ROWS:
        assert any((PROGRAMS / word).is_file() for word in row.command), row.name


def test_a_program_is_played_plain_wrapped_and_under_run() -> None:
    row = Row("calm", ("openai_rows.py", "gather"), lambda: servers.calm(0.0), 4)
    for mode in ("plain", "wrapped", "run"):
        ended = play(row, mode)
        assert (ended.answered, ended.rows, ended.exit_code, ended.requests) == (4, 4, 0, 4)
        assert len(ended.times) == 4
        assert ended.times[-1] <= ended.seconds <= ended.process


def test_a_server_of_resets_and_one_that_is_never_up_are_errors_of_the_sdk() -> None:
    resets = Row("resets", ("openai_rows.py", "gather", "0"), lambda: servers.resets(0), 2)
    nobody = Row("nobody", ("openai_rows.py", "gather", "0"), servers.calm, 2, delay=None)
    for row in (resets, nobody):
        assert play(row, "plain").errors == {"APIConnectionError": 2}


def test_a_server_without_tls_is_an_error_at_once() -> None:
    row = Row("no-tls", ("openai_rows.py", "gather", "0"), servers.calm, 2, address="https://127.0.0.1:{port}")
    ended = play(row, "plain")
    assert ended.errors == {"APIConnectionError": 2}
    assert ended.requests == 0


def test_a_full_line_and_a_revoked_key_are_errors_of_the_sdk() -> None:
    full = Row("full", ("maker_rows.py", "ollama"), lambda: servers.line(0, 1, Reply(503, {}, b"")), 2)
    assert play(full, "plain").errors == {"ResponseError": 2}
    keys = Row("keys", ("openai_two_keys.py", "azure"), servers.one_key, 4)
    ended = play(keys, "plain")
    assert (ended.answered, ended.errors) == (2, {"AuthenticationError": 2})


def test_the_time_that_a_row_may_hold_an_error_back_is_its_own() -> None:
    row = Row("x", ("openai_rows.py", "gather"), servers.calm, hopeless=True, allowance=60.0)
    assert row.late(PLAIN, PLAIN._replace(seconds=71.0)) == []
    assert row.late(PLAIN, PLAIN._replace(seconds=72.0)) == ["72.0 s, plain 10.0 s"]


@pytest.mark.parametrize(
    ("command", "library"),
    [
        ("openai_rows.py gather", "openai"),
        ("maker_rows.py anthropic_vertex", "anthropic"),
        ("around_rows.py trio", "trio"),
        ("aiohttp_uploads.py", "aiohttp"),
        ("-m pytest test_own_stub.py", "pytest"),
    ],
)
def test_a_row_names_the_library_that_its_program_asks_with(command: str, library: str) -> None:
    assert Row("x", tuple(command.split()), servers.calm).library == library


@pytest.mark.parametrize("seconds", ["1e-9", "0.5"])
def test_a_run_whose_time_is_over_fails_and_names_what_has_not_run(
    seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--within", seconds, "--lanes", "2", "starts-late", "calm-long-answers"]) == 1
    said = capsys.readouterr().out
    assert f"{float(seconds):g} s were over before starts-late, calm-long-answers had run" in said


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["nothing"])
    assert "no such program: nothing" in capsys.readouterr().err


def test_the_programs_know_nothing_of_tidegate_unless_they_wrap() -> None:
    code = "import sys; sys.argv=['x']; import kit; sys.exit('tidegate' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=PROGRAMS, check=False, env={"PATH": "", "ROWS": "1"})
    assert done.returncode == 0
    assert not [path for path in PROGRAMS.glob("*.py") if "tidegate" in path.read_text() and path.name != "kit.py"]
    assert Path(PROGRAMS / "kit.py").read_text().count("import tidegate") == 1
