"""`tidegate doctor`: report of what tidegate governs in this Python or in a script, or of what answers mean.

A script is read and never run: its imports, those of the modules next to it, and their requirements count.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.cli.doctor import environment
from tidegate.cli.doctor.answers import explain
from tidegate.cli.doctor.environment import Finding, Installed, Severity
from tidegate.cli.doctor.script import Unreadable, read_script
from tidegate.core.safe_text import json_line
from tidegate.errors import ConfigurationError
from tidegate.providers import load_prices
from tidegate.settings import Settings

STYLES = {
    Severity.GOVERNED: "green",
    Severity.STRETCHED: "green",
    Severity.UNGOVERNED: "red",
    Severity.TRAP: "yellow",
    Severity.KEPT: "yellow",
}
NOTHING = Finding(
    "sdk", Severity.NOTE, "none", "nothing found that tidegate governs; install an SDK, such as `pip install openai`"
)
"""Finding where there is no other one."""

FAILED = 1
"""Exit code if something was found that cannot be governed, or a line that is no answer of a known provider."""


def doctor(
    script: Annotated[
        Path | None,
        typer.Argument(
            help="Check the imports of this script and of the modules next to it instead; nothing is executed."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    answers: Annotated[
        bool, typer.Option("--explain", help="Explain answers of providers, read as JSON lines from standard input.")
    ] = False,
) -> None:
    """List what tidegate governs in this Python, or in a script. The exit code is 1 if something is ungoverned.

    With `--explain`, a line of input is {"provider": name or null, "url": ..., "model": ..., "status": ..., "headers":
    {...}, "body": ..., "now": RFC 3339 or null}. For each answer, print one line of JSON, or on a terminal a table. The
    exit code is 1 if a line was not an answer, or named an unknown provider.
    """
    if answers:
        if script is not None:
            raise ConfigurationError("script", str(script), "--explain reads standard input, and no script")
        if not explain():
            raise typer.Exit(FAILED)
        return
    try:
        found = list(findings(script)) or [NOTHING]
        if script is None:
            found.append(environment.sharing(Settings.from_environment()))
    except Unreadable as error:
        raise ConfigurationError("script", str(script), str(error)) from None
    if as_json:
        for each in found:
            print(json_line(each.fields()))  # noqa: T201
    elif sys.stdout.isatty():
        Console().print(_table(found))
    else:
        for each in found:
            print(each.line())  # noqa: T201
    if any(each.verdict is Severity.UNGOVERNED for each in found):
        raise typer.Exit(FAILED)


def findings(script: Path | None) -> Iterator[Finding]:
    """Yield all findings.

    Raise `Unreadable` if the script cannot be read as Python source, and `ConfigurationError` for an unusable setting.
    """
    settings, installed = Settings.from_environment(), Installed()
    if settings.prices is not None:
        load_prices(settings.prices)
    if script is None:
        yield from environment.system()
        yield from environment.stacks(installed)
        yield from environment.sdks(installed)
        yield from environment.clocks(installed, settings, os.environ)
        yield from environment.hosts(settings, os.environ)
    else:
        yield from read_script(script, installed, settings, os.environ)
    yield from environment.prices(datetime.now(UTC).date())
    yield from environment.in_force(settings)
    yield from environment.misspelt(os.environ)


def _table(found: Iterable[Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("section")
    table.add_column("verdict", no_wrap=True)
    table.add_column("name", overflow="fold")
    table.add_column("finding", overflow="fold")
    section = ""
    for each in found:
        name = " ".join(filter(None, (each.name, each.version)))
        verdict = Text(str(each.verdict), style=STYLES.get(each.verdict, ""))
        table.add_row(each.section if each.section != section else "", verdict, Text(name), Text(each.text))
        section = each.section
    return table
