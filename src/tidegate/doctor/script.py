"""Checks of a script that is not run: its calls, their settings, and code patterns that cost calls or money.

Each row of `CHECKS` has a test of syntax nodes, the finding, and the source of both.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tidegate.doctor import environment, hosts
from tidegate.doctor.environment import PACKAGES, STACKS, Finding, HttpStack, Installed, Package, Severity
from tidegate.doctor.source import SourceModule, modules
from tidegate.settings import Settings


class ScriptCheck(NamedTuple):
    """One check of a script. `found` returns whether a node of a module matches."""

    name: str
    verdict: Severity
    found: Callable[[SourceModule, ast.AST], bool]
    text: str
    source: str


RETRY_CLASSES = frozenset(
    {
        "urllib3.Retry",
        "urllib3.util.Retry",
        "urllib3.util.retry.Retry",
        "requests.adapters.Retry",
        "requests.packages.urllib3.util.retry.Retry",
    }
)
METHOD_LISTS = frozenset({"allowed_methods", "method_whitelist"})
RETRY_DECORATORS = frozenset(
    {"tenacity.retry", "backoff.on_exception", "backoff.on_predicate", "retrying.retry", "stamina.retry", "retry.retry"}
)
OWN_CLOCKS = frozenset(
    {
        "asyncio.wait_for",
        "asyncio.timeout",
        "async_timeout.timeout",
        "anyio.fail_after",
        "anyio.move_on_after",
        "trio.fail_after",
        "trio.move_on_after",
    }
)
SENDERS = {
    "httpx.Client": "send",
    "httpx.AsyncClient": "send",
    "httpx2.Client": "send",
    "httpx2.AsyncClient": "send",
    "openai.DefaultHttpxClient": "send",
    "openai.DefaultAsyncHttpxClient": "send",
    "anthropic.DefaultHttpxClient": "send",
    "anthropic.DefaultAsyncHttpxClient": "send",
    "requests.Session": "send",
    "aiohttp.ClientSession": "_request",
}
"""HTTP client classes, each with the method that is patched on it."""

TRANSPORT_BASES = ("BaseTransport", "HTTPTransport", "AsyncBaseTransport", "AsyncHTTPTransport")
RETRYING_TRANSPORTS = ("TenacityTransport", "AsyncTenacityTransport", "RetryTransport", "AsyncRetryTransport")
POOL_LIMITS = frozenset({"httpx.Limits", "httpx2.Limits"})
CONNECTORS = frozenset({"aiohttp.TCPConnector", "aiohttp.UnixConnector"})
POOLED: dict[str, tuple[str, ...]] = {
    "httpx.Client": ("limits", "transport"),
    "httpx.AsyncClient": ("limits", "transport"),
    "httpx2.Client": ("limits", "transport"),
    "httpx2.AsyncClient": ("limits", "transport"),
    "aiohttp.ClientSession": ("connector",),
}
"""Classes whose default pool has 100 connections, each with the arguments that replace it."""

SDK_CLIENTS = frozenset(
    {"openai.OpenAI", "openai.AsyncOpenAI", "openai.AzureOpenAI", "openai.AsyncAzureOpenAI", "anthropic.Anthropic"}
    | {"anthropic.AsyncAnthropic"}
)
"""Clients whose default pool has 1,000 connections."""

SOCKETS = frozenset({"realtime.connect", "responses.connect", "live.connect"})
VOICE_AGENTS = frozenset({"agents.realtime.RealtimeRunner"})
"""Classes of openai-agents that hold a Realtime session."""

NODE = frozenset({"promptfoo", "npx", "node", "npm", "bunx"})
STARTERS = ("subprocess.", "os.system", "os.popen", "asyncio.create_subprocess_", "os.exec", "os.spawn")


def _calls(names: frozenset[str]) -> Callable[[SourceModule, ast.AST], bool]:
    return lambda module, node: isinstance(node, ast.Call) and module.dotted(node.func) in names


def _keyword(node: ast.AST, name: str) -> ast.expr | None:
    if not isinstance(node, ast.Call):
        return None
    return next((keyword.value for keyword in node.keywords if keyword.arg == name), None)


def _repeats_by_status(module: SourceModule, node: ast.AST) -> bool:
    return _calls(RETRY_CLASSES)(module, node) and _keyword(node, "status_forcelist") is not None


def _repeats_posts(module: SourceModule, node: ast.AST) -> bool:
    methods = [value for value in (_keyword(node, name) for name in METHOD_LISTS) if value is not None]
    if not _repeats_by_status(module, node) or not methods:
        return False
    named = [each.value for each in ast.walk(methods[0]) if isinstance(each, ast.Constant)]
    # None and False stand for every method; a computed value may contain any.
    return not all(isinstance(name, str) for name in named) or not named or "POST" in named


def _repeats_others(module: SourceModule, node: ast.AST) -> bool:
    return _repeats_by_status(module, node) and not _repeats_posts(module, node)


def _is_websocket(module: SourceModule, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if module.dotted(node.func).endswith("set_default_openai_responses_transport"):
        return any(isinstance(each, ast.Constant) and each.value == "websocket" for each in node.args)
    transport, wanted = _keyword(node, "transport"), _keyword(node, "use_responses_websocket")
    return (isinstance(transport, ast.Constant) and transport.value == "websocket") or (
        isinstance(wanted, ast.Constant) and wanted.value is True
    )


def _opens_socket(module: SourceModule, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    held = node.func.value
    before = held.attr if isinstance(held, ast.Attribute) else held.id if isinstance(held, ast.Name) else ""
    return f"{before}.{node.func.attr}" in SOCKETS or module.dotted(node.func) in VOICE_AGENTS


def _connects_to_model(module: SourceModule, node: ast.AST) -> bool:
    """Return whether a call has the literal address of a websocket of an inference server."""
    if not isinstance(node, ast.Call):
        return False
    literals = [module.literal(each) for each in (*node.args[:1], *(keyword.value for keyword in node.keywords))]
    return any(hosts.is_model_socket(text) for text in literals)


def _is_retry_decorator(module: SourceModule, node: ast.AST) -> bool:
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    targets = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return any(module.dotted(target) in RETRY_DECORATORS for target in targets)


def _overrides_send(module: SourceModule, node: ast.AST) -> bool:
    if not isinstance(node, ast.ClassDef):
        return False
    names = {SENDERS[base] for base in map(module.dotted, node.bases) if base in SENDERS}
    methods = [each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return any(method.name in names and not _goes_up(method) for method in methods)


def _goes_up(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == method.name
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "super"
        for node in ast.walk(method)
    )


def _transport_that_repeats(module: SourceModule, node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return module.dotted(node.func).rpartition(".")[2] in RETRYING_TRANSPORTS
    if not isinstance(node, ast.ClassDef):
        return False
    if not any(base.rpartition(".")[2] in TRANSPORT_BASES for base in map(module.dotted, node.bases)):
        return False
    loops = (loop for loop in ast.walk(node) if isinstance(loop, (ast.For, ast.While)))
    return any(
        isinstance(inner, ast.Attribute) and inner.attr in ("handle_request", "handle_async_request")
        for loop in loops
        for inner in ast.walk(loop)
    )


def _arguments(node: ast.AST) -> list[str]:
    if not isinstance(node, ast.Call):
        return []
    given = [each.value for arg in node.args for each in ast.walk(arg) if isinstance(each, ast.Constant)]
    return [each for each in given if isinstance(each, str)]


def _starts(module: SourceModule, node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and module.dotted(node.func).startswith(STARTERS)


def _starts_node(module: SourceModule, node: ast.AST) -> bool:
    given = _arguments(node)
    behind_shell = given[2:3] if given[1:2] == ["-c"] else []
    commands = [words[0] for words in map(str.split, [*given[:1], *behind_shell]) if words]
    return _starts(module, node) and any(command.rpartition("/")[2] in NODE for command in commands)


def _starts_isolated(module: SourceModule, node: ast.AST) -> bool:
    if not _starts(module, node):
        return False
    words = [word for argument in _arguments(node) for word in argument.split()]
    python = any("python" in word for word in words[:1]) or any(
        module.dotted(each) == "sys.executable" for each in ast.walk(node)
    )
    return python and any(word in ("-I", "-E", "-S", "-IS") for word in words)


def _limits_pool(module: SourceModule, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = module.dotted(node.func)
    if name in POOL_LIMITS:
        return _number(_keyword(node, "max_connections") or (node.args[0] if node.args else None)) is not None
    names = ("limit", "limit_per_host")
    return name in CONNECTORS and any((_number(_keyword(node, each)) or 0) > 0 for each in names)


def _has_default_pool(module: SourceModule, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    given = POOLED.get(module.dotted(node.func))
    return given is not None and all(_keyword(node, each) is None for each in given)


def _has_large_default_pool(module: SourceModule, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or module.dotted(node.func) not in SDK_CLIENTS:
        return False
    return _keyword(node, "http_client") is None


def _number(node: ast.expr | None) -> int | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _gives_max_retries(module: SourceModule, node: ast.AST) -> bool:
    value = _keyword(node, "max_retries")
    if value is None or not isinstance(node, ast.Call) or module.dotted(node.func).endswith("HTTPAdapter"):
        return False
    return not (isinstance(value, ast.Constant) and value.value == 0)


def _limits_rate(module: SourceModule, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not module.dotted(node.func).startswith("langchain"):
        return False
    given = _keyword(node, "rate_limiter")
    return given is not None and not (isinstance(given, ast.Constant) and given.value is None)


CHECKS = (
    ScriptCheck(
        "Retry(status_forcelist=, allowed_methods=)",
        Severity.UNGOVERNED,
        _repeats_posts,
        "on a session, urllib3 repeats POST requests below the queue, without a permit; remove 429 and 503 from "
        "status_forcelist, tidegate retries them",
        "urllib3 2.8.0 util/retry.py, connectionpool.py: the loop is inside urlopen",
    ),
    ScriptCheck(
        "Retry(status_forcelist=)",
        Severity.NOTE,
        _repeats_others,
        "urllib3 repeats requests below the queue, but no POST requests unless allowed_methods is given",
        "urllib3 2.8.0 util/retry.py: DEFAULT_ALLOWED_METHODS",
    ),
    ScriptCheck(
        'transport="websocket"',
        Severity.UNGOVERNED,
        _is_websocket,
        "calls over a websocket bypass the HTTP clients; use the HTTP transport",
        "openai-agents 0.24.0 models/openai_responses.py",
    ),
    ScriptCheck(
        "realtime, responses or live session",
        Severity.UNGOVERNED,
        _opens_socket,
        "a session over a websocket cannot be governed; its calls bypass tidegate",
        "openai 3.52.0 resources/realtime and resources/responses, google-genai 3.4.0 live.py, openai-agents 0.24.0",
    ),
    ScriptCheck(
        "websocket of an inference server",
        Severity.UNGOVERNED,
        _connects_to_model,
        "its calls bypass tidegate; only calls over HTTP can be governed",
        "openai 3.52.0 resources/realtime and resources/responses: the paths",
    ),
    ScriptCheck(
        "send without super().send",
        Severity.UNGOVERNED,
        _overrides_send,
        "this class replaces the patched method; call super() in it, or move its work into a transport",
        "httpx 0.28.1 and httpx2 2.16.2 _client.py, requests 2.34.2 sessions.py",
    ),
    ScriptCheck(
        "transport that repeats",
        Severity.UNGOVERNED,
        _transport_that_repeats,
        "it repeats requests below the queue, without a permit; let it pass on 429 and 503, tidegate retries them",
        "pydantic-ai 2.62.0 retries.py, replicate 1.0.7 client.py",
    ),
    ScriptCheck(
        "Node command",
        Severity.UNGOVERNED,
        _starts_node,
        "Node sends its calls; `tidegate run --gateway` governs them",
        "promptfoo 0.123.1",
    ),
    ScriptCheck(
        "isolated Python",
        Severity.UNGOVERNED,
        _starts_isolated,
        "a Python with -I, -E or -S ignores PYTHONPATH or site; `tidegate run` cannot govern it",
        "Python 3.12 command line: -I, -E, -S",
    ),
    ScriptCheck(
        "decorator that repeats",
        Severity.NOTE,
        _is_retry_decorator,
        "its attempts multiply those of the SDK; it gets a refusal for lack of capacity only after tidegate gave up, "
        "so it mostly repeats other failures",
        "tenacity, backoff, stamina, retrying: one more call for each attempt",
    ),
    ScriptCheck(
        "max_retries=",
        Severity.NOTE,
        _gives_max_retries,
        "counts only other failures; a refusal for lack of capacity uses no retry, tidegate retries it",
        "openai 3.52.0, anthropic 2.11.0 _base_client.py: DEFAULT_MAX_RETRIES",
    ),
    ScriptCheck(
        "rate_limiter=",
        Severity.NOTE,
        _limits_rate,
        "calls wait twice: the limiter admits at one rate that you name, then tidegate's queue; leave it out",
        "langchain-core 1.7.2 rate_limiters.py: acquire gets neither model, tokens nor answer",
    ),
    ScriptCheck(
        "connection pool of your own",
        Severity.NOTE,
        _limits_pool,
        "no change needed: at most as many calls of this client are in flight as its pool has connections, and the "
        "others wait in tidegate's queue; a larger pool helps only where the provider admits more",
        "httpx 0.28.1 and httpx2 2.16.2 _config.py: Limits, aiohttp 3.14.5 connector.py: limit, limit_per_host",
    ),
    ScriptCheck(
        "pool of 100 connections",
        Severity.NOTE,
        _has_default_pool,
        "no change needed below 100 calls at once, the default of this client; where the provider admits more, limits= "
        "(httpx) or connector= (aiohttp) allows them",
        "httpx 0.28.1 and httpx2 2.16.2 _config.py: DEFAULT_LIMITS, aiohttp 3.14.5 connector.py: limit=100",
    ),
    ScriptCheck(
        "timeout of your own",
        Severity.TRAP,
        _calls(OWN_CLOCKS),
        "around a call it includes the wait in the queue; wrap(client, max_wait=) limits that wait alone",
        "Python 3.12 asyncio, anyio 4, trio",
    ),
    ScriptCheck(
        "disabled()",
        Severity.NOTE,
        _calls(frozenset({"tidegate.disabled"})),
        "calls in this block bypass tidegate",
        "tidegate",
    ),
)


SDK_POOL = ScriptCheck(
    "pool of 1,000 connections",
    Severity.NOTE,
    _has_large_default_pool,
    "no change needed below 1,000 calls at once, the default of this SDK; where the provider admits more, http_client= "
    "with limits= allows them",
    "openai 3.52.0, anthropic 2.11.0 _constants.py: DEFAULT_CONNECTION_LIMITS",
)
"""Check that is reported for the first client only: most scripts make several of these."""

ENTRY_POINTS = frozenset({"tidegate.wrap", "tidegate.install", "tidegate.registry", "tidegate.RateLimitRegistry"})


def script(path: Path, installed: Installed, settings: Settings, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the known SDKs and stacks that a script imports, its timeouts and hosts, and its code patterns by line.

    Raise `Unreadable`.
    """
    read = list(modules(path))
    names = _foreign(read, path.parent)
    used = [package for package in PACKAGES if any(module in names for module in package.modules)]
    direct = [stack for stack in STACKS if stack.module in names]
    yield from environment.sdks(installed, used)
    yield from environment.stacks(installed, _reached(installed, used, direct))
    frameworks = frozenset(package.distribution for package in used)
    yield from environment.clocks(installed, settings, environ, frameworks)
    yield from hosts.in_script(read, path.parent, settings)
    yield _entry_point(path, read)
    if not used and not direct:
        yield Finding("script", Severity.NOTE, path.name, "imports no known SDK or HTTP stack")
        return
    yield from islice((each for module in read for each in check_patterns(module, path.parent, (SDK_POOL,))), 1)
    for module in read:
        yield from check_patterns(module, path.parent)


def check_patterns(module: SourceModule, folder: Path, checks: Sequence[ScriptCheck] = CHECKS) -> Iterator[Finding]:
    """Yield the findings of `checks` in one file, in order of lines."""
    name = str(module.path.relative_to(folder)) if module.path.is_relative_to(folder) else str(module.path)
    found = [
        (getattr(node, "lineno", 0), number, check)
        for node in ast.walk(module.tree)
        for number, check in enumerate(checks)
        if check.found(module, node)
    ]
    for line, _, check in sorted(found, key=lambda each: each[:2]):
        yield Finding("script", check.verdict, check.name, check.text, place=f"{name}:{line}")


def _reached(installed: Installed, used: list[Package], direct: list[HttpStack]) -> list[HttpStack]:
    reached = {stack.distribution for package in used for stack in installed.ways_out(package)}
    return [stack for stack in STACKS if stack in direct or stack.distribution in reached]


def _foreign(read: list[SourceModule], folder: Path) -> frozenset[str]:
    """Return every imported module and its parent packages, except modules next to the script."""
    found = set()
    for module in read:
        for name in module.imports:
            parts = name.split(".")
            if (folder / f"{parts[0]}.py").is_file() or (folder / parts[0] / "__init__.py").is_file():
                continue
            found |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return frozenset(found)


def _entry_point(path: Path, read: list[SourceModule]) -> Finding:
    for module in read:
        lines = {"import tidegate.auto": module.imports.get("tidegate.auto")}
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and module.dotted(node.func) in ENTRY_POINTS:
                lines.setdefault(module.dotted(node.func), node.lineno)
        for name, line in lines.items():
            if line is not None:
                return Finding("script", Severity.NOTE, name, "activates tidegate", place=f"{module.path.name}:{line}")
    text = f"does not activate tidegate; start it with `tidegate run python {path}`, or add `import tidegate.auto`"
    return Finding("script", Severity.NOTE, path.name, text)
