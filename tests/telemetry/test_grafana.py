"""The Grafana board: each metric and label that it names is one that Prometheus gets from tidegate."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import REGISTRY

from tidegate.telemetry import attributes
from tidegate.telemetry.signals import INSTRUMENTS
from tools import grafana_board

WORDS = {"sum", "by", "rate", "le", "max", "min", "histogram_quantile", "model", "__rate_interval"}


@pytest.fixture
def exported() -> Iterator[set[str]]:
    """Names of all series, as the exporter of Prometheus makes them of the metric table."""
    reader = PrometheusMetricReader(disable_target_info=True)
    provider = MeterProvider([reader])
    meter = provider.get_meter("tidegate")
    for each in INSTRUMENTS:
        if each.kind == "histogram":
            meter.create_histogram(each.name, each.unit).record(1.0)
        elif each.kind == "counter":
            meter.create_counter(each.name, each.unit).add(1)
        elif each.kind == "updowncounter":
            meter.create_up_down_counter(each.name, each.unit).add(1)
        else:
            meter.create_gauge(each.name, each.unit).set(1.0)
    yield {sample.name for family in REGISTRY.collect() for sample in family.samples}
    provider.shutdown()


def queries() -> list[str]:
    board = json.loads(grafana_board.BOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_the_committed_board_is_the_one_of_the_metric_table() -> None:
    assert grafana_board.BOARD.read_text() == grafana_board.text(), "run python -m tools.grafana_board"


def test_each_metric_of_the_board_exists(exported: set[str]) -> None:
    named = {name for query in queries() for name in re.findall(r"\b(?:tidegate|gen_ai_client)_\w+(?=\{)", query)}
    assert named
    assert named <= exported


def test_each_instrument_is_on_the_board() -> None:
    shown = " ".join(queries())
    assert [each.name for each in INSTRUMENTS if grafana_board.series(each) not in shown] == []


def test_each_label_of_the_board_is_an_attribute(exported: set[str]) -> None:
    known = {
        value.name.replace(".", "_") for value in vars(attributes).values() if isinstance(value, attributes.Attribute)
    }
    for query in queries():
        words = set(re.findall(r"[a-z_]\w*", re.sub(r'"[^"]*"', "", query)))
        assert words - WORDS - exported <= known, query
