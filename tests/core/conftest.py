"""A key that nothing is known of, and the events that it told."""

from __future__ import annotations

import pytest

from tests.core.values import KEY
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.events import Event
from tidegate.settings import Settings


@pytest.fixture(autouse=True)
def unpatched() -> None: ...


@pytest.fixture
def admission() -> AdmissionController:
    """One key with the default settings, at instant 0."""
    return AdmissionController(KEY, Settings(start_concurrency=20), 60.0, 0.0)


@pytest.fixture
def out() -> list[Event]:
    return []
