"""What install() does to the clocks of eval frameworks, and what it leaves alone."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tidegate
from tests.framework_timeouts import frameworks
from tidegate.admission.registry import RateLimitRegistry
from tidegate.transports import framework_timeouts as patch
from tidegate.transports.framework_timeouts import TIMEOUTS

ATTEMPT = "DEEPEVAL_PER_ATTEMPT_TIMEOUT_SECONDS_OVERRIDE"
TASK = "DEEPEVAL_PER_TASK_TIMEOUT_SECONDS_OVERRIDE"
GATHER = "DEEPEVAL_TASK_GATHER_BUFFER_SECONDS_OVERRIDE"
DISABLE = "DEEPEVAL_DISABLE_TIMEOUTS"
PREDICT = "MLFLOW_GENAI_EVAL_ASYNC_TIMEOUT"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ATTEMPT, TASK, GATHER, DISABLE, PREDICT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(patch, "_logged", set())


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a module where the import system would have it."""

    def load(module: ModuleType) -> Any:
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return module

    return load


def install(**settings: Any) -> None:
    tidegate.install(RateLimitRegistry(tidegate.Settings(**settings)))


def test_a_default_becomes_the_longest_wait_and_what_it_was(loaded: Any) -> None:
    ragas = loaded(frameworks.ragas_run_config())
    install(max_wait=600)
    assert ragas.RunConfig().timeout == 780


def test_an_argument_that_is_given_goes_before_it(loaded: Any) -> None:
    ragas, dspy = loaded(frameworks.ragas_run_config()), loaded(frameworks.dspy_parallelizer())
    install()
    assert ragas.RunConfig(timeout=30).timeout == 30
    assert ragas.RunConfig(30).timeout == 30
    assert dspy.ParallelExecutor(4, 180).timeout == 180
    assert dspy.ParallelExecutor(timeout=0).timeout == 0


def test_the_other_defaults_of_the_same_function_stay(loaded: Any) -> None:
    ragas, dspy = loaded(frameworks.ragas_run_config()), loaded(frameworks.dspy_parallelizer())
    install()
    assert (ragas.RunConfig().max_retries, ragas.RunConfig().max_wait) == (10, 60)
    assert dspy.ParallelExecutor().straggler_limit == 3


def test_a_default_of_none_is_what_the_framework_makes_of_it(loaded: Any) -> None:
    phoenix = loaded(frameworks.phoenix_evals())
    install(max_wait=100)
    assert phoenix.AsyncExecutor(None).timeout == 160
    assert phoenix.get_executor_on_sync_context(None, None).timeout == 160
    assert phoenix.get_executor_on_sync_context(None, None, timeout=5).timeout == 5


def test_a_keyword_only_default_is_stretched_for_those_who_hold_the_function_already(loaded: Any) -> None:
    run_experiment = loaded(frameworks.phoenix_client()).run_experiment
    install(max_wait=100)
    assert run_experiment(dataset=None) == 160
    assert run_experiment(dataset=None, timeout=60) == 60


def test_a_decorated_function_is_stretched_beneath_its_decorators(loaded: Any) -> None:
    from functools import wraps

    module = frameworks.phoenix_client()
    plain = module.run_experiment

    @wraps(plain)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs)

    module.run_experiment = decorated  # type: ignore[attr-defined]
    loaded(module)
    install(max_wait=100)
    assert decorated(dataset=None) == 160


def test_a_subclass_that_gives_no_value_has_the_stretched_one(loaded: Any) -> None:
    module = loaded(frameworks.workflows())

    class Flow(module.Workflow):  # type: ignore[misc, name-defined]
        pass

    class Endless(module.Workflow):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(timeout=None)

    install(max_wait=100)
    assert Flow().timeout == 145
    assert Endless().timeout is None


@pytest.mark.parametrize("odd", [None, 0, -1, float("inf"), True, "soon"])
def test_a_default_that_is_no_clock_is_left_alone(loaded: Any, odd: object) -> None:
    ragas = loaded(frameworks.ragas_run_config())
    ragas.RunConfig.__init__.__defaults__ = (odd, 10, 60)
    install()
    assert ragas.RunConfig().timeout is odd


def test_a_version_that_has_moved_its_clock_is_left_alone(loaded: Any, caplog: pytest.LogCaptureFixture) -> None:
    loaded(ModuleType("ragas.run_config"))
    odd = loaded(frameworks.dspy_parallelizer())
    odd.ParallelExecutor = len
    install()
    assert caplog.messages == []


def test_a_variable_is_set_where_nobody_set_it(loaded: Any) -> None:
    mlflow = loaded(frameworks.mlflow())
    install(max_wait=600.5)
    assert mlflow.timeout() == 901


@pytest.mark.parametrize("name", [ATTEMPT, TASK, "DEEPEVAL_PER_TASK_TIMEOUT_SECONDS", DISABLE])
def test_a_variable_that_the_user_set_decides(loaded: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "30")
    for module in frameworks.deepeval(frameworks.DeepevalSettings()).values():
        loaded(module)
    install()
    assert os.environ[name] == "30"
    assert (ATTEMPT in os.environ) == (name == ATTEMPT)


def test_what_the_user_set_on_the_frameworks_own_settings_decides(loaded: Any) -> None:
    settings = frameworks.DeepevalSettings()
    settings.DEEPEVAL_PER_TASK_TIMEOUT_SECONDS_OVERRIDE = 30  # type: ignore[attr-defined]
    for module in frameworks.deepeval(settings).values():
        loaded(module)
    install()
    assert ATTEMPT not in os.environ


def test_the_clock_of_a_whole_run_is_lifted_and_that_of_a_row_is_not(loaded: Any) -> None:
    for module in frameworks.deepeval(frameworks.DeepevalSettings()).values():
        loaded(module)
    install(max_wait=3600)
    assert os.environ[ATTEMPT] == "3689"
    assert int(os.environ[GATHER]) > 30 * 86_400


def test_uninstall_puts_everything_back(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREDICT, "")
    ragas, phoenix = loaded(frameworks.ragas_run_config()), loaded(frameworks.phoenix_evals())
    client = loaded(frameworks.phoenix_client())
    for module in (frameworks.mlflow(), *frameworks.deepeval(frameworks.DeepevalSettings()).values()):
        loaded(module)
    install()
    assert os.environ[PREDICT] == "3900"
    tidegate.uninstall()
    assert (ragas.RunConfig().timeout, phoenix.AsyncExecutor(None).timeout) == (180, 60)
    assert client.run_experiment(dataset=None) == 60
    assert (os.environ[PREDICT], os.environ.get(ATTEMPT), os.environ.get(GATHER)) == ("", None, None)


def test_what_the_user_set_since_is_not_put_back(loaded: Any) -> None:
    ragas, mlflow = loaded(frameworks.ragas_run_config()), loaded(frameworks.mlflow())
    install()
    ragas.RunConfig.__init__.__defaults__ = (17, 10, 60)
    os.environ[PREDICT] = "18"
    tidegate.uninstall()
    assert (ragas.RunConfig().timeout, mlflow.timeout()) == (17, 18)


def test_installing_again_stretches_from_what_it_was(loaded: Any) -> None:
    ragas = loaded(frameworks.ragas_run_config())
    install(max_wait=100)
    install(max_wait=200)
    assert ragas.RunConfig().timeout == 380


@pytest.mark.parametrize("settings", [{"framework_clocks": "keep"}, {"disabled": True}, {"max_wait": 0}])
def test_it_can_be_told_to_leave_them(loaded: Any, caplog: pytest.LogCaptureFixture, settings: dict[str, Any]) -> None:
    ragas, mlflow = loaded(frameworks.ragas_run_config()), loaded(frameworks.mlflow())
    install(**settings)
    assert (ragas.RunConfig().timeout, mlflow.timeout()) == (180, 300)
    assert caplog.messages == []


def test_each_is_told_of_once_in_one_line(loaded: Any, caplog: pytest.LogCaptureFixture) -> None:
    loaded(frameworks.ragas_run_config())
    for _ in range(2):
        install(max_wait=600)
        tidegate.uninstall()
    (said,) = caplog.records
    assert (said.name, said.levelno) == ("tidegate", logging.WARNING)
    assert said.getMessage() == (
        "tidegate: ragas timeout of 180 s (one metric of one row, in `evaluate`) extended: it also runs while calls"
        " wait in the queue; it is 780 s now (TIDEGATE_FRAMEWORK_CLOCKS=keep leaves it unchanged)"
    )


def test_with_the_log_off_it_is_told_only_to_those_who_listen(loaded: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidegate")
    loaded(frameworks.ragas_run_config())
    install(log=False)
    assert [record.levelno for record in caplog.records] == [logging.INFO]


def test_a_framework_that_fails_to_be_set_runs_as_it_is(loaded: Any, caplog: pytest.LogCaptureFixture) -> None:
    ragas = loaded(frameworks.ragas_run_config())
    modules = frameworks.deepeval(frameworks.DeepevalSettings())
    del modules["deepeval.config.settings"].get_settings
    for module in modules.values():
        loaded(module)
    install()
    assert ATTEMPT not in os.environ
    assert ragas.RunConfig().timeout == 3780
    assert "timeout of deepeval not extended: AttributeError was raised; its present value stays" in caplog.messages


SCRIPT = """
import sys
import tidegate
tidegate.install()
if "keep" in sys.argv:
    tidegate.uninstall()
assert "ragas" not in sys.modules
from ragas.run_config import RunConfig
print(RunConfig().timeout)
tidegate.uninstall()
print(RunConfig().timeout)
"""


@pytest.mark.parametrize(("words", "timeouts"), [((), "3780\n180\n"), (("keep",), "180\n180\n")])
def test_a_framework_that_is_imported_later_follows(tmp_path: Path, words: tuple[str, ...], timeouts: str) -> None:
    (tmp_path / "ragas").mkdir()
    (tmp_path / "ragas" / "__init__.py").touch()
    config = "from dataclasses import dataclass\n@dataclass\nclass RunConfig:\n    timeout: int = 180\n"
    (tmp_path / "ragas" / "run_config.py").write_text(config)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-c", SCRIPT, *words]
    done = subprocess.run(command, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.stdout == timeouts, done.stderr
    assert done.stderr.count("ragas timeout of 180 s") == (not words)


def test_every_clock_has_a_source_and_dials_that_await_a_module_of_its_framework() -> None:
    for clock in TIMEOUTS:
        assert clock.source.startswith(clock.framework), clock
        assert clock.defaults
        assert clock.seconds > 0
    assert len({(clock.framework, clock.measures) for clock in TIMEOUTS}) == len(TIMEOUTS)
