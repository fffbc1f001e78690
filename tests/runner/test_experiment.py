"""What an experiment is made of, and where it is found again."""

from __future__ import annotations

from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import CannotLoad, ConfigurationError
from tidegate.experiments import Evaluator, Experiment, RunnerSettings, load
from tidegate.experiments.engine.loader import restored


def task(row: Any) -> Any:
    return row


def judge(row: Any, output: Any) -> float:
    return 1.0


CODE = """
from tidegate.experiments import Experiment
def task(row): return row
experiment = Experiment("from a file", [1, 2], task)
number = 7
def made(): return Experiment("made", [], task)
"""


class TestExperiment:
    def test_a_plain_function_is_an_evaluator_by_its_own_name(self) -> None:
        experiment = Experiment("e", [], task, [judge, Evaluator(partial(judge), name="again", outputs=["a"])])
        assert experiment.outputs == {"judge": (), "again": ("a",)}

    def test_whatever_can_be_called_with_a_row_is_a_task(self) -> None:
        @wraps(judge)
        def given(row: Any) -> float:
            return judge(row, 1)

        class Callable:
            def __call__(self, row: Any, more: int = 0) -> Any:
                return row

        for function in (given, Callable(), partial(judge, output=1), print, len, str, lambda *rows: rows):
            assert Experiment("e", [], function).task is function

    def test_its_spec_says_where_it_is_and_keeps_no_credential(self) -> None:
        spec = Experiment("e", [], task, [judge], credentials=["OPENAI_API_KEY"], source="x.py:e").spec()
        assert set(spec.pop("code")) == {"task", "judge"}
        assert spec == {
            "name": "e",
            "source": "x.py:e",
            "task": "task",
            "evaluators": {"judge": []},
            "credentials": ["OPENAI_API_KEY"],
            "max_concurrency": None,
            "weight": 1.0,
            "task_timeout": None,
        }

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"name": ""}, "name"),
            ({"name": "two\nlines"}, "name"),
            ({"task": 7}, "task"),
            ({"repetitions": 0}, "repetitions"),
            ({"max_concurrency": 0}, "max_concurrency"),
            ({"weight": 0}, "weight"),
            ({"weight": 101}, "weight"),
            ({"weight": True}, "weight"),
            ({"weight": float("nan")}, "weight"),
            ({"weight": "1"}, "weight"),
            ({"task_timeout": -1.0}, "task_timeout"),
            ({"evaluators": [judge, judge]}, "evaluators"),
            ({"evaluators": [task]}, "evaluator"),
        ],
    )
    def test_what_cannot_be_is_refused_by_the_name_of_its_field(self, changes: dict[str, Any], field: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            Experiment(**{"name": "e", "dataset": [], "task": task, **changes})
        assert caught.value.field == field

    def test_settings_say_what_is_wrong(self) -> None:
        with pytest.raises(ConfigurationError) as caught:
            RunnerSettings(max_concurrency=0)
        assert (caught.value.field, caught.value.value) == ("max_concurrency", 0)


class TestLoading:
    def test_a_file_gives_its_experiment_and_where_it_is(self, tmp_path: Path) -> None:
        (tmp_path / "my_eval.py").write_text(CODE)
        experiment = load(f"{tmp_path}/my_eval.py:experiment")
        assert (experiment.name, experiment.source) == ("from a file", f"{tmp_path}/my_eval.py:experiment")
        assert load(f"{tmp_path}/my_eval.py").name == "from a file"
        assert load(f"{tmp_path}/my_eval.py:made").name == "made"
        assert restored(experiment.spec()).name == "from a file"

    def test_a_credential_that_is_missing_is_named_before_any_code_is_loaded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("NOT_SET_ANYWHERE", raising=False)
        with pytest.raises(CannotLoad, match="NOT_SET_ANYWHERE is not set here"):
            restored({"source": "gone.py:e", "credentials": ["NOT_SET_ANYWHERE"]})

    def test_code_that_has_no_name_cannot_be_found_again(self) -> None:
        with pytest.raises(CannotLoad, match="no name to find it by"):
            restored({"source": None, "task": "answer"})


def test_credential_in_place_of_its_variable_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError) as raised:
        Experiment("e", [1], task, credentials=["sk-proj-harbour"])
    assert str(raised.value).startswith("credentials: '…' is not usable: names of environment variables")
