"""The setting `share=ray` where Ray is missing, and its words in `tidegate doctor`. The cluster is in tests/engines."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

import tidegate
from tidegate.admission.registry import RateLimitRegistry
from tidegate.cli.doctor.environment import sharing
from tidegate.errors import ConfigurationError
from tidegate.shared_file import VERSION
from tidegate.shared_log import carrier_of, has_secret, place_of


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of that name, which is neither loaded nor started by anything here."""
    package = ModuleType("ray")
    package.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", package)


@pytest.mark.usefixtures("missing")
def test_a_missing_ray_is_named_at_the_start_of_the_program() -> None:
    with pytest.raises(ConfigurationError, match="pip install ray") as raised:
        RateLimitRegistry(tidegate.Settings(share="ray"))
    assert raised.value.field == "share"
    assert not has_secret("ray")


@pytest.mark.usefixtures("installed")
def test_all_processes_name_a_credential_alike() -> None:
    one, other = carrier_of("ray"), carrier_of("ray")
    assert one is not None
    assert other is not None
    assert one.kind == "ray"
    assert one.secret == other.secret
    assert one.secret
    assert has_secret("ray")


@pytest.mark.usefixtures("installed")
def test_the_cluster_is_named_by_doctor() -> None:
    actor = f"the actor tidegate-log-v{VERSION} of the Ray cluster"
    assert place_of("ray") == actor
    said = sharing(tidegate.Settings(share="RAY")).text
    assert said == f"shared by all processes with this setting, through {actor}"
