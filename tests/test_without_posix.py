"""The package where modules and functions of POSIX are absent, as on Windows: import, `wrap`, `install`, the runner.

It is a simulation on this system. The names below are those that CPython's documentation marks as "Availability: Unix".
"""

from __future__ import annotations

import subprocess
import sys

from tidegate.cli.doctor.environment import system

PROGRAM = """
import importlib.abc, os, signal, sys
# What a standard library or another package takes from POSIX is taken before it is hidden.
import asyncio, httpx, logging, multiprocessing.util, pathlib, platform, selectors, shutil, socket, sqlite3, ssl
import subprocess, tempfile, typer, uuid, yaml, aiosqlite, rich.console, sqlalchemy.ext.asyncio

MODULES = {"fcntl", "termios", "tty", "pty", "pwd", "grp", "resource", "syslog"}
FUNCTIONS = (
    "fork forkpty register_at_fork getuid geteuid getgid getegid getpgrp setsid killpg sched_getaffinity posix_spawn "
    "O_NOFOLLOW O_CLOEXEC O_DIRECTORY mkfifo tcgetpgrp get_blocking WNOHANG waitid wait4 fchmod chown lchown"
)
SIGNALS = (
    "SIGKILL SIGHUP SIGTSTP SIGCONT SIGCHLD SIGQUIT SIGUSR1 SIGUSR2 SIGWINCH SIGALRM SIGTTOU SIGTTIN SIGSTOP SIGPIPE "
    "pthread_sigmask setitimer sigwait sigtimedwait"
)

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
for name in MODULES:
    sys.modules.pop(name, None)
for module, names in ((os, FUNCTIONS), (signal, SIGNALS)):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "win32"

import tidegate
for name in (*tidegate.__all__, "map", "amap"):
    assert getattr(tidegate, name) is not None
import tidegate.cli.main, tidegate.cli.doctor, tidegate.integrations.ipython, tidegate.providers
import tidegate.experiments, tidegate.experiments.storage, tidegate.telemetry, tidegate.testing

ANSWER = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}

def ask(client):
    body, headers = {"model": "m", "messages": []}, {"authorization": "Bearer k"}
    return client.post("https://api.openai.com/v1/chat/completions", json=body, headers=headers).status_code

def client():
    return httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=ANSWER)))

assert ask(tidegate.wrap(client())) == 200
tidegate.install()
assert ask(client()) == 200
assert list(tidegate.map(lambda row: row + 1, [1, 2])) == [2, 3]
print(tidegate.registry().snapshot().calls)
"""


def test_everything_but_run_status_and_sharing_works() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2\n"


def test_the_doctor_says_what_is_off() -> None:
    assert list(system("posix")) == []
    (found,) = system("nt")
    assert "`tidegate run`" in found.text
