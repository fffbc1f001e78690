"""The README and the docs say what is there: tables are the code's own, snippets run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pages
from tidegate.testing import Limit, Scenario, SimulatorProcess

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")]
)


@pytest.mark.parametrize("name", pages.GENERATED)
def test_a_table_on_a_page_is_the_codes_own(name: str) -> None:
    """`python -m tests.pages` writes them anew."""
    path, _ = pages.GENERATED[name]
    text = (ROOT / path).read_text()
    assert pages.rewritten(text, name) == text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_the_page_on_other_systems_names_modules_and_sections_that_are_there() -> None:
    rows = re.findall(r"^\| .+ \| .+ \| (.+) \| (.+) \|$", (ROOT / "docs" / "coming-from.md").read_text(), re.M)
    modules = {name for cell, _ in rows[1:] for name in re.findall(r"`([\w.]+)`", cell)}
    assert len(modules) > 30
    assert [name for name in modules if importlib.util.find_spec(f"tidegate.{name}") is None] == []
    links = {link for _, cell in rows for link in re.findall(r"\]\(([\w.-]+)#([\w-]+)\)", cell)}
    assert len(links) > 20
    assert [link for link in links if link[1] not in anchors(ROOT / "docs" / link[0])] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("number", range(8))
def test_every_python_snippet_of_the_readme_runs(number: int, tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(snippets) == 8
    with SimulatorProcess(Scenario(limiters=(Limit(limit=100, window=1.0),))) as provider:
        env = {"OPENAI_BASE_URL": provider.openai_url, "OPENAI_API_KEY": "any", "PATH": ""}
        run = [sys.executable, "-c", snippets[number]]
        done = subprocess.run(run, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        if number == 0:
            assert done.stdout == "200 answers\n"
            assert provider.truth().total.answered == 200


@pytest.mark.parametrize(
    ("page", "shown"),
    [
        ("fallbacks", "gpt-5 ()\n"),
        ("suspensions", "out of capacity\n"),
        ("coming-from", "20 rows in order, 20 attempts, 0 rows failed\n"),
    ],
)
def test_the_python_snippet_of_a_page_runs(page: str, shown: str) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.S)
    with SimulatorProcess(Scenario()) as provider:
        env = {"OPENAI_BASE_URL": provider.openai_url, "OPENAI_API_KEY": "any", "PATH": ""}
        done = subprocess.run(
            [sys.executable, "-c", snippet], env=env, capture_output=True, text=True, check=False, timeout=120
        )
    assert (done.returncode, done.stdout) == (0, shown), done.stderr


def test_no_page_names_a_registry_host_or_a_path_of_a_machine() -> None:
    hosts = ["py" + "pi.org", "python" + "hosted.org", "registry." + "npmjs", "deb." + "debian.org"]
    for page in [*PAGES, ROOT / "pyproject.toml", ROOT / "Makefile", *ROOT.glob("constraints*.txt")]:
        text = page.read_text()
        assert not [host for host in hosts if host in text], page
        assert not re.search(r"(?<![\w./])/(home|root|work)/", text), page
