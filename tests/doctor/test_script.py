"""What is read in a script, and what is made of it; none of these scripts is ever run."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate
from tests.doctor.conftest import Install
from tidegate.cli.doctor.environment import Finding, Installed, Severity
from tidegate.cli.doctor.script import Unreadable, read_script


def read(folder: Path, text: str, **beside: str) -> list[Finding]:
    """What is found in a script of this text, with modules of these names and texts beside it."""
    for name, content in beside.items():
        (folder / f"{name}.py").write_text(content)
    path = folder / "my_eval.py"
    path.write_text(text)
    return list(read_script(path, Installed(), tidegate.Settings(), {}))


def test_only_what_the_script_imports_is_said(install: Install, tmp_path: Path) -> None:
    install("openai", "3.52.0", ("httpx2",))
    install("httpx2", "2.16.2")
    install("anthropic", "2.11.0", ("httpx2",))
    install("requests", "2.34.2")
    install("dspy", "3.4.1")
    found = [each.line() for each in read(tmp_path, "from openai import OpenAI\n")]
    assert found == [
        "sdk governed openai 3.52.0: sends through httpx2 2.16.2",
        "stack governed httpx2 2.16.2: patched at Client.send, AsyncClient.send",
        "script note my_eval.py: does not import tidegate; start it with `tidegate run python "
        f"{tmp_path}/my_eval.py`, or add `import tidegate.auto`",
    ]


def test_clocks_are_those_of_the_frameworks_it_imports(install: Install, tmp_path: Path) -> None:
    install("ragas", "0.4.3")
    install("dspy", "3.4.1")
    found = read(tmp_path, "from ragas import evaluate\n")
    assert [each.name for each in found if each.section == "clock"] == ["ragas"]


@pytest.mark.parametrize(
    "line",
    ["import google.genai", "from google import genai", "from google.genai import types", "import google.genai.x"],
)
def test_an_import_is_recognised_however_it_is_written(install: Install, tmp_path: Path, line: str) -> None:
    install("google-genai", "3.4.0", modules=("google.genai",))
    install("google-generativeai", "0.8.6", modules=("google.generativeai",))
    found = [each.name for each in read(tmp_path, line)]
    assert ("google-genai" in found, "google-generativeai" in found) == (True, False)


def test_an_import_inside_a_function_counts(install: Install, tmp_path: Path) -> None:
    install("openai", "3.52.0")
    assert "openai" in [each.name for each in read(tmp_path, "def ask():\n    import openai\n")]


def test_what_is_imported_and_not_installed_is_said(install: Install, tmp_path: Path) -> None:
    found = [each.line() for each in read(tmp_path, "import groq\n")]
    assert (
        "sdk note groq: not checked: it is not installed in this Python; run the doctor of the Python that has it"
        in found
    )


def test_the_modules_beside_it_are_read_too_and_they_in_turn(install: Install, tmp_path: Path) -> None:
    install("xai-sdk", "1.21.0")
    install("grpcio", "1.85.1")
    package = tmp_path / "judges"
    package.mkdir()
    (package / "__init__.py").write_text("from . import grok\n")
    (package / "grok.py").write_text("import xai_sdk\n")
    found = read(tmp_path, "import judging\n", judging="from judges import anything\nimport my_eval\n")
    assert ("sdk", Severity.UNGOVERNED, "xai-sdk") in [each[:3] for each in found]


def test_a_module_beside_it_is_not_the_package_of_that_name(install: Install, tmp_path: Path) -> None:
    install("openai-agents", "0.24.0", modules=("agents",))
    assert "openai-agents" in [each.name for each in read(tmp_path, "import agents\n")]
    assert "openai-agents" not in [each.name for each in read(tmp_path, "import agents\n", agents="")]


@pytest.mark.parametrize(
    "text", ["import openai, tidegate\n", "from tidegate import install\n", "import openai\nimport tidegate.auto\n"]
)
def test_script_that_imports_tidegate_is_not_told_how_to_start_with_it(
    install: Install, tmp_path: Path, text: str
) -> None:
    assert "does not import tidegate" not in str(read(tmp_path, text))
    assert "does not import tidegate" in str(read(tmp_path, "import openai\n"))


def test_folder_without_an_init_file_is_a_package_beside_it(install: Install, tmp_path: Path) -> None:
    install("openai-agents", "0.24.0", modules=("agents",))
    install("groq", "1.7.0", ("httpx",))
    install("httpx", "0.28.1")
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "ours.py").write_text("import groq\n")
    found = [each.name for each in read(tmp_path, "import agents.ours\n")]
    assert ("groq" in found, "openai-agents" in found) == (True, False)


def verdicts(folder: Path, text: str) -> set[tuple[str, str, str]]:
    return {(each.section, each.verdict, each.name) for each in read(folder, text)}


def test_requirements_of_a_distribution_without_a_row_are_followed(install: Install, tmp_path: Path) -> None:
    install("docetl", "0.3.0", ("docetl-core",))
    install("docetl-core", "0.3.0", ("litellm", "numpy"))
    install("litellm", "1.106.2", ("httpx", "urllib3"))
    install("httpx", "0.28.1")
    install("urllib3", "2.8.0")
    install("numpy", "2.0")
    found = [each.line() for each in read(tmp_path, "import numpy\nimport docetl\n")]
    assert found[0] == "sdk governed docetl 0.3.0: sends through httpx 0.28.1"
    assert not any(" ungoverned " in line for line in found)


def test_script_without_a_governed_way_is_ungoverned_and_the_gateway_is_named(install: Install, tmp_path: Path) -> None:
    install("numpy", "2.0")
    found = read(tmp_path, "import numpy\nimport json\n")
    assert found[-1].verdict is Severity.UNGOVERNED
    assert f"`tidegate run --gateway python {tmp_path}/my_eval.py` governs it" in found[-1].text


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("pycurl", "pycurl"), ("curl_cffi.requests", "curl-cffi"), ("niquests", "niquests"), ("urllib3", "urllib3"),
        ("urllib.request", "urllib"), ("tornado.httpclient", "tornado"), ("baml_py", "baml-py"), ("oci", "oci"),
        ("tensorzero", "tensorzero"), ("grpc", "grpcio"), ("websockets", "websockets"),
    ],
)  # fmt: skip
def test_stack_that_cannot_be_governed_is_named_with_the_remedy(
    install: Install, tmp_path: Path, module: str, name: str
) -> None:
    (found,) = [each for each in read(tmp_path, f"import {module}\n") if each.verdict is Severity.UNGOVERNED]
    assert (found.section, found.name) == ("stack", name)
    assert "only calls over HTTP" in found.text or "`tidegate run --gateway python " in found.text


def test_stack_with_many_uses_is_a_note_beside_a_governed_one(install: Install, tmp_path: Path) -> None:
    install("httpx", "0.28.1")
    found = verdicts(tmp_path, "import httpx\nimport urllib.request, urllib3, websockets\n")
    assert {each for each in found if each[0] == "stack"} == {
        ("stack", "governed", "httpx"), ("stack", "note", "urllib"), ("stack", "note", "urllib3"),
        ("stack", "note", "websockets"),
    }  # fmt: skip
    assert ("stack", "ungoverned", "pycurl") in verdicts(tmp_path, "import httpx\nimport pycurl\n")


@pytest.mark.parametrize(("distribution", "module"), [("dashscope", "dashscope"), ("writer-sdk", "writerai")])
def test_sdk_that_is_governed_at_its_own_hosts_alone_says_so(
    install: Install, tmp_path: Path, distribution: str, module: str
) -> None:
    install(distribution, "2.0", ("httpx",), (module,))
    install("httpx", "0.28.1")
    found = read(tmp_path, f"import {module}\n")
    assert (found[0].verdict, "register_provider" in found[0].text) == (Severity.GOVERNED, True)


def test_nothing_is_run(install: Install, tmp_path: Path) -> None:
    left = tmp_path / "left"
    read(tmp_path, f"import beside\nopen({str(left)!r}, 'w')\n", beside=f"open({str(left)!r}, 'w')\n")
    assert not left.exists()


def test_a_module_beside_it_that_cannot_be_read_is_left_out(install: Install, tmp_path: Path) -> None:
    install("openai", "3.52.0")
    assert "openai" in [each.name for each in read(tmp_path, "import openai, beside\n", beside="def (")]


def test_what_the_parser_warns_of_is_not_said(install: Install, tmp_path: Path) -> None:
    install("openai", "3.52.0")
    assert "openai" in [each.name for each in read(tmp_path, 'import openai\n"\\d"\n')]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"def (", r"it is not Python source \(line 1"),
        (b"\x00", "it is not Python source"),
        (b"\xff\xfe", "it is not Python source"),
        (b"-" * 200_000 + b"1", "it is not Python source"),
        (None, "it cannot be read"),
    ],
)
def test_what_is_no_script_is_unreadable(
    install: Install, tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    path = tmp_path / "x.py"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Unreadable, match=complaint):
        list(read_script(path, Installed(), tidegate.Settings(), {}))
