"""Evidence of an exception that a client raised: its status, else its type, else its text. Never raises.

Theory of operation. An exception and those that it wraps are read as one failure, outermost first. A status takes
precedence, with the headers and the body of the answer that carries it. Without a status the names of the types count,
then whole words of the messages; each stands for a status. The provider's table then decides as for an answer
(`refusal_meaning`). Names and words that show that waiting cannot help (authentication, money, a request that never
fits) precede those that show that it can. A number in a message counts only at the position of a status (`HTTP 429`,
`Error code: 429`), never inside an id. Only failures without an answer have meanings of their own: `_CONNECTION_RULES`.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeGuard

from tidegate import providers
from tidegate.core.safe_text import lazy_pattern, printable
from tidegate.core.values import REFUSED, Cause, Kind, Outcome
from tidegate.providers import Provider

DecidedBy = Literal["status", "type", "text", "none"]
"""Fact that decided the meaning of an exception."""


class Classification(NamedTuple):
    """The meaning of a failure: its outcome, and the evidence for it.

    `window` names the longest span of the quota that a refusal tells of: `month`, `week`, `day`, `hour`, `minute` or
    `second`; empty where it tells of none.
    """

    outcome: Outcome
    evidence: DecidedBy
    window: str = ""

    @property
    def kind(self) -> Kind:
        return self.outcome.kind

    @property
    def cause(self) -> Cause:
        return self.outcome.cause

    @property
    def retry_after(self) -> float | None:
        """Return the wait that the failure names, in seconds; None if it names none."""
        return self.outcome.retry_after


UNREACHED = "unreached"
"""Row of an outcome where the request never reached a server."""

UNREADABLE = "unreadable"
"""Row of an outcome where the answer cannot be read: cut JSON, the HTML page of a gateway."""

NO_MEANING = Classification(Outcome(Kind.PERMANENT, Cause.INVALID, row="exception"), "none")
"""Classification of an exception without any evidence."""

MAX_CHAIN_LENGTH = 16
"""Exceptions read of one failure. Chosen: a longer chain is a loop."""

MAX_TEXT_CHARACTERS = 1 << 16
"""Characters read of all messages together. Chosen: more characters add no information."""

_UNREACHED_ERRNOS = frozenset({errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN})
"""System errors before any byte was sent."""

_CONNECTION_RULES = tuple(
    (frozenset(names.split()), Outcome(Kind.TRANSIENT, cause, row=row))
    for names, cause, row in (
        # httpx and urllib3 where this process has no free connection, which shows nothing about the server.
        ("PoolTimeout EmptyPoolError", Cause.NONE, UNREACHED),
        # A server that was reached, and whose certificate or protocol does not fit.
        ("SSLError SSLCertVerificationError ClientSSLError", Cause.OUTAGE, "connection"),
        # Sockets, httpx, httpx2, urllib3, requests, aiohttp and botocore before any byte was sent.
        ("ConnectionRefusedError gaierror ConnectError ConnectTimeout ConnectTimeoutError ConnectionTimeoutError"
         " NewConnectionError NameResolutionError EndpointConnectionError ClientConnectorError",
         Cause.OUTAGE, UNREACHED),
        # Answers that cannot be read: json, openai and anthropic, google-genai, botocore, aiohttp, httpx and requests.
        # Also pydantic's, for a model's answer that is not of the requested type.
        ("JSONDecodeError APIResponseValidationError UnknownApiResponseError ResponseParserError ContentTypeError"
         " DecodingError ContentDecodingError ValidationError", Cause.NONE, UNREADABLE),
        # Answers that did not arrive in time, by clients without a common base.
        ("Timeout TimeoutError TimeoutException APITimeoutError ReadTimeout ReadTimeoutError", Cause.NONE, "timeout"),
        # Broken connections, by clients without a common base.
        ("ConnectionError APIConnectionError ClientConnectionError ClientPayloadError ChunkedEncodingError"
         " ProtocolError NetworkError HTTPClientError IncompleteRead", Cause.OUTAGE, "connection"),
    )
)  # fmt: skip
"""Names of types of failures without an answer, and what they mean, in the order in which they decide."""

_BUG_TYPES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    SyntaxError,
    TypeError,
)
"""Built-in exceptions of a mistake in the caller's own code: neither text nor context is evidence."""

_TYPE_STATUSES = tuple(
    (lazy_pattern(rf"\w*(?:{names})(?:Error|Exception|Fault)?"), status)
    for names, status in (
        ("Authentication|Unauthori[sz]ed|PermissionDenied|AccessDenied|InvalidApiKey|InvalidAPIKey", 401),
        (r"Insufficient(?:Quota|Credits?|Balance|Funds)|PaymentRequired|BudgetExceeded|BillingHardLimit\w*", 402),
        ("Context(?:Window|Length)(?:Exceeded)?|RequestTooLarge|PayloadTooLarge", 413),
        ("Rate_?Limit(?:ed|s)?(?:Exceeded|Reached|Hit)?|TooManyRequests?|Throttl(?:ing|ed)|UnavailableTokens"
         "|ResourceExhausted|(?:RequestLimit|ProvisionedThroughput)Exceeded", 429),
        ("Overloaded|ModelNotReady", 529),
        ("ServiceUnavailable", 503),
    )
)  # fmt: skip
"""Statuses that names of types without a common base stand for (openai, anthropic, litellm, langchain, botocore,
google.api_core), in the order in which they decide."""

_FINAL = frozenset({401, 402, 413})
"""Statuses that a name or a phrase stands for by itself: other words of the message change nothing."""

_GRPC_CODES = {
    "RESOURCE_EXHAUSTED": 429,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
    "INTERNAL": 500,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "INVALID_ARGUMENT": 400,
}
"""HTTP statuses of gRPC's codes (google.rpc.Code)."""

_STATUS_END = r"(?![0-9A-Za-z_]|[.\-/]\w)"
_STATUS_SAID = lazy_pattern(
    r"(?<![\w.\-/])(?:http(?:/[0-9](?:\.[0-9])?)?|(?:http[ _-]?)?status(?:[ _-]?code)?|(?:error|response)[ _-]?code"
    r"|code|error|response)['\"]?(?: (?:is|was|of))?\s{0,3}[:=(\[<]{0,2}\s{0,3}['\"\[]?([45][0-9]{2})" + _STATUS_END
)
"""A status after a word that announces it (`Error code: 429`)."""

_STATUS_FIRST = lazy_pattern(
    r"\s{0,8}['\"(\[<]?([45][0-9]{2})" + _STATUS_END + r"(?!\s+(?!status|is |was |has )[a-z]+s\b)"
)
"""A status at the beginning of a message, but no count (`429 rows were skipped`)."""

_FINAL_WORDS = lazy_pattern(
    r"\b(?:(?P<s401>(?:incorrect|invalid|wrong|missing|expired)[ _](?:x-)?api[ _-]?key|authentication[ _]error"
    r"|authentication failed|unauthenticated|unauthorized)"
    r"|(?P<s402>insufficient[ _]quota|insufficient (?:balance|credits?|funds)|payment required"
    r"|credit balance is too low|billing[ _]hard[ _]limit(?:[ _]reached)?|(?:run )?out of credits"
    r"|no credits remaining)"
    r"|(?P<s413>context[ _](?:length|window)[ _]exceeded|maximum context length|request[ _]too[ _]large"
    r"|prompt is too long))\b"
)
"""Phrases of failures that waiting cannot help: authentication, money, size of the request."""

_RATE_WORDS = lazy_pattern(
    r"\b(?:ratelimiterror|rate[ _-]limits?[ _-](?:error|exceeded|reached|hit)|rate[ _-]?limited"
    r"|(?:exceeded|reached|hit|over)(?: (?:the|your|our|its|a|api|current)){0,3} rate[ _-]limits?"
    r"|too[ _]many[ _]requests|(?:tokens?|requests?) per (?:second|minute|hour|day)(?: \([a-z]{3}\))? limit"
    r"(?: was| has been)? (?:exceeded|reached)|limit (?:exceeded|reached)[^.]{0,40} (?:tokens|requests) per "
    r"(?:second|minute|hour|day)|throttl(?:ing|ed)(?:exception)?|resource[ _](?:has been )?exhausted"
    r"|quota exceeded)\b"
)
SPANS = ("month", "week", "day", "hour", "minute", "second")
"""Spans of quotas, the longest first."""

_SPAN_WORDS = {"monthly": "month", "weekly": "week", "daily": "day", "hourly": "hour", "rpd": "day", "tpd": "day",
               "rpm": "minute", "tpm": "minute", "rps": "second"}  # fmt: skip
"""Words of a refusal that name the span of its quota by themselves."""

_SPAN_SAID = lazy_pattern(rf"(?:\b(?:per[ _-]|an? |each |every )|/)({'|'.join(SPANS)})\b|\b({'|'.join(_SPAN_WORDS)})\b")
_OVERLOAD_WORDS = lazy_pattern(
    r"\b(?:overloaded[ _]error|(?:server|model|engine|service) (?:is )?(?:currently )?overloaded)\b"
)


def classify_error(
    error: BaseException, now_on: datetime, provider: Provider = providers.COMPATIBLE, answered: bool = False
) -> Classification:
    """Return the meaning of an exception, read by the table of `provider`;

    `now_on` is aware. Messages of a call that was `answered` before it raised decide nothing: they may quote the
    answer. An exception that was being handled counts only where the newer one means nothing.
    """
    try:
        found = _classified(list(_chain(error, contexts=False)), provider, now_on, answered)
        if found.evidence == "none" and not answered:
            found = _classified(list(_chain(error, contexts=True)), provider, now_on, answered)
        return found
    except Exception:
        # Attributes and texts of a foreign exception may do anything.
        return NO_MEANING


def classify(error: object, *, status: int | None = None, provider: str | None = None) -> Classification:
    """Return the meaning of a failure; never raise.

    `error` is an exception, a text, or a mapping of a job: `last_error`, `error` and `analysis_result.error` are its
    texts, `last_error_type` the name of an exception's type. A `status` (HTTP) decides before them, read by the table
    of `provider`. Without a status, names of types decide, then whole words. A number in a text counts only where a
    status stands.
    """
    table = (providers.named(provider) if isinstance(provider, str) else None) or providers.COMPATIBLE
    now_on = datetime.now(UTC)
    try:
        failure = error if isinstance(error, BaseException) else _as_exception(error)
        said = _said(list(_chain(failure, contexts=False)))
        if _is_status(status):
            found = Classification(_judged(table, status, [], said.encode("utf-8", "ignore"), now_on), "status")
        else:
            found = classify_error(failure, now_on, table)
    except Exception:
        # A mapping or a text of the caller may do anything.
        return NO_MEANING
    return found._replace(window=_window_said(found.outcome, said))


def _as_exception(error: object) -> Exception:
    """Return an exception with the text, and the name of the type, that a job's record has."""
    if not isinstance(error, Mapping):
        return Exception("" if error is None else str(error))
    result = error.get("analysis_result")
    texts = [error.get("last_error"), error.get("error"), result.get("error") if isinstance(result, Mapping) else None]
    name = str(error.get("last_error_type") or "").rpartition(".")[2]
    kind: type[Exception] = type(name, (Exception,), {}) if name else Exception
    return kind("\n".join(str(each) for each in texts if each is not None))


def _window_said(outcome: Outcome, said: str) -> str:
    if outcome.kind not in REFUSED:
        return ""
    spans = {found[1] or _SPAN_WORDS[found[2]] for found in _SPAN_SAID.finditer(said)}
    if outcome.kind is Kind.DAILY_LIMIT:
        spans.add("day")
    return next((each for each in SPANS if each in spans), "")


def connection_failure(error: BaseException) -> Outcome | None:
    """Return the outcome that the types of an exception show for the connection; None if they show none."""
    return _connection(list(_chain(error, contexts=False)))


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an exception of a client carries; None if it carries none."""
    response = _attribute(error, "response")
    if isinstance(response, Mapping):
        metadata = response.get("ResponseMetadata")
        status = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
        if _is_status(status):
            return status
    for holder, name in ((error, "status_code"), (error, "status"), (response, "status_code"), (response, "status")):
        value = _attribute(holder, name)
        if _is_status(value):
            return int(value)
    code = _attribute(error, "code")
    if _is_status(code) and code >= 400 and isinstance(error, Exception):
        return int(code)
    if callable(code) and type(error).__module__.partition(".")[0] == "grpc":
        return _GRPC_CODES.get(str(_attribute(code(), "name")))
    return None


def text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT_CHARACTERS]
    except Exception:
        return ""


def _classified(chain: list[BaseException], provider: Provider, now_on: datetime, answered: bool) -> Classification:
    for error in chain:
        status = status_of(error)
        if status is not None and status < 400:
            # An answer arrived and was unusable: its type shows why.
            break
        if status is not None:
            return Classification(_judged(provider, status, *_answer_of(error), now_on), "status")
    evidence: DecidedBy = "type"
    said = "" if answered else _said(chain)
    status, name = _typed(chain)
    if status is None and (failure := _connection(chain)) is not None:
        return Classification(failure, evidence)
    final = _FINAL_WORDS.search(said) if status not in _FINAL else None
    stated = None
    if final is not None:
        status, evidence = int(str(final.lastgroup)[1:]), "text"
    elif status is None:
        stated = _status_said(said)
        status, evidence = stated or _worded(said), "text"
    if status is None:
        return NO_MEANING
    body = None if status in _FINAL and stated is None else f"{name}{said}".encode("utf-8", "ignore")
    outcome = providers.judge(provider, status, (), body, now_on)
    if stated is not None and outcome.cause is Cause.INVALID:
        # A message may number its own errors: a number in a text is read only as a refusal or an outage.
        return NO_MEANING
    return Classification(outcome._replace(row=evidence, status=stated), evidence)


def _chain(error: BaseException, contexts: bool) -> Iterator[BaseException]:
    """Yield the exception and those that it wraps, outermost first, each once."""
    seen: set[int] = set()
    waiting = [error]
    while waiting and len(seen) < MAX_CHAIN_LENGTH:
        each = waiting.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += _wrapped(each, contexts)


def _wrapped(error: BaseException, contexts: bool) -> list[BaseException]:
    found: list[Any] = []
    if isinstance(error, BaseExceptionGroup):
        found += error.exceptions
    attempt = _attribute(error, "last_attempt")
    if callable(_attribute(attempt, "exception")):
        # The `RetryError` of tenacity holds a future of the last attempt.
        found.append(attempt.exception())
    found += [_attribute(error, "reason"), _attribute(error, "original_error")]
    arguments = _attribute(error, "args")
    found += list(arguments[:4]) if isinstance(arguments, tuple) else []
    if error.__cause__ is not None:
        found.append(error.__cause__)
    elif contexts and not error.__suppress_context__ and not isinstance(error, _BUG_TYPES):
        found.append(error.__context__)
    return [each for each in found if isinstance(each, BaseException)]


def _answer_of(error: BaseException) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return headers and body of the answer that an exception holds; of Amazon's, its code and message as the body."""
    response = _attribute(error, "response")
    if not isinstance(response, Mapping):
        headers = _attribute(response, "headers")
        return _pairs(headers if isinstance(headers, Mapping) else _attribute(error, "headers")), _body(error, response)
    failure, metadata = response.get("Error"), response.get("ResponseMetadata")
    failure = failure if isinstance(failure, Mapping) else {}
    named = {"code": str(failure.get("Code", "")), "message": str(failure.get("Message", ""))}
    return _pairs(metadata.get("HTTPHeaders") if isinstance(metadata, Mapping) else None), json.dumps(named).encode()


def _judged(
    provider: Provider, status: int, pairs: list[tuple[bytes, bytes]], body: bytes | None, now_on: datetime
) -> Outcome:
    """Return the meaning of an answer; a rejection may hold for its key."""
    outcome = providers.judge(provider, status, pairs, body, now_on)
    return outcome._replace(of_key=providers.concerns_key(outcome, body))


def _typed(chain: list[BaseException]) -> tuple[int | None, str]:
    """Return the status of the first rule that any type of the chain fits, and its name as a message begins with it."""
    names = [each.__name__ for error in chain for each in type(error).__mro__]
    for pattern, status in _TYPE_STATUSES:
        fitting = next((name for name in names if pattern.fullmatch(name)), None)
        if fitting is not None:
            return status, f"{fitting}: "
    return None, ""


def _connection(chain: list[BaseException]) -> Outcome | None:
    """Return the outcome that the types show for a connection or an unreadable answer; None if they show none."""
    names = {each.__name__ for error in chain for each in type(error).__mro__}
    if any(isinstance(error, OSError) and error.errno in _UNREACHED_ERRNOS for error in chain):
        names.add(ConnectionRefusedError.__name__)
    return next((outcome for types, outcome in _CONNECTION_RULES if not names.isdisjoint(types)), None)


MAX_ERROR_CHARACTERS = 200
"""Characters of an error's text in messages."""


def error_text(error: BaseException) -> str:
    """Return the class of a connection error, and the system's words: a library's may hold a URL's credential."""
    chain = _chain(error, contexts=True)
    system = (each for each in chain if isinstance(each, OSError) and each.errno is not None and each.strerror)
    text = next((f": [Errno {each.errno}] {each.strerror}" for each in system), "")
    return printable(f"{type(error).__name__}{text}")[:MAX_ERROR_CHARACTERS]


def _said(chain: list[BaseException]) -> str:
    """Return the messages of a chain in lower case, joined, without those of mistakes and exits."""
    texts: list[str] = []
    left = MAX_TEXT_CHARACTERS
    for error in chain:
        if isinstance(error, _BUG_TYPES) or not isinstance(error, Exception) or left <= 0:
            continue
        text = text_of(error)[:left]
        left -= len(text)
        texts.append(" ".join(text.lower().replace("’", "'").split()))
    return "\n".join(texts)


def _worded(said: str) -> int | None:
    """Return the status that words of a message stand for."""
    return 429 if _RATE_WORDS.search(said) else 529 if _OVERLOAD_WORDS.search(said) else None


def _status_said(said: str) -> int | None:
    for text in said.split("\n"):
        found = _STATUS_FIRST.match(text) or _STATUS_SAID.search(text)
        if found is not None:
            return int(found[1])
    return None


def _is_status(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value < 600


def _attribute(holder: object, name: str) -> Any:
    if holder is None:
        return None
    try:
        return getattr(holder, name, None)
    except Exception:
        # A property of an unread response, or of a hostile object.
        return None


def _pairs(headers: object) -> list[tuple[bytes, bytes]]:
    if not isinstance(headers, Mapping):
        return []
    try:
        return [(str(name).encode("latin-1", "replace"), str(value).encode("latin-1", "replace"))
                for name, value in headers.items()]  # fmt: skip
    except Exception:
        return []


def _body(error: BaseException, response: object) -> bytes:
    content = _attribute(response, "content")
    if isinstance(content, bytes) and content:
        return content
    body = _attribute(error, "body")
    if isinstance(body, dict | list):
        try:
            return json.dumps(body).encode()
        except (TypeError, ValueError, RecursionError):
            pass
    return text_of(error).encode("utf-8", "ignore")
