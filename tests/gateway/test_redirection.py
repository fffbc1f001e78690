"""Which commands get a gateway, and which variables of their environment lead there."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate
from tidegate.launch.gateway_need import is_for_node, wanted
from tidegate.launch.gateway_process import redirection
from tidegate.transports import gateway_url
from tidegate.transports.gateway_url import VARIABLE, GatewayRoot, real_url, resolved, through
from tidegate.transports.install import named_hosts

ROOT = "http://127.0.0.1:4790/token"


def executable(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("first_line", ["#!/usr/bin/env node", "#!/usr/bin/node", "#!/usr/bin/env -S node --trace",
                                        "#!/usr/bin/env -S A=1 bun", "#!/opt/deno run -A"])  # fmt: skip
def test_a_script_of_an_interpreter_of_javascript_is_for_node(tmp_path: Path, first_line: str) -> None:
    assert is_for_node(executable(tmp_path, "promptfoo", first_line + "\n"))
    assert not is_for_node(executable(tmp_path, "codex", first_line + "\n"))


@pytest.mark.parametrize("text", ["#!/usr/bin/env python3\nnode", "#!/bin/sh\nnode x.js", "\x7fELF node", "", "#!"])
def test_other_commands_are_not(tmp_path: Path, text: str) -> None:
    assert not is_for_node(executable(tmp_path, "command", text))


def test_commands_are_known_by_name() -> None:
    named = ("node", "/usr/bin/node", "npx", "npm", "claude", "bun")
    assert all(is_for_node(name) for name in named)
    assert not any(is_for_node(name) for name in ("python", "pytest", "bash", "make", "uv", "codex", "no-such-command"))


@pytest.mark.parametrize(("asked", "expected"), [(None, True), (True, True), (False, False)])
def test_a_run_below_a_gateway_starts_none(asked: bool | None, expected: bool) -> None:
    assert wanted(["node"], asked, {}) is expected
    assert wanted(["python"], asked, {}) is bool(asked)
    assert not wanted(["node"], asked, {VARIABLE: ROOT})


def test_variables_that_are_not_set_lead_to_the_providers(tmp_path: Path) -> None:
    found = redirection({}, ROOT, tmp_path)
    assert found.changed[VARIABLE] == ROOT
    assert found.changed["OPENAI_BASE_URL"] == f"{ROOT}/api.openai.com/v1"
    assert found.changed["ANTHROPIC_BASE_URL"] == f"{ROOT}/api.anthropic.com"
    assert found.changed["GOOGLE_GEMINI_BASE_URL"] == f"{ROOT}/generativelanguage.googleapis.com"
    assert "AZURE_OPENAI_ENDPOINT" not in found.changed
    assert "NO_PROXY" not in found.changed
    assert (found.upstreams, found.kept) == ([], {})


def test_own_base_urls_stay_the_servers(tmp_path: Path) -> None:
    own = {"OPENAI_BASE_URL": "http://localhost:8000/v1", "AZURE_OPENAI_ENDPOINT": "https://me.openai.azure.com/"}
    found = redirection(own, ROOT, tmp_path)
    assert found.changed["OPENAI_BASE_URL"] == f"{ROOT}/http/localhost:8000/v1"
    assert found.changed["AZURE_OPENAI_ENDPOINT"] == f"{ROOT}/me.openai.azure.com/"
    assert sorted(found.upstreams) == sorted(own.values())


@pytest.mark.parametrize("url", ["localhost:8000", "https://user:secret@llm.example/v1", "ftp://x/", "https://x:y/",
                                 "https://llm.example/v1?key=1"])  # fmt: skip
def test_a_base_url_that_cannot_pass_is_left_alone(tmp_path: Path, url: str) -> None:
    found = redirection({"OPENAI_BASE_URL": url}, ROOT, tmp_path)
    assert "OPENAI_BASE_URL" not in found.changed
    assert set(found.kept) == {"OPENAI_BASE_URL"}
    assert "secret" not in str(found.kept)


@pytest.mark.parametrize("line", ["OPENAI_BASE_URL=https://mine.example/v1", "export OPENAI_BASE_URL = 'https://x'",
                                  "A=1\n  OPENAI_API_BASE: https://x", "OPENAI_API_HOST=mine.example"])  # fmt: skip
@pytest.mark.parametrize("name", [".env", ".env.local"])
def test_the_key_of_a_server_in_a_file_goes_to_no_other_server(tmp_path: Path, line: str, name: str) -> None:
    (tmp_path / name).write_text(f"OPENAI_API_KEY=sk-1\n{line}\n")
    below = tmp_path / "app"
    below.mkdir()
    found = redirection({}, ROOT, below)
    assert "OPENAI_BASE_URL" not in found.changed
    assert str(tmp_path / name) in found.kept["OPENAI_BASE_URL"] or "another server" in found.kept["OPENAI_BASE_URL"]
    assert "ANTHROPIC_BASE_URL" in found.changed


def test_an_empty_line_or_a_comment_of_a_file_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=sk-1\n# OPENAI_BASE_URL=https://x\nOPENAI_BASE_URL=\n")
    assert redirection({}, ROOT, tmp_path).kept == {}


@pytest.mark.parametrize("name", ["OPENAI_API_BASE", "OPENAI_API_HOST", "OPENAI_API_BASE_URL"])
def test_a_similar_variable_names_the_server(tmp_path: Path, name: str) -> None:
    found = redirection({name: "https://mine.example/v1"}, ROOT, tmp_path)
    assert "OPENAI_BASE_URL" not in found.changed
    assert name in found.kept["OPENAI_BASE_URL"]


def test_requests_to_the_gateway_use_no_proxy(tmp_path: Path) -> None:
    found = redirection({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "intern.example"}, ROOT, tmp_path)
    assert found.changed["NO_PROXY"] == "intern.example,127.0.0.1,localhost,::1"


@pytest.mark.parametrize("url", ["https://api.openai.com/v1", "http://localhost:8000/v1", "https://x.example:8443",
                                 "http://[::1]:11434/api", "https://a.example/v1/"])  # fmt: skip
def test_a_url_through_the_gateway_is_resolved(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, ROOT)
    monkeypatch.setattr(GatewayRoot, "value", "")
    assert real_url(through(ROOT, url)) is None
    GatewayRoot.read()
    assert real_url(through(ROOT, url)) == url
    assert resolved("https://api.openai.com/v1") == "https://api.openai.com/v1"
    assert resolved(f"{ROOT}x/api.openai.com") == f"{ROOT}x/api.openai.com"


def test_the_server_behind_the_gateway_is_a_named_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, ROOT)
    monkeypatch.setattr(GatewayRoot, "value", ROOT)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{ROOT}/llm.example/v1")
    named = named_hosts(tidegate.Settings())
    assert named["llm.example"] == "openai"
    assert "127.0.0.1" not in named


def test_a_root_of_another_machine_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "http://gateway.example:80/token")
    monkeypatch.setattr(gateway_url.GatewayRoot, "value", "")
    GatewayRoot.read()
    assert GatewayRoot.value == ""
