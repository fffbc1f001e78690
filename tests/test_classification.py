"""The meaning of an exception: by status, by type, by words."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.values import Cause, Kind
from tidegate.providers.classification import UNREACHED, UNREADABLE, classify_error, error_text

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RATE, DAY, MONEY, TRANSIENT, PERMANENT = (
    Kind.RATE_LIMIT,
    Kind.DAILY_LIMIT,
    Kind.QUOTA_EXHAUSTED,
    Kind.TRANSIENT,
    Kind.PERMANENT,
)


def classified(error: BaseException, answered: bool = False) -> Any:
    return classify_error(error, NOW, answered=answered)


def named(name: str, text: str = "", *bases: type, **facts: Any) -> Exception:
    made = type(name, bases or (Exception,), {})(text)
    for each, value in facts.items():
        setattr(made, each, value)
    return made


class Client(Exception):
    """An exception of botocore's form: its response is a mapping."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"An error occurred ({code})")
        self.response = {
            "Error": {"Code": code, "Message": "Rate exceeded"},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {"retry-after": "3"}},
        }


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (named("RateLimitError", "slow down"), RATE),
        (named("OpenAIRateLimitError"), RATE),
        (named("ThrottlingException", "Rate exceeded"), RATE),
        (named("ModelThrottledException"), RATE),
        (named("TooManyRequestsError"), RATE),
        (named("TooManyRequests"), RATE),
        (named("UnavailableTokensError"), RATE),
        (named("ResourceExhausted", "429 Quota exceeded"), RATE),
        (named("Mine", "", type("RateLimitError", (Exception,), {})), RATE),
        (named("OverloadedError"), Kind.OVERLOADED),
        (named("AuthenticationError", "no"), PERMANENT),
        (named("BudgetExceededError"), MONEY),
        (named("ContextWindowExceededError"), PERMANENT),
        (named("RateLimitError", "insufficient_quota: check your plan"), MONEY),
        (named("RateLimitError", "Incorrect API key provided"), PERMANENT),
        (named("RateLimitError", "on tokens per day (TPD): Limit 10"), DAY),
        (named("RateLimitError", "tokens per min: Limit 10000, Requested 20000"), PERMANENT),
        (named("RateLimitConfigError"), PERMANENT),
        (named("NoRateLimits2"), PERMANENT),
    ],
)
def test_type_name_without_status_decides(error: Exception, kind: Kind) -> None:
    assert classified(error).outcome.kind is kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error code: 429 - Too Many Requests", RATE),
        ("429", RATE),
        ("429 RESOURCE_EXHAUSTED. {'error': {}}", RATE),
        ("429 Client Error: Too Many Requests for url: http://x", RATE),
        ("HTTP 429", RATE),
        ("HTTP/1.1 429 Too Many Requests", RATE),
        ("status=429", RATE),
        ("failed (status code: 429)", RATE),
        ("{'code': 429, 'message': 'slow down'}", RATE),
        ("Client error '429 Too Many Requests' for url 'http://x'", RATE),
        ("litellm.RateLimitError: GroqException - try again", RATE),
        ("too many requests", RATE),
        ("requests per minute limit exceeded", RATE),
        ("Rate limit reached for gpt-5 on requests per min", RATE),
        ("tokens per day limit exceeded", DAY),
        ("An error occurred (ThrottlingException) when calling InvokeModel", RATE),
        ("Error code: 503 - upstream", Kind.OVERLOADED),
        ("Error code: 529", Kind.OVERLOADED),
        ("overloaded_error: Overloaded", Kind.OVERLOADED),
        ("HTTP 500", TRANSIENT),
        ("Error code: 429 - insufficient_quota", MONEY),
        ("Error code: 401 - invalid api key", PERMANENT),
        ("invalid api key; rate limit exceeded", PERMANENT),
        ("maximum context length is 8192, rate limit exceeded", PERMANENT),
        ("arXiv 2503.10298 not found", PERMANENT),
        ("req-429a failed", PERMANENT),
        ("request req-429 failed", PERMANENT),
        ("row 429", PERMANENT),
        ("error in row 429", PERMANENT),
        ("429 rows were skipped", PERMANENT),
        ("status 4290", PERMANENT),
        ("status 429.5", PERMANENT),
        ("code 429-b", PERMANENT),
        ("https://x/429/page", PERMANENT),
        ("generated without delay", PERMANENT),
        ("a text that speaks of rate limits", PERMANENT),
    ],
)
def test_text_without_status_decides_by_whole_words(text: str, kind: Kind) -> None:
    assert classified(Exception(text)).outcome.kind is kind


def test_text_of_a_refusal_names_the_wait() -> None:
    outcome = classified(Exception("Error code: 429 - rate limit reached. Please try again in 7.5s.")).outcome
    assert (outcome.kind, outcome.retry_after) == (RATE, 7.5)


@pytest.mark.parametrize("bug", [TypeError, KeyError, AttributeError, IndexError, AssertionError, NameError])
def test_text_of_a_bug_says_nothing(bug: type[Exception]) -> None:
    found = classified(bug("Error code: 429 too many requests"))
    assert (found.outcome.kind, found.evidence) == (PERMANENT, "none")


def test_text_after_an_answer_says_nothing() -> None:
    found = classified(ValueError("no score in: 'Error code: 429, too many requests'"), answered=True)
    assert found.evidence == "none"


@pytest.mark.parametrize(
    ("error", "kind", "cause"),
    [
        (named("X", "too many requests", status_code=400), PERMANENT, Cause.INVALID),
        (named("RateLimitError", "", status_code=500), TRANSIENT, Cause.OUTAGE),
        (named("X", "", status=429), RATE, Cause.RATE),
        (named("X", "", code=429), RATE, Cause.RATE),
        (named("X", "", code="429"), PERMANENT, Cause.INVALID),
        (named("X", "", status_code=True), PERMANENT, Cause.INVALID),
        (named("X", "", response=SimpleNamespace(status_code=429)), RATE, Cause.RATE),
        (named("X", "", status_code=401), PERMANENT, Cause.AUTH),
        (named("X", "", status_code=429, body={"error": {"code": "insufficient_quota"}}), MONEY, Cause.MONEY),
        (Client(429, "ThrottlingException"), RATE, Cause.RATE),
        (Client(400, "ThrottlingException"), RATE, Cause.RATE),
        (Client(400, "ValidationException"), PERMANENT, Cause.INVALID),
    ],
)
def test_status_decides_before_type_and_text(error: Exception, kind: Kind, cause: Cause) -> None:
    outcome = classified(error).outcome
    assert (outcome.kind, outcome.cause) == (kind, cause)


def test_status_with_headers_names_the_wait() -> None:
    assert classified(named("X", "", status_code=429, headers={"retry-after": "7"})).outcome.retry_after == 7.0
    assert classified(Client(429, "ThrottlingException")).outcome.retry_after == 3.0


def wrapping(inner: Exception, outer: Exception, explicit: bool) -> Exception:
    try:
        try:
            raise inner
        except Exception as error:
            if explicit:
                raise outer from error
            raise outer  # noqa: B904
    except Exception as raised:
        return raised


class TestChains:
    @pytest.mark.parametrize("explicit", [True, False])
    def test_wrapped_status_decides(self, explicit: bool) -> None:
        error = wrapping(named("X", "", status_code=429), RuntimeError("the agent failed"), explicit)
        assert classified(error).outcome.kind is RATE

    def test_bug_in_a_handler_stays_a_bug(self) -> None:
        error = wrapping(named("X", "", status_code=429), KeyError("choices"), explicit=False)
        assert classified(error).evidence == "none"

    def test_error_in_a_handler_with_a_meaning_of_its_own_decides(self) -> None:
        error = wrapping(named("X", "", status_code=429), json.JSONDecodeError("x", "", 0), explicit=False)
        assert classified(error).outcome.row == UNREADABLE

    def test_suppressed_context_is_not_read(self) -> None:
        error = wrapping(named("X", "", status_code=429), RuntimeError("mine"), explicit=False)
        error.__suppress_context__ = True
        assert classified(error).evidence == "none"

    def test_group_is_read_by_its_members(self) -> None:
        group = ExceptionGroup("g", [ValueError("x"), named("RateLimitError")])
        assert classified(group).outcome.kind is RATE

    def test_cycle_ends(self) -> None:
        one, other = RuntimeError("a"), RuntimeError("b")
        one.__cause__, other.__cause__ = other, one
        assert classified(one).evidence == "none"


@pytest.mark.parametrize(
    ("error", "row", "cause"),
    [
        (ConnectionRefusedError("no"), UNREACHED, Cause.OUTAGE),
        (OSError(errno.ENETUNREACH, "no route"), UNREACHED, Cause.OUTAGE),
        (named("ConnectTimeout"), UNREACHED, Cause.OUTAGE),
        (named("EndpointConnectionError"), UNREACHED, Cause.OUTAGE),
        (named("PoolTimeout"), UNREACHED, Cause.NONE),
        (wrapping(named("ConnectError"), named("APIConnectionError"), True), UNREACHED, Cause.OUTAGE),
        (wrapping(named("SSLError"), named("APIConnectionError"), True), "connection", Cause.OUTAGE),
        (ConnectionResetError("cut"), "connection", Cause.OUTAGE),
        (named("APIConnectionError"), "connection", Cause.OUTAGE),
        (TimeoutError(), "timeout", Cause.NONE),
        (named("ReadTimeout"), "timeout", Cause.NONE),
        (json.JSONDecodeError("x", "<html>", 0), UNREADABLE, Cause.NONE),
        (named("APIResponseValidationError", "", status_code=200), UNREADABLE, Cause.NONE),
        (named("ResponseParserError"), UNREADABLE, Cause.NONE),
    ],
)
def test_connection_and_answer_failures_are_told_apart(error: Exception, row: str, cause: Cause) -> None:
    outcome = classified(error).outcome
    assert (outcome.kind, outcome.row, outcome.cause) == (TRANSIENT, row, cause)


class Hostile(Exception):
    """An exception whose every attribute and text raises."""

    def __str__(self) -> str:
        raise RuntimeError

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


@pytest.mark.parametrize("make", [Hostile, lambda: SystemExit(429), lambda: ExceptionGroup("g", [Hostile()])])
def test_hostile_exception_means_nothing(make: Callable[[], BaseException]) -> None:
    assert classified(make()).evidence == "none"


@given(st.text(max_size=300))
def test_any_text_is_read_without_raising(text: str) -> None:
    assert classified(Exception(text)).outcome.kind in Kind


@given(st.from_regex(r"[a-z]{1,4}-?429[a-z0-9.]{1,6}", fullmatch=True))
def test_number_inside_an_id_is_no_status(identity: str) -> None:
    assert classified(Exception(f"row {identity} has no answer")).outcome.kind is PERMANENT


def test_long_text_is_read_in_bounded_time() -> None:
    # Two million characters that begin every pattern and end none: a pattern that backtracks would not return.
    assert classified(Exception("limit exceeded rate error: " * 80_000)).evidence == "none"


def test_text_of_an_error_is_the_words_of_the_system_and_never_those_of_a_library() -> None:
    with pytest.raises(requests.ConnectionError) as refused:
        requests.post("http://127.0.0.1:9/v1beta/models/g:generateContent?key=AIza-secret", timeout=5)
    assert "secret" in str(refused.value)
    assert error_text(refused.value) == "ConnectionError: [Errno 111] Connection refused"
    assert error_text(ConnectionError("connection to https://a.test/?subscription=secret lost")) == "ConnectionError"
