"""Error texts as they may be kept: without secrets, of bounded length, with the line of one's own code behind them."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from tidegate.errors import Error

LONGEST = 500
"""Characters of an error that are kept: what a terminal shows of a reason, and no prompt."""

SECRETS = (
    re.compile(r"(?i)\b(bearer|basic)\s+[\w\-.=+/~]{6,}"),
    re.compile(r"(?i)\b((?:api[-_ ]?key|token|secret|password|authorization|x-goog-api-key)\W{1,4})[\w\-.=+/~*]{6,}"),
    re.compile(r"\b(sk|pk|rk|gsk|xai|hf|r8|ghp|AKIA|ASIA|AIza|nvapi|fw|csk|pplx)[-_]?[\w\-]{12,}[*\w\-]*"),
    re.compile(r"(?i)\b([a-z][a-z0-9+.\-]*://)[^\s/@:]*:[^\s/@]+(?=@)"),
    re.compile(r"([?&](?:key|api[-_]?key|token|sig(?:nature)?|X-Amz-[\w\-]+)=)[^&\s]+", re.IGNORECASE),
    re.compile(r"\b()[A-Za-z0-9_\-]{40,}\b"),
)
"""What credentials look like: header schemes, named values, the providers' own prefixes, user:password in URLs."""

SECRETIVE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
SHORTEST = 8
"""Names of environment variables that hold credentials, and how long a credential is at least: whatever else it looks
like, its value stays out."""

OURS = str(Path(__file__).parents[1])
LIBRARIES = (OURS, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Where code is nobody's own."""


def redacted(error: BaseException) -> str:
    """The exception's type and text, without what looks like a credential, at most `LONGEST` characters.

    At the end stands the last line of one's own code that it came through, `(my_eval.py:12)`; what tidegate raises
    itself is a sentence, and goes without its type.
    """
    try:
        text = str(error)
    except Exception:
        text = ""
    name = type(error).__name__
    told = text if text and isinstance(error, Error) else f"{name}: {text}" if text else name
    where = _where(error)
    return clean(told, LONGEST - len(where)) + where


def clean(text: str, longest: int = LONGEST) -> str:
    """A text without what looks like a credential, at most `longest` characters, NUL characters left out."""
    text = text[: LONGEST * 8].replace("\x00", "")
    for secret in sorted(_held(), key=len, reverse=True):
        text = text.replace(secret, "…")
    for pattern in SECRETS:
        text = pattern.sub(r"\1…", text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _held() -> Iterator[str]:
    """The credentials in the environment, each by its value."""
    for name, value in os.environ.items():
        if len(value) >= SHORTEST and SECRETIVE.search(name):
            yield value


def _where(error: BaseException) -> str:
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        if not path.startswith(("<", *LIBRARIES)):
            found = f" ({Path(path).name}:{line})"
    return found
