"""Runs at the start of every Python process under `tidegate run`, then hands over to the sitecustomize it shadows.

Any Python may find this on its path, older ones too and ones without tidegate: it imports nothing but what is there
already, is written for Python 3.6, and never stops a program.
"""

import importlib
import os
import sys


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write("tidegate: " + text + "\n")


def _first(mark: str, text: str = "") -> bool:
    """Leave `mark` with `text`; return whether no process of this run has before, True if that cannot be known."""
    folder = os.environ.get("TIDEGATE_RUN_DIR")
    if not folder:
        return True
    try:
        file = os.open(os.path.join(folder, mark), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)  # noqa: PTH118
        os.write(file, text.encode("utf-8", "replace"))
        os.close(file)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _begin() -> None:
    try:
        from tidegate.launch.bootstrap import begin

        begin(_say, os.environ.get("TIDEGATE_RUN_DIR"))
        _first("started")
    except Exception as error:
        missing = isinstance(error, ImportError) and getattr(error, "name", None) == "tidegate"
        why = "tidegate is not installed for it" if missing else type(error).__name__ + ": " + str(error)
        if _first("without-" + sys.prefix.replace(os.sep, "-")[-200:], sys.executable + ": " + why):
            _say(sys.executable + " runs ungoverned: " + why)


def _hand_over() -> None:
    """Takes this folder off the path, and runs the sitecustomize that comes next on it, as Python would have."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [each for each in sys.path if each != here]
    mine = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if mine is not None:
            sys.modules.setdefault("sitecustomize", mine)


_begin()
_hand_over()
