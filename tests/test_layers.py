"""Who may import whom. The table is the rule; the test only reads it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tidegate

SRC = Path(__file__).parents[1] / "src" / "tidegate"
IMPURE = {"asyncio", "threading", "time", "random", "socket", "os", "logging", "subprocess", "sqlite3", "secrets"}

CORE = {"errors", "core"}
ADMISSION_ORDER = (
    "context",
    "arguments",
    "wait_queue",
    "redaction",
    "log_redaction",
    "saved_state",
    "process",
    "key_log",
    "callers",
    "key_permits",
    "key_queue",
    "audit",
    "accounts",
    "shared_keys",
    "steps",
    "known_keys",
    "key_table",
    "handoff",
    "call",
    "drive",
    "registry",
)
"""Modules of `admission`, each of which may import those before it; `hooks` and `thread_states` import nothing."""

PURE = {"context", "arguments", "wait_queue", "key_permits", "key_queue", "accounts"}
"""Modules of `admission` that only decide."""

LIGHT = {"admission.hooks", "admission.thread_states"}
ADMISSION = {
    *CORE,
    "providers",
    "settings",
    "providers.classification",
    "admission.hooks",
    *(f"admission.{each}" for each in ADMISSION_ORDER if each != "registry"),
}
TRANSPORTS = {*ADMISSION, "admission.thread_states", "transports"}
SDKS = {*TRANSPORTS, "transports.sdks"}
SURFACE = {
    *SDKS,
    "admission.registry",
    "fallbacks",
    "suspensions",
    "transports.framework_timeouts",
    "telemetry",
    "pool",
    "transports.install",
    "_version",
    "auto",
    "",
}

EXPERIMENTS = {
    "errors",
    "experiments",
    "experiments.engine",
    "experiments.declared",
    "experiments.storage",
    "experiments.comparison",
}
CLI = {"typer", "rich"}

LAYERS: dict[str, tuple[set[str], bool, set[str]]] = {
    # part: (our parts it may import, whether impure stdlib is allowed, third parties)
    "errors": (set(), False, set()),
    "core": (CORE, False, {"pydantic_core"}),
    "providers": ({*CORE, "providers"}, False, {"pydantic_core"}),
    "settings": ({*CORE, "admission.saved_state"}, True, {"pydantic", "pydantic_core"}),
    "admission": (set(), False, set()),
    **{each: (set(), each == "admission.thread_states", set()) for each in LIGHT},
    **{
        f"admission.{each}": (
            {
                *CORE,
                *LIGHT,
                "providers",
                "providers.classification",
                "settings",
                "shared_log",
                *(f"admission.{before}" for before in ADMISSION_ORDER[:place]),
            },
            each not in PURE,
            {"pydantic"} if each == "saved_state" else set(),
        )
        for place, each in enumerate(ADMISSION_ORDER)
    },
    "shared_file": (set(), True, set()),
    "shared_log": ({"errors", "shared_file", "shared_log"}, True, {"redis", "psycopg"}),
    "providers.classification": ({*CORE, "providers"}, False, set()),
    "experiments.storage": ({*CORE, "experiments.storage"}, True, {"sqlalchemy", "psycopg", "pyarrow"}),
    "experiments.engine": (
        {
            *CORE,
            "experiments.storage",
            "providers.classification",
            "admission.audit",
            "providers",
            "pool",
            "admission.handoff",
            "admission.key_table",
            "admission.log_redaction",
            "admission.redaction",
            "admission.registry",
            "experiments.engine",
            "experiments.declared",
        },
        True,
        {"pydantic", "pydantic_core"},
    ),
    "experiments.comparison": ({*CORE, "experiments.storage"}, True, {"numpy", "scipy"}),
    "experiments.declared": (
        {*CORE, "admission.registry", "admission.redaction", "experiments.engine", "experiments.declared"},
        True,
        {"pydantic", "yaml", "openai", "anthropic", "google"},
    ),
    "transports": (TRANSPORTS, True, {"wrapt"}),
    "transports.framework_timeouts": ({"settings", "transports", "transports.framework_timeouts"}, True, set()),
    "transports.sdks": (SDKS, True, set()),
    "telemetry": (
        {
            *CORE,
            "_version",
            "providers",
            "admission.key_table",
            "admission.known_keys",
            "admission.registry",
            "transports",
            "telemetry",
        },
        True,
        {"opentelemetry"},
    ),
    "transports.install": ({*SDKS, "admission.registry", "transports.framework_timeouts"}, True, set()),
    "_version": (set(), False, set()),
    "auto": ({"transports", "transports.install"}, False, set()),
    "fallbacks": ({*ADMISSION, "admission.registry"}, True, set()),
    "suspensions": (
        {*CORE, "providers.classification", "providers", "admission.redaction", "admission.log_redaction"},
        True,
        set(),
    ),
    "": (SURFACE, False, set()),
    "testing": ({*SURFACE, "testing"}, True, {"pydantic"}),
    "pytest_plugin": ({*SURFACE, "testing"}, True, {"pytest"}),
    "testing.demo": ({*SURFACE, "testing"}, True, {"openai", "anthropic"}),
    "launch": ({*SURFACE, "shared_file", "shared_log", "launch"}, True, {"pydantic"}),
    "pool": (
        {
            *CORE,
            "providers.classification",
            "admission.arguments",
            "admission.handoff",
            "admission.key_table",
            "admission.registry",
            "admission.process",
            "pool",
        },
        True,
        set(),
    ),
    # Rows of the packages in RESERVED, whose rules hold from their first module on.
    "sharing": ({*CORE, "settings", "admission.redaction", "admission.key_table", "sharing"}, True, {"redis"}),
    "server": ({*SURFACE, "launch", "server"}, True, {"starlette", "uvicorn"}),
    "server.gateway": ({*SURFACE, "server", "server.gateway"}, True, {"starlette", "uvicorn", "httpx"}),
    "integrations": ({*SURFACE, "integrations"}, True, {"IPython", "inspect_ai"}),
    "cli": (
        {*SURFACE, "shared_log", "testing", "testing.demo", "launch", "server", "server.gateway", "cli"},
        True,
        CLI,
    ),
    "experiments": (EXPERIMENTS, True, set()),
    "experiments.screens": (
        {*SURFACE, *EXPERIMENTS, "launch", "server", "experiments.screens"},
        True,
        {"starlette"},
    ),
    "experiments.commands": ({*SURFACE, *EXPERIMENTS, "launch", "cli", "experiments.commands"}, True, CLI),
}

LAZY_UPWARDS = {
    (
        "admission.registry",
        "transports.sdks",
    ): "`registry.wrap(client)` is public surface; the wrapper is loaded when it is called",
    (
        "admission.registry",
        "telemetry",
    ): "every registry is told of where an SDK is; the rest of telemetry is loaded only then",
    (
        "admission.registry",
        "launch",
    ): "every registry is shown in `tidegate status`; its counters are loaded with the first key",
}

COMING = {"audit"}
"""Public functions that are planned."""

RESERVED = {"sharing"}
"""Packages that are planned, with their rows above."""

TOP_PRIVATE = {"version"}
"""Private modules at the top level, which the whole package may import."""


def part_of(module: str) -> str:
    """The part that a module belongs to: a part of a part, where that has a row of its own."""
    _, *names = module.split(".")
    inner = ".".join(names[:2])
    return inner if inner in LAYERS else (names[0] if names else "")


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the targets of all imports of a file, which each test of this module looks at."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            ours = module.split(".")[0] == "tidegate"
            yield from (f"{module}.{alias.name}" for alias in node.names) if ours else (module,)


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(SRC.rglob("*.py")):
        parts = path.relative_to(SRC.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def violations() -> Iterator[str]:
    for name, path in modules():
        part = part_of(name)
        ours, impure, third = LAYERS[part]
        for target in imports(path):
            top = target.split(".")[0]
            if top == "tidegate":
                allowed = part_of(target) in ours or (part, part_of(target)) in LAZY_UPWARDS
            elif top in sys.stdlib_module_names:
                allowed = impure or top not in IMPURE
            else:
                allowed = top in third
            if not allowed:
                yield f"{name} imports {target}"


def test_every_import_is_allowed_by_the_table() -> None:
    assert list(violations()) == []


def test_every_part_has_its_row() -> None:
    assert set(LAYERS) - RESERVED <= {part_of(name) for name, _ in modules()} <= set(LAYERS)


def dependencies() -> dict[str, set[str]]:
    """Return the modules that each module imports, imports for types and inside functions included."""
    known = dict(modules())
    found: dict[str, set[str]] = {}
    for name, path in known.items():
        targets = (target if target in known else target.rpartition(".")[0] for target in imports(path))
        found[name] = {target for target in targets if target in known} - {name}
    return found


def test_no_module_imports_itself_by_a_detour() -> None:
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
    TopologicalSorter(dependencies()).prepare()


def test_every_module_that_logs_loads_the_redaction_of_the_log() -> None:
    needs = dependencies()

    def loads(module: str, seen: set[str]) -> set[str]:
        if module not in seen:
            seen.add(module)
            for each in needs[module]:
                loads(each, seen)
        return seen

    logging = [name for name, path in modules() if 'getLogger("tidegate' in path.read_text()]
    assert len(logging) > 20
    unfiltered = {name for name in logging if "tidegate.admission.log_redaction" not in loads(name, set())}
    # These are parts of a registry, whose settings load the filter.
    assert unfiltered <= loads("tidegate.admission.registry", set())
    assert "tidegate.admission.log_redaction" in loads("tidegate.admission.registry", set())


def test_no_module_is_named_like_a_public_function() -> None:
    """`import tidegate.wrap` would put the module in the place of the function."""
    tops = {path.stem for path in SRC.glob("*.py")} | {path.parent.name for path in SRC.glob("*/__init__.py")}
    assert tops & {*tidegate.__all__, "map", "amap", *COMING} == set()


def test_private_modules_are_imported_by_their_own_package_alone() -> None:
    strangers = [
        f"{name} imports {target}"
        for name, path in modules()
        for target in imports(path)
        for package, _, rest in [target.partition("._")]
        if rest and rest.split(".")[0] not in TOP_PRIVATE and not name.startswith(package)
    ]
    assert strangers == []


def test_every_exception_to_the_table_is_still_needed() -> None:
    used = {(part_of(name), part_of(target)) for name, path in modules() for target in imports(path)}
    assert set(LAZY_UPWARDS) <= used
