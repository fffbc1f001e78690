"""Extension of IPython and Jupyter: `%load_ext tidegate` governs the calls of a notebook, and shows them below a cell.

Theory of operation. A thread reads the counts of the registries while a cell runs. The first governed call displays one
line. Later readings update it by its display id, and the end of the cell writes its final text. A terminal cannot
update what it has printed, so it gets the final text alone.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from html import escape
from typing import Any, NamedTuple

from tidegate.admission.callers import expect_blocked_loops
from tidegate.core.snapshot import KeySnapshot, QuotaSnapshot
from tidegate.core.values import Key
from tidegate.core.wait_text import (
    CLOSED,
    awaited,
    counted,
    duration,
    eta_text,
    queue_text,
    quota_left,
    refusals_text,
    shared_by,
    wait_text,
)
from tidegate.integrations.call_totals import CallTotals, read_keys, totals_since
from tidegate.transports.governance import Installation
from tidegate.transports.install import install, uninstall

UPDATE_EVERY = 0.5
"""Seconds between two updates of a cell's line. Chosen: the period of the line of `tidegate run`."""

STYLE = "font-family:var(--jp-code-font-family,monospace);font-variant-numeric:tabular-nums;opacity:.75"

USAGE = "usage: %tidegate (state of the keys), %tidegate off (no line below cells), %tidegate on"


class DisplayedText(NamedTuple):
    """Text with the representations that IPython displays: plain, and HTML where the front end has it."""

    lines: tuple[str, ...]

    def __repr__(self) -> str:
        return "\n".join(self.lines)

    def _repr_html_(self) -> str:
        return f'<div style="{STYLE};white-space:pre-wrap">{escape(repr(self))}</div>'


def running_text(totals: CallTotals, key: KeySnapshot) -> str:
    """Return the line while the cell runs."""
    parts = [f"{totals.ended} of {counted(totals.counts['calls'], 'call')} ended"]
    if key.gate in CLOSED:
        parts.insert(0, wait_text(key.gate, key.ready_in, key.stated_wait))
    parts.append(f"{key.in_flight} in flight")
    if key.waiting:
        behind = "" if key.gate in CLOSED else f" for {awaited(key.gate)}"
        parts.append(f"{key.waiting} waiting{behind}")
        parts.append(f"ETA {eta_text(key.eta)}")
    return "tidegate  " + " · ".join([*parts, *_which(totals, key)])


def final_text(totals: CallTotals, key: KeySnapshot, seconds: float) -> str:
    """Return the line at the end of a cell that ran for `seconds`."""
    counts = totals.counts
    parts = [counted(counts["calls"], "call"), f"{counts['answered']} answered", f"{counts['given_up']} given up"]
    parts += [f"{counts[name]} {word}" for name, word in _FURTHER.items() if counts[name]]
    if left := counts["calls"] - totals.ended:
        parts.append(f"{left} not ended")
    parts += [refusals_text(counts["refused"], counts["absorbed"]), f"in {duration(seconds)}"]
    return " · ".join(["tidegate  " + ", ".join(parts), *map(_left, _tightest(key)), *_which(totals, key)])


_FURTHER = {"failed_calls": "failed", "abandoned_calls": "abandoned"}


def board_lines(keys: dict[Key, KeySnapshot]) -> Iterator[str]:
    """Yield the state of each key, those with waiting calls first."""
    for state in sorted(keys.values(), key=lambda each: (-each.waiting, str(each.key))):
        yield str(state.key)
        if state.waiting or state.gate in CLOSED:
            yield f"  {wait_text(state.gate, state.ready_in, state.stated_wait)}"
        shared = shared_by(state.members, state.shared_through) if state.members > 1 else ""
        yield f"  {queue_text(state.in_flight, state.limit, state.waiting, eta_text(state.eta), shared)}"
        calls = [counted(state.calls, "call"), f"{state.answered} answered", f"{state.given_up} given up"]
        calls += [f"{getattr(state, name)} {word}" for name, word in _FURTHER.items() if getattr(state, name)]
        yield f"  {', '.join(calls)}, {counted(state.absorbed, 'refusal')} retried"
        if text := state.binding_text:
            yield f"  {text} so far"
        origins = {each.of: each.confidence for each in state.learnt}
        for quota in state.quotas:
            yield f"  {_left(quota)} ({origins.get(f'quota {quota.name}', 'set')})"


def _tightest(key: KeySnapshot) -> tuple[QuotaSnapshot, ...]:
    return tuple(sorted(key.quotas, key=lambda quota: quota.level / quota.limit if quota.limit else 0.0)[:1])


def _left(quota: QuotaSnapshot) -> str:
    return quota_left(quota.level, quota.name, quota.limit, quota.window)


def _which(totals: CallTotals, key: KeySnapshot) -> list[str]:
    named = f"{key.key.provider} {key.key.scope}".rstrip()
    more = len(totals.used) - 1
    return [named, counted(more, "more key")] if more > 0 else [named]


class CellLine:
    """Line of one cell. With `live` it is updated while the cell runs, else shown once at its end."""

    def __init__(self, show: Callable[[Any], Any], live: bool) -> None:
        self._show = show
        self._shown: Any = None
        self._text = ""
        self._began = time.monotonic()
        self._before = read_keys()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if live:
            # The context has the message that asked for this cell: the front end puts the line below that cell.
            run = contextvars.copy_context().run
            self._thread = threading.Thread(target=run, args=(self._follow,), name="tidegate-cell", daemon=True)
            with suppress(RuntimeError):  # A platform without threads gets the final text alone.
                self._thread.start()

    def end(self) -> None:
        """Write the final text, where the cell made governed calls."""
        self._ended.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        totals = totals_since(self._before, read_keys())
        if totals.used:
            self._write(final_text(totals, totals.used[0], time.monotonic() - self._began))

    def _follow(self) -> None:
        while not self._ended.wait(UPDATE_EVERY):
            totals = totals_since(self._before, read_keys())
            if not totals.used:
                continue
            try:
                self._write(running_text(totals, totals.used[0]))
            except Exception:
                # The front end is gone, or another program has replaced the display: the cell itself goes on.
                return

    def _write(self, text: str) -> None:
        if text == self._text:
            return
        self._text = text
        if self._shown is None:
            self._shown = self._show(DisplayedText((text,)))
        else:
            self._shown.update(DisplayedText((text,)))


class NotebookExtension:
    """Hooks of one IPython shell, from `%load_ext tidegate` until `%unload_ext tidegate`."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._installed_before = Installation.binding is not None
        self._cell: CellLine | None = None
        self._depth = 0
        self._quiet = False
        install()
        expect_blocked_loops(True)
        shell.events.register("pre_run_cell", self.before_cell)
        shell.events.register("post_run_cell", self.after_cell)
        shell.register_magic_function(self.magic, magic_kind="line", magic_name="tidegate")

    def before_cell(self, info: Any) -> None:
        """Begin the line of a cell; a cell that another one runs has none of its own."""
        self._depth += 1
        if self._depth == 1 and not self._quiet:
            # Only a kernel can update what it displayed.
            self._cell = CellLine(self._display, live=getattr(self._shell, "kernel", None) is not None)

    def after_cell(self, result: Any) -> None:
        """End the line of the cell, if it is the outermost one."""
        # An empty cell ends without having begun, and so does the one that loads the extension.
        blank = result is not None and not (result.info.raw_cell or "").strip()
        if blank or not self._depth:
            return
        self._depth -= 1
        if not self._depth:
            cell, self._cell = self._cell, None
            if cell is not None:
                cell.end()

    def magic(self, line: str) -> DisplayedText | None:
        """Show the state of each key. `%tidegate off` hides the lines below cells, `%tidegate on` shows them."""
        word = line.strip()
        if word in ("on", "off"):
            self._quiet = word == "off"
            return None
        if word:
            return DisplayedText((USAGE,))
        return DisplayedText(tuple(board_lines(read_keys())) or ("no governed call so far",))

    def unload(self) -> None:
        """Undo everything; the installation stays where it was there before."""
        self._shell.events.unregister("pre_run_cell", self.before_cell)
        self._shell.events.unregister("post_run_cell", self.after_cell)
        self._shell.magics_manager.magics["line"].pop("tidegate", None)
        cell, self._cell = self._cell, None
        if cell is not None:
            cell.end()
        expect_blocked_loops(False)
        if not self._installed_before:
            uninstall()

    @staticmethod
    def _display(text: DisplayedText) -> Any:
        from IPython.display import display

        return display(text, display_id=True)


_loaded: list[NotebookExtension] = []


def load_ipython_extension(shell: Any) -> None:
    """Govern the calls of the notebook, and show them below each cell. IPython calls this for `%load_ext tidegate`."""
    if not _loaded:
        _loaded.append(NotebookExtension(shell))


def unload_ipython_extension(shell: Any) -> None:
    """Undo `load_ipython_extension`. IPython calls this for `%unload_ext tidegate`."""
    if _loaded:
        _loaded.pop().unload()
