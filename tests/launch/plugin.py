"""A distribution with a plugin of pydantic, as logfire is one: pydantic loads it when the first model is made."""

from __future__ import annotations

from pathlib import Path

PLUGIN = """
import {imports}
seen = {{name: id(sys.modules[name]) for name in ("httpx", "httpx2", "requests") if name in sys.modules}}

class Plugin:
    def new_schema_validator(self, *args, **kwargs):
        return None, None, None

plugin = Plugin()
"""


def install_plugin(folder: Path, imports: str = "sys, httpx, httpx2, requests, opentelemetry.sdk.trace") -> None:
    """Put a distribution into `folder` whose plugin imports these modules."""
    info = folder / "observer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: observer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pydantic]\nobserver = observer:plugin\n")
    (folder / "observer.py").write_text(PLUGIN.format(imports=imports))
