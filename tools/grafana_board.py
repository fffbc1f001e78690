"""Grafana board of the metrics of tidegate; `python -m tools.grafana_board` writes `docs/grafana/tidegate.json` anew.

Its queries name the metrics as Prometheus has them: dots are underscores, a unit and the kind are suffixes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.telemetry import attributes as a
from tidegate.telemetry import signals as s

BOARD = Path(__file__).parents[1] / "docs" / "grafana" / "tidegate.json"

UNITS = {"s": "_seconds"}
"""Suffixes of units. A unit in braces has none. Source: OpenTelemetry's specification of Prometheus compatibility."""

WIDTH, HEIGHT = 12, 8
"""Columns, of the 24 that a board has, and rows of a panel. Raising either makes each panel larger."""

INPUT = "${DS_PROMETHEUS}"
MODEL = a.MODEL.name.replace(".", "_")


class Panel(NamedTuple):
    """Panel of the board: its title, the unit of its axis by Grafana's name, and (query, legend) pairs."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def series(instrument: s.Instrument) -> str:
    """Return the name of an instrument's series in Prometheus, without the suffixes of a histogram."""
    ends = "_total" if instrument.kind == "counter" else ""
    return instrument.name.replace(".", "_") + UNITS.get(instrument.unit, "") + ends


def _label(attribute: a.Attribute) -> str:
    return attribute.name.replace(".", "_")


def _chosen(name: str) -> str:
    return f'{name}{{{MODEL}=~"$model"}}'


def _rate(instrument: s.Instrument, *labels: a.Attribute) -> str:
    names = ", ".join([MODEL, *map(_label, labels)])
    return f"sum by ({names}) (rate({_chosen(series(instrument))}[$__rate_interval]))"


def _rate_of_sum(instrument: s.Instrument, *labels: a.Attribute) -> str:
    names = ", ".join([MODEL, *map(_label, labels)])
    return f"sum by ({names}) (rate({_chosen(series(instrument) + '_sum')}[$__rate_interval]))"


def _quantile(share: float, instrument: s.Instrument) -> str:
    rate = f"rate({_chosen(series(instrument) + '_bucket')}[$__rate_interval])"
    return f"histogram_quantile({share}, sum by (le, {MODEL}) ({rate}))"


def _sum(instrument: s.Instrument) -> str:
    return f"sum by ({MODEL}) ({_chosen(series(instrument))})"


def _quota(limit: s.Instrument, remaining: s.Instrument) -> tuple[tuple[str, str], ...]:
    # Every process of a key has the same quota, so its copies are not added up.
    by = f"{MODEL}, {_label(a.QUOTA)}"
    most, left = f"max by ({by}) ({_chosen(series(limit))})", f"min by ({by}) ({_chosen(series(remaining))})"
    legend = f"{{{{{MODEL}}}}} {{{{{_label(a.QUOTA)}}}}}"
    return (most, f"{legend} limit"), (f"{most} - {left}", f"{legend} used")


def _by(*labels: a.Attribute) -> str:
    return " ".join(f"{{{{{name}}}}}" for name in (MODEL, *map(_label, labels)))


PANELS = (
    Panel("Requests: learned limit and use", "short", _quota(s.REQUESTS_LIMIT, s.REQUESTS_REMAINING)),
    Panel("Tokens: learned limit and use", "short", _quota(s.TOKENS_LIMIT, s.TOKENS_REMAINING)),
    Panel("Other units: learned limit and use", "short", _quota(s.OTHERS_LIMIT, s.OTHERS_REMAINING)),
    Panel("In flight", "short", ((_sum(s.LIMIT), f"{_by()} limit"), (_sum(s.IN_FLIGHT), f"{_by()} in flight"))),
    Panel("Waiting calls", "short", ((_sum(s.WAITING), _by()),)),
    Panel("ETA of the last waiting call", "s", ((f"max by ({MODEL}) ({_chosen(series(s.ETA))})", _by()),)),
    Panel("Attempts by outcome", "reqps", ((_rate(s.ATTEMPTS, a.OUTCOME), _by(a.OUTCOME)),)),
    Panel(
        "Refusals for lack of capacity",
        "reqps",
        ((_rate(s.HITS, a.STATUS, a.CAUSE), _by(a.STATUS, a.CAUSE)),),
    ),
    Panel("Wait in the queue", "s", tuple((_quantile(q, s.WAIT), f"{_by()} p{100 * q:.0f}") for q in (0.5, 0.99))),
    Panel(
        "Duration of an attempt", "s", tuple((_quantile(q, s.ATTEMPT), f"{_by()} p{100 * q:.0f}") for q in (0.5, 0.99))
    ),
    Panel(
        "Retries, and calls given up",
        "reqps",
        ((_rate(s.RETRIES), f"{_by()} retries"), (_rate(s.GIVE_UPS), f"{_by()} given up")),
    ),
    Panel(
        "Tokens (where TIDEGATE_TELEMETRY is tokens)",
        "short",
        ((_rate_of_sum(s.TOKEN_USAGE, a.TOKEN_TYPE), _by(a.TOKEN_TYPE)),),
    ),
    Panel("Changes of keys", "reqps", ((_rate(s.CHANGES, a.CHANGE), _by(a.CHANGE)),)),
)


def board(panels: Sequence[Panel] = PANELS) -> dict[str, Any]:
    """Return the board as Grafana imports it; it asks for a data source of Prometheus."""
    model = f"label_values({series(s.ATTEMPTS)}, {MODEL})"
    return {
        "__inputs": [
            {
                "name": "DS_PROMETHEUS",
                "label": "Prometheus",
                "type": "datasource",
                "pluginId": "prometheus",
                "pluginName": "Prometheus",
            }
        ],
        "title": "tidegate",
        "uid": "tidegate",
        "tags": ["llm", "tidegate"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "model",
                    "label": "Model",
                    "type": "query",
                    "datasource": {"type": "prometheus", "uid": INPUT},
                    "query": {"query": model, "refId": "model"},
                    "refresh": 2,
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                }
            ]
        },
        "panels": [_panel(place, panel) for place, panel in enumerate(panels)],
    }


def _panel(place: int, panel: Panel) -> dict[str, Any]:
    return {
        "id": place + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": {"type": "prometheus", "uid": INPUT},
        "gridPos": {"x": place % 2 * WIDTH, "y": place // 2 * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend}
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


def text() -> str:
    """Return the file of the board."""
    return json.dumps(board(), indent=2) + "\n"


def main() -> int:
    """Write the board."""
    BOARD.parent.mkdir(exist_ok=True)
    BOARD.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
