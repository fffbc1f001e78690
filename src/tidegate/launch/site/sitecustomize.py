"""Code that every Python process under `tidegate run` executes first, before the sitecustomize that it shadows.

Any Python may find this file on its path, also an older one or one without tidegate. It therefore imports only loaded
modules, is written for Python 3.6, and never stops a program.
"""

import importlib
import os
import sys


def _say(text: str) -> None:
    if sys.stderr is not None:
        sys.stderr.write("tidegate: " + text + "\n")


def _first(mark: str, text: str = "") -> bool:
    """Create the file `mark` with `text`; return False where a process of this run did so before."""
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
        why = "tidegate is not installed in this Python" if missing else type(error).__name__ + ": " + str(error)
        if _first("without-" + sys.prefix.replace(os.sep, "-")[-200:], sys.executable + ": " + why):
            there = "those that read a base-URL variable go through the gateway"
            left = there if os.environ.get("TIDEGATE_GATEWAY") else "its calls are sent without tidegate"
            _say(sys.executable + " not governed: " + why + "; " + left)


def _hand_over() -> None:
    """Remove this folder from the path, and run the next sitecustomize on the path, as Python would have done."""
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
