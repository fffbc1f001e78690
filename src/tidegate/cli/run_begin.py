"""Beginning of `tidegate run`: its checks, and the choice between running the command and becoming it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.admission.redaction import clean
from tidegate.cli.run_request import STDERR, UNUSABLE_CODE, RunRequest, say, settings_in
from tidegate.errors import ConfigurationError

if TYPE_CHECKING:
    from tidegate.launch.state_file import StateFile


INTERRUPTED_CODE = 130
"""Exit code after Ctrl-C before the command has begun: 128 and the number of SIGINT, as in a shell."""


class Refused(Exception):
    """A run that does not begin: the text is the reason in one line."""


def begin(request: RunRequest) -> int:
    """Run the command of a request, and return the exit code of this process."""
    if os.name != "posix":
        say("run not available: it needs a POSIX system; put `import tidegate.auto` into the program instead")
        return 1
    # Imported late: this needs a POSIX system.
    from tidegate.launch.child import Unstartable

    try:
        return _run(request)
    except ConfigurationError as error:
        say(clean(str(error)))
        return UNUSABLE_CODE
    except Refused as error:
        say(clean(str(error)))
        return 1
    except Unstartable as error:
        say(clean(str(error)))
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED_CODE


def _run(request: RunRequest) -> int:
    from tidegate.cli.command_run import RunOptions, RunReport, run_command
    from tidegate.launch.child import replace
    from tidegate.launch.environment import environment, runs_inside

    command, strict = request.command, request.strict
    settings = settings_in(os.environ)
    shown = settings.log and is_stderr_open()
    if settings.disabled:
        if shown:
            say("run disabled: TIDEGATE_DISABLED is set; the command runs ungoverned")
        replace(command, os.environ)
    if settings.prices is not None:
        _check_prices(settings.prices)
    written = RunReport(request.report) if request.report is not None else None
    if runs_inside(os.environ):
        if shown and (written is not None or strict):
            why = "the enclosing `tidegate run` counts the calls; give the options to that one"
            say(f"--report and --strict ignored: {why}")
        shown, written, strict = False, None, False
    if shown:
        for name, meant in settings.unknown:
            say(f"{name} not read: there is no such setting; did you mean {meant}?")
    with_gateway = _has_gateway(command, request.gateway, shown)
    options = RunOptions(shown, _kept(request.state, shown), written, strict, with_gateway)
    if options.replaces:
        replace(command, environment(os.environ, None))
    return run_command(command, options)


def _check_prices(path: Path) -> None:
    """Raise `ConfigurationError` for an unusable file of prices, with which no process would be governed.

    The command gets its absolute path, as its processes may work in other directories.
    """
    from tidegate.providers import load_prices

    load_prices(path)
    os.environ["TIDEGATE_PRICES"] = str(path.absolute())


def _has_gateway(command: list[str], asked: bool | None, shown: bool) -> bool:
    """Return whether the run has a gateway; raise `Refused` where one is asked for and a package is missing."""
    from tidegate.launch.gateway_need import missing_package, wanted

    if not wanted(command, asked, os.environ):
        return False
    missing = missing_package()
    if not missing:
        return True
    text = f"gateway not available: {missing} is not installed; run: pip install 'tidegate[ui]'"
    if asked:
        raise Refused(text)
    if shown:
        say(f"{text}; programs of Node run ungoverned")
    return False


def _kept(state: Path | None, shown: bool) -> StateFile | None:
    if state is None:
        return None
    from tidegate.launch.state_file import StateFile

    kept = StateFile(state)
    if kept.outdated and shown:
        why = "another version of tidegate wrote it; it is replaced once limits are learned"
        say(f"state file {state} ignored: {why}")
    return kept


def is_stderr_open() -> bool:
    try:
        os.fstat(STDERR)
    except OSError:
        return False
    return True
