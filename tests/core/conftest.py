"""A key that nothing is known of, and the events that it told."""

from __future__ import annotations

import pytest

from tests import constants
from tests.core.values import KEY
from tidegate.core.admission_controller import AdmissionController
from tidegate.core.events import Event
from tidegate.settings import Settings


@pytest.fixture(autouse=True)
def unpatched() -> None: ...


@pytest.fixture
def admission() -> AdmissionController:
    """One key that admits 20 calls at first, at instant 0."""
    constants.replace(START_CONCURRENCY=20)
    return AdmissionController(KEY, Settings(), 60.0, 0.0)


@pytest.fixture
def out() -> list[Event]:
    return []
