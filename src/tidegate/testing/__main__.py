"""`python -m tidegate.testing`: the child of `SimulatorProcess`, a simulated provider as a separate process.

It reads its scenario, one line of JSON, from standard input. It prints one line of JSON, `{"url": …}`, once it answers
requests. It ends on SIGTERM or SIGINT, and when standard input ends, which it does when the parent dies.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading

from tidegate.errors import ConfigurationError
from tidegate.testing.scenario import Scenario
from tidegate.testing.simulator import serve


def main() -> int:
    """Serve until a signal to stop; return 2 if the flags or the port cannot be used."""
    flags = argparse.ArgumentParser(prog="python -m tidegate.testing", description="Simulate an LLM provider.")
    flags.add_argument("--port", type=int, default=0, help="Listen on this port; 0 chooses a free one.")
    port = flags.parse_args().port
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        scenario = Scenario.from_json(sys.stdin.readline())
        threading.Thread(target=_await_end, args=(stop,), daemon=True).start()
        serve(scenario, port=port, stop=stop, on_ready=_announce)
    except (ConfigurationError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _announce(url: str) -> None:
    sys.stdout.write(json.dumps({"url": url}) + "\n")
    sys.stdout.flush()


def _await_end(stop: threading.Event) -> None:
    # The descriptor, not sys.stdin: a thread blocked in its buffer would hold the lock that exit needs.
    while os.read(0, 4096):
        pass
    stop.set()


if __name__ == "__main__":
    sys.exit(main())
