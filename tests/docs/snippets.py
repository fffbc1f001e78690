"""Code blocks of the pages, and their check: each is run, parsed, or says in its title why it is neither.

`python -m tests.docs.snippets` prints how many blocks there are of each kind. The rules:

- A block of Python runs in a process of its own, in a folder of its page, against a simulated provider. So does each
  `python` and `tidegate` of a block of bash. A Python that has loaded the SDKs starts them.
- A block with a file name as its title, as in ``python title="my_eval.py"``, is written to that file instead. A later
  block of the page, or a file of `tests/docs/files`, uses it.
- A block of bash runs if each of its commands ends by itself and needs no server. Otherwise each of its commands is
  parsed: those of tidegate by its own command line, the others by the rules below.
- JSON, YAML and TOML are parsed; an experiment in YAML is read as one.
- A block of the language `text` with the title `output` is what the block before it prints; `…` stands for any text.
- A block whose title begins with `not run: ` is compiled where it is Python, and otherwise left alone.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import typer
import yaml
from typer.main import get_command

from tests.warm import warm_python
from tidegate.cli.commands import app
from tidegate.experiments import RunnerSettings
from tidegate.experiments.declared import from_file
from tidegate.settings import Settings
from tidegate.testing import SimulatorProcess

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).with_name("files")
"""Files that pages assume in the working directory, such as the reader's own `my_eval.py`."""

CELL = """
import ast, asyncio, inspect, sys
names = {"__name__": "__main__"}
result = eval(compile(sys.argv.pop(), "snippet", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
if inspect.iscoroutine(result):
    asyncio.run(result)
"""
"""Program that runs a block as a script, or as a cell of a notebook if it awaits at the top level."""

NOT_RUN = "not run: "

FENCE = re.compile(
    r'^```(?P<language>[\w-]*)(?: title="(?P<title>[^"]*)")?\n(?P<code>.*?)^```$', re.MULTILINE | re.DOTALL
)

PATIENCE = 300
"""Seconds that a block may take; a higher value lets a loaded machine be slower."""

ENDING = {"docs", "doctor", "experiment", "run", "status", "--version", "--help"}
"""Subcommands of tidegate that end by themselves."""

PLAIN = {
    "cat",
    "cd",
    "echo",
    "export",
    "head",
    "ls",
    "mkdir",
    "mv",
    "pip",
    "printf",
    "python",
    "pytest",
    "test",
    "tidegate",
}
"""Commands that a block may have and still be run. `pip` does nothing then: everything is installed."""

FOREIGN = {
    *(
        "apt-get",
        "celery",
        "claude",
        "codex",
        "curl",
        "dask",
        "docker",
        "fastapi",
        "git",
        "gunicorn",
        "jupyter",
        "make",
    ),
    *("node", "npx", "promptfoo", "ray", "redis-server", "source", "torchrun", "uvicorn"),
}
"""Further commands that a block may name; a block that has one of them is not run."""


class Snippet(NamedTuple):
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    title: str
    code: str

    @property
    def place(self) -> str:
        return f"{os.path.relpath(self.page, ROOT)}:{self.line}"

    @property
    def is_file(self) -> bool:
        return re.fullmatch(r"[\w./-]+", self.title) is not None and "." in self.title

    @property
    def is_output(self) -> bool:
        return self.title == "output"

    @property
    def fate(self) -> str:
        if self.title.startswith(NOT_RUN):
            return "not run"
        if self.is_file:
            return "file"
        if self.language == "python" or (self.language == "bash" and runs(self)):
            return "run"
        if self.language in ("bash", "json", "yaml", "toml"):
            return "parsed"
        return "output" if self.is_output else "text"


def snippets(page: Path) -> list[Snippet]:
    text = page.read_text("utf-8")
    return [
        Snippet(page, text.count("\n", 0, found.start()) + 1, found["language"], found["title"] or "", found["code"])
        for found in FENCE.finditer(text)
    ]


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


class Command(NamedTuple):
    """One simple command of a shell: variables before it, and its words."""

    variables: tuple[str, ...]
    words: tuple[str, ...]


def commands(code: str) -> Iterator[Command]:
    for line in re.sub(r"\\\n\s*", " ", code).splitlines():
        reader = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        reader.whitespace_split = True
        words: list[str] = []
        skip = False
        for word in [*reader, ";"]:
            if word in ("|", "&&", ";", "||", "&"):
                if words:
                    names = [each for each in words if re.match(r"[A-Z_]+=", each)]
                    first = next((i for i, each in enumerate(words) if each not in names), len(words))
                    yield Command(tuple(words[:first]), tuple(words[first:]))
                words = []
            elif re.fullmatch(r"[<>]+&?|&>", word):
                skip = True
            elif skip:
                skip = False
            else:
                words.append(word)


def runs(snippet: Snippet) -> bool:
    """Return whether a block of bash ends by itself and needs no server and no program that is not there."""
    if re.search(r"(postgresql|redis)://", snippet.code):
        return False
    return all(_ends(command) for command in commands(snippet.code))


def _ends(command: Command) -> bool:
    if not command.words:
        return True
    name, *rest = command.words
    if _needs_framework(rest):
        return False
    if name == "tidegate":
        return rest[0] in ENDING and (rest[0] != "run" or _child(rest[1:])[0] == "python")
    return name in PLAIN and rest[:1] != ["-m"]


def _needs_framework(words: list[str]) -> bool:
    """Return whether a command starts an example of a framework, which `make frameworks` runs."""
    return any(word.startswith("examples/frameworks/") for word in words)


def _child(words: list[str]) -> list[str]:
    """Return the command of `tidegate run`."""
    while words and words[0].startswith("-"):
        words = words[2 if words[0] in ("--state", "--report") else 1 :]
    return words or [""]


def checked(command: Command) -> None:
    """Assert that a command of a page is there, with its options and variables."""
    for variable in (*command.variables, *(word for word in command.words[1:] if command.words[0] == "export")):
        name = variable.partition("=")[0]
        assert not name.startswith("TIDEGATE_") or name in variables(), f"no variable {name}"
    if not command.words:
        return
    name, *rest = command.words
    missing = [word for word in rest if word.startswith("examples/") and not (ROOT / word).exists()]
    assert missing == [], f"no file {missing}"
    if name == "tidegate":
        parsed(rest)
    elif name == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for each in re.findall(r"tidegate\[([\w,]+)\]", " ".join(rest)):
            assert {*each.split(",")} <= {*extras}, f"no extra {each}"
    elif name == "make":
        targets = re.findall(r"^([\w -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        wanted = {each for each in rest if "=" not in each}
        assert wanted <= {*" ".join(targets).split()}, f"no target {wanted}"
    elif name == "python" and rest[0] == "-m":
        assert find_spec(rest[1]) is not None, f"no module {rest[1]}"
    else:
        assert name in PLAIN | FOREIGN, f"unknown command {name}: add it to FOREIGN of {__name__} if it is right"


def parsed(words: list[str]) -> None:
    """Parse the words behind `tidegate` as the command line does, without doing anything."""
    group: Any = get_command(app)
    context = typer.Context(group, info_name="tidegate")
    while isinstance(group, typer.core.TyperGroup):
        if not words or words[0].startswith("-"):
            assert words in (["--version"], ["--help"], []), words
            return
        command = group.get_command(context, words[0])
        assert command is not None, f"no command {words[0]}"
        context = typer.Context(command, info_name=words[0], parent=context)
        group, words = command, words[1:]
    if "--help" not in words:
        group.make_context(context.info_name, list(words), parent=context.parent)


def variables() -> set[str]:
    named = {f"TIDEGATE_{name.upper()}" for name in Settings.model_fields}
    named |= {f"TIDEGATE_EXPERIMENTS_{name.upper()}" for name in RunnerSettings.model_fields}
    for source in (ROOT / "src").rglob("*.py"):
        named |= {*re.findall(r"\bTIDEGATE_[A-Z_]*[A-Z]\b", source.read_text("utf-8"))}
    return named


def check(page: Path, folder: Path, provider: SimulatorProcess) -> Counter[str]:
    """Check the blocks of a page in their order, in a folder of their own; return how many met which fate."""
    shutil.copytree(FILES, folder, dirs_exist_ok=True)
    (folder / "examples").symlink_to(ROOT / "examples")
    private = folder.parent / f"{folder.name}-run"
    private.mkdir(mode=0o700)
    environ = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}",
        "HOME": str(folder),
        "TMPDIR": str(private),
        "XDG_RUNTIME_DIR": str(private),
        "PYTHONPATH": str(ROOT / "src"),
        "SSL_CERT_FILE": os.environ.get("SSL_CERT_FILE", ""),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "tidegate.pytest_plugin",
        "OPENAI_BASE_URL": provider.openai_url,
        "OPENAI_API_KEY": "any",
        "ANTHROPIC_BASE_URL": provider.url,
        "ANTHROPIC_API_KEY": "any",
        "JUDGE_KEY": "any",
    }
    printed = ""
    fates: Counter[str] = Counter()
    for snippet in snippets(page):
        fates[snippet.fate] += 1
        try:
            printed = _check(snippet, folder, environ, printed)
        except AssertionError as error:
            raise AssertionError(f"{snippet.place}: {error}") from error
    return fates


def _check(snippet: Snippet, folder: Path, environ: dict[str, str], printed: str) -> str:
    fate = snippet.fate
    if snippet.language == "python":
        compile(snippet.code, snippet.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if fate == "file":
        path = folder / snippet.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(snippet.code, "utf-8")
    if fate == "output":
        pattern = re.escape(snippet.code.strip()).replace("…", ".*")
        assert re.search(pattern, printed.strip(), re.DOTALL), f"another output: {printed}"
    if fate != "not run" and snippet.language in ("json", "yaml", "toml"):
        _parse(snippet, folder)
    if fate != "not run" and snippet.language == "bash":
        for command in commands(snippet.code):
            checked(command)
    if fate == "run":
        program = [*warm_python(), "-c", CELL, snippet.code]
        if snippet.language == "bash":
            start, script = shlex.join(warm_python()), shlex.quote(str(Path(sys.executable).with_name("tidegate")))
            told = f'pip() {{ :; }}\npython() {{ {start} "$@"; }}\ntidegate() {{ {start} {script} "$@"; }}\n'
            program = ["bash", "-euo", "pipefail", "-c", told + snippet.code]
        done = subprocess.run(
            program, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        assert done.returncode == 0, f"ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr
    return printed


def _parse(snippet: Snippet, folder: Path) -> None:
    if snippet.language == "toml":
        tomllib.loads(snippet.code)
    elif snippet.language == "json":
        try:
            json.loads(snippet.code)
        except json.JSONDecodeError:  # one object a line
            assert all(json.loads(line) for line in snippet.code.splitlines())
    else:
        value = yaml.safe_load(snippet.code)
        if isinstance(value, dict) and {"dataset", "task"} <= {*value}:
            path = folder / "experiment.yaml"
            path.write_text(snippet.code, "utf-8")
            from_file(path)


if __name__ == "__main__":
    total = Counter(snippet.fate for page in pages() for snippet in snippets(page))
    print(", ".join(f"{number} {fate}" for fate, number in sorted(total.items())))
    for page in pages():
        for snippet in snippets(page):
            if snippet.fate == "not run":
                print(f"{snippet.place}: {snippet.title}")
