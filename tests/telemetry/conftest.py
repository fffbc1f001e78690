from __future__ import annotations

import pytest

from tests.telemetry.scene import Providers, Scene


@pytest.fixture
def providers() -> Providers:
    return Providers()


@pytest.fixture
def scene() -> Scene:
    return Scene(start_concurrency=20)


@pytest.fixture
def narrow() -> Scene:
    return Scene(start_concurrency=1, max_concurrency=1)
