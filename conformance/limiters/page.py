"""The table of all rows in docs/limiters.md, between its markers."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from bench.common import markdown
from conformance.limiters.catalogue import Row
from conformance.limiters.servers import LITELLM, NODE, RAY, WEB, NotStartedError, program

PAGE = Path(__file__).parents[2] / "docs" / "limiters.md"
BEGIN, END = "<!-- results -->", "<!-- /results -->"


def write(header: Sequence[str], lines: Sequence[Sequence[str]], rows: Sequence[Row], repeat: int) -> None:
    """Replace what is between the markers of the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{results(header, lines, rows, repeat)}{END}{after}")


def results(header: Sequence[str], lines: Sequence[Sequence[str]], rows: Sequence[Row], repeat: int) -> str:
    """Return the part between the markers: when and on what it was run, the table, and the rules."""
    facts = {
        "Run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()) + f", runs of each: {repeat}",
        "On": f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} cores",
        "Limiters": ", ".join(versions()),
    }
    rules = [[row.name, row.rule, f"{row.ideal_seconds:.1f}"] for row in rows]
    told = "".join(f"{name}: {text}  \n" for name, text in facts.items())
    named = markdown(("limiter", "rule", "ideal seconds"), rules)
    return f"{told}\n{markdown(header, lines)}\n{named}"


def versions() -> list[str]:
    """Return the versions of the limiters that ran."""
    told = [f"{name} {version}" for name, version in NODE.versions.items()]
    told += [
        each.replace("==", " ") for each in dict.fromkeys((*WEB.requirements, *LITELLM.requirements, *RAY.requirements))
    ]
    for name, option in (("nginx", "-v"), ("haproxy", "-v"), ("varnishd", "-V")):
        try:
            done = subprocess.run([program(name, name), option], capture_output=True, text=True, check=False)
        except NotStartedError:
            continue
        found = re.search(r"\d+\.\d+\.[\w.+-]+", done.stdout + done.stderr)
        told.append(f"{name.removesuffix('d')} {found[0] if found else 'of unknown version'}")
    return told
