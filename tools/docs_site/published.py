"""The README as it is published on a package index, where a relative link leads nowhere."""

from __future__ import annotations

from collections.abc import Mapping

from tools.docs_site import links
from tools.docs_site.navigation import folder

BRANCH = "main"
"""Branch of the repository that links show."""


def published(readme: str, urls: Mapping[str, str]) -> str:
    """Return the README with absolute links, by the project's `urls`; without an address a link becomes its text."""
    known = {name.lower(): address.rstrip("/") for name, address in urls.items()}

    def change(target: str) -> str | None:
        path, mark, anchor = target.partition("#")
        if path.startswith("docs/") and path.endswith(".md") and "documentation" in known:
            return f"{known['documentation']}/{folder(path.removeprefix('docs/'))}/".rstrip("/") + f"/{mark}{anchor}"
        if "repository" not in known:
            return None
        kind = "raw" if path.endswith((".svg", ".png")) else "blob"
        return f"{known['repository']}/{kind}/{BRANCH}/{path}{mark}{anchor}"

    return links.replaced(readme, change)
