"""`tidegate docs`: the pages go with the package, and each page that a text of ours names is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli import docs as command
from tidegate.cli.commands import app

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "tidegate"


def docs(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["docs", *words])
    return result.exit_code, result.output


def test_list_has_every_page_with_its_title() -> None:
    code, said = docs()
    assert code == 0
    pages = [path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(line.split()[0] for line in said.splitlines()) == sorted(pages)
    assert re.search(r"^run +tidegate run$", said, re.M)


@pytest.mark.parametrize("name", ["providers/openai", "docs/providers/openai.md"])
def test_page_is_printed_as_it_is(name: str) -> None:
    assert docs(name) == (0, (ROOT / "docs" / "providers" / "openai.md").read_text())


def test_help_names_a_page_that_there_is() -> None:
    said = CliRunner().invoke(app, ["docs", "--help"], env={"COLUMNS": "200"}).output
    (page,) = re.findall(r"Print this page, such as `?([\w/-]+)", said)
    assert docs(page)[0] == 0


def test_unknown_page_is_told_with_the_nearest_one() -> None:
    code, said = docs("experimnts")
    assert (code, "did you mean 'experiments'?" in said) == (2, True)


def test_page_is_found_by_its_last_name_where_no_other_has_it() -> None:
    assert docs("wrap") == (0, (ROOT / "docs" / "tutorials" / "wrap.md").read_text())


def test_wheel_has_the_pages_where_the_command_looks_first() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert SRC.parent / wheel["force-include"]["docs"] == command.PLACES[0]


def test_texts_of_the_package_name_pages_by_the_command_that_prints_them() -> None:
    """An installed package has no folder `docs` beside it."""
    for path in SRC.rglob("*.py"):
        text = re.sub(r"`tidegate\n\s+docs", "`tidegate docs", path.read_text())
        assert [page for page in re.findall(r"`tidegate docs ([\w/-]+)`", text) if docs(page)[0]] == []
        told = re.findall(r'"[^"\n]*(?<![\w/.-])docs/[\w-]+\.md[^"\n]*"', text)
        assert told == [], path
