"""How all laws are tried: the same examples each time, as many as a slow machine bears."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("laws", settings.get_profile("tests"), max_examples=60)
settings.load_profile("laws")


@pytest.fixture(autouse=True)
def unpatched() -> None: ...
