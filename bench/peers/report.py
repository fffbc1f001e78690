"""The tables of a results file: on the terminal, and as a page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from bench.common import markdown, table
from bench.peers.catalogue import NAMES, PEERS, Peer
from bench.peers.rows import NAMES as ROWS
from bench.peers.runs import Middle, Run
from bench.peers.verdict import Verdict, verdict

HEADER = ("", "ratio", "429s/call", "lost", "requests/answer", "displaced", "CPU ms/call", "")


def middles(runs: Iterable[Run]) -> dict[str, list[Middle]]:
    """By row, in the order of the laboratory's table, each peer in the order of the catalogue."""
    by_row: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        by_row.setdefault(run.row, {}).setdefault(run.peer, []).append(run)
    return {
        row: [Middle.of(peer, by_peer[peer]) for peer in sorted(by_peer, key=NAMES.index)]
        for row, by_peer in sorted(by_row.items(), key=lambda each: ROWS.index(each[0]))
    }


def verdicts(runs: Iterable[Run]) -> list[Verdict]:
    """One for each row."""
    return [verdict(row, peers) for row, peers in middles(runs).items()]


def cells(middle: Middle, told: str) -> list[str]:
    """A line of a row's table.

    A ratio in brackets is of a peer that was spared the calls that it lost; `>` stands before that of one that was
    stopped.
    """
    if middle.failure:
        return [middle.peer, *["-"] * 6, f"did not run: {middle.failure.splitlines()[-1][:60]}"]
    ratio = f"{'> ' if middle.unfinished else ''}{middle.ratio:.3f}"
    return [
        middle.peer,
        f"({ratio})" if middle.lost else ratio,
        f"{middle.refused_share:.4f}",
        f"{middle.lost}" + (f" ({middle.unfinished} open)" if middle.unfinished else ""),
        f"{middle.requests_per_answer:.3f}",
        _figure(middle.displaced),
        _figure(middle.cpu_per_call * 1e3),
        told,
    ]


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def rows(peers: Sequence[Middle], judged: Verdict) -> list[list[str]]:
    """The lines of a row's table."""
    return [cells(each, judged.standings.get(each.peer, "")) for each in peers]


def show(runs: Sequence[Run]) -> None:
    """Prints a table for each row, and the verdicts."""
    judged = {each.row: each for each in verdicts(runs)}
    for row, peers in middles(runs).items():
        table(row, HEADER, rows(peers, judged[row]))
    print()
    for each in judged.values():
        print(each)


def page(runs: Sequence[Run], facts: dict[str, str]) -> str:
    """The same in Markdown."""
    judged = {each.row: each for each in verdicts(runs)}
    lines = [f"{name}: {told}  " for name, told in facts.items()]
    for row, peers in middles(runs).items():
        lines += ["", f"### {row}", "", markdown(HEADER, rows(peers, judged[row])), f"{judged[row]}."]
    lines += ["", "### Peers", "", *(_told(peer) for peer in PEERS)]
    return "\n".join(lines) + "\n"


def _told(peer: Peer) -> str:
    given = f" Is told {peer.given}." if peer.given else ""
    return f"- **{peer.name}** ({peer.version}): {peer.note}.{given}"
