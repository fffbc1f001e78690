"""The public surface: what it names, and what looking at it costs."""

from __future__ import annotations

import subprocess
import sys
from enum import Enum
from typing import get_args, get_type_hints

import tidegate
from tidegate import experiments

FORBIDDEN = (
    "openai",
    "anthropic",
    "httpx",
    "httpx2",
    "aiohttp",
    "requests",
    "botocore",
    "opentelemetry",
    "rich",
    "typer",
    "sqlalchemy",
)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_public_name_can_be_had_and_is_called_what_it_says() -> None:
    for name in tidegate.__all__:
        assert getattr(tidegate, name) is not None, name
        assert name in dir(tidegate)


def test_every_public_name_survives_the_import_of_every_module() -> None:
    code = """
import importlib, pkgutil, tidegate
for found in pkgutil.walk_packages(tidegate.__path__, "tidegate."):
    # The hook of Inspect AI needs that program.
    if found.name not in ("tidegate.auto", "tidegate.integrations.inspect_ai", "tidegate.testing.__main__"):
        importlib.import_module(found.name)
print(all(callable(getattr(tidegate, name)) for name in tidegate.__all__ if name != "__version__"))
"""
    assert run(code) == "True"


def test_whatever_a_runner_tells_or_answers_has_a_public_name() -> None:
    events = get_args(experiments.Event)
    fields = [each for event in events for each in get_type_hints(event).values()]
    asked = (experiments.ExperimentRunner.stop, experiments.ExperimentRunner.resume, experiments.Summary.status.fget)
    answers = [get_type_hints(each)["return"] for each in asked]
    named = {*events, *(each for each in (*fields, *answers) if isinstance(each, type) and issubclass(each, Enum))}
    assert {each.__name__ for each in named} >= {"RunResult", "AnnotationResult", "Status", "ResultStatus", "Toggle"}
    assert [each for each in named if getattr(experiments, each.__name__, None) is not each] == []
    assert [each for each in named if each.__name__ not in experiments.__all__] == []


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(tidegate, "no_such_name")


def test_importing_tidegate_loads_no_sdk_no_http_library_and_no_display() -> None:
    assert run(f"import sys, tidegate; print([name for name in {FORBIDDEN} if name in sys.modules])") == "[]"


def test_importing_tidegate_loads_few_modules_beyond_the_interpreters_own() -> None:
    bare = int(run("import sys; print(len(sys.modules))"))
    assert int(run("import sys, tidegate; print(len(sys.modules))")) - bare < 60


def test_wrapping_and_installing_load_no_http_library_by_themselves() -> None:
    code = f"""
import sys, tidegate
tidegate.install()
tidegate.registry().snapshot()
print([name for name in {FORBIDDEN} if name in sys.modules])
"""
    assert run(code) == "[]"
