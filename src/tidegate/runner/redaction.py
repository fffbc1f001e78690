"""Error texts as they may be kept: without secrets, of bounded length, with the line of one's own code behind them."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

from tidegate.core.display import printable
from tidegate.errors import Error
from tidegate.redaction import clean

LONGEST = 500
"""Characters of an error that are kept: what a terminal shows of a reason, and no prompt."""

OURS = str(Path(__file__).parents[1])
LIBRARIES = (OURS, *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
"""Where code is nobody's own."""


def redacted(error: BaseException) -> str:
    """The exception's type and text as one line, without credentials, at most `LONGEST` characters.

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


def _where(error: BaseException) -> str:
    found = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        path = frame.f_code.co_filename
        if not path.startswith(("<", *LIBRARIES)):
            found = f" ({printable(Path(path).name)}:{line})"
    return found
