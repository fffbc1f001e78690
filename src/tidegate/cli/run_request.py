"""Request of a `tidegate run`, from its command line and its environment, read without typer and pydantic.

Every program under `tidegate run` waits for this code. `read` knows the usual forms of the command line, and leaves all
others to `tidegate.cli.run`, where typer reads them and explains mistakes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

STDERR = 2

UNUSABLE_CODE = 2
"""Exit code for an unusable value, the same as for an unknown option (click: UsageError.exit_code)."""

PREFIX = "TIDEGATE_"
"""Beginning of the variables that are settings: the one of `tidegate.settings`, repeated to avoid that import."""


class RunRequest(NamedTuple):
    """Command of a run, with its arguments, and the options before it; `gateway` is None where it is not given."""

    command: list[str]
    state: Path | None = None
    report: Path | None = None
    strict: bool = False
    gateway: bool | None = None


def read(words: Sequence[str]) -> RunRequest | None:
    """Return the request in the arguments of `tidegate run`; None where typer has to read them, or to refuse them."""
    files: dict[str, Path] = {}
    strict, gateway = False, None
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--" or not word.startswith("-"):
            command = rest if word == "--" else [word, *rest]
            return (
                RunRequest(command, files.get("--state"), files.get("--report"), strict, gateway) if command else None
            )
        if name in ("--state", "--report"):
            value = value if equals else rest.pop(0) if rest else ""
            if not value or value.startswith("-"):
                return None
            files[name] = Path(value)
        elif word == "--strict":
            strict = True
        elif word in ("--gateway", "--no-gateway"):
            gateway = word == "--gateway"
        else:
            return None
    return None


class RunSettings(NamedTuple):
    """Settings that the run itself follows; the defaults are those of `tidegate.settings.Settings`."""

    log: bool = True
    disabled: bool = False
    prices: Path | None = None
    unknown: tuple[tuple[str, str], ...] = ()
    """TIDEGATE_… variables that are no setting, each with the one that it may stand for."""


def settings_in(environ: Mapping[str, str]) -> RunSettings:
    """Return the settings of the TIDEGATE_… variables; raise `ConfigurationError` for any that is not usable."""
    if not any(name.startswith(PREFIX) for name in environ):
        return RunSettings()
    # Without a variable there is nothing to check, and pydantic takes longer to load than all other code here.
    from tidegate.settings import Settings, unknown_variables

    settings = Settings.from_environment(environ)
    unknown = tuple(unknown_variables(environ).items())
    return RunSettings(settings.log, settings.disabled, settings.prices, unknown)


def say(text: str) -> None:
    """Write one line of tidegate to the standard error stream, where the process has one."""
    if sys.stderr is not None:
        sys.stderr.write(f"tidegate: {text}\n")
        sys.stderr.flush()
