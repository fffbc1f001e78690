"""What the programs share: the client that may be wrapped, three ways to ask many rows, and the report of the rows.

A program learns from its environment where its server is (`SERVER`), how many rows it asks (`ROWS`), and whether its
clients are wrapped (`WRAPPED`). Only then does it know of tidegate.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

if os.environ.get("WRAPPED") == "1":
    # The time of a program begins when all libraries are loaded; that of its process has the import too.
    import tidegate

ROWS = int(os.environ.get("ROWS", "40"))
SERVER = os.environ.get("SERVER", "http://127.0.0.1:1")
BEGAN = time.monotonic()
TIMES: list[float] = []


def text(row: int) -> str:
    """Return the prompt of a row; one in ten has a word that some servers refuse."""
    return f"POISON q{row}" if row % 10 == 3 else f"q{row}"


def token(life: float) -> str:
    """Return a token in the form of a JWT that ends in `life` seconds."""
    claims = ({"alg": "none", "typ": "JWT"}, {"sub": "app", "iat": time.time(), "exp": time.time() + life})
    parts = [base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in claims]
    return ".".join([*parts, "s"])


def govern(client: Any) -> Any:
    """Return the client, wrapped where the run says so."""
    if os.environ.get("WRAPPED") != "1":
        return client
    return tidegate.wrap(client)


def kept(answer: Any) -> Any:
    """Return an answer, and remember when it came."""
    TIMES.append(time.monotonic() - BEGAN)
    return answer


def report(rows: Iterable[Any]) -> None:
    """Print what became of the rows: answers and exceptions."""
    rows = list(rows)
    errors = [row for row in rows if isinstance(row, BaseException)]
    told = {
        "rows": len(rows),
        "answered": len(rows) - len(errors),
        "errors": Counter(type(error).__name__ for error in errors),
        "messages": sorted({f"{type(error).__name__}: {' '.join(str(error).split())[:300]}" for error in errors}),
        "seconds": time.monotonic() - BEGAN,
        "times": [round(each, 3) for each in TIMES],
    }
    print("\nNEVER_WORSE " + json.dumps(told), flush=True)


def gather(ask: Callable[[int], Awaitable[Any]], at_once: int = ROWS) -> None:
    """Ask all rows in tasks of one event loop."""

    async def every() -> list[Any]:
        bound = asyncio.Semaphore(at_once)

        async def one(row: int) -> Any:
            async with bound:
                return kept(await ask(row))

        return await asyncio.gather(*(one(row) for row in range(ROWS)), return_exceptions=True)

    report(asyncio.run(every()))


def threads(ask: Callable[[int], Any], workers: int = 16) -> None:
    """Ask all rows in threads of a pool."""
    with ThreadPoolExecutor(workers) as pool:
        report(pool.map(lambda row: caught(ask, row), range(ROWS)))


def loop(ask: Callable[[int], Any]) -> None:
    """Ask one row after the other."""
    report([caught(ask, row) for row in range(ROWS)])


def caught(ask: Callable[[int], Any], row: int) -> Any:
    """Return the answer to a row, or its exception."""
    try:
        return kept(ask(row))
    except Exception as error:
        return error


def option(place: int, default: str = "") -> str:
    """Return a word of the command line."""
    return sys.argv[place] if len(sys.argv) > place else default
