"""The documentation site: each page is in the navigation, links are those of the site, and the check sees faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs_site import links, llms
from tools.docs_site.api import PUBLIC, api_pages, api_text, public_names
from tools.docs_site.check import faults
from tools.docs_site.navigation import folder, navigation
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


def test_the_api_has_a_page_for_each_public_module_with_each_public_name() -> None:
    pages = api_pages()
    assert sorted(pages) == sorted(f"api/{module}.md" for module in PUBLIC)
    assert "\n        - ExperimentRunner\n" in pages["api/tidegate.experiments.md"]
    assert {"map", "wrap", "install", "Settings"} <= {*public_names("tidegate")}
    assert "\n## tidegate.wrap\n" in api_text("tidegate")
    assert "- `try_admit(" in api_text("tidegate.admission.registry")


def site(tmp_path: Path, **files: str) -> list[str]:
    """The faults of a site of two pages, with these files instead of right ones."""
    (tmp_path / "pages").mkdir()
    for name in ("index.md", "a.md"):
        (tmp_path / "pages" / name).write_text("# Title\n\nText.\n")
    (tmp_path / "mkdocs.yml").write_text("nav:\n  - index.md\n  - More:\n      - a.md\n")
    right = {
        "index": '<a href="a/#x">a</a>',
        "a": '<h1 id="x">A</h1><a href="..">back</a><a href="https://b.example">b</a>',
    }
    for name, text in {**right, **files}.items():
        file = tmp_path / "site" / ("" if name == "index" else name) / "index.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return faults(tmp_path / "site", tmp_path / "pages", tmp_path / "mkdocs.yml")


def test_a_right_site_has_no_fault(tmp_path: Path) -> None:
    assert site(tmp_path) == []


def test_language_models_get_a_list_all_text_and_a_file_beside_each_page(tmp_path: Path, pages: Path) -> None:
    entries = navigation(CONFIG)
    for entry in entries:
        (tmp_path / folder(entry.place)).mkdir(parents=True, exist_ok=True)
    llms.write(tmp_path, pages, CONFIG)
    listed = (tmp_path / "llms.txt").read_text()
    assert listed.startswith("# tidegate\n\n> ")
    found = links.targets(listed)
    assert found == [f"{folder(entry.place)}/index.md".lstrip("/") for entry in entries]
    for target in found:
        for link in links.targets((tmp_path / target).read_text()):
            there = (tmp_path / target).parent / link.partition("#")[0]
            assert not links.is_local(link) or not link.partition("#")[0].endswith(".md") or there.is_file(), (
                target,
                link,
            )
    whole = (tmp_path / "llms-full.txt").read_text()
    assert [text for text in ("# Settings\n", "## tidegate.wrap\n", "# Changelog\n") if text not in whole] == []
    assert ":::" not in whole
    llms.write(tmp_path, pages, CONFIG, "https://docs.example/")
    assert "](https://docs.example/settings/index.md): " in (tmp_path / "llms.txt").read_text()
