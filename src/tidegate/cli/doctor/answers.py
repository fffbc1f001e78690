"""`tidegate doctor --explain`: the meaning of a provider's answer, and the action that tidegate would take."""

from __future__ import annotations

import difflib
import io
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate import providers
from tidegate.admission.accounts import account_of, shared_by
from tidegate.core.backoff import ABSURD_HINT_SECONDS, MAX_PAUSE_SECONDS
from tidegate.core.safe_text import json_line, masked, printable
from tidegate.core.values import CAPACITY, Key, Kind, Outcome, RequestFacts
from tidegate.core.wait_text import duration
from tidegate.settings import Settings
from tidegate.transports.request_key import RequestRoute, base_url

MAX_LINE_BYTES = 1 << 24
"""Maximum bytes of one line, which is read as a whole. Chosen: more than any answer needs."""

RETURNED = {
    Kind.OK: "return the answer",
    Kind.DAILY_LIMIT: "return the refusal: the daily quota is used up, and the answer names no reset time",
    Kind.QUOTA_EXHAUSTED: "return the refusal: it lasts until the account gets credit or a higher quota",
    Kind.TRANSIENT: "return the failure: the SDK or `execute` may retry it",
    Kind.PERMANENT: "return the failure: another attempt would fail too",
}


class BadLine(ValueError):
    """Line that is not a valid answer. Its text states the error."""


def explain() -> bool:
    """Explain answers of providers, one JSON object per line of standard input.

    A line is {"provider": name or null, "url": ..., "model": ..., "status": ..., "headers": {...}, "body": ..., "now":
    RFC 3339 or null}. For each answer, print one line of JSON, or on a terminal a table. For a line that is not an
    answer, print {"error": ...} and continue. A provider without a table is an error too; the url then decides how the
    answer is read. Return whether there was no error.
    """
    settings = Settings.from_environment()
    _set_output_encoding()
    if sys.stdin.isatty():
        print("tidegate: paste an answer as one line of JSON; Ctrl-D ends", file=sys.stderr)  # noqa: T201
    console = Console() if sys.stdout.isatty() else None
    failed = False
    for found in explained(sys.stdin.buffer, settings):
        failed = failed or "error" in found
        if console is None:
            print(json_line(found), flush=True)  # noqa: T201
        else:
            console.print(_table(found))
    return not failed


def _set_output_encoding() -> None:
    # JSON is UTF-8 in any locale. Half a surrogate pair, which UTF-8 cannot encode, is written as an escape.
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding = None if sys.stdout.isatty() else "utf-8"
        sys.stdout.reconfigure(encoding=encoding, errors="backslashreplace")


def explained(lines: Any, settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield the explanation of each non-blank line of a binary stream; for an unusable line, an `error` object."""
    while line := lines.readline(MAX_LINE_BYTES):
        if not line.strip():
            continue
        if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            while (rest := lines.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            yield {"error": f"line ignored: it is longer than {MAX_LINE_BYTES} bytes"}
            continue
        try:
            yield explanation(line, settings)
        except BadLine as error:
            yield {"error": str(error)}


def explanation(line: bytes, settings: Settings) -> dict[str, Any]:
    """Return the meaning of the answer on `line`; raise `BadLine`.

    `account` names the key of the quotas that its key shares, if the answer states such.
    """
    answer = _object(line)
    status = answer.get("status")
    if type(status) is not int or not 100 <= status <= 599:
        why = ": it is a string, not a number" if isinstance(status, str) else " (100 to 599)"
        raise BadLine(f"status: {status!r} is not an HTTP status{why}")
    provider, key, unknown = _addressed(answer, settings)
    headers, now = _headers(answer), _instant(answer)
    if now is not None:
        headers = [(name, value) for name, value in headers if name.lower() != b"date"]
    body = _body(answer)
    outcome = _judged(provider, status, headers, body, now or datetime.now(UTC))
    returns_on = providers.return_date(body or b"") if outcome.kind is Kind.QUOTA_EXHAUSTED else ""
    return {
        **({"error": unknown} if unknown else {}),
        "provider": provider.name,
        "key": " · ".join(part for part in str(key).split(" · ") if part.strip()),
        **_account(key, outcome, settings),
        "kind": outcome.kind.value,
        **providers.dimensions(outcome, provider),
        "retry_after_s": outcome.retry_after,
        **({"returns_on": returns_on} if returns_on else {}),
        "will": _will(outcome, settings, returns_on),
        "why": outcome.row or f"status {status}",
    }


def _account(key: Key, outcome: Outcome, settings: Settings) -> dict[str, str]:
    found = shared_by(key, settings)
    if found is None or not any(found[1].covers(each.name, each.unit) for each in outcome.readings):
        return {}
    return {"account": str(account_of(key, found[0]))}


def _judged(
    provider: providers.Provider, status: int, headers: list[tuple[bytes, bytes]], body: bytes | None, now: datetime
) -> Outcome:
    outcome = providers.judge(provider, status, headers, body, now)
    failure = providers.judge_event(provider, body) if status < 400 and body else None
    if failure is None:
        return outcome
    named = {reading.name for reading in failure.readings}
    readings = (*failure.readings, *(reading for reading in outcome.readings if reading.name not in named))
    return failure._replace(readings=readings, status=status)


def _will(outcome: Outcome, settings: Settings, returns_on: str) -> str:
    wait = outcome.retry_after
    if outcome.kind is Kind.DAILY_LIMIT and wait:
        if wait <= settings.max_wait:
            return f"wait {duration(wait)} for the named reset, then retry with a single call; no call goes before"
        late = f"the named reset is in {duration(wait)}, after max_wait ({duration(settings.max_wait)})"
        return f"return the refusal: {late}"
    if returns_on:
        return f"return the refusal: the provider names {returns_on} as its end"
    if outcome.kind not in CAPACITY:
        return RETURNED[outcome.kind]
    if wait is None or wait >= ABSURD_HINT_SECONDS:
        return "wait for the quotas of the key, or for a growing backoff, then retry"
    if wait > MAX_PAUSE_SECONDS:
        longest = duration(MAX_PAUSE_SECONDS)
        tried = f"a single call tries after at most {longest}, and then as often until one is admitted"
        return f"wait, at the longest the named {duration(wait)}: {tried}"
    return f"wait {duration(wait)}, then retry"


def _object(line: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"line ignored: it is not JSON ({str(error)[:200]})") from None
    if not isinstance(answer, dict):
        raise BadLine("line ignored: it is not a JSON object")
    return answer


def _text(answer: dict[str, Any], name: str) -> str:
    value = answer.get(name)
    if value is not None and not isinstance(value, str):
        raise BadLine(f"{name}: it must be a string or null")
    return value or ""


def _addressed(answer: dict[str, Any], settings: Settings) -> tuple[providers.Provider, Key, str]:
    """Return provider, key and error of an answer: by the hint, else by the address, else by `COMPATIBLE`.

    The error, if any, says that no table has the name in the hint; the address then decides.
    """
    hint, model = _text(answer, "provider"), _text(answer, "model")
    try:
        url = urlsplit(_text(answer, "url"))
        host, port = url.hostname or "", url.port
    except ValueError as error:
        raise BadLine(f"url: {error}") from None
    known = providers.recognise(host, url.path) or providers.adopt(host, url.path, None)
    named = providers.named(hint)
    provider = named or known or providers.COMPATIBLE
    unknown = ""
    if hint and named is None:
        unknown = f"provider: {hint!r} is unknown{_nearest(hint)}; the answer is read as {provider.name!r}"
    place = provider.endpoint(url.path)
    inquiry = RequestFacts(place[1] if place is not None and place[1] else model)
    route = RequestRoute(provider, url.scheme or "https", host, port, url.path)
    scope = providers.scope(provider, inquiry, host, url.path, settings.level_of(provider.name))
    key = Key(provider.name, masked(base_url(route)), "", scope, providers.family_of(provider, url.path))
    return provider, key, unknown


def _nearest(hint: str) -> str:
    near = difflib.get_close_matches(hint, [table.name for table in providers.TABLES], 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _headers(answer: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    given = answer.get("headers")
    if given is None:
        return []
    if not isinstance(given, dict):
        raise BadLine("headers: it must be an object")
    pairs = [
        (name, value)
        for name, values in given.items()
        for value in (values if isinstance(values, list) else [values])
        if value is not None
    ]
    return [(name.encode("latin-1", "replace"), str(value).encode("latin-1", "replace")) for name, value in pairs]


def _body(answer: dict[str, Any]) -> bytes | None:
    body = answer.get("body")
    if body is None:
        return None
    return (body if isinstance(body, str) else json.dumps(body)).encode("utf-8", "replace")


def _instant(answer: dict[str, Any]) -> datetime | None:
    text = _text(answer, "now")
    if not text:
        return None
    try:
        now = datetime.fromisoformat(text)
    except ValueError:
        raise BadLine(f"now: {text[:40]!r} is not an RFC 3339 time") from None
    return now if now.tzinfo is not None else now.replace(tzinfo=UTC)


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE, show_header=False)
    for name, value in found.items():
        if isinstance(value, dict):
            value = ", ".join(f"{what} {number:g}" for what, number in value.items())
        # Not as markup: a model or an address may contain brackets.
        table.add_row(name, Text("" if value is None else printable(str(value))))
    return table
