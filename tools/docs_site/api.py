"""Pages of the API: a directive for each public module, with its public names, that mkdocstrings fills."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

PUBLIC = {
    "tidegate": "Names that are imported from `tidegate` itself. Guides: [Use](../usage.md), [The ordered "
    "pool](../pool.md), [Settings](../settings.md).",
    "tidegate.admission.registry": "A registry of limits, for a service that has several. Guide: [Use](../usage.md).",
    "tidegate.fallbacks": "A choice of a fallback. Guide: [Fallbacks](../fallbacks.md).",
    "tidegate.core.values": "The cost of a call that `execute` governs.",
    "tidegate.core.limiter_state": "The permit of one attempt, which `try_admit` returns.",
    "tidegate.experiments": "Experiments that survive crashes and outages. Guide: [Experiments](../experiments.md).",
    "tidegate.testing": "A simulated provider. Guide: [The simulator](../simulator.md).",
    "tidegate.providers": "Tables of providers, and the functions that read by them. Guide: "
    "[Providers](../providers.md).",
    "tidegate.telemetry": "OpenTelemetry by hand, where a process has no SDK by itself. Guide: "
    "[OpenTelemetry](../telemetry.md).",
    "tidegate.core.events": "Events of a registry's subscription. Guide: [Events](../events.md).",
    "tidegate.errors": "The exceptions that tidegate itself raises.",
}
"""Public modules, in the order of the navigation, with the sentence that opens their page."""

SUBJECTS = {
    "Govern calls": ("wrap", "install", "uninstall", "disabled"),
    "Many rows": ("map", "amap", "RowResult", "Failed", "PoolStats"),
    "Settings and state": ("Settings", "registry", "Key"),
    "Another choice, and a trail": ("fallback", "audit"),
    "Job queues of your own": ("classify", "after_failure", "Suspensions"),
    "Providers of your own": ("register_provider",),
    "Errors": ("Error", "ConfigurationError", "CapacityTimeout", "DeadlineExceeded"),
}
"""Names of `tidegate` itself by subject, in the order in which a program needs them."""

CHOSEN = {
    "tidegate.admission.registry": ("NotReady", "RateLimitRegistry"),
    "tidegate.fallbacks": ("Choice",),
    "tidegate.core.values": ("Cost",),
    "tidegate.core.limiter_state": ("Permit",),
}
"""Public names of modules whose other names are not public, as in `tools/public_api.py`."""


def public_names(module: str) -> list[str]:
    """Return the public names of a module: those of `__all__`, or else the classes and functions that it defines."""
    if module == "tidegate":
        return [name for names in SUBJECTS.values() for name in names]
    if module in CHOSEN:
        return sorted(CHOSEN[module])
    loaded = import_module(module)
    names = getattr(loaded, "__all__", None)
    if names is not None:
        return sorted(name for name in names if not name.startswith("_"))
    own = [name for name, value in vars(loaded).items() if getattr(value, "__module__", None) == module]
    return sorted(name for name in own if not name.startswith("_"))


def api_pages() -> dict[str, str]:
    """Return the pages of the API by their place on the site."""
    return {f"api/{module}.md": _page(module, sentence) for module, sentence in PUBLIC.items()}


def _page(module: str, sentence: str) -> str:
    begin = f"# {module}\n\n{sentence}\n\n::: {module}\n    options:\n      members:"
    if module != "tidegate":
        return begin + "".join(f"\n        - {name}" for name in public_names(module)) + "\n"
    shown = "show_root_heading: true, show_root_full_path: false, show_root_toc_entry: true, heading_level: 3"
    parts = [f"{begin} false"]
    for subject, names in SUBJECTS.items():
        parts += [f"## {subject}", *(f"::: tidegate.{name}\n    options: {{{shown}}}" for name in names)]
    return "\n\n".join(parts) + "\n"


def api_text(module: str) -> str:
    """Return the page of a module as plain Markdown: signatures and docstrings."""
    loaded = import_module(module)
    parts = [f"# {module}", PUBLIC[module], inspect.getdoc(loaded) or ""]
    for name in public_names(module):
        value = getattr(loaded, name)
        if not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        parts += [f"## {module}.{name}", f"```python\n{name}{_signature(value)}\n```", inspect.getdoc(value) or ""]
        if inspect.isclass(value):
            for part, member in vars(value).items():
                member = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                if not part.startswith("_") and inspect.isfunction(member):
                    parts.append(f"- `{part}{_signature(member)}`: {_first_line(member)}")
                elif not part.startswith("_") and isinstance(member, property):
                    parts.append(f"- `{part}`: {_first_line(member)}")
    return "\n\n".join(filter(None, parts)) + "\n"


def _signature(value: Any) -> str:
    try:
        return str(inspect.signature(value))
    except (TypeError, ValueError):  # an exception or an enumeration has none by itself
        return "(...)"


def _first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]
