"""Every framework has its example, its section, its exact versions and its row; `make frameworks` runs them all."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from bench.environments import normal
from conformance.catalogue import EXAMPLES, FRAMEWORKS, PINS, Framework, rows
from conformance.outcomes import Outcome, inspect_log, last_line, lm_eval_results

PAGE = (Path(__file__).parents[1] / "docs" / "frameworks.md").read_text()
SECTIONS = {
    heading.lower().replace(" ", "-"): text for heading, text in re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", PAGE, re.M)
}
"""Section of docs/frameworks.md by its anchor."""

FILES = sorted(path for path in EXAMPLES.iterdir() if path.suffix in (".py", ".yaml"))

each_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
each_section = pytest.mark.parametrize(
    "framework", [each for each in FRAMEWORKS if each.page], ids=lambda framework: framework.name
)


def test_every_example_has_a_row_and_every_row_an_example() -> None:
    assert {path.name for path in FILES} == {framework.example for framework in FRAMEWORKS}


def test_every_section_has_rows_and_every_row_names_a_section_or_none() -> None:
    assert SECTIONS.keys() == {framework.page for framework in FRAMEWORKS} - {""}


def test_every_file_of_versions_has_a_row_and_every_row_one() -> None:
    assert {path.stem for path in PINS.glob("*.txt")} == {framework.installation for framework in FRAMEWORKS}


@each_section
def test_a_section_runs_the_example_and_names_its_version_and_its_timeout(framework: Framework) -> None:
    section = SECTIONS[framework.page]
    assert "tidegate run" in section
    assert Path(framework.example).stem in section or "products" in section
    assert framework.version in section
    for part in ("**By itself**", "**Under tidegate**", "**Its settings.**", "**Its timeout.**", "**Resume.**"):
        assert part in section


@each_framework
def test_what_is_asked_for_is_what_is_pinned(framework: Framework) -> None:
    there = framework.environment.versions
    for requirement in framework.requirements:
        name, exact, version = requirement.partition("==")
        if exact:
            assert there[normal(name)] == version
        else:
            assert normal(name.partition("<")[0]) in there


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_is_short_and_knows_nothing_of_us(path: Path) -> None:
    text = path.read_text()
    assert "tidegate" not in text
    assert len(text.splitlines()) <= 60
    if path.suffix == ".py":
        assert ast.get_docstring(ast.parse(text))
        assert path.stem not in _imported(text), "run from its folder, it would import itself"


def _imported(text: str) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").partition(".")[0])
    return names


def test_the_data_set_has_forty_questions_that_are_told_apart() -> None:
    asked = [row["question"] for row in rows()]
    assert len(set(asked)) == 40
    assert not [one for one in asked for other in asked if one != other and one in other]
    for row in rows():
        first, second = re.findall(r"\d+", row["question"])
        assert int(row["answer"]) == int(first) * int(second)


def test_a_run_that_does_not_come_to_its_last_line_has_no_outcome(tmp_path: Path) -> None:
    assert last_line("Traceback: 40 of 40", tmp_path) is None
    assert last_line("39 of 40 rows answered, 38 right\n", tmp_path) == Outcome(39, 38, 95.0)
    assert last_line("x\n40 of 40 rows answered, 39 right, score 97.5\n", tmp_path) == Outcome(40, 39, 97.5)


def test_inspects_log_tells_which_samples_failed(tmp_path: Path) -> None:
    assert inspect_log("", tmp_path) is None
    right, wrong = ({"scores": {"match": {"value": value}}} for value in "CI")
    scores = [{"metrics": {"accuracy": {"value": 0.5}}}]
    log = {"status": "success", "samples": [right, wrong], "results": {"scores": scores}}
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "a.json"
    path.write_text(json.dumps(log))
    assert inspect_log("", tmp_path) == Outcome(2, 1, 50.0)
    path.write_text(json.dumps({**log, "samples": [right, {"error": {"message": "lost"}}]}))
    assert inspect_log("", tmp_path) == Outcome(1, 1, 50.0)
    path.write_text(json.dumps({**log, "status": "error"}))
    assert inspect_log("", tmp_path) is None


def test_the_harness_samples_tell_which_rows_have_no_answer(tmp_path: Path) -> None:
    assert lm_eval_results("", tmp_path) is None
    folder = tmp_path / "results" / "model"
    folder.mkdir(parents=True)
    (folder / "results_1.json").write_text(json.dumps({"results": {"products": {"exact_match,none": 0.5}}}))
    samples = [{"filtered_resps": ["4"], "exact_match": 1.0}, {"filtered_resps": [""], "exact_match": 0.0}]
    (folder / "samples_products_1.jsonl").write_text("\n".join(map(json.dumps, samples)))
    assert lm_eval_results("", tmp_path) == Outcome(1, 1, 50.0)
