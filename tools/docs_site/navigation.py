"""Navigation of the site: the pages of `mkdocs.yml` in their order, with the sections that they are in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """One page of the navigation: the sections around it, outermost first, and its place on the site."""

    sections: tuple[str, ...]
    place: str


def navigation(config: Path) -> list[Entry]:
    """Return the pages of the navigation."""
    import yaml  # not there where a distribution is built, which needs `folder` alone

    class Loader(yaml.SafeLoader):
        """Loader that skips the tags by which extensions name their functions."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: suffix)
    return list(_entries(yaml.load(config.read_text("utf-8"), Loader)["nav"], ()))


def _entries(nav: list[Any], sections: tuple[str, ...]) -> list[Entry]:
    found: list[Entry] = []
    for each in nav:
        title, value = next(iter(each.items())) if isinstance(each, dict) else (None, each)
        if isinstance(value, list):
            found += _entries(value, (*sections, str(title)))
        else:
            found.append(Entry(sections, str(value)))
    return found


def folder(place: str) -> str:
    """Return the folder that a page has on the built site, without a slash at its end; empty for the first page."""
    name = place.removesuffix(".md")
    return "" if name == "index" else name.removesuffix("/index")
