"""`tidegate simulate`: a simulated provider with real limits on this machine, for any client."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidegate.errors import ConfigurationError
from tidegate.testing import Counts, Scenario, Truth, from_flags, serve
from tidegate.testing.checks import positive

APART = ("port", "scenario")
ABOVE_ZERO = ("rpm", "tpm", "itpm", "otpm", "rpd", "slots", "window", "burst")
RATE = "for each window, default: no limit"


def simulate(
    context: typer.Context,
    dialect: Annotated[
        str | None, typer.Option(help="auto, openai, azure, azure-renewal, anthropic, ietf or none (default: auto)")
    ] = None,
    rpm: Annotated[float | None, typer.Option(help=f"requests {RATE}")] = None,
    tpm: Annotated[float | None, typer.Option(help=f"tokens {RATE}")] = None,
    itpm: Annotated[float | None, typer.Option(help=f"input tokens {RATE}")] = None,
    otpm: Annotated[float | None, typer.Option(help=f"output tokens {RATE}")] = None,
    rpd: Annotated[float | None, typer.Option(help="requests a day")] = None,
    slots: Annotated[float | None, typer.Option(help="calls in flight")] = None,
    window: Annotated[float | None, typer.Option(help="seconds of the `minute` of the rates (default: 60)")] = None,
    algorithm: Annotated[str | None, typer.Option(help="bucket, fixed or rolling (default: bucket)")] = None,
    burst: Annotated[float | None, typer.Option(help="what the request bucket holds (default: the rpm)")] = None,
    latency: Annotated[str | None, typer.Option(help="seconds: 0.5, uniform:A,B or lognormal:MEDIAN,SIGMA")] = None,
    token_pace: Annotated[float | None, typer.Option(help="seconds for each output token")] = None,
    output_tokens: Annotated[str | None, typer.Option(help="tokens of an answer, written like --latency")] = None,
    retry_after: Annotated[str | None, typer.Option(help="exact, late, absurd or none (default: exact)")] = None,
    headers: Annotated[bool | None, typer.Option(help="whether answers announce the limits (default: they do)")] = None,
    outage: Annotated[list[str] | None, typer.Option(metavar="START:END[:STATUS]", help="may be repeated")] = None,
    scope: Annotated[str | None, typer.Option(help="credential+model, credential, model or global")] = None,
    charge: Annotated[str | None, typer.Option(help="input, input+max_tokens or produced (default: input)")] = None,
    seed: Annotated[int | None, typer.Option(help="of everything random")] = None,
    scenario: Annotated[Path | None, typer.Option(help="a JSON file in place of these flags")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one")] = 0,
) -> None:
    """Serve a simulated LLM provider on this machine until Ctrl-C, then print the ground truth of what happened."""
    # The flags and their defaults are those of `from_flags`: only given values are passed on.
    given = {name: value for name, value in context.params.items() if name not in APART and value not in (None, [], ())}
    played = _scenario(scenario, given)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stopped.set())
    try:
        truth = serve(played, port=port, stop=stopped, on_ready=_announce)
    except OSError as error:
        raise ConfigurationError("port", port, error.strerror or str(error)) from None
    Console().print(truth_table(truth))


def _scenario(path: Path | None, given: dict[str, Any]) -> Scenario:
    if path is None:
        for name in ABOVE_ZERO:
            # Checked here, as `from_flags` would name the field of the limit instead of the flag.
            positive(name, given.get(name, 1))
        return from_flags(**given)
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigurationError("scenario", str(path), f"it holds every field itself, so leave out {flags}")
    try:
        return Scenario.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError("scenario", str(path), f"a readable file: {error}") from None


def _announce(url: str) -> None:
    typer.echo(f"A simulated provider answers at {url} (this machine only). Ctrl-C stops it.\n")
    typer.echo(f"  openai     export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=any")
    typer.echo(f"  anthropic  export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY=any\n")


def truth_table(truth: Truth) -> Table:
    """Return the ground truth as a table, with one row for each key and one for all. `peak` is of calls in flight."""
    title = f"Ground truth after {truth.elapsed:.1f} s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("key", overflow="fold")
    for name in ("received", "answered", "refused", "broken", "abandoned", "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("refused by", overflow="fold")
    for name, counts in (*truth.keys.items(), ("all", truth.total)):
        # Not as markup: the name of a model may contain brackets.
        table.add_row(Text(name), *_cells(counts))
    return table


def _cells(counts: Counts) -> tuple[str, ...]:
    ends = (counts.answered, counts.refusals, counts.broken, counts.abandoned)
    numbers = (counts.received, *ends, counts.peak_in_flight)
    return *map(str, numbers), ", ".join(f"{name} {number}" for name, number in counts.refused.items())
