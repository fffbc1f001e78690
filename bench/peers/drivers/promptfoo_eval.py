"""promptfoo's `eval` with its adaptive scheduler: a command of Node, run in a folder of its own.

`PEER_COMMAND` is the command. Its hooks (`promptfoo/hooks.mjs`) begin and end the measurement inside of it, so that
starting Node and writing results do not count.
"""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.peers.drivers.work import Channel, Outcome, Work

HOOKS = Path(__file__).parents[1] / "promptfoo" / "hooks.mjs"
START_SECONDS = 60.0
POLL = 0.01

QUIET = (
    "PROMPTFOO_DISABLE_TELEMETRY",
    "PROMPTFOO_DISABLE_UPDATE",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION",
    "PROMPTFOO_DISABLE_SHARING",
)
"""What keeps promptfoo on this machine."""


def config(work: Work) -> dict[str, Any]:
    """The evaluation: one prompt, one provider, a test for each call."""
    at = {"apiBaseUrl": work.base_url, "apiKey": work.api_key}
    return {
        "prompts": ["{{prompt}}"],
        "providers": [{"id": f"openai:chat:{work.model}", "config": at}],
        "extensions": [f"file://{HOOKS}:{hook}" for hook in ("beforeAll", "afterEach", "afterAll")],
        "tests": [
            {"vars": {"prompt": work.prompt(number)}, "options": {"passthrough": {"user": str(number)}}}
            for number in range(len(work.sizes))
        ],
    }


def appears(path: Path, process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a file comes to be in so many seconds, while the process runs."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None and not path.exists():
        time.sleep(POLL)
    return path.exists()


def outcome_of(folder: Path, work: Work) -> Outcome:
    """What the hooks have written down; the CPU time of a run that was stopped is not known."""
    outcome = Outcome(wall_s=work.deadline, cpu_s=math.nan)
    outcomes = folder / "outcomes"
    for line in outcomes.read_text().splitlines() if outcomes.exists() else ():
        error = json.loads(line)
        if error is None:
            outcome.ok += 1
        else:
            status = re.search(r"\b[45]\d\d\b", str(error))
            outcome.lose(f"error {status[0]}" if status else "error")
    if (folder / "done").exists():
        measured = json.loads((folder / "done").read_text())
        outcome.wall_s, outcome.cpu_s = measured["wall_s"], measured["cpu_s"]
    outcome.give_up(work)
    return outcome


def main() -> None:
    """The whole driver."""
    channel = Channel()
    work = channel.work
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "config.json").write_text(json.dumps(config(work)))
        process = subprocess.Popen(
            [os.environ["PEER_COMMAND"], "eval", "--config", "config.json", "--max-concurrency", str(work.callers),
             "--no-cache", "--no-table", "--no-write", "--no-progress-bar"],
            cwd=folder,
            env={**os.environ, **dict.fromkeys(QUIET, "1"), "PROMPTFOO_CONFIG_DIR": home, "PEER_FOLDER": home},
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            if not appears(folder / "ready", process, START_SECONDS):
                sys.exit("promptfoo did not begin")
            channel.wait()
            (folder / "go").touch()
            appears(folder / "done", process, work.deadline)
            outcome = outcome_of(folder, work)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    channel.tell(outcome)


if __name__ == "__main__":
    main()
