"""Error texts for storage: without secrets, of bounded length, and with the line of user code that they come from."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from tidegate.admission.redaction import clean
from tidegate.core.safe_text import printable
from tidegate.errors import Error

MAX_ERROR_CHARACTERS = 500
"""Maximum characters of a stored error. Raising it stores more of what an error quotes. Chosen: enough for a reason in
a terminal, too few for a prompt."""

OWN_PATH = str(Path(__file__).parents[2])
LIBRARIES = (OWN_PATH, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Path prefixes of code that is not the user's."""


def redacted(error: BaseException) -> str:
    """Return the exception's type and text as one line, without credentials, at most `MAX_ERROR_CHARACTERS` characters.

    It ends with the last line of user code in the traceback, `(my_eval.py:12)`. An error of tidegate is a full
    sentence, so its type is omitted.
    """
    try:
        text = str(error)
    except Exception:
        text = ""
    name = type(error).__name__
    told = text if text and isinstance(error, Error) else f"{name}: {text}" if text else name
    where = _where(error)
    return clean(told, MAX_ERROR_CHARACTERS - len(where)) + where


def _where(error: BaseException) -> str:
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        if not path.startswith(("<", *LIBRARIES)):
            found = f" ({printable(Path(path).name)}:{line})"
    return found
