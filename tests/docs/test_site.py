"""The documentation site: each page is in the navigation, and links are those of the site."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate
from tools.docs_site import links
from tools.docs_site.api import SUBJECTS
from tools.docs_site.navigation import navigation
from tools.docs_site.staging import stage

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "mkdocs.yml"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "pages"
    stage(ROOT, folder)
    return folder


def test_every_page_has_one_line_in_the_navigation(pages: Path) -> None:
    listed = [entry.place for entry in navigation(CONFIG)]
    assert sorted(listed) == sorted({*listed})
    there = [page.relative_to(pages).as_posix() for page in pages.rglob("*.md")]
    assert sorted(listed) == sorted(there), "mkdocs.yml has the navigation: a new page needs one line there"


def test_every_link_of_a_staged_page_leads_to_a_file_of_the_site(pages: Path) -> None:
    missing = [
        (page.relative_to(pages), target)
        for page in pages.rglob("*.md")
        for target in links.targets(page.read_text())
        if links.is_local(target) and not (page.parent / target.partition("#")[0]).is_file()
    ]
    assert missing == []


def test_every_public_name_has_one_subject_in_the_api() -> None:
    listed = [name for names in SUBJECTS.values() for name in names]
    assert sorted(listed) == sorted({*tidegate.__all__, "map", "amap"} - {"__version__"})
    first = ["wrap", "install", "map", "Settings"]
    assert [name for name in listed if name in first] == first


def test_the_mark_of_the_site_is_the_icon_of_the_live_page(pages: Path) -> None:
    theme = [
        line.split()[1] for line in CONFIG.read_text().splitlines() if line.lstrip().startswith(("logo:", "favicon:"))
    ]
    assert theme == ["images/mark.svg"] * 2
    assert (pages / theme[0]).read_text().startswith("<svg")
