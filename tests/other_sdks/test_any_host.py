"""The further SDKs' own marks: under `install` their calls are governed on any host, by what their SDK speaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tidegate
from tests.names import named, resolve_to_loopback
from tests.other_sdks.giving import one
from tests.other_sdks.kinds import ANSWER, KINDS, Kind
from tidegate.admission.registry import RateLimitRegistry
from tidegate.testing import Simulator


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[RateLimitRegistry]:
    resolve_to_loopback(monkeypatch)
    registry = RateLimitRegistry(tidegate.Settings())
    tidegate.install(registry)
    yield registry
    tidegate.uninstall()


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_install_further_sdk_on_an_unknown_host_is_governed(kind: Kind, installed: RateLimitRegistry) -> None:
    with Simulator() as provider:
        assert one(kind.asking(kind.make(named(provider.url, "api.gateway.test")))) == ANSWER
        assert installed.snapshot().attempts == provider.truth().total.received == 1
    (key,) = installed.snapshot().keys
    assert key.provider == kind.table


def test_install_google_genai_on_an_unknown_host_is_governed(installed: RateLimitRegistry) -> None:
    from google import genai

    with Simulator() as provider:
        options = genai.types.HttpOptions(base_url=named(provider.url, "api.gateway.test"))
        client = genai.Client(api_key="k", http_options=options)
        client.models.generate_content(model="gemini-2.0-flash", contents="hi")
        client.close()
        assert installed.snapshot().attempts == provider.truth().total.received == 1
    (key,) = installed.snapshot().keys
    assert key.provider == "gemini-compatible"
