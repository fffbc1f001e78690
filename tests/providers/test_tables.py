"""The tables as data: sourced, without contradictions, refused when wrong."""

from dataclasses import replace

import pytest

from tidegate.core.values import Cause
from tidegate.errors import ConfigurationError
from tidegate.providers import TABLES, Endpoint, ErrorRow, HeaderRow, named
from tidegate.providers._lookup import index
from tidegate.providers.openai import OPENAI


def test_no_host_stands_in_two_tables():
    hosts = [host for table in TABLES for host in table.hosts]
    assert len(hosts) == len(set(hosts))


def test_a_host_that_two_tables_claim_is_refused():
    for host in ("api.openai.com", "*.api.openai.com"):
        with pytest.raises(ConfigurationError, match="already a host of openai"):
            index((OPENAI, replace(OPENAI, name="other", hosts=(host,))))


def test_table_names_are_unique_and_found():
    assert len({table.name for table in TABLES}) == len(TABLES)
    assert all(named(table.name) is table for table in TABLES)
    assert named("nobody") is None


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_table_and_row_names_a_source_that_says_where_or_when(table):
    rows = [*table.headers, *(row for _, row in table.rows), table.charging]
    for source in [table.source, *(row.source for row in rows)]:
        assert "http" in source or "capture" in source or "provider-facts.md" in source or "draft-" in source, source


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda: HeaderRow(name="x", unit="requests", source="", limit=("a",)), "source"),
        (lambda: HeaderRow(name="", unit="requests", source="s", limit=("a",)), "name"),
        (lambda: HeaderRow(name="x", unit="parsecs", source="s", limit=("a",)), "unit"),
        (lambda: HeaderRow(name="x", unit="requests", source="s"), "limit"),
        (lambda: HeaderRow(name="x", unit="requests", source="s", limit=("Upper-Case",)), "HeaderRow"),
        (lambda: HeaderRow(name="x", unit="requests", source="s", limit=("a",), window=0.0), "window"),
        (lambda: HeaderRow(name="x", unit="requests", source="s", limit=("a",), quantum=0.0), "quantum"),
        (lambda: ErrorRow("x", Cause.OVERLOAD, "", status=frozenset({503})), "source"),
        (lambda: ErrorRow("", Cause.OVERLOAD, "s", status=frozenset({503})), "name"),
        (lambda: ErrorRow("x", Cause.OVERLOAD, "s"), "status"),
        (lambda: ErrorRow("x", Cause.OVERLOAD, "s", status=frozenset({999})), "status"),
        (lambda: ErrorRow("x", Cause.OVERLOAD, "s", text=("Upper case",)), "ErrorRow"),
        (lambda: replace(OPENAI, source=""), "source"),
        (lambda: replace(OPENAI, name=""), "name"),
        (lambda: replace(OPENAI, hosts=("API.openai.com",)), "hosts"),
        (lambda: replace(OPENAI, hosts=("a.*.b.*",)), "hosts"),
        (lambda: replace(OPENAI, default_window=0.0), "default_window"),
        (lambda: replace(OPENAI, headers=OPENAI.headers + OPENAI.headers[:1]), "headers"),
        (lambda: replace(OPENAI, headers=(*OPENAI.headers, replace(OPENAI.headers[0], name="again"))), "headers"),
        (lambda: replace(OPENAI.charging, source=""), "source"),
        (lambda: replace(OPENAI.charging, burndown=(("m", 0.0),)), "burndown"),
        (lambda: replace(OPENAI.charging, gives_back=True), "gives_back"),
        (lambda: replace(OPENAI.charging, burndown=(("", 5.0),)), "burndown"),
        (lambda: HeaderRow(name="x", unit="requests", source="s", limit=("a",), ceiling=0.0), "ceiling"),
        (lambda: Endpoint("v1/chat"), "path"),
        (lambda: Endpoint("/v1/{name}/chat"), "path"),
        (lambda: Endpoint("/v1/{model/chat"), "path"),
        (lambda: Endpoint("/v1/{model}/{+model}"), "path"),
        (lambda: replace(OPENAI, credential=("Authorization",)), "credential"),
        (lambda: replace(OPENAI, query_credential=(("key", "x-api-key"),)), "query_credential"),
        (lambda: replace(OPENAI, query_credential=(("", "authorization"),)), "query_credential"),
        (lambda: replace(OPENAI, credential_part=("", "/")), "credential_part"),
    ],
)
def test_a_wrong_row_is_refused_with_field_value_and_bound(wrong, field):
    with pytest.raises(ConfigurationError) as refused:
        wrong()
    assert field in refused.value.field
    assert refused.value.bound


def test_windows_in_names_and_key_scopes_are_data_that_a_later_table_can_give():
    row = HeaderRow("day", "requests", "test http", limit=("x-limit-requests-day",), window=86400.0, label="requests")
    table = replace(OPENAI, name="later", hosts=("runtime.*.example.com",), headers=(row,), scope="account",
                    endpoints=(Endpoint("/model/{model}/stream", streams=True),))  # fmt: skip
    tables = index((table,))
    exact, parted = tables.exact, tables.parted
    assert (exact, parted) == ({}, (("runtime.", ".example.com", table),))
    assert table.endpoint("/model/m-1/stream") == (table.endpoints[0], "m-1")
    assert table.labels == {"day": "requests"}


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        (lambda: Endpoint("/{region}/chat"), "Endpoint.path"),
        (lambda: Endpoint("/{model}/{model}"), "Endpoint.path"),
        (lambda: Endpoint("/{family}/chat", family="chat"), "Endpoint.family"),
        (lambda: ErrorRow("x", Cause.DAY, "s", status=frozenset({429}), window=0.0), "window"),
        (lambda: replace(OPENAI, pooled=("",)), "pooled"),
        (lambda: replace(OPENAI, pooled=(":free",), scope="account"), "pooled"),
    ],
)
def test_a_wrong_path_window_or_pool_is_refused(wrong, field):
    with pytest.raises(ConfigurationError) as refused:
        wrong()
    assert field in refused.value.field
    assert refused.value.bound


def test_a_segment_can_name_the_family_of_limits():
    table = replace(OPENAI, name="router", endpoints=(Endpoint("/{family}/models/{}/{model}", streams=True),))
    endpoint, model = table.endpoint("/together/models/org/m")
    assert (endpoint.family, endpoint.streams, model) == ("together", True, "m")
    assert table.endpoint("/{odd}/models/{}/{model}")[0].family == "{odd}"
    assert table.endpoint("/models/org/m") is None
