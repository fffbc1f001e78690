"""How all laws are tried: the same examples each time."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.effort import effort

settings.register_profile("laws", settings.get_profile("tests"), max_examples=effort(12, 60))
settings.load_profile("laws")


@pytest.fixture(autouse=True)
def unpatched() -> None: ...
