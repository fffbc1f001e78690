"""What the end of a call means for its row."""

from __future__ import annotations

import asyncio
import json

import pytest

from tidegate.core.values import Cause, Key, Kind, NextStep, Outcome
from tidegate.errors import DeadlineExceeded, UnusableAnswer
from tidegate.experiments.engine.background import redacted
from tidegate.pool.failure_class import ANSWERED, FailureClass, classify
from tidegate.providers.classification import UNREACHED, UNREADABLE

OK = Outcome(Kind.OK)
RATE = Outcome(Kind.RATE_LIMIT, Cause.RATE, 2.0)


class WithStatus(Exception):
    def __init__(self, status: int, headers: dict[str, str] | None = None) -> None:
        self.status_code = status
        self.headers = headers or {}


def named(name: str, text: str = "") -> Exception:
    made: Exception = type(name, (Exception,), {})(text)
    return made


def of(error: BaseException | None, outcome: Outcome | None = None, refused: Outcome | None = None) -> FailureClass:
    return classify(error, outcome, refused, False)


def test_an_answer_is_an_answer() -> None:
    assert of(None) == ANSWERED
    assert of(None, OK) == ANSWERED


def test_a_refusal_that_was_handed_back_is_no_answer_whatever_the_function_made_of_it() -> None:
    assert of(None, RATE, RATE).next_step is NextStep.CAPACITY
    assert of(ValueError("no choices"), RATE, RATE) == FailureClass(NextStep.CAPACITY, "rate", 2.0)
    assert of(None, RATE).next_step is NextStep.CAPACITY


def test_an_outage_that_was_handed_back_as_the_probes_spends_no_attempt() -> None:
    outage = Outcome(Kind.TRANSIENT, Cause.OUTAGE)
    assert of(OSError(), outage, outage) == FailureClass(NextStep.CAPACITY, "outage")


def test_an_answer_that_came_after_a_refusal_is_kept() -> None:
    assert of(None, OK, RATE) == ANSWERED


@pytest.mark.parametrize(
    ("outcome", "ruling", "kind"),
    [
        (Outcome(Kind.RATE_LIMIT, Cause.SLOPE), NextStep.CAPACITY, "slope"),
        (Outcome(Kind.OVERLOADED, Cause.OVERLOAD), NextStep.CAPACITY, "overload"),
        (Outcome(Kind.DAILY_LIMIT, Cause.DAY), NextStep.PARKED, "day"),
        (Outcome(Kind.QUOTA_EXHAUSTED, Cause.MONEY), NextStep.PERMANENT, "money"),
        (Outcome(Kind.TRANSIENT, Cause.OUTAGE), NextStep.TRANSIENT, "outage"),
        (Outcome(Kind.PERMANENT, Cause.AUTH), NextStep.PERMANENT, "auth"),
        (Outcome(Kind.PERMANENT, Cause.NEVER_FITS), NextStep.PERMANENT, "never_fits"),
        (Outcome(Kind.PERMANENT), NextStep.PERMANENT, "invalid"),
    ],
)
def test_the_last_governed_attempt_decides_before_the_exception(outcome: Outcome, ruling: NextStep, kind: str) -> None:
    verdict = of(RuntimeError("wrapped by some framework"), outcome)
    assert (verdict.next_step, verdict.kind) == (ruling, kind)


def test_the_failure_of_a_probe_spends_no_attempt_of_the_row_that_it_was_sent_with() -> None:
    outage = Outcome(Kind.TRANSIENT, Cause.OUTAGE)
    assert classify(OSError(), outage, None, key_failed=True).next_step is NextStep.CAPACITY


def test_a_function_that_fails_after_its_calls_were_answered_fails_for_good() -> None:
    assert of(KeyError("choices"), OK) == FailureClass(NextStep.PERMANENT, "KeyError")


@pytest.mark.parametrize(
    "outcome",
    [Outcome(Kind.OVERLOADED, Cause.UNAVAILABLE, status=503), Outcome(Kind.TRANSIENT, Cause.OUTAGE, row=UNREACHED)],
)
def test_verdict_on_503_or_unreached_server_spends_no_attempt(outcome: Outcome) -> None:
    assert of(RuntimeError("APIConnectionError"), outcome) == FailureClass(NextStep.CAPACITY, "outage")


@pytest.mark.parametrize("error", [AttributeError("'str' object has no attribute 'choices'"), KeyError("choices")])
def test_verdict_on_unreadable_answer_tries_again(error: Exception) -> None:
    assert of(error, Outcome(Kind.TRANSIENT, row=UNREADABLE)).next_step is NextStep.UNUSABLE
    assert of(json.JSONDecodeError("x", "{", 1), OK).next_step is NextStep.UNUSABLE
    assert of(error, OK).next_step is NextStep.PERMANENT


def test_verdict_after_an_answer_reads_no_words() -> None:
    assert of(ValueError("no score in 'Error code: 429'"), OK).next_step is NextStep.PERMANENT


class Unlucky(UnusableAnswer):
    pass


@pytest.mark.parametrize("outcome", [None, OK])
def test_an_answer_that_cannot_be_used_may_be_mended_by_another_one(outcome: Outcome | None) -> None:
    assert of(Unlucky("no number"), outcome) == FailureClass(NextStep.UNUSABLE, "Unlucky")
    assert of(Unlucky("no number"), RATE, RATE).next_step is NextStep.CAPACITY


@pytest.mark.parametrize(
    ("error", "ruling", "kind"),
    [
        (WithStatus(429, {"retry-after": "7"}), NextStep.CAPACITY, "rate"),
        *((WithStatus(each), NextStep.TRANSIENT, f"status {each}") for each in (408, 409, 425, 500, 502, 504, 599)),
        (WithStatus(503), NextStep.CAPACITY, "outage"),
        (named("PoolTimeout"), NextStep.CAPACITY, "outage"),
        (named("RateLimitError", "slow down"), NextStep.CAPACITY, "rate"),
        (Exception("Error code: 429 - Too Many Requests"), NextStep.CAPACITY, "rate"),
        (Exception("tokens per day limit exceeded"), NextStep.PARKED, "day"),
        (json.JSONDecodeError("x", "<html>", 0), NextStep.UNUSABLE, "JSONDecodeError"),
        (named("APIResponseValidationError"), NextStep.UNUSABLE, "APIResponseValidationError"),
        (KeyError("Error code: 429"), NextStep.PERMANENT, "KeyError"),
        (WithStatus(402), NextStep.PERMANENT, "money"),
        (WithStatus(400), NextStep.PERMANENT, "status 400"),
        (ConnectionResetError(), NextStep.TRANSIENT, "outage"),
        (TimeoutError(), NextStep.TRANSIENT, "timeout"),
        (asyncio.IncompleteReadError(b"", 1), NextStep.PERMANENT, "IncompleteReadError"),
        (ValueError("rate limit 429 mentioned in a text"), NextStep.PERMANENT, "ValueError"),
        (DeadlineExceeded(key=Key("x", "y"), waited=1.0, max_wait=1.0, gate="pace"), NextStep.CAPACITY, "rate"),
    ],
)
def test_without_a_governed_attempt_the_exception_says_it_by_its_structure(
    error: Exception, ruling: NextStep, kind: str
) -> None:
    verdict = of(error)
    assert (verdict.next_step, verdict.kind) == (ruling, kind)


def test_a_named_wait_is_read_from_the_exceptions_headers() -> None:
    assert of(WithStatus(429, {"retry-after": "7"})).retry_after == 7.0
    assert of(WithStatus(429, {"retry-after": "soon"})).retry_after is None


def test_an_error_is_kept_with_its_type_and_cut_to_length() -> None:
    assert redacted(KeyError("choices")) == "KeyError: 'choices'"
    assert redacted(TimeoutError()) == "TimeoutError"
    kept = redacted(ValueError("word " * 1000))
    assert kept.startswith("ValueError: word word")
    assert len(kept) == len(redacted(ValueError("word " * 2000))) < 2000


def test_an_error_that_cannot_say_its_text_is_kept_by_its_type() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert redacted(Mute()) == "Mute"
