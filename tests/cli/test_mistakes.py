"""Mistakes of users on the command line and in calls: each is named, with what was probably meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tidegate
import tidegate.experiments
from tidegate.admission.registry import RateLimitRegistry
from tidegate.cli.commands import app
from tidegate.errors import ConfigurationError
from tidegate.launch.child import Unstartable, find
from tidegate.settings import Settings, unknown_variables


def explain(line: dict[str, Any]) -> tuple[dict[str, Any], int]:
    result = CliRunner().invoke(app, ["doctor", "--explain"], input=json.dumps(line))
    return json.loads(result.stdout), result.exit_code


def test_unknown_provider_is_an_error_and_the_url_decides() -> None:
    found, code = explain({"provider": "opnai", "url": "https://api.mistral.ai/v1/chat/completions", "status": 429})
    assert code == 1
    assert found["error"] == "provider: 'opnai' is unknown (did you mean 'openai'?); the answer is read as 'mistral'"
    assert (found["provider"], found["kind"]) == ("mistral", "rate_limit")


def test_explain_says_that_a_status_is_a_number() -> None:
    assert explain({"status": "429"})[0]["error"] == "status: '429' is not an HTTP status: it is a string, not a number"


def test_explain_names_a_key_without_an_address_without_a_gap() -> None:
    found, _ = explain({"provider": "anthropic", "model": "claude-x", "status": 200})
    assert found["key"] == "anthropic · claude-x"


def test_run_of_a_script_says_what_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_eval.py").write_text("")
    with pytest.raises(Unstartable, match=r"did you mean `tidegate run python my_eval\.py`"):
        find("my_eval.py")
    with pytest.raises(Unstartable, match=r"did you mean `tidegate run python \./my_eval\.py`"):
        find("./my_eval.py")
    with pytest.raises(Unstartable, match="neither on PATH"):
        find("another.py")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("stauts", "no such command 'stauts'. Did you mean 'status'? (`tidegate --help` lists what there is)"),
        ("run --port", "no such option: --port"),
        ("simulate --rpm many", "invalid value for '--rpm': "),
        ("experiment show --foo", "no such option: --foo"),
        ("experiment run", "missing argument 'SOURCE' (`tidegate experiment run --help` lists what there is)"),
    ],
)
def test_usage_error_is_one_line_as_every_other_error(words: str, said: str) -> None:
    done = CliRunner().invoke(app, words.split(), prog_name="tidegate")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"tidegate: {said}")
    assert done.stderr.count("\n") == 1


def test_setting_that_is_misspelt_is_named_with_the_one_meant() -> None:
    with pytest.raises(ConfigurationError, match=r"did you mean max_wait"):
        Settings(maxwait=1)
    assert unknown_variables({"TIDEGATE_MAXWAIT": "5", "TIDEGATE_RUN_DIR": "x", "TIDEGATE_MAX_WAIT": "1"}) == {
        "TIDEGATE_MAXWAIT": "TIDEGATE_MAX_WAIT"
    }


def test_variable_that_experiments_had_before_is_named_with_the_present_one() -> None:
    assert unknown_variables({"TIDEGATE_RUNNER_GRACE": "5"}) == {"TIDEGATE_RUNNER_GRACE": "TIDEGATE_EXPERIMENTS_GRACE"}


def test_setting_with_a_unit_is_told_to_be_a_plain_number() -> None:
    with pytest.raises(ConfigurationError, match="max_wait: '10m' is not usable: a plain number, without a unit"):
        Settings.from_environment({"TIDEGATE_MAX_WAIT": "10m"})


def test_switch_that_is_neither_on_nor_off_says_what_it_takes() -> None:
    with pytest.raises(ConfigurationError, match="log: 'debug' is not usable: on or off"):
        Settings.from_environment({"TIDEGATE_LOG": "debug"})


def test_doctor_names_a_misspelt_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_MAXWAIT", "5")
    shown = CliRunner().invoke(app, ["doctor"]).stdout
    assert "TIDEGATE_MAXWAIT: not read: there is no such setting; did you mean TIDEGATE_MAX_WAIT?" in shown


def test_execute_refuses_a_coroutine_function() -> None:
    async def call() -> None:
        pass

    with pytest.raises(ConfigurationError, match="`aexecute` awaits coroutines"):
        RateLimitRegistry().execute("x", call)


def test_install_and_wrap_name_what_they_were_given() -> None:
    with pytest.raises(ConfigurationError, match="a RateLimitRegistry"):
        tidegate.install("x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Path is a class; wrap an instance of it"):
        tidegate.wrap(Path)


def test_registry_shows_its_totals() -> None:
    registry = RateLimitRegistry()
    registry.execute("x", lambda: 1)
    assert repr(registry) == "RateLimitRegistry(keys=1, calls=1, in_flight=0, waiting=0)"


def test_runner_shows_only_its_public_names() -> None:
    assert dir(tidegate.experiments) == sorted(tidegate.experiments.__all__)
