from __future__ import annotations

import pytest

from tests.telemetry.scene import Providers, Scene
from tidegate.core import concurrency_limit


@pytest.fixture(autouse=True)
def twenty_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key admits twenty calls at first."""
    monkeypatch.setattr(concurrency_limit, "START_CONCURRENCY", 20)


@pytest.fixture
def providers() -> Providers:
    return Providers()


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def narrow() -> Scene:
    """With one slot."""
    return Scene(max_concurrency=1)
