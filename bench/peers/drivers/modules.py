"""Single modules of packages that are installed without what they need."""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType


def alone(package: str, path: str) -> ModuleType:
    """The module at a path of an installed package, loaded without the package around it; raises ImportError."""
    file = Path(str(distribution(package).locate_file(path)))
    name = path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"no module at {file}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
