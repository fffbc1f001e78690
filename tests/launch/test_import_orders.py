"""Every order of imports ends governed, also where a plugin of pydantic imports HTTP clients amid tidegate's import."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from tests.effort import some
from tests.launch.plugin import install_plugin
from tests.launch.test_bootstrap import python

MODEL = "import pydantic; type('M', (pydantic.BaseModel,), {})"

ORDERS = {
    "registry first": "import tidegate; tidegate.registry()",
    "wrap first": "from tidegate import wrap",
    "auto first": "import tidegate.auto",
    "a model first": MODEL,
    "httpx2 first": "import httpx2",
    "requests first": "import requests",
    "openai first": "import openai",
    "the plugin first": "import observer",
    "an OpenTelemetry SDK first": "import opentelemetry.sdk.trace",
    "the runner first": "import tidegate.experiments",
}

SEEN = """
import httpx, httpx2, requests, observer
from tidegate.transports.governance import Installation
stacks = [httpx.Client.send, httpx.AsyncClient.send, httpx2.Client.send, httpx2.AsyncClient.send, requests.Session.send]
print(all(hasattr(each, "__wrapped__") for each in stacks), Installation.binding is not None, said)
print(all(id(sys.modules[name]) == seen for name, seen in observer.seen.items()))
"""

GOVERNED = "True True []\nTrue\n"


def shown(first: str, folder: Path) -> str:
    return python(f"import warnings; warnings.simplefilter('error')\n{first}\n{SEEN}", folder)


@pytest.mark.parametrize("first", some([*ORDERS][::3], [name for number, name in enumerate(ORDERS) if number % 3]))
def test_a_program_with_a_plugin_is_governed_in_any_order(first: str, tmp_path: Path) -> None:
    install_plugin(tmp_path)
    assert shown(ORDERS[first], tmp_path) == GOVERNED


@pytest.mark.parametrize("first", some(["registry first", "auto first"], ["httpx2 first", "a model first"]))
def test_a_plugin_that_imports_tidegate_auto_is_loaded(first: str, tmp_path: Path) -> None:
    install_plugin(tmp_path, "sys, tidegate.auto, httpx, httpx2, requests, tidegate.auto")
    assert shown(ORDERS[first], tmp_path) == GOVERNED


def test_auto_amid_tidegates_own_import_installs_without_run(tmp_path: Path) -> None:
    """Nothing but `import tidegate.auto` is there to install, and it is imported below `tidegate.registry()`."""
    install_plugin(tmp_path, "sys, tidegate.auto, httpx2")
    program = """
        sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "Arrivals"]
        import tidegate
        tidegate.registry()
        import httpx2
        print(hasattr(httpx2.Client.send, "__wrapped__"))
        """
    assert python(program, tmp_path) == "True\n"


def test_a_failed_attempt_is_made_again_at_the_next_import(tmp_path: Path) -> None:
    program = """
        import tidegate.transports.install
        real, calls = tidegate.transports.install.install, []
        def broken():
            calls.append(1)
            if len(calls) < 3: raise RuntimeError("not now")
            return real()
        tidegate.transports.install.install = broken
        import requests, httpx
        print(hasattr(httpx.Client.send, "__wrapped__"), len(calls), len(said))
        import httpx2
        import opentelemetry.sdk.trace
        print(hasattr(httpx.Client.send, "__wrapped__"), hasattr(requests.Session.send, "__wrapped__"), len(calls))
        """
    assert python(program, tmp_path) == "False 2 1\nTrue True 3\n"


def test_threads_that_import_at_once_end_governed(tmp_path: Path) -> None:
    """One thread touches tidegate, whose plugin imports what the other threads are importing."""
    install_plugin(tmp_path)
    names = [
        "tidegate.admission.registry",
        "requests",
        "httpx",
        "httpx2",
        "tidegate.transports.sdks",
        "pydantic",
        "observer",
    ]
    program = f"""
        import importlib, threading
        names = {names}
        gate = threading.Barrier(len(names))
        failed = []
        def load(name):
            gate.wait()
            try:
                importlib.import_module(name)
            except BaseException as error:
                failed.append((name, error))
        threads = [threading.Thread(target=load, args=(name,)) for name in names]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not failed, failed
        """
    assert shown(textwrap.dedent(program), tmp_path) == GOVERNED


def test_a_module_that_is_half_loaded_at_install_is_patched_at_its_end(tmp_path: Path) -> None:
    """`install()` is called by a module that an HTTP library imports; no import hook of `run` is there."""
    theirs = "import early, httpx2\nfrom httpx2 import *\n_multipart = httpx2._multipart\n"
    (tmp_path / "httpx.py").write_text(theirs + "class Client(Client):\n    def send(self, request): pass\n")
    (tmp_path / "early.py").write_text("import tidegate\nnames = tidegate.install()\n")
    program = """
        sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "Arrivals"]
        import httpx, early
        print(early.names, hasattr(httpx.Client.send, "__wrapped__"))
        """
    assert python(program, tmp_path) == "() True\n"


def test_a_module_whose_import_fails_while_it_is_waited_for_is_hooked(tmp_path: Path) -> None:
    (tmp_path / "requests.py").write_text("import early\nif early.first(): raise ImportError('not now')\n" + SESSION)
    (tmp_path / "early.py").write_text("import tidegate\ntidegate.install()\ncalls = []\n" + FIRST)
    program = """
        sys.meta_path[:] = [each for each in sys.meta_path if type(each).__name__ != "Arrivals"]
        try:
            import requests
        except ImportError as error:
            print(error)
        import requests
        print(hasattr(requests.Session.send, "__wrapped__"))
        """
    assert python(program, tmp_path) == "not now\nTrue\n"


SESSION = "class Session:\n    def send(self, request): pass\n"
FIRST = "def first():\n    calls.append(1)\n    return len(calls) == 1\n"


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the module of the test has another name")
def test_subinterpreter_leaves_pydantic_to_the_main_one(tmp_path: Path) -> None:
    """pydantic-core serves the first interpreter that imports it: a hook that imports it there ends the program."""
    install_plugin(tmp_path)
    program = """
        import _xxsubinterpreters
        finder = "from tidegate.launch import bootstrap; bootstrap.begin(print, None); import httpx"
        _xxsubinterpreters.run_string(_xxsubinterpreters.create(), finder)
    """
    assert shown(textwrap.dedent(program), tmp_path).splitlines()[-2:] == GOVERNED.splitlines()
