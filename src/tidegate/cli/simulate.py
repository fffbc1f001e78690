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

from tidegate.cli.common import print_table, unbounded
from tidegate.errors import ConfigurationError, require
from tidegate.testing import Counts, Limit, OutageSpan, Scenario, Truth, serve
from tidegate.testing.limiters import Unit
from tidegate.testing.scenario import DIALECTS, SCOPES

OTHER_OPTIONS = ("port", "scenario", "log")
ABOVE_ZERO = ("rpm", "tpm", "itpm", "otpm", "rpd", "slots", "window", "burst")
RATE = "per window (default: no limit)."
LATENCY = "Answer after this many seconds: 0.5, uniform:A,B or lognormal:MEDIAN,SIGMA."
OUTPUT_TOKENS = "Count this many tokens per answer, in the form of --latency (default: a quarter of its characters)."
OUTAGE = "Fail all calls from second START to END with STATUS (default: 503), or cut connections (drop)."
CAPTION = "Limits are counted for each key (--scope): a model, and a credential by a digest of the simulator alone."


def simulate(
    context: typer.Context,
    dialect: Annotated[
        str | None,
        typer.Option(help=f"Send the headers and error bodies of one of: {', '.join(DIALECTS)} (default: auto)."),
    ] = None,
    rpm: Annotated[float | None, typer.Option(help=f"Limit requests {RATE}")] = None,
    tpm: Annotated[float | None, typer.Option(help=f"Limit tokens {RATE}")] = None,
    itpm: Annotated[float | None, typer.Option(help=f"Limit input tokens {RATE}")] = None,
    otpm: Annotated[float | None, typer.Option(help=f"Limit output tokens {RATE}")] = None,
    rpd: Annotated[float | None, typer.Option(help="Limit requests per day (default: no limit).")] = None,
    slots: Annotated[float | None, typer.Option(help="Limit calls in flight (default: no limit).")] = None,
    window: Annotated[
        float | None, typer.Option(help="Set the length of the rate window in seconds (default: 60).")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Count rates with one of: bucket, fixed, rolling (default: bucket).")
    ] = None,
    burst: Annotated[
        float | None, typer.Option(help="Set the capacity of the request bucket (default: the rpm).")
    ] = None,
    latency: Annotated[str | None, typer.Option(help=f"{LATENCY} Default: 0.")] = None,
    token_pace: Annotated[
        float | None, typer.Option(help="Add this many seconds per output token (default: 0).")
    ] = None,
    output_tokens: Annotated[str | None, typer.Option(help=OUTPUT_TOKENS)] = None,
    retry_after: Annotated[
        str | None,
        typer.Option(help="Name the wait of a refusal: exact, late (three times), absurd or none (default: exact)."),
    ] = None,
    headers: Annotated[bool | None, typer.Option(help="Send rate-limit headers (default: yes).")] = None,
    outage: Annotated[
        list[str] | None, typer.Option(metavar="START:END[:STATUS]", help=f"{OUTAGE} May be repeated.")
    ] = None,
    scope: Annotated[
        str | None, typer.Option(help=f"Count limits per one of: {', '.join(SCOPES)} (default: credential+model).")
    ] = None,
    charge: Annotated[
        str | None, typer.Option(help="Charge token limits by input, input+max_tokens or produced (default: input).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Set the seed of all random values (default: 0).")] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="Read the scenario from this JSON file, without the flags above.")
    ] = None,
    log: Annotated[bool, typer.Option("--log", help="Print one line per request: time, status, path, key.")] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Listen on this port; 0 chooses a free one.")] = 0,
) -> None:
    """Serve a simulated LLM provider on this machine until Ctrl-C, then print the true counts of its calls."""
    given = {
        name: value
        for name, value in context.params.items()
        if name not in OTHER_OPTIONS and value not in (None, [], ())
    }
    _serve_until_stopped(_scenario(scenario, given), port, log)


def _serve_until_stopped(played: Scenario, port: int, log: bool) -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: stopped.set())
    try:
        truth = serve(played, port=port, stop=stopped, on_ready=_announce, log=typer.echo if log else None)
    except OSError as error:
        raise ConfigurationError("port", port, f"it cannot be opened ({error.strerror or error})") from None
    print_table(unbounded(Console(highlight=False)), truth_table(truth))


LIMITS: dict[str, Unit] = {"rpm": "requests", "tpm": "tokens", "itpm": "input_tokens", "otpm": "output_tokens"}
"""Unit that each flag of a rate limits."""


def _scenario(path: Path | None, given: dict[str, Any]) -> Scenario:
    if path is None:
        return scenario_of(given)
    if given:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ConfigurationError("scenario", str(path), f"the file sets every field; remove {flags}")
    try:
        return Scenario.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError("scenario", str(path), f"it cannot be read ({reason})") from None


def scenario_of(given: dict[str, Any]) -> Scenario:
    """Return the scenario of the flags that were given, whose values replace the defaults of `Scenario`."""
    for name in ABOVE_ZERO:
        # Checked here, as `Limit` would name its own field instead of the flag.
        require(given.get(name, 1) > 0, name, given.get(name), "it must be above 0")
    given = dict(given)
    algorithm, window, burst = given.pop("algorithm", "bucket"), given.pop("window", 60.0), given.pop("burst", None)
    if algorithm not in ("bucket", "fixed", "rolling"):
        raise ConfigurationError("algorithm", algorithm, "it must be one of bucket, fixed, rolling")
    limits = [
        Limit(
            kind=algorithm,
            limit=given.pop(flag),
            window=window,
            unit=unit,
            burst=burst if unit == "requests" else None,
        )
        for flag, unit in LIMITS.items()
        if flag in given
    ]
    if "rpd" in given:
        limits.append(Limit(kind="day", limit=given.pop("rpd")))
    if "slots" in given:
        limits.append(Limit(kind="slots", limit=given.pop("slots")))
    outages = tuple(_span(text) for text in given.pop("outage", ()))
    return Scenario(limiters=tuple(limits), outages=outages, **given)


def _span(text: str) -> OutageSpan:
    parts = text.split(":")
    try:
        start, end = float(parts[0]), float(parts[1])
        status: Any = 503 if len(parts) < 3 else "drop" if parts[2] == "drop" else int(parts[2])
    except (IndexError, ValueError):
        raise ConfigurationError(
            "outage", text, "it must be START:END or START:END:STATUS, with START and END in seconds"
        ) from None
    try:
        return OutageSpan(start=start, end=end, status=status)
    except ConfigurationError as error:
        raise ConfigurationError("outage", text, f"{error.field}: {error.bound}") from None


def _announce(url: str) -> None:
    typer.echo(f"Simulated provider ready: it answers at {url}, on this machine only; press Ctrl-C to stop it.")
    typer.echo("A line below, pasted into another terminal, leads the SDK of its name there:\n")
    typer.echo(f"export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY=any")
    typer.echo(f"export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY=any")
    typer.echo(f"export GOOGLE_GEMINI_BASE_URL={url} GEMINI_API_KEY=any")
    typer.echo(f"export AWS_ENDPOINT_URL_BEDROCK_RUNTIME={url} AWS_BEARER_TOKEN_BEDROCK=any\n")


def truth_table(truth: Truth) -> Table:
    """Return the ground truth as a table, with one row for each key and one for all. `peak` is of calls in flight."""
    title = f"Ground truth after {truth.elapsed:.1f} s"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.caption, table.caption_justify = CAPTION, "left"
    table.add_column("key")
    for name in ("received", "answered", "refused", "broken", "abandoned", "peak"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("refused by", no_wrap=True)
    for name, counts in (*truth.keys.items(), ("all", truth.total)):
        # Not as markup: the name of a model may contain brackets.
        table.add_row(Text(name), *_cells(counts))
    return table


def _cells(counts: Counts) -> tuple[str, ...]:
    ends = (counts.answered, counts.refusals, counts.broken, counts.abandoned)
    numbers = (counts.received, *ends, counts.peak_in_flight)
    # One reason a line: the table is narrower, and shown as such on more terminals.
    return *map(str, numbers), "\n".join(f"{name} {number}" for name, number in counts.refused.items())
