"""The failures of a database that pass: the same call, made again, may succeed."""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy.exc import DBAPIError

PASSING = frozenset({"25P03", "40001", "40P01", "53100", "53300", "55P03", "57014", "57P01", "57P02", "57P03", "57P05"})
"""SQLSTATEs that pass: idle in a transaction, lost a race, disk full, too many connections, lock not available,
cancelled by somebody, shutdown, crash, starting, idle too long (PostgreSQL, appendix A). Class 08 are lost connections.
"""

SQLITE_PASSING = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE")
"""Codes that pass: a lock was not had, or the disk is full, which of a quota is told as a failed write (SQLite, "Result
and Error Codes")."""

REFUSALS = (
    ("28P01", re.compile(r'password authentication failed for user "|no password supplied')),
    ("28000", re.compile(r'authentication failed for user "|pg_hba\.conf|role ".*" (does not exist|is not permitted)')),
    ("3D000", re.compile(r'database ".*" does not exist|currently not accepting connections')),
    ("42501", re.compile(r'permission denied for database "')),
)
"""What a server says that knows us not. libpq keeps the SQLSTATE of a connection that was not made to itself (psycopg
issue 1188), and hands on the text alone (PostgreSQL 18: auth.c, postinit.c, miscinit.c; libpq: fe-auth.c). A server
that says it in another language is waited for as one that is away."""


def passes(error: DBAPIError) -> bool:
    """Return whether the same call may succeed later: connection lost, server away, or lock not had."""
    if error.connection_invalidated:
        return True
    code = getattr(error.orig, "sqlite_errorname", None)
    if code is not None:
        return str(code).startswith(SQLITE_PASSING)
    state = state_of(error.orig)
    if state is not None:
        return state in PASSING or state.startswith("08")
    # Without a state: libpq could not connect.
    return type(error.orig).__name__ == "OperationalError"


def state_of(error: Any) -> str | None:
    """The SQLSTATE of a driver's error; None where nobody answered, or what was answered is not known."""
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return str(state)
    said = str(error)
    return next((state for state, words in REFUSALS if words.search(said)), None)
