"""The mutations of the controller's rules still apply, and the bounds that notice them hold without them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.mutations import MOST_LINES, MUTATIONS, PACKAGE, ROOT, Bound, Law, Mutation, judged


def test_each_of_the_seven_parts_has_a_mutation() -> None:
    assert [each.part for each in MUTATIONS] == [1, 2, 3, 4, 5, 6, 6, 7]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.rule)
def test_a_mutation_applies_once_and_is_small(mutation: Mutation, tmp_path: Path) -> None:
    copy = tmp_path / "tidegate" / mutation.file
    copy.parent.mkdir(parents=True)
    shutil.copy(PACKAGE / "tidegate" / mutation.file, copy)
    mutation.applied(tmp_path)
    compile(copy.read_text(), str(copy), "exec")
    assert copy.read_text() != (PACKAGE / "tidegate" / mutation.file).read_text()
    assert mutation.changed_lines <= MOST_LINES
    with pytest.raises(ValueError, match="its old text is 0 times"):
        Mutation(0, "", mutation.file, "no such text", "", mutation.judge).applied(tmp_path)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: each.rule)
def test_a_rule_that_is_there_keeps_its_bound(mutation: Mutation) -> None:
    if isinstance(mutation.judge, Law):
        assert (ROOT / mutation.judge.test).exists()
        return
    assert mutation.judge.measured() <= mutation.judge.most


@pytest.mark.parametrize(
    "mutation", [each for each in MUTATIONS if isinstance(each.judge, Bound)], ids=lambda each: each.part
)
def test_a_figure_misses_its_bound_without_the_rule(mutation: Mutation, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    mutation.applied(tmp_path)
    passed, _ = judged(mutation.judge, tmp_path)
    assert not passed


def test_a_judge_runs_with_the_package_that_it_is_given(tmp_path: Path) -> None:
    missed = Bound("drawn-outage", 16, "hits", 0.0)
    passed, figure = judged(missed, PACKAGE)
    assert not passed
    assert float(figure) > 0.0
    (tmp_path / "tidegate").mkdir()
    (tmp_path / "tidegate" / "__init__.py").write_text("raise ImportError('the copy')\n")
    with pytest.raises(RuntimeError, match=r"(?s)hits <= 0 not measured: .*the copy"):
        judged(missed, tmp_path)
