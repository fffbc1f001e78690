"""`python -m tidegate.testing`: the child of `SimulatorProcess`, a simulated provider as a separate process.

It reads its port and its scenario, one line of JSON, from standard input. It prints one line of JSON, `{"url": …}`,
once it answers requests. It ends when standard input ends, which it does when the parent dies.
"""

from __future__ import annotations

import json
import os
import sys

from tidegate.errors import ConfigurationError
from tidegate.testing.scenario import Scenario
from tidegate.testing.simulator import Simulator


def main() -> int:
    """Serve until standard input ends; return 2 if the scenario or the port cannot be used."""
    start = json.loads(sys.stdin.readline())
    try:
        with Simulator(Scenario(**start["scenario"]), port=start["port"]) as simulator:
            sys.stdout.write(json.dumps({"url": simulator.url}) + "\n")
            sys.stdout.flush()
            while os.read(0, 4096):
                pass
    except (ConfigurationError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
