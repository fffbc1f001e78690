"""Need of a run for a gateway: its command runs programs that are not Python.

Every `tidegate run` asks this, so the module imports none of what starts a gateway.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from tidegate.transports.gateway_url import VARIABLE

NEEDED = ("starlette", "uvicorn", "httpx")
"""Packages of the extra `tidegate[ui]` that the gateway imports."""

JAVASCRIPT = frozenset({"node", "nodejs", "bun", "deno", "tsx", "ts-node"})
"""Interpreters of JavaScript."""

NODE_COMMANDS = JAVASCRIPT | {"npx", "npm", "pnpm", "yarn", "bunx", "claude"}
"""Commands that run programs of JavaScript. Claude Code is one in a single file."""

EXCLUDED = frozenset({"codex"})
"""Commands that a changed base URL breaks: Codex sends tokens of a ChatGPT account to `OPENAI_BASE_URL`, which belongs
to other servers (https://github.com/openai/codex/issues/3367)."""

SHEBANG_BYTES = 256
"""Bytes of a file in which its interpreter is named (Linux: BINPRM_BUF_SIZE)."""


def missing_package() -> str:
    return next((name for name in NEEDED if find_spec(name) is None), "")


def is_for_node(command: str) -> bool:
    """Return whether a command runs programs of JavaScript: by its name, or by the first line of its file."""
    name = Path(command).name
    if name in EXCLUDED:
        return False
    return name in NODE_COMMANDS or _interpreter(command) in JAVASCRIPT


def _interpreter(command: str) -> str:
    path = shutil.which(command)
    if path is None:
        return ""
    try:
        with Path(path).open("rb") as file:
            line = file.read(SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        return ""
    if not line.startswith(b"#!"):
        return ""
    words = [Path(word).name for word in line[2:].decode("utf-8", "replace").split() if not word.startswith("-")]
    return next((word for word in words if word != "env" and "=" not in word), "")


def wanted(command: Sequence[str], asked: bool | None, given: Mapping[str, str]) -> bool:
    """Return whether a run starts a gateway: where `asked`, else for JavaScript, but not below another gateway."""
    if given.get(VARIABLE):
        return False
    return is_for_node(command[0]) if asked is None else asked
