"""A user's own table holds from the next request on, or is refused whole."""

import re
import threading
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

import tidegate
from tidegate.admission.registry import RateLimitRegistry
from tidegate.errors import ConfigurationError
from tidegate.providers import TABLES, Charging, Endpoint, ErrorRow, HeaderRow, Provider, adopt, named, recognise
from tidegate.providers._lookup import Current
from tidegate.providers.openai import OPENAI
from tidegate.transports.governance import Binding, policy_of, provider_of

CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def as_before():
    before = Current.tables
    yield
    Current.tables = before


def table(name="acme", *hosts, **changes):
    whole = Provider(
        name=name,
        source="https://acme.example/docs/limits read 2026-11-21",
        hosts=hosts or (f"api.{name}.example",),
        endpoints=(Endpoint(CHAT), Endpoint("/v1/models/{model}/run")),
        credential=("authorization",),
        charging=Charging("input", "input", "mean", "nothing", source="https://acme.example/docs/limits"),
        headers=(HeaderRow("requests", "requests", "https://acme.example/docs/limits", limit=("x-acme-limit",)),),
        errors=(),
    )
    return replace(whole, **changes)


def test_a_registered_table_holds_for_hosts_that_were_looked_up_before():
    host = "api.acme.example"
    mark = Binding(registry := RateLimitRegistry(), policy_of(registry), family="openai", any_host=True)
    assert recognise(host, CHAT) is None
    assert adopt(host, CHAT, "openai").name == "compatible"
    assert provider_of(mark, host, CHAT).name == "compatible"
    acme = table()
    tidegate.register_provider(acme)
    assert recognise(host, CHAT) is adopt(host, CHAT, "openai") is provider_of(mark, host, CHAT) is acme
    assert recognise("API.Acme.example.", "/v1/models/m/run") is acme
    assert named("acme") is acme
    assert recognise(host, "/v1/files") is None


def test_a_registered_table_holds_for_addresses_that_a_wrapped_client_has_used():
    registry = RateLimitRegistry()
    transport = httpx2.MockTransport(lambda request: httpx2.Response(200, json={}))
    client = registry.wrap(httpx2.Client(transport=transport))
    client.post(f"https://api.acme.example{CHAT}", json={"model": "m", "messages": []})
    tidegate.register_provider(table())
    client.post(f"https://api.acme.example{CHAT}", json={"model": "m", "messages": []})
    assert [key.provider for key in registry.snapshot().keys] == ["compatible", "acme"]


def test_the_tables_that_tidegate_comes_with_hold_as_before():
    tidegate.register_provider(table())
    assert recognise("api.openai.com", CHAT) is OPENAI
    assert all(named(each.name) is each for each in TABLES)


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda: table("openai", "api.acme.example"), "Provider.name"),
        (lambda: table("acme", "api.openai.com"), "Provider(acme).hosts"),
        (lambda: table("acme", "one.example", "one.example"), "Provider(acme).hosts"),
        (lambda: table("acme", "*.openai.azure.com"), "Provider(acme).hosts"),
        (lambda: table("acme", "https://api.acme.example"), "Provider(acme).hosts"),
        (lambda: table("acme", "api.acme.example:8443"), "Provider(acme).hosts"),
        (lambda: table(credential=("authorization")), "Provider(acme).credential"),
        (lambda: table(headers=(HeaderRow("x", "requests", "s", limit=("x-a")),)), "HeaderRow(x)"),
        (lambda: table(common_errors=()), "Provider(acme).common_errors"),
        (lambda: "acme", "provider"),
        (lambda: table(source=""), "Provider(acme).source"),
        (lambda: table(headers=(HeaderRow("x", "parsecs", "s", limit=("x-a",)),)), "HeaderRow(x).unit"),
        (lambda: table(headers=(HeaderRow("x", "requests", "", limit=("x-a",)),)), "HeaderRow(x).source"),
        (lambda: table(errors=(ErrorRow("x", "auth", "", codes=frozenset({"c"})),)), "ErrorRow(x).source"),
    ],
)  # fmt: skip
def test_a_wrong_table_is_refused_and_changes_nothing(wrong, field):
    before = Current.tables
    with pytest.raises(ConfigurationError) as refused:
        tidegate.register_provider(wrong())
    assert refused.value.field == field
    assert refused.value.bound
    assert Current.tables is before


def test_the_same_table_twice_is_refused():
    tidegate.register_provider(table())
    with pytest.raises(ConfigurationError, match="no other table"):
        tidegate.register_provider(table())


def test_of_several_patterns_the_most_specific_holds():
    tidegate.register_provider(table("cloud", "*.cloud.example"))
    tidegate.register_provider(table("europe", "*.eu.cloud.example"))
    tidegate.register_provider(table("exact", "a.eu.cloud.example"))
    hosts = ("x.cloud.example", "x.eu.cloud.example", "a.eu.cloud.example")
    assert [recognise(host, CHAT).name for host in hosts] == ["cloud", "europe", "exact"]


def test_a_table_without_hosts_is_found_by_its_name_alone():
    tidegate.register_provider(replace(table(), hosts=()))
    assert named("acme") is not None
    assert recognise("api.acme.example", CHAT) is None


def test_tables_registered_by_many_threads_all_hold():
    start = threading.Barrier(16)

    def register(number):
        start.wait()
        tidegate.register_provider(table(f"p{number}"))

    threads = [threading.Thread(target=register, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(recognise(f"api.p{number}.example", CHAT) is named(f"p{number}") is not None for number in range(16))


def test_the_table_in_the_documents_holds():
    page = (Path(__file__).parents[2] / "docs" / "providers.md").read_text()
    exec(re.search(r"```python\n(.*?)```", page, re.S)[1], {})
    assert recognise("eu.inference.acme.example", "/v1/models/m/run") is named("acme")
