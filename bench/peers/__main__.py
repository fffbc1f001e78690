"""tidegate and its peers on the same work, one after the other, each against a provider of its own.

    python -m bench.peers [--seeds 1] [--only ROW[,ROW…]] [--peers NAME[,NAME…]] [--add] [--report]

Exit code 1 where tidegate loses a call or a peer that loses none is ahead of it; else 2 where a peer could not be
installed or did not run; else 0.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench.common import RESULTS
from bench.peers.catalogue import NAMES, PEERS, Peer
from bench.peers.playing import play
from bench.peers.report import page, show, verdicts
from bench.peers.rows import NAMES as ROWS
from bench.peers.rows import row_of
from bench.peers.runs import Run, keep, kept
from bench.scenarios import Row


def install(peers: Sequence[Peer]) -> dict[str, str]:
    """Makes the environments; returns why, by peer, where that failed."""
    failures: dict[str, str] = {}
    for peer in peers:
        try:
            peer.environment.make()
        except (OSError, subprocess.SubprocessError) as error:
            failures[peer.name] = f"not installed: {error}"
    return failures


def compare(rows: Sequence[str], peers: Sequence[Peer], seeds: Sequence[int], results: Path, before: list[Run]) -> None:
    """Plays every peer on every row, and keeps what is known after each run."""
    failures = install(peers)
    done = {run.key: run for run in before}
    for seed, name, peer in itertools.product(seeds, rows, peers):
        row = row_of(name, seed)
        failure = failures.get(peer.name)
        run = _missing(row, peer, seed, failure) if failure else play(row, peer, seed)
        done[run.key] = replace(run, at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
        told = run.failure.splitlines()[-1:] or [f"ratio {run.ratio:.3f}, lost {run.lost}"]
        print(f"{row.name}, seed {seed}, {peer.name}: {told[0]}", file=sys.stderr, flush=True)
        keep(results, done.values(), python=platform.python_version(), machine=platform.platform())


def _missing(row: Row, peer: Peer, seed: int, failure: str) -> Run:
    return Run(row=row.name, peer=peer.name, seed=seed, calls=row.count, failure=failure)


def main() -> int:
    """Runs what the command line asks for, prints the tables; the exit code."""
    given = _arguments()
    results = RESULTS / "peers.json"
    before = kept(results) if given.add or given.report else []
    if not given.report:
        peers = [peer for peer in PEERS if peer.name in given.peers]
        compare(given.only, peers, range(min(20, max(1, given.seeds))), results, before)
    runs = kept(results)
    show(runs)
    (RESULTS / "peers.md").write_text(page(runs, _facts(runs)))
    if any(each.complaints for each in verdicts(runs)):
        return 1
    return 2 if any(run.failure for run in runs) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1, help="runs of each peer on each row (default 1)")
    parser.add_argument("--only", type=_among(ROWS), default=ROWS, help=", ".join(ROWS))
    parser.add_argument("--peers", type=_among(NAMES), default=NAMES, help=", ".join(NAMES))
    parser.add_argument("--add", action="store_true", help="keep the runs of the results file that are not run again")
    parser.add_argument("--report", action="store_true", help="print the results file, run nothing")
    return parser.parse_args()


def _among(names: Sequence[str]) -> Callable[[str], list[str]]:
    def chosen(text: str) -> list[str]:
        unknown = set(text.split(",")) - set(names)
        if unknown:
            raise argparse.ArgumentTypeError(f"none is called {', '.join(sorted(unknown))}")
        return [name for name in names if name in text.split(",")]

    return chosen


def _facts(runs: Sequence[Run]) -> dict[str, str]:
    """When and on what it was run."""
    instants = sorted(run.at for run in runs)
    return {
        "Run": f"{instants[0]} to {instants[-1]}, seeds: {len({run.seed for run in runs})}" if instants else "never",
        "On": f"Python {platform.python_version()}, {platform.platform()}",
    }


if __name__ == "__main__":
    sys.exit(main())
