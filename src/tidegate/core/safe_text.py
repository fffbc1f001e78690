"""Texts that are safe to show: control characters escaped, credentials removed, patterns compiled at their first use.

This is the second line of defence. `tidegate.admission.redaction` knows the credentials of this process by value, and
the patterns here find those that it cannot know. Every pattern is linear in the length of the text: a repetition is
bounded, or nothing that can fail follows it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, cast


class _LazyPattern:
    def __init__(self, text: str) -> None:
        self.pattern = text

    def __getattr__(self, name: str) -> Any:
        if name == "pattern" or name.startswith("__"):
            raise AttributeError(name)
        method = getattr(re.compile(self.pattern), name)
        setattr(self, name, method)
        return method


def lazy_pattern(text: str) -> re.Pattern[str]:
    """Return a pattern that is compiled when one of its methods is first used."""
    return cast("re.Pattern[str]", _LazyPattern(text))


UNPRINTABLE = lazy_pattern(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
"""Characters that move the cursor, break a line, change the direction of text, or are invisible."""

BROKEN = lazy_pattern(UNPRINTABLE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
"""The same characters without line feed and tab."""


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return the text with every control character escaped, as `\x1b`; with `lines`, line feeds and tabs stay."""
    if text.isprintable() and text.isascii():
        return text
    return (BROKEN if lines else UNPRINTABLE).sub(_escaped, text)


def json_line(value: Any) -> str:
    """Return a value as one line of JSON in UTF-8, with every character escaped that a terminal would interpret."""
    return UNPRINTABLE.sub(lambda match: json.dumps(match[0])[1:-1], json.dumps(value, ensure_ascii=False))


_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def _escaped(match: re.Match[str]) -> str:
    if match[0] in _NAMED:
        return _NAMED[match[0]]
    code = ord(match[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


HIDDEN = "…"
"""Replacement in a text for a removed credential."""

DIGEST = "~"
"""Start of a path segment that replaces a credential; the digest follows, where there is one."""

TEST_CHARACTERS = 256
"""Characters of a value that are tested; all of it is removed. Chosen: keys have 20 to 250."""

URL_CHARACTERS = 2048
"""Characters of an address that are read as one; the rest is treated as any other text. Chosen: as long as the longest
path that is looked up (`providers._schema.MAX_PATH`)."""

_JOINT = r"(?:[-_. ]|%5[fF]|%2[dD]|%20)?"
_KEYS = "access|account|api|app|auth|client|deploy|encryption|function|license|master|private|secret|service|shared"
_KEY = rf"(?:{_KEYS}|signing|storage|subscription|virtual|webhook){_JOINT}key"
_NAMES = (
    rf"(?P<strong>passw(?:or)?d|passphrase|passcode|(?<![a-z])(?:pwd|pass)(?![a-z]))"
    rf"|{_KEY}|token(?!i[sz]|s?[-_ ]?(?:count|limit|usage|used|per|budget))|secret|credential"
    rf"|connection{_JOINT}string|signature|(?<![a-z])(?:auth|sig|cred|creds|dsn|jwt)(?![a-z])"
)
_SEPARATOR = r"""(?:\\{0,2}["'\]]){0,3}\s{0,3}(?::|=>|=|%3[aAdD]|(?<=["'])\s?,)\s{0,3}(?:[(\[]|\\{0,2}b?["'`]){0,3}"""

NAMED = lazy_pattern(rf"(?i)(?:{_NAMES})[\w\-]{{0,24}}?{_SEPARATOR}")
"""Name of a credential, up to its value: `api_key=`, `"clientSecret": "`, `(b'x-api-key', b'`."""

AUTHORIZATION = lazy_pattern(rf"(?i)authorization{_SEPARATOR}(?:[a-z][\w\-]{{0,20}}\s{{1,3}})?")
"""Header with its scheme, up to the value; the scheme stays readable."""

_CONNECTIVES = (
    "provided|given|supplied|used|specified|passed|received|sent|is|was|value|with|the|this|your|invalid|incorrect"
    "|expired|revoked|bad|unknown|wrong|rejected|for|of|are|set to|equals"
)
PROSE = lazy_pattern(
    rf"(?i)(?:{_KEY}|token|secret|credentials?|password|passphrase|key (?=provided|supplied|given|invalid))"
    rf"(?P<told>(?:\s{{0,2}}(?:{_CONNECTIVES})\b){{0,3}}\s{{0,2}}[:=]?)\s{{0,2}}[\"'`(\[]{{0,2}}"
)
"""Sentence that names a credential, up to its value: `Incorrect API key provided: `, `the token is `."""

SCHEME = lazy_pattern(r"(?i)\b(?:bearer|basic|api-?key|token|digest|negotiate|sso-key)\s{1,3}[\"']?")
"""Scheme of HTTP authentication, up to its value."""

COOKIE = lazy_pattern(r"(?i)cookie2?(?:\\{0,2}[\"'])?\s{0,3}[:=,]\s{0,3}(?:\\{0,2}b?[\"'])?(?=[\w.\-]{1,64}=)")
"""Headers that carry cookies, up to their values."""

PREFIXED = lazy_pattern(
    r"(?<![A-Za-z0-9_])(?P<begins>"
    r"(?:sk|pk|rk|sess|gsk|xai|hf|api_org|r8|gh[pousr]|github_pat|nvapi|fw|csk|pplx|esecret|tvly|jina|pcsk|lsv2_\w{2}|ph[cx]"
    r"|npm|rubygems|pul|pnu|ico|glc|glsa|sntry[su]|rdme|duffel|shippo|whsec|lin_api|lin_oauth|ntn|secret|sgp"
    r"|dop_v1|doo_v1|dor_v1|shp(?:at|ca|pa|ss)|pscale_(?:tkn|oauth|pw)|sm_[aps]at|tk-us|fo1|fm1[ar]|fm2"
    r"|gl(?:pat|dt|ft|rt|cbt|ffct|imt|agent|oas|ptt|soat)|xox[a-z](?:\.xox[a-z])?|xapp|xkeysib|pypi|PMAK|PMAT|CLOJARS"
    r"|sq0[a-z]{3}|p8e|fio-u|FLW(?:SECK|PUBK)(?:_TEST)?|figd|ops|AGE-SECRET-KEY|tskey|key|bedrock-api-key|A3|API)[-_]"
    r"|SG\.|ya29\.|dp\.pt\.|dt0c01\.|hv[sb]\.|sha256~|v1\.0-|[ps]at\.|dapi|AIza|A3T|AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA"
    r"|ABSK|LTAI|GR1348941|EAAA|EAA[MC]|EZ[AT]K|HRKU-|AKCp|cmVmd|4b1d|SK(?=[0-9a-fA-F]{32})|GOCSPX-|1//0|LCP-"
    r")(?P<value>[\w\-.~+/=%|]{10,})"
)
"""Credentials with a known prefix, as the vendors document them (gitleaks, `gitleaks.toml`, 2026)."""

VAGUE = frozenset({"key", "secret", "ops", "API", "sess"})
"""Prefixes of ordinary names: they count only if a part of 16 characters follows."""

AMBIGUOUS = frozenset(
    {"sk", "pk", "rk", "hf", "fw", "r8", "xai", "npm", "pul", "pnu", "ico", "ntn", "A3", "csk", "jina"}
)
"""Prefixes that names have too: they count only if a part of letters and digits, or one of 16 characters, follows."""

JWT = lazy_pattern(r"(?<![A-Za-z0-9])(?:eyJ|ZXlK)[\w\-+/=.]{5,}")
"""Signed tokens (RFC 7519), and other JSON in base64."""

PEM = lazy_pattern(
    r"-----BEGIN [A-Z0-9 ]{0,60}(?:KEY|BLOCK)[A-Z ]{0,20}-----"
    r"(?:(?!-----END)[\s\S])*(?:-----END[A-Z0-9 ]{0,80}-{0,5})?"
)
"""Key in PEM, to its end or to that of the text."""

ADDRESS = lazy_pattern(
    r"(?i)(?<![a-z0-9])[a-z][a-z0-9+.\-]{0,20}(?::\\?/\\?/|%3a%2f%2f)(?P<rest>[^\s\"'<>`]"
    rf"{{1,{URL_CHARACTERS}}})"
)
"""Address in a text, up to `URL_CHARACTERS` after its scheme."""

ENCODED_USER = lazy_pattern(r"(?i)(%3a%2f%2f[^\s\"'<>%]{0,100}(?:%3a)?)[^\s\"'<>]{1,256}?(?=%40)")
"""User and password of a percent-encoded address, as within the query of another one."""

PARAMETER = lazy_pattern(
    r"(?i)(?P<start>[?&;]|%3f|%26)(?P<name>[\w.\-%\[\]]{1,60}?)(?:=|%3d)(?P<value>[^&\s\"'#;<>]{1,})"
)
"""Parameter of a query."""

RUN = lazy_pattern(r"(?<![\w+/\-])[A-Za-z0-9+/_\-]{32,}={0,2}")
"""Run of characters that may be random."""

SECRET_NAME = lazy_pattern(
    r"(?i)key|token|secret|passw|pwd|passphrase|credential|\bcred|auth|signature|\bsig\b|cookie|session|jwt|\bsas\b"
)
"""Names of headers and parameters whose values are credentials."""

_VALUE = lazy_pattern(rf"[^\s\"'`,;&<>{{}}()\[\]|\\]{{1,{TEST_CHARACTERS}}}")
_STRONG_VALUE = lazy_pattern(rf"[^\s\"'`]{{1,{TEST_CHARACTERS}}}")
_QUOTED = {quote: lazy_pattern(rf"(?:[^{quote}\\\r\n]|\\.){{1,{TEST_CHARACTERS}}}") for quote in "\"'`"}
_ESCAPED = {quote: lazy_pattern(rf"[^{quote}\\\r\n]{{1,{TEST_CHARACTERS}}}") for quote in "\"'`"}
_REST = lazy_pattern(r"[^\s\"'`,;&<>{}()\[\]|\\]*")
_STRONG_REST = lazy_pattern(r"[^\s\"'`]*")
_QUOTED_REST = {quote: lazy_pattern(rf"(?:[^{quote}\\\r\n]|\\.)*") for quote in "\"'`"}
_ESCAPED_REST = {quote: lazy_pattern(rf"[^{quote}\\\r\n]*") for quote in "\"'`"}
_COOKIES = lazy_pattern(r"[^\r\n\"'\\]*")

_WORD = lazy_pattern(r"[A-Za-z][a-z]*(?:[-_.'/ ][A-Za-z]?[a-z]*)*|[A-Z]+(?:[-_ ][A-Z]+)*")
_NUMBER = lazy_pattern(r"[-+]?[\d.,:%$]{1,20}(?:[a-zA-Z]{1,3}|\+\d\d:\d\d)?")
_PLACEHOLDER = lazy_pattern(r"[\*x.…\-_]{3,}|\$?\{.*|<.*|%\(?\w*\)?s|\$[A-Z_]+")
_SEGMENT = lazy_pattern(r"[A-Za-z0-9]{1,}")
_UUID = lazy_pattern(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_HEX = lazy_pattern(r"[0-9a-fA-F]+")
_IDENTIFIER = lazy_pattern(
    r"(?:req|request|resp|msg|rs|fc|call|run|step|thread|asst|batch|file|vs|org|proj|user|chatcmpl|cmpl|gen|toolu|trace|span"
    r"|evt|ftjob|ft|conv|item|img|video)[-_:]"
)
"""Prefixes of the identifiers that providers issue, and ask for in support."""

GIT_DIGITS = 40
"""Hexadecimal digits of git's object names (SHA-1), which stay; shorter runs (MD5, trace ids) are not long."""

BASE64_CHANGES_SHARE = 0.45
"""Share of neighbours of different kinds from which a run with separators is random. Chosen: random base64 has 0.65
with a deviation of 0.09, and the names of models have up to 0.4."""

LABEL_CHARACTERS = 24
"""Characters before a run in which its kind may be named, so that digests stay."""

_LABEL = lazy_pattern(
    r"(?i)(?:sha-?[0-9]{0,3}|md5|digest|e-?tag|checksum|hash|commit|revision|trace|span|request|correlation|uuid|\bid)"
    r"(?:[-_ ]?id)?[\"']?\s?[:=]?\s?[\"'(]?\Z"
)
"""Name of a digest or an identifier, up to its hexadecimal digits."""

_FIVE_DIGITS = lazy_pattern(r"[0-9]{5}")

UNMASKED = frozenset(
    """
    required missing invalid incorrect wrong expired revoked empty none null nil true false not is was are
    must cannot can should has have for and or the a an to of in on at by be no reset field fields header
    headers param parameter string value failed failure error denied rejected mismatch unset set hidden
    redacted given provided here too with that which unknown bearer basic token tokens auth optional undefined
    authentication authorization scheme schemes credential credentials realm format challenge support request
    security
    """.split()  # noqa: SIM905 (words are read more easily so)
)
"""Words that follow a name and its colon in sentences; they are not passwords."""


LEAST_CREDENTIAL_CHARACTERS = 13
"""Characters of the shortest text with a credential that only its form shows: a prefix of three and a value of ten, or
the word `token` and a value of eight."""


def without_credentials(text: str) -> str:
    """Return the text with `…` for everything that looks like a credential; linear in its length."""
    # A pattern is looked for only where the text has what it needs: most texts need few patterns, short words none.
    if "-----BEGIN" in text:
        text = PEM.sub(HIDDEN, text)
    if "/" in text or "%" in text:
        text = ADDRESS.sub(_address, text)
    if "%" in text:
        text = ENCODED_USER.sub(rf"\1{HIDDEN}", text)
    if "=" in text or "%" in text:
        text = PARAMETER.sub(_parameter, text)
    if "eyJ" in text or "ZXlK" in text:
        text = JWT.sub(HIDDEN, text)
    if len(text) >= LEAST_CREDENTIAL_CHARACTERS:
        text = PREFIXED.sub(_prefixed, text)
    if "=" in text:
        text = _valued(text, COOKIE, lambda match, value: True, _cookies)
    if any(sign in text for sign in ":=,%"):
        text = _valued(text, AUTHORIZATION, _authorizes, _run_of)
        text = _valued(text, NAMED, _names, _run_of)
    if len(text.split(maxsplit=1)) > 1:
        text = _valued(text, SCHEME, _schemes, _run_of)
    if len(text) < LEAST_CREDENTIAL_CHARACTERS:
        return text
    text = _valued(text, PROSE, _tells, _run_of)
    return RUN.sub(_random, text)


def masked(address: str, digest: Callable[[str], str] | None = None, known: Callable[[str], bool] | None = None) -> str:
    """Return a base URL without credentials: no user, no query, and `~` for path segments that are credentials.

    `digest` returns the text after the `~`. `known` recognises a credential that this process uses.
    """
    scheme, found, rest = address.partition("://")
    if not found:
        return address
    rest = re.split("[?#]", rest, maxsplit=1)[0]
    authority, slash, path = rest.partition("/")
    segments = [_segment(each, digest, known) for each in path.split("/")]
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{'/'.join(segments)}"


@lru_cache(maxsize=1024)
def shown_address(address: str) -> str:
    """Return a base URL for people: masked, without digests of a caller's own key."""
    return masked(address)


def without_digests(address: str) -> str:
    """Return a masked address without its digests, so that different processes can compare it."""
    return _DIGESTED.sub(rf"/{DIGEST}\1", address)


_DIGESTED = lazy_pattern(rf"/{DIGEST}[0-9a-f]{{16}}(/|\Z)")


def looks_secret(value: str) -> bool:
    """Return whether a value at the place of a credential has the form of one: not a word, a number or a name."""
    if PREFIXED.match(value) or JWT.match(value) or _UUID.fullmatch(value):
        return True
    parts = _SEGMENT.findall(value[:TEST_CHARACTERS])
    return any(_is_mixed(part, 8) or len(part) >= 20 for part in parts) or _is_random(value)


def is_secret_segment(segment: str) -> bool:
    """Return whether a segment of a base URL's path may be a credential; identifiers of the same form count too."""
    if PREFIXED.match(segment) or JWT.match(segment) or _UUID.fullmatch(segment):
        return True
    parts = _SEGMENT.findall(segment)
    return any(_is_mixed(part, 12) or len(part) >= 24 for part in parts) or _is_random(segment)


def is_prefixed(text: str) -> bool:
    """Return whether a text has a credential of a form that no ordinary text has: a vendor's prefix, a PEM key."""
    if PEM.search(text):
        return True
    return any(_prefixed(match) != match[0] for match in PREFIXED.finditer(text))


def _segment(segment: str, digest: Callable[[str], str] | None, known: Callable[[str], bool] | None) -> str:
    if segment.startswith(DIGEST) and _DIGESTED.fullmatch(f"/{segment}"):
        return segment
    if not (is_secret_segment(segment) or (known is not None and known(segment))):
        return segment
    return DIGEST + (digest(segment) if digest is not None else "")


def _address(match: re.Match[str]) -> str:
    """Return an address without its password and without path segments that look like credentials."""
    rest = match["rest"]
    begins = match[0][: len(match[0]) - len(rest)]
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if at and not _PLACEHOLDER.fullmatch(user.partition(":")[2]):
        name, colon, _ = user.partition(":")
        plain = _WORD.fullmatch(name) is not None and len(name) < 16
        authority = f"{name if colon and plain else (name if plain else HIDDEN)}{':' + HIDDEN if colon else ''}@{host}"
    path, mark, query = path.partition("?")
    segments = [HIDDEN if is_secret_in_text(each) else each for each in path.split("/")]
    return f"{begins}{authority}{slash}{'/'.join(segments)}{mark}{query}"


def is_secret_in_text(segment: str) -> bool:
    """Return whether a segment of any address looks like a credential, and not like an identifier or a digest."""
    segment = segment.rstrip(".,:;!?)")
    if _IDENTIFIER.match(segment) or _UUID.fullmatch(segment) or (len(segment) == 40 and _HEX.fullmatch(segment)):
        return False
    return not segment.startswith(DIGEST) and is_secret_segment(segment)


def _parameter(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    if not SECRET_NAME.search(name) or not _is_value(value, 1):
        return match[0]
    return match[0][: match.start("value") - match.start()] + HIDDEN


def _prefixed(match: re.Match[str]) -> str:
    begins, value = match["begins"], match["value"]
    if begins[:-1] in VAGUE or begins[:-1] in AMBIGUOUS:
        least = 16 if begins[:-1] in VAGUE else 6
        parts = _SEGMENT.findall(value[:TEST_CHARACTERS])
        if not any(_is_mixed(part, least) or len(part) >= 16 for part in parts):
            return match[0]
    return begins + HIDDEN


def _random(match: re.Match[str]) -> str:
    run = match[0]
    if _IDENTIFIER.match(run) or _UUID.fullmatch(run):
        return run
    labelled = _LABEL.search(match.string, max(0, match.start() - LABEL_CHARACTERS), match.start()) is not None
    if _HEX.fullmatch(run):
        stays = labelled or len(run) == GIT_DIGITS or (len(run) < GIT_DIGITS and (run.isdigit() or run.isalpha()))
        return run if stays else HIDDEN
    if _is_random(run):
        return HIDDEN
    return _SEGMENT.sub(lambda part: part[0] if labelled else _long_segment(part), run)


def _long_segment(part: re.Match[str]) -> str:
    """Return a part of a run without separators, hidden where it is long and may be a credential or a digest."""
    text = part[0]
    if len(text) < 40 or (_HEX.fullmatch(text) and len(text) == GIT_DIGITS):
        return text
    kinds = {_kind(sign) for sign in text}
    is_secret = _HEX.fullmatch(text) or _is_random(text) or (len(kinds) == 3 and _FIVE_DIGITS.search(text))
    return HIDDEN if is_secret else text


def _is_random(run: str) -> bool:
    """Return whether characters alternate as in random text: no words, no path, no CamelCase."""
    for part in (run, *run.split("/")):
        kinds = [_kind(sign) for sign in part[:TEST_CHARACTERS] if sign.isalnum()]
        # In lower case, a path or a name of several words alternates as much as a credential does.
        least = 32 if len(set(kinds)) == 3 else 40 if part.isalnum() else len(part) + 1
        joined = "-" in part or "_" in part
        if (len(part) if joined else len(kinds)) < least or "digit" not in kinds or _HEX.fullmatch(part):
            continue
        changes = sum(one != other for one, other in pairwise(kinds))
        if changes >= (BASE64_CHANGES_SHARE if joined else 0.3) * len(kinds):
            return True
    return False


def _kind(sign: str) -> Literal["digit", "upper", "lower"]:
    return "digit" if sign.isdigit() else "upper" if sign.isupper() else "lower"


def _is_mixed(part: str, least: int) -> bool:
    return len(part) >= least and any(map(str.isdigit, part)) and any(map(str.isalpha, part))


def _is_value(value: str, least: int) -> bool:
    """Return whether a value after a name is more than a word, a number or a placeholder."""
    value = value.rstrip(".,:;!?)]}")
    if len(value) < least or _is_hidden(value):
        return False
    if _NUMBER.fullmatch(value) or _PLACEHOLDER.fullmatch(value):
        return False
    return len(value) >= 20 or _WORD.fullmatch(value) is None


def _authorizes(match: re.Match[str], value: str) -> bool:
    value = value.rstrip(".,:;!?)]}")
    return len(value) >= 4 and value.lower() not in UNMASKED and not _is_hidden(value)


def _names(match: re.Match[str], value: str) -> bool:
    if match["strong"]:
        value = value.rstrip(".,:;!?)]}")
        first = value.partition(" ")[0].lower()
        return len(value) >= 4 and first not in UNMASKED and not value.startswith(HIDDEN) and _is_no_template(value)
    return _is_value(value, 6)


def _is_no_template(value: str) -> bool:
    return _PLACEHOLDER.fullmatch(value) is None


def _schemes(match: re.Match[str], value: str) -> bool:
    if match[0][:6].lower() == "bearer":
        return len(value) >= 6 and value.rstrip(".,:;!?)]}").lower() not in UNMASKED and not _is_hidden(value)
    return looks_secret(value) or (match[0][:5].lower() == "basic" and value.endswith("="))


def _tells(match: re.Match[str], value: str) -> bool:
    told = match["told"].lower()
    if "provided" in told and told.endswith(":"):
        value = value.rstrip(".,:;!?)]}")
        return len(value) >= 4 and not _is_hidden(value) and value.lower() not in UNMASKED
    return looks_secret(value) and not _IDENTIFIER.match(value) and not _is_hidden(value)


def _is_hidden(value: str) -> bool:
    return value.startswith(HIDDEN) or value.endswith(HIDDEN)


def _run_of(text: str, start: int, match: re.Match[str]) -> tuple[str, int, re.Pattern[str] | None]:
    """Return the tested part of the value that begins at `start`, its end, and the pattern of what may follow it."""
    before = text[start - 1]
    if before in _QUOTED:
        # An escaped quote is closed by an escaped one: JSON inside a text.
        escaped = text[start - 2 : start - 1] == "\\"
        judged, rest = (_ESCAPED if escaped else _QUOTED)[before], (_ESCAPED_REST if escaped else _QUOTED_REST)[before]
    elif match.groupdict().get("strong"):
        judged, rest = _STRONG_VALUE, _STRONG_REST
    else:
        judged, rest = _VALUE, _REST
    found = judged.match(text, start)
    if found is None:
        return "", start, None
    return found[0], found.end(), rest if len(found[0]) == TEST_CHARACTERS else None


def _cookies(text: str, start: int, match: re.Match[str]) -> tuple[str, int, re.Pattern[str] | None]:
    found = _COOKIES.match(text, start)
    return (HIDDEN, found.end(), None) if found is not None else ("", start, None)


def _valued(
    text: str,
    names: re.Pattern[str],
    is_secret: Callable[[re.Match[str], str], bool],
    run_of: Callable[[str, int, re.Match[str]], tuple[str, int, re.Pattern[str] | None]],
) -> str:
    """Return the text without the secret values that follow `names`.

    A value that is not secret is read again, because it may be a name itself. Of a secret one only the end is looked
    for, so the time stays linear.
    """
    parts: list[str] = []
    at = 0
    while match := names.search(text, at):
        start = match.end()
        value, end, rest = ("", start, None) if start >= len(text) else run_of(text, start, match)
        if value and is_secret(match, value):
            following = rest.match(text, end) if rest is not None else None
            end = following.end() if following is not None else end
            kept = text[start:end].rstrip(".,:;!?)]}") if names is not COOKIE else text[start:end]
            parts += [text[at:start], HIDDEN]
            at = start + max(1, len(kept))
        else:
            parts.append(text[at:start])
            at = start
    parts.append(text[at:])
    return "".join(parts)
