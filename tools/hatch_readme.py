"""Readme of the distributions: the README whose links work on a page of a package index as well.

Hatchling calls the hook at each build. Links get the addresses of `[project.urls]`: `Documentation` for pages of the
docs, otherwise `Repository`. As long as neither is set, a link becomes its text, and the picture is left out.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class ReadmeHook(MetadataHookInterface):
    """Hook that fills in the field `readme`."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme by the addresses that the project has."""
        if self.root not in sys.path:
            sys.path.insert(0, self.root)
        from tools.docs_site.published import published

        text = Path(self.root, "README.md").read_text("utf-8")
        readme = published(text, metadata.get("urls", {}))
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
