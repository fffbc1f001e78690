"""Tidegate is put on before the first module that it governs begins to load, and hears of all of them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tidegate.launch.bootstrap import WATCHED
from tidegate.transports.framework_timeouts import TIMEOUTS
from tidegate.transports.sdks import TRANSPORTS

SRC = str(Path(__file__).parents[2] / "src")
BEGIN = """
import sys
from tidegate.launch.bootstrap import begin
said = []
begin(said.append, None)
"""


def python(program: str, cwd: Path) -> str:
    code = BEGIN + textwrap.dedent(program)
    env = {"PYTHONPATH": SRC}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=cwd, capture_output=True, text=True, check=True
    ).stdout


def test_what_is_watched_is_every_stack_and_every_framework_with_a_timeout() -> None:
    stacks = {name for transport in TRANSPORTS for name in transport.MODULES}
    timeouts = {default.module for timeout in TIMEOUTS for default in timeout.defaults}
    assert stacks | timeouts == WATCHED


def test_it_is_put_on_when_something_governed_is_looked_for(tmp_path: Path) -> None:
    said = python(
        """
        import json
        print("tidegate.admission.registry" in sys.modules)
        import httpx2
        print("tidegate.admission.registry" in sys.modules, hasattr(httpx2.Client.send, "__wrapped__"), said)
        """,
        tmp_path,
    )
    assert said == "False\nTrue True []\n"


def test_a_module_is_patched_that_loads_another_one_in_the_middle(tmp_path: Path) -> None:
    theirs = "import requests, httpx2\nfrom httpx2 import *\n_multipart = httpx2._multipart\n"
    (tmp_path / "httpx.py").write_text(theirs + "class Client(Client):\n    def send(self, request): pass\n")
    said = python(
        """
        import httpx, requests
        print(hasattr(httpx.Client.send, "__wrapped__"), hasattr(requests.Session.send, "__wrapped__"), said)
        """,
        tmp_path,
    )
    assert said == "True True []\n"


def test_a_module_that_only_has_the_name_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "httpx.py").write_text("class Client:\n    def send(self): return 'theirs'\n")
    assert python("import httpx; print(httpx.Client().send(), said)", tmp_path) == "theirs []\n"


def test_what_is_not_there_fails_as_ever(tmp_path: Path) -> None:
    (tmp_path / "requests.py").write_text("raise ImportError('broken')")
    said = python(
        """
        import importlib.util
        for name in ("requests", "no_such_module"):
            try:
                importlib.import_module(name)
            except ImportError as error:
                print(error)
        """,
        tmp_path,
    )
    assert said == "broken\nNo module named 'no_such_module'\n"


def test_what_is_not_there_fails_as_ever_beside_a_finder_of_old(tmp_path: Path) -> None:
    said = python(
        """
        sys.meta_path.append(type("Old", (), {"find_module": lambda self, name, path=None: None})())
        try:
            import mlflow
        except ImportError as error:
            print(error)
        """,
        tmp_path,
    )
    assert said == "No module named 'mlflow'\n"


def test_it_is_put_on_also_below_finders_that_somebody_has_wrapped(tmp_path: Path) -> None:
    said = python(
        """
        class Wrapped:
            def __init__(self, finder): self.finder = finder
            def __getattr__(self, name): return getattr(self.finder, name)
        sys.meta_path[:] = map(Wrapped, sys.meta_path)
        import httpx2
        print(hasattr(httpx2.Client.send, "__wrapped__"), said)
        """,
        tmp_path,
    )
    assert said == "True []\n"


def test_two_threads_that_load_governed_modules_at_once_are_both_patched(tmp_path: Path) -> None:
    said = python(
        """
        import importlib, threading
        threads = [threading.Thread(target=importlib.import_module, args=(name,)) for name in ("httpx2", "requests")]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        import httpx2, requests
        print(hasattr(httpx2.Client.send, "__wrapped__"), hasattr(requests.Session.send, "__wrapped__"), said)
        """,
        tmp_path,
    )
    assert said == "True True []\n"


def test_a_forked_process_keeps_its_counts_in_a_file_of_its_own(tmp_path: Path) -> None:
    said = python(
        """
        import os
        begin(said.append, os.getcwd())
        from tidegate.admission.registry import RateLimitRegistry
        registry = RateLimitRegistry()
        registry.execute("key", lambda: 1)
        child = os.fork()
        if not child:
            registry.execute("key", lambda: 1)
            os._exit(0)
        os.wait()
        pids = {int(name.split("-")[0]) for name in os.listdir() if name.endswith(".counters")}
        print(pids == {os.getpid(), child})
        """,
        tmp_path,
    )
    assert said == "True\n"
