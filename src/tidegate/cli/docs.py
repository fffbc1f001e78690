"""`tidegate docs`: the pages of the documentation, which an installed package has with it."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

import tidegate
from tidegate.cli.common import stop
from tidegate.errors import ConfigurationError

PACKAGE = Path(tidegate.__file__).parent
PLACES = (PACKAGE / "docs", PACKAGE.parents[1] / "docs")
"""Folders that may have the pages: that of an installed package, and that of a checkout."""


def docs(
    page: Annotated[
        str | None, typer.Argument(metavar="[PAGE]", help="Print this page, such as `experiments`.")
    ] = None,
) -> None:
    """Print a page of the documentation, or the list of pages."""
    folder = next((each for each in PLACES if each.is_dir()), None)
    if folder is None:
        raise stop("docs not found: this installation has no pages; install the package again")
    pages = {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.md"))}
    if page is None:
        width = max(map(len, pages))
        for name, path in pages.items():
            title = path.read_text("utf-8").partition("\n")[0]
            typer.echo(f"{name:{width}}  {title.lstrip('# ').replace('`', '')}")
        return
    name = page.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        called = [each for each in pages if each.rpartition("/")[2] == name]
        near = called or difflib.get_close_matches(name, pages, 1)
        if len(called) != 1:
            hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "`tidegate docs` lists the pages"
            raise ConfigurationError("page", page, f"there is no such page; {hint}")
        (name,) = called
    text = pages[name].read_text("utf-8")
    if sys.stdout.isatty():
        Console().print(Markdown(text))
    else:
        typer.echo(text, nl=False)
