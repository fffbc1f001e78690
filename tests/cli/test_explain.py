"""`tidegate doctor --explain`: answers on stdin, what they mean on stdout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.cli.running import TIDEGATE, environ
from tests.cli.terminal import COLUMNS, Terminal
from tidegate.cli.commands import app

OPENAI = {
    "provider": None,
    "url": "https://api.openai.com/v1/chat/completions",
    "model": "gpt-4.1",
    "status": 200,
    "headers": {
        "date": "Sun, 04 Oct 2026 12:00:00 GMT",
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-reset-requests": "120ms",
    },
    "body": None,
    "now": None,
}
REFUSED = {
    **OPENAI,
    "status": 429,
    "headers": {"retry-after": "12"},
    "body": {"error": {"code": "rate_limit_exceeded", "message": "Rate limit reached"}},
}


def explained(*lines: Any) -> list[dict[str, Any]]:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    result = CliRunner().invoke(app, ["doctor", "--explain"], input=text)
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == any("error" in each for each in found), result.output
    return found


def test_a_good_answer_says_what_is_left() -> None:
    (found,) = explained(OPENAI)
    assert found == {
        "provider": "openai",
        "key": "openai · api.openai.com · gpt-4.1",
        "kind": "ok",
        "limits": {"requests_per_minute": 500},
        "remaining": {"requests_per_minute": 499},
        "reset_after_s": {"requests_per_minute": 0.12},
        "retry_after_s": None,
        "will": "return the answer",
        "why": "status 200",
    }


def test_a_refusal_says_how_long_it_is_waited_for_and_which_row_decided() -> None:
    (found,) = explained(REFUSED)
    assert (found["kind"], found["retry_after_s"], found["will"]) == ("rate_limit", 12, "wait 12 s, then retry")
    assert found["why"].startswith("openai:")


def test_on_a_terminal_without_input_it_says_what_it_waits_for(tmp_path: Path) -> None:
    terminal = Terminal(*TIDEGATE, "doctor", "--explain", env=environ(), cwd=tmp_path, columns=COLUMNS)
    try:
        terminal.until(lambda shown: "tidegate: paste an answer as one line of JSON; Ctrl-D ends" in shown.rows())
        terminal.type(b"\x04")
        assert terminal.to_the_end() == 0
    finally:
        terminal.close()


TRIED = "a single call tries after at most 2:00, and then as often until one is admitted"


@pytest.mark.parametrize(
    ("wait", "will"),
    [
        (None, "wait for the quotas of the key, or for a growing backoff, then retry"),
        ("0.251", "wait 0.3 s, then retry"),
        ("600", f"wait, at the longest the named 10:00: {TRIED}"),
        ("3599", f"wait, at the longest the named 59:59: {TRIED}"),
        ("3600", "wait 1:00:00 for the named reset, then retry with a single call; no call goes before"),
        ("90000", "return the refusal: the named reset is in 25:00:00, after max_wait (1:00:00)"),
        ("31536000", "wait for the quotas of the key, or for a growing backoff, then retry"),
    ],
)
def test_what_is_done_about_waits_that_are_missing_long_or_absurd(wait: str | None, will: str) -> None:
    headers = {} if wait is None else {"retry-after": wait}
    assert explained({**REFUSED, "headers": headers})[0]["will"] == will


@pytest.mark.parametrize(
    ("told", "date"),
    [
        ("You have reached your specified API usage limits. You will regain access on 2026-12-01.", "2026-12-01"),
        ("You will regain access on 2026-12-01 at 00:00 UTC.", "2026-12-01 00:00 UTC"),
        ("You have reached your specified API usage limits.", None),
    ],
)
def test_end_of_a_spend_limit_is_told_as_far_as_it_is_named(told: str, date: str | None) -> None:
    told = f"You have reached your specified API usage limits. {told}"
    body = {"type": "error", "error": {"type": "invalid_request_error", "message": told}}
    line = {**OPENAI, "url": "https://api.anthropic.com/v1/messages", "status": 400, "headers": {}, "body": body}
    (found,) = explained(line)
    assert (found["kind"], found.get("returns_on")) == ("quota_exhausted", date)
    named = f"the provider names {date} as its end" if date else "it lasts until the account gets credit"
    assert found["will"].startswith(f"return the refusal: {named}")


def test_a_limit_that_a_failure_inside_a_stream_states_is_shown_beside_those_of_the_headers() -> None:
    message = "Rate limit reached for gpt-5.4 on tokens per min (TPM): Limit 10000, Used 9000, Requested 2000."
    event = {"error": {"message": message, "type": "tokens", "code": "rate_limit_exceeded"}}
    (found,) = explained({**OPENAI, "body": f"data: {json.dumps(event)}\n\n"})
    assert found["kind"] == "rate_limit"
    assert found["limits"] == {"requests_per_minute": 500, "tokens_per_minute": 10000}


@pytest.mark.parametrize(
    ("now", "seconds"), [(None, 30.0), ("2026-10-04T12:00:10Z", 20.0), ("2026-10-04T14:00:10+02:00", 20.0)]
)
def test_instants_count_from_now_else_from_the_answers_own_date(now: str | None, seconds: float) -> None:
    headers = {
        "date": "Sun, 04 Oct 2026 12:00:00 GMT",
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "10",
        "anthropic-ratelimit-requests-reset": "2026-10-04T12:00:30Z",
    }
    (found,) = explained({**OPENAI, "url": "https://api.anthropic.com/v1/messages", "headers": headers, "now": now})
    assert found["reset_after_s"]["requests_per_minute"] == pytest.approx(seconds)


def test_the_hint_names_the_provider_of_an_address_that_nobody_knows() -> None:
    line = {**REFUSED, "url": "https://gateway.test/v1/chat/completions"}
    unknown, hinted = explained(line, {**line, "provider": "openai"})
    assert [each["provider"] for each in (unknown, hinted)] == ["compatible", "openai"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "line ignored: it is not JSON ("),
        ("[" * 5000, "line ignored: it is not JSON ("),
        ("[1]", "line ignored: it is not a JSON object"),
        ({**OPENAI, "status": "200"}, "status: '200' is not an HTTP status"),
        ({**OPENAI, "status": None}, "status: None is not an HTTP status"),
        ({**OPENAI, "status": True}, "status: True is not an HTTP status"),
        ({**OPENAI, "headers": ["a"]}, "headers: it must be an object"),
        ({**OPENAI, "url": "https://host:port/v1"}, "url: "),
        ({**OPENAI, "url": 3}, "url: it must be a string or null"),
        ({**OPENAI, "now": "soon"}, "now: 'soon' is not an RFC 3339 time"),
    ],
)
def test_a_bad_line_is_told_of_and_the_next_is_read(line: object, complaint: str) -> None:
    bad, good = explained(line, "", OPENAI)
    assert complaint in bad["error"]
    assert good["kind"] == "ok"


def test_garbage_in_headers_and_body_is_no_bad_line() -> None:
    headers = {"x-ratelimit-limit-requests": "-1", "retry-after": "\u2603", "x-list": ["a", 3, None], "x-null": None}
    (found,) = explained({**REFUSED, "headers": headers, "body": "<html>\u2603</html>"})
    assert (found["limits"], found["retry_after_s"]) == ({}, None)


def test_a_line_too_long_to_be_an_answer_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.cli.doctor.answers.MAX_LINE_BYTES", 1000)
    bad, good = explained({**OPENAI, "body": "x" * 5000}, OPENAI)
    assert bad == {"error": "line ignored: it is longer than 1000 bytes"}
    assert good["kind"] == "ok"


def test_half_a_surrogate_pair_and_a_locale_of_ascii_end_nothing() -> None:
    command = [sys.executable, "-c", "from tidegate.cli.main import main; main()", "doctor", "--explain"]
    lines = "\n".join(json.dumps({**OPENAI, "model": model}) for model in ("\ud800", "\u2603")).encode()
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    said = subprocess.run(command, input=lines, stdout=subprocess.PIPE, check=True, timeout=300, env=environ).stdout
    keys = [json.loads(line)["key"] for line in said.decode().splitlines()]
    assert keys == [r"openai · api.openai.com · \ud800", "openai · api.openai.com · \u2603"]


def on_a_terminal(*lines: Any) -> str:
    ours, theirs = os.openpty()
    try:
        command = [sys.executable, "-c", "from tidegate.cli.main import main; main()", "doctor", "--explain"]
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        subprocess.run(command, input=text, stdout=theirs, check=False, timeout=300, env={**os.environ, "TERM": "dumb"})
        return os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)


def test_brackets_are_shown_on_a_terminal_as_they_are() -> None:
    url = "http://[fe80::1]:8000/v1/chat/completions"
    shown = on_a_terminal({**OPENAI, "url": url, "model": "[red]m[/x]"}, {**OPENAI, "status": "[/b]"})
    assert "[fe80::1]:8000/v1 · [red]m[/x]" in shown
    assert "'[/b]' is not an HTTP status" in shown


def test_shared_quota_is_shown_with_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {
        "url": "https://api.anthropic.com/v1/messages",
        "model": "claude-opus-4-5",
        "status": 200,
        "headers": {"anthropic-ratelimit-requests-limit": "50", "anthropic-ratelimit-requests-remaining": "49"},
    }
    other = {**answer, "model": "claude-opus-5"}
    silent = {**answer, "headers": {}}
    shared, alone, without = explained(answer, other, silent)
    assert shared["key"] == "anthropic · api.anthropic.com · claude-opus-4-5"
    assert shared["account"] == "anthropic · api.anthropic.com · claude-opus-4 · shared"
    assert "account" not in alone
    assert "account" not in without
    monkeypatch.setenv("TIDEGATE_SCOPES", "anthropic=account")
    (whole,) = explained(answer)
    assert whole["key"] == "anthropic · api.anthropic.com"
