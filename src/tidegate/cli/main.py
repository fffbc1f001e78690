"""Entry of the `tidegate` command.

`tidegate run` precedes every program that it starts. So its usual forms are read here, and load no library of
commands. `tidegate.cli.commands` reads everything else, and every mistake.
"""

from __future__ import annotations

import io
import sys

from tidegate.cli.run_request import read


def main() -> None:
    """Run the command line, and end the process with its exit code."""
    if sys.stdout is None:
        # A shell has closed it (`>&-`): output is discarded, as `print` does.
        sys.stdout = io.StringIO()
    request = read(sys.argv[2:]) if sys.argv[1:2] == ["run"] else None
    if request is None:
        from tidegate.cli.commands import app

        app()
    else:
        from tidegate.cli.run_begin import begin

        sys.exit(begin(request))
