"""The tables that pages share with the code; `python -m tests.pages` writes them anew."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path

from tidegate import providers
from tidegate.core import events
from tidegate.settings import Settings

ROOT = Path(__file__).parents[1]


def settings() -> str:
    rows = []
    for name, field in Settings.model_fields.items():
        default = "none" if field.default is None else repr(field.default)
        rows.append(f"| `{name}` | `{default}` | {field.description} |")
    return "\n".join(rows)


def provider_tables() -> str:
    rows = ["| provider | hosts | counted per | announced quotas | told apart |", "|---|---|---|---|---|"]
    for table in providers.TABLES:
        hosts = "<br>".join(f"`{host}`" for host in table.hosts) or "any, by base URL"
        scope = " + ".join(filter(None, ["base URL", "credential" if table.credential else "", _scope(table)]))
        quotas = ", ".join(f"`{row.name}`" for row in table.headers)
        errors = ", ".join(dict.fromkeys(f"{row.cause.value.replace('_', ' ')}" for _, row in table.rows))
        rows.append(f"| {table.name} | {hosts} | {scope} | {quotas} | {errors} |")
    return "\n".join(rows)


def _scope(table: providers.Provider) -> str:
    return f"path's scope + {table.scope}" if any("{scope}" in each.path for each in table.endpoints) else table.scope


def provider_sources() -> str:
    rows = []
    for table in providers.TABLES:
        rows.append(f"- **{table.name}**: {table.source}; charging: {table.charging.source}")
    return "\n".join(rows)


def event_tables() -> str:
    rows = ["| event | when | facts |", "|---|---|---|"]
    # Not `__subclasses__()`: with slots a dataclass is made twice, and the first class may still be there.
    told = [each for each in vars(events).values() if isinstance(each, type) and issubclass(each, events.Event)]
    for event in told[1:]:
        facts = ", ".join(f"`{field.name}`" for field in dataclasses.fields(event)[2:])
        rows.append(f"| `{event.__name__}` | {(event.__doc__ or '').strip()} | {facts} |")
    return "\n".join(rows)


GENERATED: dict[str, tuple[str, Callable[[], str]]] = {
    "settings": ("README.md", settings),
    "providers": ("docs/providers.md", provider_tables),
    "sources": ("docs/providers.md", provider_sources),
    "events": ("docs/events.md", event_tables),
}


def rewritten(text: str, name: str) -> str:
    """`text` with the table `name` between its two markers as the code has it now."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
    assert pattern.search(text), f"no place for the table {name}"
    return pattern.sub(lambda found: f"{found[1]}{GENERATED[name][1]()}\n{found[2]}", text)


if __name__ == "__main__":
    for name, (path, _) in GENERATED.items():
        page = ROOT / path
        page.write_text(rewritten(page.read_text(), name))
