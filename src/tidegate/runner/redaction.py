"""Error texts as they may be kept: without secrets, and of bounded length."""

from __future__ import annotations

import re

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


def redacted(error: BaseException) -> str:
    """The exception's type and text, without what looks like a credential, at most `LONGEST` characters."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return clean(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def clean(text: str) -> str:
    """A text without what looks like a credential, at most `LONGEST` characters, NUL characters left out."""
    text = text[: LONGEST * 8].replace("\x00", "")
    for pattern in SECRETS:
        text = pattern.sub(r"\1…", text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
