"""Picture of the README: the same calls without tidegate and with it, from a real run against the simulator.

Run `python -m tools.readme_picture` from the environment of the tests. Each row of a panel is one call, from left to
right in seconds: a red mark is a refusal, a green one the answer. The text above and beside the marks explains them, so
that the picture needs no page around it.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import openai

from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Call, Distribution, Limit, Scenario, SimulatorProcess, ideal_makespan

PLACE = Path(__file__).parents[1] / "docs" / "images" / "plain-and-tidegate.svg"

CALLS = 100
"""Calls that start at once. More calls make a longer run and finer rows."""

SCENARIO = Scenario(
    limiters=(Limit(limit=30, window=6.0),), dialect="openai", latency=Distribution.lognormal(0.5, 0.3), seed=1
)
"""Provider of 300 requests a minute, of which 30 may come at once."""

HEADING = f"{CALLS} calls start at once. The provider admits 30 at once, and 300 a minute."

PLAIN, GOVERNED = "openai, plain", "openai with tidegate"
"""Titles of the two runs."""

NOTES = {
    PLAIN: "The SDK repeats a refused call twice within 2 s, then the call is lost.",
    GOVERNED: "Each call waits in a queue until the limit admits it. None is lost.",
}
"""Sentence beside the marks of a run, by its title."""

WIDTH, PANEL, GAP, TOP = 860, 190, 54, 88
"""Pixels of the picture, of a panel's height, between panels, and above the first one."""


class Panel(NamedTuple):
    """One run: its title, and for each call the instants and statuses of its answers."""

    title: str
    calls: list[list[tuple[float, int]]]

    @property
    def answered(self) -> int:
        """Return the number of calls with an answer."""
        return sum(any(status == 200 for _, status in call) for call in self.calls)

    @property
    def refused(self) -> int:
        """Return the number of refusals of all calls."""
        return sum(status == 429 for call in self.calls for _, status in call)

    @property
    def seconds(self) -> float:
        """Return the seconds from the start to the last answer or refusal."""
        return max(at for call in self.calls for at, _ in call)


def measured(title: str, url: str, *, wrapped: bool) -> Panel:
    """Run the calls, plain or wrapped, and return what came back when."""
    return Panel(title, asyncio.run(_run(url, wrapped)))


async def _run(url: str, wrapped: bool) -> list[list[tuple[float, int]]]:
    came: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)

    async def note(response: openai.DefaultAsyncHttpxClient) -> None:
        number = int(response.request.headers["x-call"])
        came[number].append((time.monotonic() - began, response.status_code))

    http = openai.DefaultAsyncHttpxClient(event_hooks={"response": [note]})
    async with openai.AsyncOpenAI(base_url=url, api_key="any", http_client=http) as client:
        if wrapped:
            RateLimitRegistry().wrap(client)
        messages = [{"role": "user", "content": "How high is the tide?"}]
        began = time.monotonic()
        calls = (
            client.chat.completions.create(model="m", messages=messages, extra_headers={"x-call": str(number)})
            for number in range(CALLS)
        )
        await asyncio.gather(*calls, return_exceptions=True)
    return [sorted(came[number]) for number in range(CALLS)]


def picture(panels: list[Panel], ideal: float) -> str:
    """Return the SVG of the panels, one below the other, on one axis of time."""
    span = max(panel.seconds for panel in panels) * 1.04
    height = TOP + len(panels) * (PANEL + GAP) - 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape('; '.join(caption(panel) for panel in panels))}</title>",
        "<style>text{font:14px system-ui,sans-serif;fill:#24292f}.head{font-size:17px}.title{font-weight:600}"
        ".small{font-size:12px;"
        "fill:#57606a}.axis{stroke:#d0d7de}.ok{fill:#1a7f37}.no{fill:#cf222e}.ideal{stroke:#57606a}"
        ".ideal{stroke-dasharray:4 4}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.small{fill:#9198a1}"
        ".axis{stroke:#3d444d}.ok{fill:#3fb950}"
        ".no{fill:#f85149}.ideal{stroke:#9198a1}}</style>",
        f'<text class="head" x="10" y="22">{escape(HEADING)}</text>',
        '<circle class="ok" cx="15" cy="41" r="4"/><text class="small" x="24" y="45">answer</text>'
        '<circle class="no" cx="83" cy="41" r="4"/><text class="small" x="92" y="45">refusal (429)</text>'
        '<line class="ideal" x1="186" y1="34" x2="186" y2="48"/><text class="small" x="194" y="45">earliest end that '
        "the limit allows</text>"
        f'<text class="small" x="{WIDTH - 10}" y="45" text-anchor="end">one row a call, from left to right in time'
        "</text>",
    ]
    for number, panel in enumerate(panels):
        parts += _drawn(panel, TOP + number * (PANEL + GAP), span, ideal)
    return "\n".join([*parts, "</svg>", ""])


def caption(panel: Panel) -> str:
    """Return the line above a panel."""
    refusals = f"{panel.refused} refusals" if panel.refused != 1 else "1 refusal"
    lost = len(panel.calls) - panel.answered
    return f"{panel.title}: {panel.answered} of {len(panel.calls)} calls answered, {lost} lost, {refusals}"


def _drawn(panel: Panel, top: float, span: float, ideal: float) -> list[str]:
    def across(seconds: float) -> float:
        return round(10 + seconds / span * (WIDTH - 20), 1)

    bottom = top + PANEL
    # Rows in the order of the answers: calls without one come last.
    rows = sorted(panel.calls, key=lambda call: (call[-1][1] != 200, call[-1][0]))
    marks = [
        f'<circle class="{"ok" if status == 200 else "no"}" cx="{across(at)}" '
        f'cy="{round(top + 8 + row / len(rows) * (PANEL - 12), 1)}" r="2"/>'
        for row, call in enumerate(rows)
        for at, status in call
    ]
    ticks = [
        f'<text class="small" x="{across(second)}" y="{bottom + 16}">{second} s</text>'
        for second in range(0, int(span) + 1, 5)
    ]
    return [
        f'<text class="title" x="10" y="{top - 4}">{escape(caption(panel))}</text>',
        f'<line class="axis" x1="10" y1="{bottom}" x2="{WIDTH - 10}" y2="{bottom}"/>',
        f'<line class="ideal" x1="{across(ideal)}" y1="{top}" x2="{across(ideal)}" y2="{bottom}"/>',
        f'<text class="small" x="{across(ideal) - 4}" y="{top + 14}" text-anchor="end">'
        f"earliest end: {ideal:.1f} s</text>",
        f'<text x="{across(0.3 * span)}" y="{top + 42}">{escape(NOTES[panel.title])}</text>',
        *marks,
        *ticks,
    ]


def main() -> None:
    """Run both, and write the picture."""
    with SimulatorProcess(SCENARIO) as provider:
        plain = measured(PLAIN, provider.openai_url, wrapped=False)
        provider.reset()
        governed = measured(GOVERNED, provider.openai_url, wrapped=True)
    PLACE.parent.mkdir(exist_ok=True)
    PLACE.write_text(picture([plain, governed], ideal_makespan(SCENARIO, [Call()] * CALLS)), "utf-8")
    print(f"{caption(plain)}\n{caption(governed)}\nwritten: {PLACE}")


if __name__ == "__main__":
    main()
