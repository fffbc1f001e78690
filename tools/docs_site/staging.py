"""Pages of the site: those of `docs/` as they are, four of the repository's root, the examples, and the API."""

from __future__ import annotations

import posixpath
import shutil
from pathlib import Path

from tools.docs_site import links
from tools.docs_site.api import api_pages

ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "bench.md",
}
"""Pages outside `docs/`: their places on the site. The README has its own first page there, `docs/index.md`."""

MARK = "src/tidegate/server/static/icon.svg"
"""Icon of the live page, which is the mark of the site too (`logo` and `favicon` of `mkdocs.yml`)."""


def stage(root: Path, pages: Path, repository: str | None = None) -> list[Path]:
    """Fill the folder `pages` with what the site is built from, and return the Markdown files, sorted.

    `repository` is the address under which files of the repository can be read, or None while there is none.
    """
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(root / "docs", pages)
    shutil.copytree(root / "examples", pages / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / MARK, pages / "images/mark.svg")
    places = {page: f"docs/{page.relative_to(pages).as_posix()}" for page in pages.rglob("*.md")}
    for source, place in ROOT_PAGES.items():
        if source != "README.md":
            shutil.copy(root / source, pages / place)
            places[pages / place] = source
    for page, source in places.items():
        text = page.read_text("utf-8")
        place = page.relative_to(pages).as_posix()
        page.write_text(relinked(text, source, place, root, repository), "utf-8")
    for place, text in api_pages().items():
        page = pages / place
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, "utf-8")
    return sorted(pages.rglob("*.md"))


def relinked(text: str, source: str, place: str, root: Path, repository: str | None) -> str:
    """Return a page with its links as they must be on the site.

    `source` is the page's path in the repository, `place` the path on the site.
    """

    def change(target: str) -> str | None:
        path, mark, anchor = target.partition("#")
        wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        there = _place(wanted, root)
        if there is not None:
            return posixpath.relpath(there, posixpath.dirname(place) or ".") + mark + anchor
        return f"{repository}/{wanted}{mark}{anchor}" if repository else None

    return links.replaced(text, change)


def _place(wanted: str, root: Path) -> str | None:
    """Return the place on the site of a path of the repository, None if it is not there."""
    if wanted in ROOT_PAGES:
        return ROOT_PAGES[wanted]
    if wanted.startswith("docs/"):
        return wanted.removeprefix("docs/")
    return wanted if wanted.startswith("examples/") and (root / wanted).is_file() else None
