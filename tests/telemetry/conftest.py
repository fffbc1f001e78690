from __future__ import annotations

import pytest

from tests import constants
from tests.telemetry.scene import Providers, Scene


@pytest.fixture(autouse=True)
def twenty_slots() -> None:
    """A key admits twenty calls at first."""
    constants.replace(START_CONCURRENCY=20)


@pytest.fixture
def providers() -> Providers:
    return Providers()


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.fixture
def narrow() -> Scene:
    return Scene(max_concurrency=1)
