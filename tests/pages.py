"""The tables that pages share with the code; `python -m tests.pages` writes them anew."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from conformance.catalogue import FRAMEWORKS
from tests.reference import cli_reference, schema_reference
from tidegate import providers
from tidegate.core import events
from tidegate.experiments import RunnerSettings
from tidegate.experiments.commands.common import MEANINGS
from tidegate.settings import Settings
from tidegate.telemetry import attributes, signals
from tidegate.transports.framework_timeouts import TIMEOUTS
from tidegate.transports.imports import SHARED, UNGOVERNABLE
from tools import readme_picture

ROOT = Path(__file__).parents[1]

PROVIDER_PAGES: dict[str, tuple[str, ...]] = {
    "openai": ("openai",),
    "azure": ("azure", "github-models", "azure-compatible"),
    "anthropic": ("anthropic", "anthropic-compatible"),
    "google": ("gemini", "vertex", "gemini-compatible", "vertex-compatible"),
    "bedrock": ("bedrock",),
    "alibaba": ("dashscope", "modelscope"),
    "fast-inference": ("groq", "cerebras", "sambanova"),
    "open-models": (
        *("fireworks", "together", "deepseek", "baseten", "lepton", "nvidia", "replicate"),
        *("siliconflow", "deepinfra", "novita", "nebius", "hyperbolic", "featherless", "chutes", "lambda"),
    ),
    "model-makers": (
        *("xai", "mistral", "cohere", "perplexity", "moonshot", "zai", "minimax", "volcengine"),
        *("voyage", "jina", "ai21", "writer"),
    ),
    "platforms": ("databricks", "watsonx", "github-copilot"),
    "gateways": ("openrouter", "huggingface", "vercel", "cloudflare", "portkey", "helicone"),
    "self-hosted": ("compatible", "ollama", "ollama-local"),
}
"""Page below docs/providers: the tables on it. Every table is on one."""


SOURCE = re.compile(r" \((elspeth|Phoenix|pip|openai|Inspect|a start-up)[^()]*\)")
"""Source of a default, which is for maintainers."""


def settings() -> str:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = "none" if field.default is None else repr(field.default)
        rows.append(f"| `{name}` | `{default}` | {SOURCE.sub('', field.description or '')} |")
    return "\n".join(rows)


def runner_settings() -> str:
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for name, field in RunnerSettings.model_fields.items():
        default = "none" if field.default is None else repr(field.default)
        rows.append(f"| `{name}` | `{default}` | {SOURCE.sub('', field.description or '')} |")
    return "\n".join(rows)


def exit_codes() -> str:
    rows = ["| code | means |", "|---|---|", *(f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items())]
    return "\n".join(rows)


def refusals_in_short() -> str:
    page = (ROOT / "docs" / "usage.md").read_text()
    return page.partition("<!-- refusals in short -->\n")[2].partition("\n<!-- /refusals")[0]


def picture() -> str:
    """The picture, with its own title as the text for those who do not see it."""
    (title,) = re.findall("<title>(.*)</title>", readme_picture.PLACE.read_text())
    return f"![{title}]({readme_picture.PLACE.relative_to(ROOT)})"


def provider_tables() -> str:
    rows = ["| provider | hosts | counted per |", "|---|---|---|"]
    for table in providers.TABLES:
        page = next(page for page, names in PROVIDER_PAGES.items() if table.name in names)
        hosts = "<br>".join(f"`{host}`" for host in table.hosts) or "any, by base URL"
        rows.append(f"| [{table.name}](providers/{page}.md) | {hosts} | {_scope(table)} |")
    return "\n".join(rows)


def provider_page(page: str) -> str:
    tables = {table.name: table for table in providers.TABLES}
    return "\n\n".join(provider_table(tables[name]) for name in PROVIDER_PAGES[page])


def provider_table(table: providers.Provider) -> str:
    """The section of a table; what an earlier table of its page, or any compatible server, has too is only named."""
    common = providers.COMPATIBLE
    page = next(names for names in PROVIDER_PAGES.values() if table.name in names)
    before = [each for each in providers.TABLES if each.name in page[: page.index(table.name)]]
    before.sort(key=lambda each: len(each.errors), reverse=True)
    lines = [f"## `{table.name}`", "", f"- Source: {table.source}"]
    if table is common or _charging(table.charging) != _charging(common.charging):
        lines.append(f"- {_charging(table.charging)}")
    lines += [
        f"- Shared by {', '.join(f'`{model}`' for model in each.models)}: "
        f"{', '.join(f'`{quota}`' for quota in each.quotas)}"
        for each in table.shared
    ]
    like = table is not common and table.errors[-len(common.errors) :] == common.errors
    headers = [row for row in table.headers if not (like and row in common.headers)]
    errors = table.errors[: -len(common.errors)] if like else table.errors
    same = ["quotas"] * (len(headers) < len(table.headers)) + ["refusals"] * like
    if same:
        lines.append(f"- And the {' and '.join(same)} of [`compatible`](self-hosted.md)")
    for other in before if not like else []:
        if errors and {*other.errors} <= {*errors}:
            lines.append(f"- And the refusals of `{other.name}`")
            errors = tuple(row for row in errors if row not in other.errors)
        if headers and {*other.headers} & {*headers}:
            names = ", ".join(f"`{row.name}`" for row in headers if row in other.headers)
            lines.append(f"- And the quotas {names} of `{other.name}`")
            headers = [row for row in headers if row not in other.headers]
    if headers:
        lines += ["", "| announced quota | of | seconds | refills |", "|---|---|---|---|"]
        lines += [_quota(row) for row in headers]
    if errors:
        lines += ["", *_refusals(errors)]
    return "\n".join(lines)


def common_refusals() -> str:
    return "\n".join(_refusals(providers.COMMON_ERRORS))


def _charging(charged: providers.Charging) -> str:
    """In words, without what is not charged."""
    parts = {"tokens": charged.tokens, "input": charged.input_tokens, "output": charged.output_tokens}
    there = [f"{name} by `{rule}`" for name, rule in parts.items() if rule != "nothing"]
    produced = f"output as it is written, by `{charged.produced}`" if charged.produced != "nothing" else ""
    return f"Charged at admission: {', '.join(there) or 'requests alone'}" + (f"; {produced}" if produced else "")


def _scope(table: providers.Provider) -> str:
    path = "path's scope" if any("{scope}" in each.path for each in table.endpoints) else ""
    return ", ".join(filter(None, ["credential" if table.credential else "", path, table.scope]))


def _quota(row: providers.HeaderRow) -> str:
    window = "derived" if row.window is None else f"{row.window:g}"
    return f"| `{row.name}` | {row.unit.replace('_', ' ')} | {window} | {row.refill} |"


def _refusals(rows: tuple[providers.ErrorRow, ...]) -> list[str]:
    lines = ["| refusal | recognised by | means |", "|---|---|---|"]
    for row in rows:
        kind, cause = (word.value.replace("_", " ") for word in (row.kind, row.cause))
        lines.append(f"| `{row.name}` | {_cell(_criteria(row))} | {kind}: {cause} |")
    return lines


def _criteria(row: providers.ErrorRow) -> str:
    """In words, with every criterion that the row has."""
    named = {
        "status": _statuses(sorted(row.status)),
        "code": ", ".join(f"`{code}`" for code in sorted(row.codes)),
        "message": ", ".join(f"\u201c{text}\u201d" for text in row.text),
        "header": ", ".join(f"`{name}: {value}`" if value else f"`{name}`" for name, value in row.headers),
        "without": ", ".join(f"`{name}`" for name in row.without),
    }
    flags = {"asks for more than the limit": row.exceeds, "names a wait": row.waits}
    words = [f"{name} {text}" for name, text in named.items() if text]
    return "; ".join(words + [name for name, holds in flags.items() if holds])


def _statuses(statuses: list[int]) -> str:
    runs: list[list[int]] = []
    for status in statuses:
        if runs and status == runs[-1][-1] + 1:
            runs[-1].append(status)
        else:
            runs.append([status])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def event_tables() -> str:
    """Each event with the first paragraph of its docstring, since a cell of a table has one paragraph."""
    rows = ["| event | when | facts |", "|---|---|---|"]
    # In the order of the module; not `__subclasses__()`: with slots a dataclass is made twice.
    for name in re.findall(r"^class (\w+)\((?:Call)?Event\)", inspect.getsource(events), re.M):
        event = getattr(events, name)
        if event is events.CallEvent:
            continue
        facts = ", ".join(f"`{field.name}`" for field in dataclasses.fields(event)[2:])
        when = " ".join((event.__doc__ or "").partition("\n\n")[0].split())
        rows.append(f"| `{event.__name__}` | {when} | {facts} |")
    return "\n".join(rows)


def clock_table() -> str:
    rows = ["| framework and version | its clock | by default | when it runs out | set by |"]
    rows.append("|---|---|---|---|---|")
    for clock in TIMEOUTS:
        dials = ", ".join(dict.fromkeys(re.sub(r" of .* in ", " in ", str(default)) for default in clock.defaults))
        version = " ".join(clock.source.split()[:2])
        rows.append(f"| {' | '.join((version, clock.measures, f'{clock.seconds:g} s', clock.then, dials))} |")
    return "\n".join(rows)


def gateway_table() -> str:
    rows = ["| variable | stands for, where it is not set |", "|---|---|"]
    for each in providers.GATEWAY_VARIABLES:
        default = f"`{each.default}`" if each.default else "changed only where it is set"
        rows.append(f"| `{each.name}` | {default} |")
    return "\n".join(rows)


def other_stack_table() -> str:
    rows = ["| module | distribution | counts |", "|---|---|---|"]
    for module, distribution in UNGOVERNABLE.items():
        counts = "where a script has no governed way" if module in SHARED else "always"
        rows.append(f"| `{module}` | {distribution} | {counts} |")
    return "\n".join(rows)


def metric_table() -> str:
    rows = ["| metric | kind | unit | what | attributes |", "|---|---|---|---|---|"]
    for each in signals.INSTRUMENTS:
        measures = [row for signal in signals.SIGNALS.values() for row in signal.measures if row.instrument is each]
        names = [attribute.name for attribute in each.shown]
        names += [attribute.name for measure in measures for attribute, _ in measure.facts]
        rows.append(f"| `{each.name}` | {each.kind} | `{each.unit}` | {each.meaning} | {_names(names)} |")
    return "\n".join(rows)


def span_event_table() -> str:
    rows = ["| event on the span | attributes |", "|---|---|"]
    for signal in signals.SIGNALS.values():
        if signal.note is not None and signal.note.lasting is None:
            rows.append(f"| `{signal.note.name}` | {_names(attribute.name for attribute, _ in signal.note.facts)} |")
    return "\n".join(rows)


def attribute_table() -> str:
    rows = ["| attribute | type | what |", "|---|---|---|"]
    listed = [each for each in vars(attributes).values() if isinstance(each, attributes.Attribute)]
    for each in [*attributes.KEY, *(each for each in listed if each not in attributes.KEY)]:
        unit = f" in `{each.unit}`" if each.unit else ""
        rows.append(f"| `{each.name}` | {each.type}{unit} | {each.meaning} |")
    return "\n".join(rows)


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def framework_table() -> str:
    rows = ["| framework | example |", "|---|---|"]
    for framework in FRAMEWORKS:
        example = f"[{framework.example}](../examples/frameworks/{framework.example})"
        name = f"[{framework.name}](#{framework.page})" if framework.page else framework.name
        rows.append(f"| {name} {framework.version} | {example} |")
    return "\n".join(rows)


GENERATED: dict[str, tuple[str, Callable[[], str]]] = {
    "settings": ("docs/settings.md", settings),
    "refusals in short, copied": ("README.md", refusals_in_short),
    "picture": ("README.md", picture),
    "runner settings": ("docs/experiments.md", runner_settings),
    "exit codes": ("docs/experiments.md", exit_codes),
    "providers": ("docs/providers.md", provider_tables),
    "refusals": ("docs/providers.md", common_refusals),
    "commands": ("docs/cli.md", cli_reference),
    "schema": ("docs/schema.md", schema_reference),
    "events": ("docs/events.md", event_tables),
    "clocks": ("docs/clocks.md", clock_table),
    "gateway variables": ("docs/gateway.md", gateway_table),
    "other stacks": ("docs/doctor.md", other_stack_table),
    "metrics": ("docs/telemetry.md", metric_table),
    "span events": ("docs/telemetry.md", span_event_table),
    "attributes": ("docs/telemetry.md", attribute_table),
    "frameworks": ("docs/frameworks.md", framework_table),
    **{f"tables {page}": (f"docs/providers/{page}.md", partial(provider_page, page)) for page in PROVIDER_PAGES},
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
