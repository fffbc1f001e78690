"""Redaction of credentials: the values that this process uses, and every text that leaves the process without them.

Theory of operation. Each governed call registers its credential when its key is made, and again when it fails, since
providers and gateways repeat it in error texts. The environment is read at each redaction. Values stay in memory only,
the `MAX_CREDENTIALS` newest ones. `tidegate.core.safe_text` finds other credentials by their form.
"""

from __future__ import annotations

import base64
import binascii
import html
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote, unquote_plus, urlsplit

from tidegate.core.safe_text import (
    HIDDEN,
    SECRET_NAME,
    is_prefixed,
    is_secret_in_text,
    lazy_pattern,
    looks_secret,
    printable,
    without_credentials,
)

MAX_CREDENTIALS = 512
"""Credentials that are kept by value. Chosen: far above the credentials of one process."""

MAX_VALUE_CHARACTERS = 8192
"""Characters kept of a credential. Chosen: the beginning of a longer one is enough to remove it."""

MAX_TEXT_CHARACTERS = 65_536
"""Characters of a text that are redacted; the rest is cut off. Chosen: error bodies have some kilobytes."""

MIN_CHARACTERS = 8
"""Characters from which a credential is removed anywhere in a text. Chosen: a shorter one, or one of letters only below
`PREFIX` characters, may be part of an ordinary word."""

MIN_WORD_CHARACTERS = 4
"""Characters of a credential with letters and digits that is removed as a separate word."""

PREFIX = 12
"""Characters of a removed part of a longer credential: messages cut and wrap their quotations."""

MAX_PIECED_CHARACTERS = 1024
"""Characters of a credential whose parts are searched for. Chosen: keys have 20 to 250."""

CASELESS = lazy_pattern(r"[0-9a-fA-F\-]+")
"""Hexadecimal digits and UUIDs, which servers repeat in upper or lower case."""

SECRETIVE = lazy_pattern(
    r"(?i)key(?!board)|token(?!i[sz])|secret|passw|passphrase|(?:_|\b)pass(?:_|\b)|_pwd\b|credential|auth(?!or)|cookie"
    r"|signature|private|(?:_|\b)dsn\b|jwt"
)
"""Names of environment variables whose values are credentials."""

HEADERS = lazy_pattern(r"(?i)headers\Z")
"""Names of environment variables that hold headers, some of which may be credentials (OTEL_EXPORTER_OTLP_HEADERS)."""

HARMLESS = lazy_pattern(
    r"(?i)(?:_|\b)(?:mode|type|method|url|uri|endpoint|file|path|dir|home|sock|socket|version|name|region|enabled|count"
    r"|limit|max|ttl|timeout|seconds|algorithm|provider|backend|class|module|scopes?|issuer|audience|host|port"
    r"|max tokens)\b"
    r"(?!.*(?:key|token|secret|pass|pwd|credential))"
)
"""Words of a variable's name, with spaces for underscores, that mark a fact about a credential, where no word for a
credential follows: `TOKEN_FILE` names a file, `FILE_TOKEN` is a token."""

PLAIN_HEADERS = frozenset(
    """
    accept accept-charset accept-encoding accept-language age anthropic-beta anthropic-version
    amz-sdk-invocation-id amz-sdk-request baggage cache-control connection content-disposition
    content-encoding content-length content-md5 content-type date expect helicone-user-id host http-referer
    idempotency-key if-match if-none-match keep-alive openai-beta openai-organization openai-project origin
    pragma priority range referer retry-after sentry-trace server te traceparent tracestate transfer-encoding
    user-agent vary via x-amz-content-sha256 x-amz-date x-amzn-trace-id x-b3-traceid x-client-request-id
    x-correlation-id x-datadog-trace-id x-goog-api-client x-goog-request-params x-goog-user-project
    x-ms-client-request-id x-request-id x-should-retry x-tidegate x-tidegate-gate
    x-tidegate-reason x-tidegate-waited x-title
    """.split()  # noqa: SIM905 (words are read more easily so)
)
"""Request headers that hold no credential, whatever their values look like."""

PLACEHOLDERS = frozenset(
    """
    anonymous changeme dummy dummy-key empty fake-key lm-studio no-api-key no-key no-key-required none
    not-needed not-used notneeded null ollama placeholder required sk-no-key-required string undefined unused
    your-api-key
    """.split()  # noqa: SIM905 (words are read more easily so)
)
"""Words written in place of a key where a server needs none; texts may hold them."""


class CredentialStore:
    """Credentials by value, the last `most` that were used; never shown.

    Any thread may use it, also inside a use of its own: each change is one step for the others, and none waits.
    """

    def __init__(self, most: int = MAX_CREDENTIALS) -> None:
        self._most = most
        self._forms: dict[str, tuple[str, ...]] = {}
        # The turn of its last use.
        self._used: dict[str, int] = {}
        self._turns = itertools.count()
        self._newest: list[str] = []
        self._joined = ""

    def __repr__(self) -> str:
        return f"CredentialStore({len(self)} credentials)"

    def __len__(self) -> int:
        return len(self._forms)

    def remember(self, values: Iterable[str]) -> None:
        """Remember credentials as just used; beyond the bound, forget those unused for longest."""
        found = list(dict.fromkeys(each[:MAX_VALUE_CHARACTERS] for each in values if is_worth_hiding(each)))
        # Most calls use the newest ones again.
        if not found or found == self._newest:
            return
        for value in found:
            # In this order: what is forgotten at the same time is noticed.
            self._used[value] = next(self._turns)
            if value not in self._forms:
                self._forms[value] = forms_of(value)
        used = self._used.copy()
        for value in sorted(used, key=used.__getitem__)[: -self._most]:
            turn = self._used.pop(value, None)
            if turn is not None and turn != used[value]:
                # It was used meanwhile.
                self._used.setdefault(value, turn)
            elif (forms := self._forms.pop(value, None)) and value in self._used:
                self._forms[value] = forms
        known: list[str] = []
        while known != (known := list(self._forms)):
            # Another thread, or a signal handler, has changed them since.
            cases = {
                case
                for each in known
                for case in ((each, each.lower(), each.upper()) if _is_caseless(each) else (each,))
            }
            self._joined = "\0".join(each[:MAX_PIECED_CHARACTERS] for each in cases)
        self._newest = found

    def values(self) -> list[str]:
        """Return the credentials, the longest unused one first."""
        used = self._used.copy()
        return sorted(used, key=used.__getitem__)

    def forget(self) -> None:
        self._forms, self._used, self._newest, self._joined = {}, {}, [], ""

    def knows(self, value: str) -> bool:
        return any(form in value for forms in list(self._forms.values()) for form in forms)

    def shares(self, text: str) -> bool:
        """Return whether a short text has a part in common with a credential, as long as one that is removed."""
        parts = (text[at : at + PREFIX] for at in range(len(text) - PREFIX + 1))
        return any(part in self._joined for part in parts) or any(
            len(value) < PREFIX and value in text for value in list(self._forms)
        )

    def redact(self, text: str) -> str:
        """Return the text with `…` in place of every credential, in each of its forms."""
        for value, forms in list(self._forms.items()):
            text = hide(text, value, forms)
        return text


STORE = CredentialStore()


def remember(values: Iterable[str]) -> None:
    """Remember credentials in use, so that no text that leaves this process holds them."""
    STORE.remember(values)


def clean(text: str, longest: int = MAX_TEXT_CHARACTERS, *, lines: bool = False) -> str:
    """Return a text without credentials and control characters, at most `longest` characters.

    With `lines`, line breaks and tabs stay. The last characters that are read are dropped: a credential may be cut
    there.
    """
    bound = min(MAX_TEXT_CHARACTERS, 8 * longest + 2 * MAX_VALUE_CHARACTERS)
    if len(text) > bound:
        text = text[: bound - MAX_VALUE_CHARACTERS] + HIDDEN
    # The order matters: a credential may hold control characters, and differs without them.
    text = without_credentials(without_known(text))
    text = printable(text, lines=lines)
    return text if len(text) <= longest else text[: longest - 1] + HIDDEN


def clean_fact(text: str | None) -> str | None:
    """Return a short fact that a provider states, as a request id, without credentials of calls.

    Ids look like credentials, so form is no reason to remove one. Every answer has such facts: this is fast.
    """
    return STORE.redact(text) if text and STORE.shares(text) else text


def clean_arguments(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a command without credentials; the values of options like `--api-key` are hidden."""
    cleaned: list[str] = []
    hides = False
    for each in arguments:
        name, equals, _ = each.partition("=")
        words = name.lstrip("-").replace("-", " ").replace("_", " ")
        if hides and not each.startswith("--"):
            cleaned.append(HIDDEN)
            hides = False
        elif name.startswith("-") and SECRETIVE.search(name) and not HARMLESS.search(words):
            cleaned.append(f"{name}={HIDDEN}" if equals else clean(each))
            hides = not equals
        else:
            cleaned.append(clean(each))
            hides = False
    return cleaned


def without_known(text: str) -> str:
    """Return the text without the credentials of this process and of its environment."""
    text = STORE.redact(text)
    for value in sorted(environment_credentials(os.environ), key=len, reverse=True):
        text = hide(text, value, forms_of(value))
    return text


def is_known(value: str) -> bool:
    """Return whether a value is, or holds, a credential of this process or of its environment."""
    return STORE.knows(value) or any(
        form in value for held in environment_credentials(os.environ) for form in forms_of(held)
    )


def holds_credential(text: str) -> bool:
    """Return whether a text certainly holds a credential: a known one, no ordinary word, or a vendor's prefix."""
    known = {*STORE.values(), *environment_credentials(os.environ)}
    strong = [value for value in known if len(value) >= 16 or looks_secret(value)]
    return is_prefixed(text) or any(form in text for value in strong for form in forms_of(value))


def hide(text: str, value: str, forms: tuple[str, ...]) -> str:
    """Return the text without a credential that has these forms, and without longer parts of it."""
    if len(value) < MIN_CHARACTERS or (value.isalpha() and len(value) < PREFIX):
        # It may be a part of an ordinary word, as the password `postgres` is.
        return re.sub(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", HIDDEN, text)
    for form in forms:
        text = text.replace(form, HIDDEN)
    # The text may still hold beginnings: remove the longest one of any form.
    for begins in dict.fromkeys(form[:PREFIX] for form in forms if len(form) >= PREFIX + 4):
        at = text.find(begins)
        if at < 0:
            continue
        parts, done = [], 0
        while at >= 0:
            parts += [text[done:at], HIDDEN]
            done = max(_common(text, at, form) for form in forms if form.startswith(begins))
            at = text.find(begins, done)
        text = "".join([*parts, text[done:]])
    return _without_pieces(text, value) if len(value) >= PREFIX + 4 else text


def _without_pieces(text: str, value: str) -> str:
    """Return the text without every part of a credential that has at least `PREFIX` characters."""
    # Every such part contains one of these pieces, wherever it begins.
    size = PREFIX // 2
    for start in range(0, min(len(value), MAX_PIECED_CHARACTERS) - size + 1, size):
        piece = value[start : start + size]
        at = text.find(piece)
        while at >= 0:
            begin, first = at, start
            while begin and first and text[begin - 1] == value[first - 1]:
                begin, first = begin - 1, first - 1
            end = _common(text, begin, value[first:])
            if end - begin >= PREFIX:
                text, at = text[:begin] + HIDDEN + text[end:], begin
            at = text.find(piece, at + 1)
    return text


def _common(text: str, at: int, form: str) -> int:
    """Return the first position in a text, from `at` on, that differs from the form."""
    length = min(len(form), len(text) - at)
    return at + next((place for place in range(length) if text[at + place] != form[place]), length)


def is_worth_hiding(value: str) -> bool:
    """Return whether a credential differs from ordinary words: it is long enough, or has letters and digits."""
    if len(value) < MIN_WORD_CHARACTERS or value.isspace() or HIDDEN in value or value.lower() in PLACEHOLDERS:
        return False
    if len(value) >= MIN_CHARACTERS:
        return True
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))


@lru_cache(maxsize=MAX_CREDENTIALS)
def forms_of(value: str) -> tuple[str, ...]:
    """Return the forms that a credential takes in texts: as it is, quoted, escaped, and in base64 at any offset."""
    raw = value.encode("utf-8", "surrogateescape")
    plain = json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1], repr(raw)[2:-1]
    quoted = quote(raw, safe=""), quote(raw, safe="/"), quote(raw, safe="/:@+="), quote_plus(raw), html.escape(value)
    found = [value, *plain, *quoted, *(re.sub("%[0-9A-F]{2}", _lower, each) for each in quoted)]
    found += [json.dumps(each)[1:-1] for each in plain]
    # PHP escapes a slash in JSON; an address within an address is quoted twice.
    found += [plain[0].replace("/", r"\/"), *(quote(each, safe="") for each in quoted[:2])]
    if CASELESS.fullmatch(value):
        found += [value.lower(), value.upper()]
    if len(raw) >= MIN_CHARACTERS:
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            for offset in range(3):
                # The characters at both ends also depend on the text beside the credential.
                encoded = encode(bytes(offset) + raw).decode("ascii").rstrip("=")
                inner = encoded[(0, 2, 3)[offset] : len(encoded) - ((offset + len(raw)) % 3 != 0)]
                if len(inner) >= MIN_CHARACTERS:
                    found.append(inner)
    return tuple(
        sorted(dict.fromkeys(each for each in found if len(each) >= MIN_WORD_CHARACTERS), key=len, reverse=True)
    )


def _is_caseless(value: str) -> bool:
    return CASELESS.fullmatch(value) is not None


def _lower(match: re.Match[str]) -> str:
    return match[0].lower()


def environment_credentials(environ: Mapping[str, str]) -> set[str]:
    """Return the credentials in an environment: values of variables with such names, and passwords in addresses."""
    found: set[str] = set()
    for name, value in list(environ.items()):
        if _is_secretive(name) and not _is_plain(value):
            found.update(part for part in (value, *value.split(",")) if len(part) >= MIN_CHARACTERS)
        if HEADERS.search(name):
            found.update(each for each in in_headers(_headers_in(value)) if len(each) >= MIN_CHARACTERS)
        if "://" in value and len(value) <= MAX_VALUE_CHARACTERS:
            found.update(each for each in in_address(value) if len(each) >= MIN_CHARACTERS)
    return {each for each in found if is_worth_hiding(each)}


def _headers_in(value: str) -> Iterator[tuple[str, str]]:
    """Yield the headers of a variable: `a=b,c=d` percent-encoded, as OpenTelemetry has it, `a: b` by lines, or JSON."""
    for each in re.split(r"[,;\n]", value[:MAX_VALUE_CHARACTERS]):
        name, _, given = re.sub(r"[:=]", "\0", each, count=1).partition("\0")
        yield unquote(name).strip(" {\"'"), unquote(given).strip(" }\"'")


@lru_cache(maxsize=4096)
def _is_secretive(name: str) -> bool:
    return SECRETIVE.search(name) is not None and HARMLESS.search(name.replace("_", " ")) is None


@lru_cache(maxsize=1024)
def _is_plain(value: str) -> bool:
    """Return whether a value is a number, an address, or a path below a folder of this machine."""
    if "://" in value or value.replace(".", "").replace(",", "").isdigit():
        return len(value) < 20 or "://" in value
    parts = Path(value).parts
    return value.startswith(("/", "~")) and len(parts) > 1 and Path(*parts[:2]).is_dir()


def in_address(address: str) -> Iterator[str]:
    """Yield the credentials in an address; its user counts only without a password and if it looks like one."""
    try:
        parts = urlsplit(address)
        user, password = parts.username, parts.password
    except ValueError:
        return
    if password:
        yield from {password, unquote(password)}
        yield f"{user or ''}:{password}"
    elif user and looks_secret(user):
        yield from {user, unquote(user)}
    yield from in_query(parts.query)
    yield from (unquote(each) for each in parts.path.split("/") if is_secret_in_text(unquote(each)))


def in_query(query: str) -> Iterator[str]:
    """Yield the credentials in a query: values of parameters with such names, and values that look like one."""
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        if value and (SECRET_NAME.search(name) or (looks_secret(value) and len(value) >= 16)):
            yield from {value, unquote_plus(value)}


def in_headers(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the credentials in request headers, also those under any name whose values look like one."""
    for given, value in pairs:
        name = given.lower()
        if name in PLAIN_HEADERS or name.startswith("x-stainless-"):
            continue
        if "cookie" in name:
            yield from (each.partition("=")[2].strip() for each in value.split(";"))
        elif SECRET_NAME.search(name) or looks_secret(value):
            yield from _in_header(value)


def _in_header(value: str) -> Iterator[str]:
    scheme, _, given = value.strip().partition(" ")
    given = given.strip()
    if not given:
        yield scheme
        return
    if scheme.upper().startswith("AWS4-"):
        fields = [each.partition("=") for each in given.split(",") if "SignedHeaders" not in each]
        yield from (value.partition("/")[0].strip() for _, _, value in fields)
        return
    yield given
    if not scheme.isalnum():
        # This is no scheme, but the beginning of a credential with spaces.
        yield value.strip()
    if scheme.lower() == "basic":
        try:
            user, _, password = base64.b64decode(given, validate=True).decode("utf-8").partition(":")
        except (ValueError, binascii.Error):
            return
        yield password or user


CLIENT_ATTRIBUTES = (
    "api_key",
    "auth_token",
    "token",
    "access_token",
    "aws_secret_key",
    "aws_session_token",
    "webhook_secret",
    "admin_api_key",
    "_api_key",
    "_token",
    "_azure_ad_token",
)
"""Attributes in which SDK clients keep their credentials (openai 3.52, anthropic 2.11, google-genai 3.4)."""


def in_client(client: object) -> Iterator[str]:
    for each in (client, getattr(client, "_api_client", None), getattr(client, "_client", None)):
        facts = getattr(each, "__dict__", None)
        if isinstance(facts, Mapping):
            yield from (value for name in CLIENT_ATTRIBUTES if isinstance(value := facts.get(name), str))
