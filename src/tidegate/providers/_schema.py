"""The structure of a provider's table, checked when it is made.

Theory of operation. A table is data: the provider's hosts, its inference paths, the names of its headers, and the
meaning of its refusals. Each table and each row names its `source`. A wrong row raises `ConfigurationError` at import,
never at a request.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Literal

from tidegate.core.values import Cause, Kind, Refill, Unit
from tidegate.errors import require
from tidegate.providers._paths import MAX_PATH, Endpoint, Paths, endpoint_of

UNITS = frozenset(
    [
        "requests",
        "tokens",
        "input_tokens",
        "output_tokens",
        "uncached_input_tokens",
        "concurrent_requests",
        "input_images",
        "input_characters",
        "audio_seconds",
        "ocr_pages",
    ]
)
"""Units a row may count in; `Cost.amount` is 0 for those without an estimate."""

Amount = Literal["nothing", "input", "input+max", "input+mean", "mean"]
"""The charged quantity: estimated input, with the request's own output bound (`max`) or the learned mean output."""

AMOUNTS: tuple[Amount, ...] = ("nothing", "input", "input+max", "input+mean", "mean")

Bare = Literal["fit", "seconds"]
"""Unit of a bare integer reset. `fit` chooses s or ms by the likelier fit to limit and remaining, or rejects both."""

LIMIT, REMAINING, RESET, PERIOD, POLICY, COMBINED, CELLS = 0, 1, 2, 3, 4, 5, 6
"""Places of a row's raw values while a response is read, and their number."""

SPECIAL = -1
"""Row number of the headers that do not belong to a quota; noted headers are numbered from -2 downwards."""
DATE, RETRY_AFTER, RETRY_AFTER_MS, WAIT, CODE = 0, 1, 2, 3, 4
"""Places of the raw values of the row `SPECIAL`."""

_LOWER = re.compile(r"[!-@\[-~]+")
_NO_HOST = re.compile(r"[/:\s]")


@dataclass(frozen=True, slots=True)
class HeaderRow:
    """The headers that report one quota. A response carries one of several alternative names.

    `window` is in seconds, and set only if the name or the provider's documents state it. `period` names a header that
    states it. `period_refill` replaces `refill` if that header is present. `quantum` is the rounding of `remaining`.
    `reset_waits` marks a reset that, on a refusal, is the time to wait. `overfull` lets `remaining` exceed `limit`. A
    `remaining` above `ceiling` belongs to another quota in the same headers, whose window is unknown. With `dialect`
    `ietf` the row is read as structured fields: `policy` is RateLimit-Policy, `combined` RateLimit.
    """

    name: str
    unit: Unit
    source: str
    limit: tuple[str, ...] = ()
    remaining: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()
    period: tuple[str, ...] = ()
    policy: tuple[str, ...] = ()
    combined: tuple[str, ...] = ()
    refill: Refill = "continuous"
    period_refill: Refill | None = None
    window: float | None = None
    bare: Bare = "fit"
    quantum: float = 1.0
    label: str = ""
    reset_waits: bool = False
    overfull: bool = False
    ceiling: float | None = None
    dialect: Literal["plain", "ietf"] = "plain"

    def __post_init__(self) -> None:
        require(bool(self.name), "HeaderRow.name", self.name, "a name")
        where = f"HeaderRow({self.name})"
        require(bool(self.source), f"{where}.source", self.source, "the source of the row")
        require(self.unit in UNITS, f"{where}.unit", self.unit, f"one of {', '.join(sorted(UNITS))}")
        for group in self._groups():
            require(type(group) is tuple, where, group, "a tuple of header names")
        require(bool(self.headers()), f"{where}.limit", self.limit, "at least one header in the row")
        for header, _ in self.headers():
            require(_LOWER.fullmatch(header) is not None, where, header, "a header name in lower case")
        require(self.window is None or self.window > 0, f"{where}.window", self.window, "above 0 s")
        require(self.quantum >= 1, f"{where}.quantum", self.quantum, "1 or more")
        require(self.ceiling is None or self.ceiling > 0, f"{where}.ceiling", self.ceiling, "above 0")

    def headers(self) -> list[tuple[str, int]]:
        """Return every header of the row with the place of its value."""
        return [(header, place) for place, group in enumerate(self._groups()) for header in group]

    def _groups(self) -> tuple[tuple[str, ...], ...]:
        return self.limit, self.remaining, self.reset, self.period, self.policy, self.combined


KINDS: dict[Cause, Kind] = {
    **dict.fromkeys((Cause.RATE, Cause.CONCURRENCY, Cause.SLOPE), Kind.RATE_LIMIT),
    **dict.fromkeys((Cause.OTHERS_CAPACITY, Cause.NOT_READY, Cause.OVERLOAD, Cause.UNAVAILABLE), Kind.OVERLOADED),
    **dict.fromkeys((Cause.NEVER_FITS, Cause.AUTH, Cause.INVALID), Kind.PERMANENT),
    **dict.fromkeys((Cause.OUTAGE, Cause.NONE), Kind.TRANSIENT),
    Cause.DAY: Kind.DAILY_LIMIT,
    Cause.MONEY: Kind.QUOTA_EXHAUSTED,
}
"""Kind of a refusal by its cause."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The meaning of one refusal. All given criteria must hold; of several codes or phrases, any one.

    `cause` is the meaning, and gives the kind.

    `codes` are compared as a whole with the answer's code, type and status words. `text` is searched as whole words in
    the message, or must be the whole message with `whole`. `exceeds` requires a message with a request above the limit,
    `waits` a wait in the answer. `headers` are (name, value) pairs, `""` for any value; headers in `without` must be
    absent. `window` (seconds) is the window of the quota that refused, if the refusal implies it and its headers do not
    state it.
    """

    name: str
    cause: Cause
    source: str
    status: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    text: tuple[str, ...] = ()
    whole: bool = False
    exceeds: bool = False
    waits: bool = False
    headers: tuple[tuple[str, str], ...] = ()
    without: tuple[str, ...] = ()
    window: float | None = None

    def __post_init__(self) -> None:
        where = f"ErrorRow({self.name})"
        require(bool(self.name), "ErrorRow.name", self.name, "a name")
        require(self.cause in KINDS, f"{where}.cause", self.cause, f"one of {', '.join(KINDS)}")
        require(bool(self.source), f"{where}.source", self.source, "the source of the row")
        criteria = self.status or self.codes or self.text or self.headers or self.exceeds
        require(bool(criteria), f"{where}.status", self.status, "at least one criterion in the row")
        for word in (*self.codes, *self.text, *(name for name, _ in self.headers), *self.without):
            require(
                word == word.lower() and bool(word), where, word, "a text in lower case, as answers are compared so"
            )
        require(self.window is None or self.window > 0, f"{where}.window", self.window, "above 0 s")
        for status in self.status:
            require(100 <= status <= 599, f"{where}.status", status, "a number from 100 to 599")

    @property
    def kind(self) -> Kind:
        """Return the kind of the refusal."""
        return KINDS[self.cause]

    @property
    def is_specific(self) -> bool:
        """Return whether the row compares what no other meaning shares: more than a status, its name, a rate's code."""
        if self.text or self.headers or self.exceeds:
            return True
        if self.cause is Cause.NEVER_FITS or self.cause is Cause.SLOPE:
            return True
        if not self.codes or self.cause is Cause.MONEY:
            return False
        # A number of a vendor's own list means one thing; a shorter one is a status.
        numbered = all(code.isdecimal() and len(code) > 3 for code in self.codes)
        shared = (Kind.RATE_LIMIT, Kind.PERMANENT, Kind.TRANSIENT)
        return numbered or (self.kind not in shared and self.cause is not Cause.UNAVAILABLE)

    def says(self, text: str) -> bool:
        """Return whether the message contains or equals one of the phrases; True if the row has none."""
        return not self.text or _phrases(self.text, self.whole).search(text) is not None


_RULES = "provider-facts.md section 0, rules 6, 7 and 10, read 2026-11-21"
_RFC = "https://www.rfc-editor.org/rfc/rfc9110#section-15 read 2026-11-21"

COMMON_ERRORS = (
    ErrorRow(
        name="slope",
        cause=Cause.SLOPE,
        source="capture openrouter-alibaba-burst; provider-facts.md section 5 (acceleration limits)",
        status=frozenset({429, 503}),
        text=("request rate increased too quickly", "acceleration limit", "acceleration limits"),
    ),
    ErrorRow(
        name="slope_code",
        cause=Cause.SLOPE,
        source="capture modelscope-200-error; provider-facts.md section 9",
        codes=frozenset({"limit_burst_rate", "throttling.burstrate", "requestbursttoofast"}),
    ),
    ErrorRow(
        name="never_fits",
        cause=Cause.NEVER_FITS,
        source="captures groq-429-never-fits, groq-413-tpm; provider-facts.md rule 6",
        status=frozenset({413, 429}),
        exceeds=True,
    ),
    ErrorRow(
        name="insufficient_quota",
        cause=Cause.MONEY,
        source="capture openai-429-insufficient_quota (OpenAI's shape, sent by its imitators too)",
        codes=frozenset({"insufficient_quota"}),
    ),
    ErrorRow(
        name="payment_required",
        cause=Cause.MONEY,
        source="captures deepseek-402, hf-402-credits; provider-facts.md rule 7",
        status=frozenset({402}),
    ),
    ErrorRow(
        name="rate_limit",
        cause=Cause.RATE,
        source="https://www.rfc-editor.org/rfc/rfc6585#section-4 read 2026-11-21",
        status=frozenset({429}),
    ),
    ErrorRow(
        name="overloaded_status",
        cause=Cause.OVERLOAD,
        source="https://platform.claude.com/docs/en/api/errors (provider-facts.md section 5, read 2026-10-04)",
        status=frozenset({529}),
    ),
    ErrorRow(
        name="unavailable_for_a_time",
        cause=Cause.OVERLOAD,
        source=f"{_RFC} (503 with Retry-After: expected to be over by then)",
        status=frozenset({503}),
        waits=True,
    ),
    ErrorRow(
        name="unavailable_code",
        cause=Cause.UNAVAILABLE,
        source="capture bedrock-503-ServiceUnavailable; provider-facts.md section 4 (status UNAVAILABLE)",
        codes=frozenset({"unavailable", "serviceunavailableexception"}),
    ),
    ErrorRow(
        name="unavailable",
        cause=Cause.UNAVAILABLE,
        source=f"{_RFC} (503: a temporary overload or scheduled maintenance), whatever the body is",
        status=frozenset({503}),
    ),
    ErrorRow(
        "auth", Cause.AUTH, f"{_RFC}; captures mistral-401, bedrock-403-expired", status=frozenset({401, 403, 407})
    ),
    ErrorRow(
        name="auth_code",
        cause=Cause.AUTH,
        source="https://platform.claude.com/docs/en/api/errors (provider-facts.md section 5, read 2026-10-04)",
        codes=frozenset({"authentication_error", "permission_error"}),
    ),
    ErrorRow("too_large", Cause.NEVER_FITS, f"{_RFC}; provider-facts.md rule 7", status=frozenset({413})),
    ErrorRow(
        name="outage",
        cause=Cause.OUTAGE,
        source=f"{_RFC}; openai-python and anthropic-sdk-python retry 408, 409 and 5xx (`_should_retry`)",
        status=frozenset({408, 409, 425, *range(500, 600)}),
    ),
    ErrorRow(
        name="invalid",
        cause=Cause.INVALID,
        source=f"{_RFC}; captures openai-400-with-headers, openai-404-with-headers",
        status=frozenset(range(400, 500)),
    ),
    ErrorRow(
        name="invalid_in_stream",
        cause=Cause.INVALID,
        source=_RULES,
        codes=frozenset({"invalid_request_error", "invalid_prompt", "not_found_error", "request_too_large"}),
    ),
)
"""Refusals that every provider may answer, in the order of comparison: each table ends with them."""


@dataclass(frozen=True, slots=True)
class PlanWindow:
    """The headers of a plan's window that is counted in shares: `spent` shows that it is used up, `reset` until when.

    `full` is the value of `spent` that means so, or the number from which it does.
    """

    spent: str
    full: str
    reset: str
    source: str

    def __post_init__(self) -> None:
        require(bool(self.source), f"PlanWindow({self.spent}).source", self.source, "the source of the window")
        for header in (self.spent, self.reset):
            require(_LOWER.fullmatch(header) is not None, "PlanWindow", header, "a header name in lower case")
        require(bool(self.full), f"PlanWindow({self.spent}).full", self.full, "a value of the header")

    def is_used_up(self, value: bytes) -> bool:
        """Return whether a value of the header `spent` says that the window is used up."""
        text = value.decode("ascii", "replace").strip().lower()
        if self.full.isdigit():
            return text.replace(".", "", 1).isdigit() and len(text) <= 16 and float(text) >= float(self.full)
        return text == self.full


@dataclass(frozen=True, slots=True)
class Charging:
    """The charge of a call, by unit, as the provider's headers show or its documents state.

    `produced` is output that is charged as it is written, in addition to the charge at admission. `burndown` lists
    (part of a model's name, weight of each output token); the first match holds, else 1. With `cache_reads_free`, input
    read from a cache is not counted. With `gives_back`, the unused part of the output bound in `tokens` is returned
    when the answer ends.
    """

    tokens: Amount
    input_tokens: Amount
    output_tokens: Amount
    produced: Amount
    source: str
    cache_reads_free: bool = False
    gives_back: bool = False
    burndown: tuple[tuple[str, float], ...] = ()
    choose: Callable[[tuple[float, ...]], tuple[float, ...]] = field(init=False, repr=False, compare=False)
    """Function that picks, from amounts in the order of `AMOUNTS`, those for tokens, input, output and produced."""

    def __post_init__(self) -> None:
        require(bool(self.source), "Charging.source", self.source, "the source of the rule")
        charged = (self.tokens, self.input_tokens, self.output_tokens, self.produced)
        for amount in charged:
            require(amount in AMOUNTS, "Charging", amount, f"one of {', '.join(AMOUNTS)}")
        gives = not self.gives_back or self.tokens == "input+max"
        require(gives, "Charging.gives_back", self.gives_back, "False unless tokens are charged input+max")
        for part, weight in self.burndown:
            known = part != "" and weight > 0
            require(known, "Charging.burndown", (part, weight), "a part of a name and a weight above 0")
        object.__setattr__(self, "choose", itemgetter(*(AMOUNTS.index(amount) for amount in charged)))

    def weight(self, model: str) -> float:
        """Return the weight of an output token of `model`."""
        return next((weight for part, weight in self.burndown if part in model), 1.0)


@dataclass(frozen=True, slots=True)
class SharedQuotas:
    """Quotas that models of one account share: one credential at one address has each of them once.

    `models` are names with `*` for any text. `quotas` are names of header rows, units, or `*` for all. `name` stands
    for the model in the key of these quotas; it is empty if all models share them.
    """

    name: str
    models: tuple[str, ...]
    quotas: tuple[str, ...]
    source: str

    def __post_init__(self) -> None:
        where = f"SharedQuotas({self.name})"
        require(bool(self.source), f"{where}.source", self.source, "the source of the rule")
        for field_name, texts in (("models", self.models), ("quotas", self.quotas)):
            known = type(texts) is tuple and bool(texts) and all(texts)
            require(known, f"{where}.{field_name}", texts, "a tuple of texts, at least one")


@dataclass(frozen=True, eq=False, slots=True)
class Provider:
    """The table of one provider. Compared by identity; users see `name`.

    `hosts` are exact or contain one `*` for one or more characters. `credential` lists the request headers that
    identify the payer, in order. `query_credential` pairs a query parameter with the header that it stands for.
    `credential_part` limits a header to the text after its first string up to its second, because a signature changes
    with each request. `waits` are response headers with seconds to wait, `code_headers` those with an error name.
    `default_window` (seconds) is the window of an undeclared quota. `image_chars` are the characters that an image, a
    sound or a file counts in `input_chars`. `pooled` are endings of model names whose models share one quota, and whose
    calls share one key. `shared` are quotas that models share, each with a key of its own. With `body_headers`, headers
    in the body of a refusal (`error.metadata.headers`) are read too. `plans` are the windows of an assistant's plan.
    """

    name: str
    source: str
    hosts: tuple[str, ...]
    endpoints: tuple[Endpoint, ...]
    charging: Charging
    credential: tuple[str, ...] = ("authorization",)
    headers: tuple[HeaderRow, ...] = ()
    errors: tuple[ErrorRow, ...] = ()
    common_errors: tuple[ErrorRow, ...] = COMMON_ERRORS
    scope: Literal["model", "account"] = "model"
    default_window: float = 60.0
    image_chars: int = 3060
    waits: tuple[str, ...] = ()
    code_headers: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    pooled: tuple[str, ...] = ()
    shared: tuple[SharedQuotas, ...] = ()
    body_headers: bool = False
    plans: tuple[PlanWindow, ...] = ()
    query_credential: tuple[tuple[str, str], ...] = ()
    credential_part: tuple[str, str] | None = None
    places: dict[bytes, tuple[int, int]] = field(init=False, repr=False)
    noted: dict[str, int] = field(init=False, repr=False)
    rows: tuple[tuple[str, ErrorRow], ...] = field(init=False, repr=False)
    labels: dict[str, str] = field(init=False, repr=False)
    _paths: Paths = field(init=False, repr=False)

    def __post_init__(self) -> None:
        require(bool(self.name), "Provider.name", self.name, "a name")

        def check(known: bool, name: str, value: object, bound: str) -> None:
            require(known, f"Provider({self.name}).{name}", value, bound)

        check(bool(self.source), "source", self.source, "the source of the table")
        check(self.default_window > 0, "default_window", self.default_window, "above 0 s")
        for host in self.hosts:
            known = host == host.lower().rstrip(".") and host.count("*") <= 1 and host.strip("*.") != ""
            check(known, "hosts", host, "a host in lower case, without a final dot, with at most one *")
            check(not _NO_HOST.search(host), "hosts", host, "a host without scheme, port and path")
        check(all(self.pooled), "pooled", self.pooled, "endings of model names")
        by_model = self.scope == "model"
        check(by_model or not self.pooled, "pooled", self.pooled, "empty unless the scope is the model")
        check(by_model or not self.shared, "shared", self.shared, "empty unless the scope is the model")
        # A one-element tuple without its comma is a string, whose letters would be taken for headers.
        check(type(self.credential) is tuple, "credential", self.credential, "a tuple of headers")
        for header in self.credential:
            check(_LOWER.fullmatch(header) is not None, "credential", header, "a header name in lower case")
        for pair in self.query_credential:
            known = pair[0] != "" and pair[1] in self.credential
            check(known, "query_credential", pair, "a parameter and a header of credential")
        part = self.credential_part
        check(part is None or all(part), "credential_part", part, "two texts")
        names = [row.name for row in self.headers]
        for name in names:
            check(names.count(name) == 1, "headers", name, "a name that only one row has")
        _set(self, "noted", self._note())
        _set(self, "places", self._place())
        own = tuple((f"{self.name}:{row.name}", row) for row in self.errors)
        _set(self, "rows", own + tuple((f"common:{row.name}", row) for row in self.common_errors))
        _set(
            self, "labels", {r.name: r.label or r.name.replace("-", "_") for r in self.headers if r.dialect == "plain"}
        )
        _set(self, "_paths", Paths(self.endpoints, self.closed))

    def endpoint(self, path: str) -> tuple[Endpoint, str] | None:
        """Return the endpoint of `path`, and the model in the path or `""`; None if it is not an inference path."""
        place = endpoint_of(self._paths, path) if len(path) <= MAX_PATH else None
        return place[:2] if place is not None else None

    def segments(self, path: str) -> tuple[str, ...]:
        """Return the segments of `path` that, in addition to the model, separate quotas."""
        place = endpoint_of(self._paths, path) if len(path) <= MAX_PATH else None
        return place[2] if place is not None else ()

    def _note(self) -> dict[str, int]:
        errors = (*self.errors, *self.common_errors)
        names = {name for row in errors for name, _ in row.headers} | {name for row in errors for name in row.without}
        names |= {name for plan in self.plans for name in (plan.spent, plan.reset)}
        return {name: -2 - index for index, name in enumerate(sorted(names))}

    def _place(self) -> dict[bytes, tuple[int, int]]:
        places: dict[bytes, tuple[int, int]] = {
            b"date": (SPECIAL, DATE),
            b"retry-after": (SPECIAL, RETRY_AFTER),
            b"retry-after-ms": (SPECIAL, RETRY_AFTER_MS),
        }
        named = [(header, (index, place)) for index, row in enumerate(self.headers) for header, place in row.headers()]
        named += [(header, (SPECIAL, WAIT)) for header in self.waits]
        named += [(header, (SPECIAL, CODE)) for header in self.code_headers]
        named += [(header, (number, 0)) for header, number in self.noted.items()]
        for header, place in named:
            raw = header.encode("ascii")
            require(raw not in places, f"Provider({self.name}).headers", header, "a header with only one meaning")
            places[raw] = place
        return places


# Patterns are compiled on first use: to compile all at import would take longer than the rest of tidegate.
@lru_cache(maxsize=512)
def _phrases(text: tuple[str, ...], whole: bool) -> re.Pattern[str]:
    either = "|".join(re.escape(phrase) for phrase in text)
    return re.compile(
        rf"\A(?:{either})[.!]*\Z" if whole else rf"(?<![a-z0-9_])(?:{either})(?![a-z0-9_]|(?<=[0-9])[.,][0-9])"
    )


def _set(provider: Provider, name: str, value: object) -> None:
    object.__setattr__(provider, name, value)
