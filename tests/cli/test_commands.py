"""The command line as a whole: which commands there are, and what it says to values that it cannot use."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import tidegate
from tidegate.cli.commands import app

MAIN = "from tidegate.cli.main import main; main()"


def invoke(*words: str) -> tuple[int, str]:
    """The exit code, and standard output and error together."""
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.output


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_exactly_the_commands_there_are(flag: str) -> None:
    code, said = invoke(flag)
    assert code == 0
    assert re.findall(r"^  (\w+) ", said.partition("Commands:")[2], re.MULTILINE) == [
        "demo",
        "docs",
        "doctor",
        "gateway",
        "run",
        "serve",
        "simulate",
        "status",
        "experiment",
    ]


def test_without_a_command_the_help_is_shown() -> None:
    assert "Commands:" in invoke()[1]


def test_the_version_is_the_packages() -> None:
    assert invoke("--version") == (0, f"tidegate {tidegate.__version__}\n")


@pytest.mark.parametrize("options", [[], ["--explain"]])
def test_a_closed_output_is_no_error(options: list[str]) -> None:
    closing = ["sh", "-c", '"$@" >&-', "sh", sys.executable, "-c", MAIN, "doctor", *options]
    done = subprocess.run(closing, input="{}\n", stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    # Of the doctor it says whether something here cannot be governed.
    assert (done.returncode in (0, 1), done.stderr) == (True, "")


def test_an_unknown_command_is_refused() -> None:
    code, said = invoke("no-such-command")
    assert code == 2
    assert "no-such-command" in said


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("demo", "--rows", "1"), "rows: 1 is not usable: between 2 and 508"),
        (("demo", "--rows", "509"), "rows: 509 is not usable: between 2 and 508"),
        (("simulate", "--rpm", "0"), "rpm: 0.0 is not usable: it must be above 0"),
        (("simulate", "--dialect", "morse"), "dialect: 'morse' is not usable: it must be one of auto, openai"),
        (
            ("simulate", "--algorithm", "guess"),
            "algorithm: 'guess' is not usable: it must be one of bucket, fixed, rolling",
        ),
        (("simulate", "--latency", "soon"), "latency: 'soon' is not usable: it must be like 0.5, uniform:0.2,0.8"),
        (
            ("simulate", "--latency", "uniform:5,1"),
            "latency: 'uniform:5,1' is not usable: it must not be below the lowest",
        ),
        (("simulate", "--outage", "5:1"), "outage: '5:1' is not usable: end: it must be after the start, 5 s"),
        (("simulate", "--outage", "soon"), "outage: 'soon' is not usable: it must be START:END"),
        (
            ("simulate", "--scenario", "no-such-file.json"),
            "scenario: 'no-such-file.json' is not usable: it cannot be read",
        ),
        (("simulate", "--scenario", "x.json", "--rpm", "3"), "the file sets every field; remove --rpm"),
    ],
)
def test_an_unusable_value_is_refused_in_one_line_with_field_value_and_bound(
    words: tuple[str, ...], complaint: str
) -> None:
    code, said = invoke(*words)
    assert code == 2
    assert said.startswith("tidegate: ")
    assert complaint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "flag"),
    [(("demo", "--rows", "many"), "--rows"), (("simulate", "--rpm", "many"), "--rpm"), (("demo", "--nope"), "--nope")],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_flag(words: tuple[str, ...], flag: str) -> None:
    code, said = invoke(*words)
    assert code == 2
    assert flag in said


@pytest.mark.parametrize(
    ("command", "others"),
    [
        ("demo", ("openai", "anthropic", "httpx", "httpx2")),
        ("run", ("tidegate.cli.doctor", "tidegate.testing", "tidegate.testing.demo", "sqlalchemy")),
    ],
)
def test_the_help_of_a_command_loads_no_sdk_and_no_other_command(command: str, others: tuple[str, ...]) -> None:
    code = f"""
import sys
from typer.testing import CliRunner
from tidegate.cli.commands import app
assert CliRunner().invoke(app, [{command!r}, "--help"]).exit_code == 0
print([name for name in {others} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
