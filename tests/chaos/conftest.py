"""Two providers, and a server of PostgreSQL that may be stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.processes import Scene
from tests.postgres import Server, served
from tests.storage.places import Place, PostgreSQL, SQLite
from tidegate.testing import Distribution, Scenario, SimulatorProcess


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with served() as server:
        yield server


@pytest.fixture
def sqlite(tmp_path: Path) -> SQLite:
    return SQLite(tmp_path / "runs.db")


@pytest.fixture
def postgresql(server: Server) -> Iterator[PostgreSQL]:
    place = PostgreSQL.made(server)
    yield place
    place.drop()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest) -> Place:
    place: Place = request.getfixturevalue(request.param)
    return place


@pytest.fixture
def providers() -> Iterator[tuple[SimulatorProcess, SimulatorProcess]]:
    """Two providers without a limit; an answer takes as long as it must to be under way when something happens."""
    scenario = Scenario(latency=Distribution.constant(0.05))
    with SimulatorProcess(scenario) as pupil, SimulatorProcess(scenario) as teacher:
        yield pupil, teacher


@pytest.fixture
def scene(tmp_path: Path, place: Place, providers: tuple[SimulatorProcess, SimulatorProcess]) -> Scene:
    return Scene(tmp_path, place, *providers)


@pytest.fixture
def scene_on_postgresql(
    tmp_path: Path, postgresql: PostgreSQL, providers: tuple[SimulatorProcess, SimulatorProcess]
) -> Scene:
    return Scene(tmp_path, postgresql, *providers)
