"""Check of the built site: links and anchors lead somewhere, nothing comes from elsewhere, each page is listed."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tools.docs_site.navigation import folder, navigation

OWN_LINKS = {"a": "href", "link": "href", "script": "src", "img": "src", "source": "src", "iframe": "src"}
"""Attributes that name another file, by tag."""


@dataclass
class Document(HTMLParser):
    """One HTML file: the places that it has, the files that it names, and lists that did not become lists."""

    ids: set[str] = field(default_factory=set)
    links: list[tuple[str, str]] = field(default_factory=list)
    unrendered: list[str] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the id, the target and the tag."""
        named = dict(attrs)
        if identifier := named.get("id"):
            self.ids.add(identifier)
        if target := named.get(OWN_LINKS.get(tag, "")):
            self.links.append((tag, target))
        if tag in ("p", "code", "pre"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close a paragraph or code."""
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        """Note a list or a directive that stands in a paragraph as text."""
        if self._open[-1:] == ["p"] and re.search(r"(^|\n)(- |1\. |::: )", data):
            self.unrendered.append(" ".join(data.split())[:60])


def faults(site: Path, pages: Path, config: Path) -> list[str]:
    """Return what is wrong with the site that was built from `pages`."""
    listed = [entry.place for entry in navigation(config)]
    there = {page.relative_to(pages).as_posix() for page in pages.rglob("*.md")}
    found = [
        f"{place} not in the navigation: add a line for it to {config.name}" for place in sorted(there - {*listed})
    ]
    found += [f"{place} in the navigation is no page" for place in listed if place not in there]
    read = cache(_read)
    for place in filter(there.__contains__, listed):
        file = site / folder(place) / "index.html"
        document = read(file)
        found += [f"{place}: {text!r} not rendered; put an empty line before it" for text in document.unrendered]
        for tag, target in document.links:
            if fault := _link_fault(tag, target, file, site, read):
                found.append(f"{place}: {fault}")
    return found


def _read(file: Path) -> Document:
    document = Document()
    document.feed(file.read_text("utf-8"))
    return document


def _link_fault(tag: str, target: str, file: Path, site: Path, read: Callable[[Path], Document]) -> str:
    """Return the fault of a link of a page, empty if there is none. A link to another host is not followed."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return "" if tag == "a" or parts.scheme == "data" else f"{target} comes from elsewhere"
    path = posixpath.join(file.parent, unquote(parts.path)) if not parts.path.startswith("/") else site / parts.path[1:]
    there = Path(posixpath.normpath(path)) if parts.path else file
    there = there / "index.html" if there.is_dir() else there
    if not there.is_file() or not there.is_relative_to(site):
        return f"{target} is no file of the site"
    anchor = unquote(parts.fragment)
    if anchor and there.suffix == ".html" and anchor not in read(there).ids:
        return f"{target} is no place of that page"
    return ""
