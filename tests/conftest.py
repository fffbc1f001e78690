"""What all tests share: a registry of their own, and nothing that is left of another test."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

import tidegate
from tests import constants
from tests.effort import effort
from tidegate.admission import hooks, redaction
from tidegate.admission.registry import RateLimitRegistry
from tidegate.telemetry import activation
from tidegate.transports import framework_timeouts as patch
from tidegate.transports.governance import Installation
from tidegate.transports.sdks import SDKS, TRANSPORTS

# A drawn example may take as long as a slow machine needs, and is the same each time.
settings.register_profile(
    "tests",
    max_examples=effort(20, 100),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("tests")


def pytest_configure(config: pytest.Config) -> None:
    """Let programs that tests start be interrupted, and prepare what all processes of the run use.

    What a shell starts in the background ignores interrupts. A client of httpx loads every authority anew, 45 ms of
    CPU each time, and the tests make thousands of clients that speak to this machine without TLS: they trust one alone.
    """
    if not hasattr(config, "workerinput") and find_spec("certifi") is not None:
        bundle = files("certifi").joinpath("cacert.pem").read_text()
        end = "-----END CERTIFICATE-----\n"
        config.add_cleanup((trusted := tempfile.NamedTemporaryFile("w", suffix=".pem")).close)  # noqa: SIM115
        trusted.write(bundle[bundle.index("-----BEGIN") : bundle.index(end) + len(end)])
        trusted.flush()
        os.environ["SSL_CERT_FILE"] = trusted.name
    if not hasattr(config, "workerinput"):
        left = tempfile.mkdtemp(prefix="tidegate-cluster-")
        config.add_cleanup(lambda: shutil.rmtree(left, ignore_errors=True))
        if os.geteuid() == 0:
            # The user who runs PostgreSQL there.
            shutil.chown(left, "nobody")
        os.environ["TESTS_POSTGRESQL_CLUSTER"] = f"{left}/cluster"
    # Tests use one credential at several simulated providers: what shares limits says so itself.
    os.environ["TIDEGATE_SHARE"] = "off"
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are collected: what their modules load stays, and each look at it takes longer."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture
def registry() -> RateLimitRegistry:
    return RateLimitRegistry(tidegate.Settings())


@pytest.fixture(autouse=True)
def replaced_constants(request: pytest.FixtureRequest) -> Iterator[None]:
    """Replace the constants that the markers `constants` of a test name; the nearest marker has priority."""
    for mark in reversed(list(request.node.iter_markers("constants"))):
        constants.replace(**mark.kwargs)
    yield
    constants.restore()


@pytest.fixture(autouse=True, scope="session")
def thawed() -> Iterator[None]:
    """Return every frozen object to the collector at the end: what runs after the tests may look for referrers.

    Meanwhile a collection begins after 10,000 new objects. After 700, a tenth of the time of the tests goes into it.
    """
    before = gc.get_threshold()
    gc.set_threshold(10_000, *before[1:])
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="module")
def frozen(thawed: None) -> None:
    """Keep loaded modules out of later collections: with every SDK loaded, one collection takes half a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody listens of himself: that some test has loaded an OpenTelemetry SDK is nothing to the others."""
    monkeypatch.setattr(activation, "SDK", ())
    monkeypatch.setattr(activation, "_watching", True)


@pytest.fixture(autouse=True)
def no_credentials_known() -> Iterator[None]:
    """The credentials of one test are taken out of no text of another."""
    yield
    redaction.STORE.forget()


def _uncounted(queue: object) -> None: ...


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    """Leaves no patch behind: each test sees the HTTP libraries as they are, and is shown in no `tidegate status`."""
    hooks.on_new_queue = _uncounted
    yield
    Installation.binding = None
    hooks.on_new_queue = None
    patch.restore()
    if any(transport.patches.on for transport in TRANSPORTS):
        # Only where something was patched: a collection costs more than most tests.
        gc.collect()
    for transport in TRANSPORTS:
        transport.patches.remove()
    for sdk in SDKS:
        sdk.hooks.remove()
