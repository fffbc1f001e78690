"""`tidegate advise`: the number of workers to start for a model, by the suspensions that processes share."""

from __future__ import annotations

from typing import Annotated

import typer

from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.display import printable
from tidegate.core.wait_text import duration
from tidegate.settings import Settings

THROTTLED = 75
"""Exit code while no worker may start (`EX_TEMPFAIL` of sysexits.h)."""


def advise(
    target: Annotated[str, typer.Argument(help="provider/model, or provider/* for all models of a provider.")],
    wanted: Annotated[int, typer.Option(min=0, help="Workers that there is work for.")],
    active: Annotated[int, typer.Option(min=0, help="Workers that run already.")] = 0,
    most: Annotated[int | None, typer.Option(min=0, help="Workers that may run at most.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Print the number of further workers to start for a model.

    It reads the file of TIDEGATE_SUSPENSIONS. The exit code is 75 while the model is suspended.
    """
    advice = RateLimitRegistry(Settings.from_environment()).advise(target, wanted=wanted, active=active, most=most)
    if as_json:
        print(advice.to_json())  # noqa: T201
    elif advice.throttled:
        until = "" if advice.ready_in is None else f"; ready in {duration(advice.ready_in)}"
        print(printable(f"no worker for {target}: {advice.reason}{until}"))  # noqa: T201
    else:
        print(f"{advice.workers} further workers for {printable(target)}")  # noqa: T201
    if advice.throttled:
        raise typer.Exit(THROTTLED)
