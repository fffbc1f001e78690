"""The README and the docs say what is there: tables are the code's own, snippets run, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests import pages
from tools.docs_site import links

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
def test_every_link_of_a_page_leads_to_a_file_and_a_heading_of_it(page: Path) -> None:
    for target in filter(links.is_local, links.targets(page.read_text())):
        path, _, anchor = target.partition("#")
        there = page.parent / path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target
    places = [target[1:] for target in links.targets(page.read_text()) if target.startswith("#")]
    assert [anchor for anchor in places if anchor not in anchors(page)] == []


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "docs/design.md"])
def test_every_file_and_test_that_maintainers_are_led_to_is_there(name: str) -> None:
    text = (ROOT / name).read_text()
    bases = ROOT, ROOT / "src/tidegate", ROOT / "tests"
    # In backticks, and in the first column of a path.
    paths = {*re.findall(r"`([\w.-]+/[\w/.-]+\.\w+)", text), *re.findall(r"^([\w/]+\.py) {2,}", text, re.M)}
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not any((base / path).exists() for base in bases)] == []
    tests = re.findall(r"`([\w/]+\.py)::(?:\w+::)*(\w+)`", text)
    assert [test for path, test in tests if f"def {test}(" not in (ROOT / "tests" / path).read_text()] == []


def test_no_page_names_a_registry_host_or_a_path_of_a_machine() -> None:
    hosts = ["py" + "pi.org", "python" + "hosted.org", "registry." + "npmjs", "deb." + "debian.org"]
    for page in [*PAGES, ROOT / "pyproject.toml", ROOT / "Makefile", *ROOT.glob("constraints*.txt")]:
        text = page.read_text()
        assert not [host for host in hosts if host in text], page
        assert not re.search(r"(?<![\w./])/(home|root|work)/", text), page
