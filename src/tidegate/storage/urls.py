"""The database that a text names (a path, `sqlite:///…` or `postgresql://…`), and its name without a password."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from tidegate.errors import ConfigurationError

DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
SECRETS = ("password", "sslpassword")
"""What libpq also takes as a parameter of the URL (libpq, section 34.1.2)."""

BOUND = "a database is a path, sqlite:///path or postgresql://user@host/name"


def parsed(url: str) -> URL:
    """The database that is meant, with the driver that we use. Raises `ConfigurationError`, which shows no secret."""
    if "://" not in url:
        return _file(url)
    scheme = url.partition("://")[0]
    if scheme not in DRIVERS:
        raise ConfigurationError("db", f"{scheme}://…", BOUND)
    try:
        found = make_url(url)
    except (ArgumentError, ValueError):
        raise ConfigurationError("db", f"{scheme}://…", BOUND) from None
    if found.get_backend_name() == "sqlite":
        return _file(found.database or "").update_query_dict(dict(found.query))
    return found.set(drivername=DRIVERS[scheme])


def shown(url: URL) -> str:
    """The URL for people: without its driver, and with `***` for every secret."""
    if url.get_backend_name() == "sqlite":
        return f"sqlite:///{url.database}"
    hidden = {name: "***" for name in SECRETS if name in url.query}
    plain = url.set(drivername=url.get_backend_name()).update_query_dict(hidden)
    return plain.render_as_string(hide_password=True).replace("%2A%2A%2A", "***")


def has_secret(url: URL) -> bool:
    """Return whether the URL holds a password, also as a parameter."""
    return url.password is not None or any(name in url.query for name in SECRETS)


def _file(path: str) -> URL:
    if not path or path == ":memory:":
        raise ConfigurationError("db", path, "an SQLite database is a file: what is only in memory is not kept")
    return URL.create(DRIVERS["sqlite"], database=str(Path(path).expanduser()))
