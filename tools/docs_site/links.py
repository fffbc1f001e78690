"""Links of Markdown pages: find them, and change their targets. Code is left as it is."""

from __future__ import annotations

import re
from collections.abc import Callable

LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)\)")
"""A link or an image. Its text may hold one level of brackets, as a badge does."""

CODE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[^\n]*$|(`+)(?!`).+?(?<!`)\3(?!`)", re.MULTILINE | re.DOTALL)
"""A fenced block, or code in a line."""


def is_local(target: str) -> bool:
    """Return whether a target names no host and no place in the page itself."""
    return not re.match(r"[a-z][a-z+.-]*:|#|//", target)


def targets(page: str) -> list[str]:
    """Return the targets of all links and images of a page."""
    return [link["target"] for link in _links(page)]


def replaced(page: str, change: Callable[[str], str | None]) -> str:
    """Return the page with each local target changed; where the change is None, the text of the link remains.

    An image without a target disappears.
    """
    parts: list[str] = []
    position = 0
    for link in _links(page):
        if not is_local(link["target"]):
            continue
        target = change(link["target"])
        new = f"{link['image']}[{link['text']}]({target})" if target else "" if link["image"] else link["text"]
        parts += [page[position : link.start()], new]
        position = link.end()
    return "".join([*parts, page[position:]])


def _links(page: str) -> list[re.Match[str]]:
    """Return the links that do not begin inside code. Code in the text of a link is a part of the link."""
    code = [range(*span.span()) for span in CODE.finditer(page)]
    return [link for link in LINK.finditer(page) if not any(link.start() in span for span in code)]
