"""Text of the site for language models: `llms.txt`, `llms-full.txt`, and an `index.md` beside each page.

The forms are those of https://llmstxt.org: a list of the pages with a sentence each, and all pages in one file.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from tools.docs_site import links
from tools.docs_site.api import PUBLIC, api_text
from tools.docs_site.navigation import folder, navigation

TITLE = "# tidegate\n\n> Run every LLM call at your provider's true limit. Nothing to configure.\n"


def write(site: Path, pages: Path, config: Path, address: str | None = None) -> None:
    """Write the files below `site`. Links of the list are absolute if the site's `address` is known."""
    start = f"{address.rstrip('/')}/" if address else ""
    listed, whole = [TITLE], [TITLE]
    section: tuple[str, ...] = ()
    for entry in navigation(config):
        text = _text(pages, entry.place)
        target = site / folder(entry.place) / "index.md"
        target.write_text(_for_reading(text, entry.place), "utf-8")
        if entry.sections[:1] != section:
            section = entry.sections[:1]
            listed.append(f"\n## {section[0]}\n")
        title, summary = _summary(text)
        listed.append(f"- [{title}]({start}{target.relative_to(site).as_posix()}): {summary}")
        whole.append(f"{text.rstrip()}\n")
    (site / "llms.txt").write_text("\n".join(listed) + "\n", "utf-8")
    (site / "llms-full.txt").write_text("\n".join(whole), "utf-8")


def _text(pages: Path, place: str) -> str:
    """Return the Markdown of a page; that of the API comes from the docstrings."""
    module = place.removeprefix("api/").removesuffix(".md")
    return api_text(module) if module in PUBLIC else (pages / place).read_text("utf-8")


def _for_reading(text: str, place: str) -> str:
    """Return a page with links to the `index.md` of other pages."""

    def change(target: str) -> str:
        path, mark, anchor = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(place), path))
        if there.endswith(".md"):
            there = posixpath.join(folder(there), "index.md")
        return posixpath.relpath(there, folder(place) or ".") + mark + anchor

    return links.replaced(text, change)


def _summary(text: str) -> tuple[str, str]:
    """Return the title of a page and the first sentence of its first paragraph."""
    title = next(line.lstrip("# ") for line in text.splitlines() if line.startswith("# "))
    paragraphs = re.sub(r"^```.*?^```|^<!--.*?-->", "", text, flags=re.MULTILINE | re.DOTALL).split("\n\n")
    prose = [each for each in paragraphs if re.match(r"[A-Z`*\[]", each.strip())]
    sentence = re.split(r"(?<=[.!?:])\s", " ".join(prose[0].split()) if prose else "")[0]
    return title.replace("`", ""), re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence)
