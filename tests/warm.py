"""A Python that has loaded the SDKs already, and starts programs of tests as forks of itself.

Most of the CPU time of a short program goes into imports of the SDKs: openai and SQLAlchemy take a second together.
Tests whose subject is not the start of a Python run their programs here. A program has a process of its own with its
own arguments, environment, directory, streams and exit code, and tidegate is imported anew in each. `warm_python()`
stands where `sys.executable` would stand.

Not the same as a Python of its own: what is loaded before tidegate was loaded without it, options such as `-W` are not
taken, and at the end no modules are taken apart. Tests of these start `sys.executable`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from tests.warm_client import NUMBER, received

LOADED = {
    "openai": "openai",
    "anthropic": "anthropic",
    "httpx": "httpx",
    "tests.chaos": "openai",
    "experiment": "sqlalchemy.ext.asyncio sqlalchemy.dialects.postgresql aiosqlite yaml",
    "storage": "sqlalchemy.ext.asyncio sqlalchemy.dialects.postgresql aiosqlite",
    "serve": "starlette.applications starlette.routing uvicorn.protocols.http.auto",
    "tidegate": "typer rich.table rich.progress pydantic",
}
"""Modules that are loaded before the first program whose text or arguments have the word. Further words cost a start
of the server more; a missing one costs each program its import."""


def warm_python() -> list[str]:
    """Return the start of a command that runs a program in such a Python."""
    return [*_client(), "0"]


class WarmProcess(subprocess.Popen[Any]):
    """A program in such a Python, started with the words behind `python`. Signals go to the program itself.

    `program` is its process number; `pid` is that of the process that stands for it here. The latter ends after it.
    """

    def __init__(self, words: Sequence[str], **given: Any) -> None:
        told, tells = os.pipe()
        try:
            super().__init__([*_client(), str(tells), *words], pass_fds=(tells,), **given)
            os.close(tells)
            tells = -1
            (self.program,) = NUMBER.unpack(os.read(told, NUMBER.size))
        finally:
            os.close(told)
            if tells >= 0:
                os.close(tells)

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.program, sig)


@functools.cache
def _client() -> list[str]:
    """Start a server, which ends with our process; return the start of a command that asks it."""
    # The path of a socket may have about a hundred characters.
    folder = tempfile.mkdtemp(prefix="tidegate-python-")
    path = str(Path(folder) / "socket")
    root = str(Path(__file__).parents[1])
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "PYTHON"))}
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.warm", path],
        env={**environ, "PYTHONPATH": root},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"

    atexit.register(server.communicate)
    return [sys.executable, "-I", "-S", str(Path(__file__).with_name("warm_client.py")), path]


def serve(path: str) -> Any:
    """Start programs until our standard input ends. In a program's process, return what it has to run."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(64)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    os.write(1, b"ready\n")
    running: dict[socket.socket, int] = {}
    while True:
        ready = select.select([0, woken, listener, *running], [], [])[0]
        if 0 in ready:
            for pid in running.values():
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(Path(path).parent)
            os._exit(0)
        if woken in ready:
            os.read(woken, 64)
            _report_ended(running)
        for caller in [each for each in ready if each in running]:
            # The caller was killed, and so is what it stands for.
            pid = running.pop(caller)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            caller.close()
        if listener not in ready:
            continue
        caller = listener.accept()[0]
        size, streams, _, _ = socket.recv_fds(caller, NUMBER.size, 3)
        given = json.loads(received(caller, NUMBER.unpack(size)[0]))
        _load(given)
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for each in (listener, caller, *running):
                each.close()
            os.close(woken)
            os.close(wakes)
            return given, streams
        for stream in streams:
            os.close(stream)
        with contextlib.suppress(OSError):
            caller.sendall(NUMBER.pack(pid))
        running[caller] = pid


def _report_ended(running: dict[socket.socket, int]) -> None:
    for caller, pid in [*running.items()]:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            del running[caller]
            with contextlib.suppress(OSError):
                caller.sendall(NUMBER.pack(status))
            caller.close()


def _load(given: Any) -> None:
    """Load the modules that the words of a program, or its text, hint at."""
    text = " ".join(given["words"])
    for word in given["words"]:
        path = Path(given["cwd"], word.partition(":")[0])
        if path.suffix == ".py" and path.is_file():
            text += path.read_text("utf-8", "replace")
    for word, modules in LOADED.items():
        if word in text:
            for module in modules.split():
                with contextlib.suppress(ImportError):
                    __import__(module)


def become(given: Any, streams: list[int]) -> None:
    """Run a program in this process, which is a fork, as a Python that was started with its words would."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(given["cwd"])
    os.environ.clear()
    os.environ.update(given["environ"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    encoding = os.environ.get("PYTHONIOENCODING", "").partition(":")[0] or "utf-8"
    sys.stdin = sys.__stdin__ = open(0, encoding=encoding)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=encoding)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, encoding=encoding, errors="backslashreplace")  # noqa: SIM115
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    tempfile.tempdir = None
    words = given["words"]
    added = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    sys.path[:1] = ["", *added]
    main = sys.modules["__main__"] = ModuleType("__main__")
    if words[:1] == ["-c"]:
        sys.argv = ["-c", *words[2:]]
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
        return
    if words[:1] == ["-m"]:
        from runpy import run_module

        sys.argv = words[1:]
        sys.path[0] = given["cwd"]
        run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    sys.path[0] = str(Path(words[0]).absolute().parent)
    main.__file__ = words[0]
    exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), main.__dict__)


def run(given: Any, streams: list[int]) -> NoReturn:
    """Run a program in this process and end it as a Python ends, except that modules are not taken apart.

    That would cost as much as to load them. Threads are waited for, exit handlers run and streams are flushed.
    """
    code: Any = 0
    try:
        become(given, streams)
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        shown = error.__traceback__
        while shown is not None and shown.tb_frame.f_code.co_filename == __file__:
            shown = shown.tb_next
        sys.excepthook(type(error), error.with_traceback(shown), shown)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    if not isinstance(code, int | None):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if code == -signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    run(*serve(sys.argv[1]))
