"""`python -m tidegate.testing`: a simulated provider as a separate process.

It prints one line of JSON, `{"url": …}`, once it answers requests. It ends on SIGTERM or SIGINT. With
`--until-stdin-closes` it also ends when standard input ends, which it does when the parent dies.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading

from tidegate.errors import ConfigurationError
from tidegate.testing.flags import parser, scenario_of
from tidegate.testing.simulator import serve


def main() -> int:
    """Serve until a signal to stop; return 2 if the flags or the port cannot be used."""
    flags = parser().parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    try:
        scenario = scenario_of(flags, sys.stdin.readline() if flags.scenario == "-" else "")
        if flags.until_stdin_closes:
            threading.Thread(target=_await_end, args=(stop,), daemon=True).start()
        serve(scenario, port=flags.port, stop=stop, on_ready=_announce)
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
