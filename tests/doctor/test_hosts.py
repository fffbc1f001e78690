"""`doctor` on the hosts that a script or the environment names; no script is ever run."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidegate
from tests.doctor.conftest import Install
from tidegate.cli.doctor import findings
from tidegate.doctor import environment, hosts
from tidegate.doctor import script as script_reader
from tidegate.doctor.environment import Installed, Severity


def said(folder: Path, text: str) -> list[tuple[str, str, str]]:
    path = folder / "my_eval.py"
    path.write_text(text)
    found = script_reader.script(path, Installed(), tidegate.Settings(), {})
    return [(each.verdict, each.name, each.place) for each in found if each.section == "host"]


@pytest.mark.parametrize(
    ("line", "verdict", "host"),
    [
        ("openai.OpenAI(base_url='http://vllm:8000/v1')", Severity.GOVERNED, "vllm"),
        ("openai.OpenAI(base_url='https://llm.example.test/v1')", Severity.GOVERNED, "llm.example.test"),
        ("openai.OpenAI(base_url=f'https://llm.example.test/{x}')", Severity.GOVERNED, "llm.example.test"),
        ("openai.OpenAI(base_url='https://api.groq.com/openai/v1')", Severity.GOVERNED, "api.groq.com"),
        ("ollama.Client(host='http://10.0.0.7:11434')", Severity.GOVERNED, "10.0.0.7"),
        ("litellm.completion(model='m', api_base='https://llm.example.test')", Severity.GOVERNED, "llm.example.test"),
        ("httpx.post('https://llm.example.test/v1/chat/completions')", Severity.UNGOVERNED, "llm.example.test"),
        ("session.post('https://llm.example.test/v1/chat/completions')", Severity.UNGOVERNED, "llm.example.test"),
        ("httpx.post('https://api.openai.com/v1/chat/completions')", Severity.GOVERNED, "api.openai.com"),
        ("httpx.post('http://gpu01.local/v1/chat/completions')", Severity.GOVERNED, "gpu01.local"),
        ("httpx.Client(base_url='https://llm.example.test/v1')", Severity.NOTE, "llm.example.test"),
        ("make(base_url='https://llm.example.test/v1')", Severity.NOTE, "llm.example.test"),
    ],
)
def test_script_literal_address_says_whether_it_is_governed(
    install: Install, tmp_path: Path, line: str, verdict: Severity, host: str
) -> None:
    text = f"import httpx, litellm, ollama, openai\nx = 1\n{line}\n"
    assert said(tmp_path, text) == [(verdict, host, "my_eval.py:3")]


def told(folder: Path, text: str) -> list[str]:
    path = folder / "my_eval.py"
    path.write_text(f"import anthropic, httpx, openai, os\n{text}\n")
    found = script_reader.script(path, Installed(), tidegate.Settings(), {})
    return [each.line() for each in found if each.section == "host"]


@pytest.mark.parametrize(
    ("line", "ending"),
    [
        ("openai.OpenAI(base_url='https://api.moonshot.ai/v1')", "moonshot, one key per credential"),
        ("openai.OpenAI(base_url='https://api.z.ai/api/paas/v4')", "zai, one key per credential and model"),
        (
            "openai.OpenAI(base_url='https://w.cloud.databricks.com/serving-endpoints')",
            "databricks, one key per host and model",
        ),
        (
            "openai.OpenAI(base_url='https://gateway.ai.cloudflare.com/v1/a/g/openai')",
            "cloudflare, one key per credential, path and model",
        ),
        (
            "openai.OpenAI(base_url='https://llm.example.test/v1')",
            "calls of a known SDK are governed on any host, as compatible, one key per credential and model",
        ),
        (
            "anthropic.Anthropic(base_url='https://llm.example.test')",
            "calls of a known SDK are governed on any host, as anthropic-compatible, one key per credential and model",
        ),
        (
            "openai.AzureOpenAI(azure_endpoint='https://llm.example.test')",
            "calls of a known SDK are governed on any host, as azure-compatible, one key per credential and model",
        ),
    ],
)
def test_script_literal_address_says_which_provider_and_key_it_will_be(
    install: Install, tmp_path: Path, line: str, ending: str
) -> None:
    (found,) = told(tmp_path, line)
    assert found.endswith(f"=): {ending}"), found


@pytest.mark.parametrize(
    "text",
    [
        "URL = 'https://api.z.ai/api/paas/v4'\nopenai.OpenAI(base_url=URL)",
        "URL: str = 'https://api.z.ai/api/paas/v4'\n\ndef ask():\n    openai.OpenAI(base_url=URL)",
        "openai.OpenAI(base_url=os.environ.get('BASE', 'https://api.z.ai/api/paas/v4'))",
        "openai.OpenAI(base_url=os.getenv('BASE', default='https://api.z.ai/api/paas/v4'))",
        "openai.OpenAI(base_url=os.getenv('BASE') or 'https://api.z.ai/api/paas/v4')",
        "openai.OpenAI(**{'base_url': 'https://api.z.ai/api/paas/v4'})",
    ],
)
def test_script_address_in_a_constant_a_default_or_a_dictionary_is_read(
    install: Install, tmp_path: Path, text: str
) -> None:
    (found,) = told(tmp_path, text)
    assert found.startswith("host governed my_eval.py:")
    assert found.endswith(": zai, one key per credential and model")


def test_script_name_with_two_addresses_is_not_guessed(install: Install, tmp_path: Path) -> None:
    text = "URL = 'https://api.z.ai/v4'\nif x:\n    URL = 'https://a.example/v1'\nopenai.OpenAI(base_url=URL)"
    assert told(tmp_path, text) == []


@pytest.mark.parametrize(
    "line",
    [
        "uvicorn.run(host='0.0.0.0')",
        "langfuse.Langfuse(host='https://cloud.example.test')",
        "boto3.client('s3', endpoint_url='http://minio:9000')",
        "httpx.post('https://hooks.example.test/things')",
        "openai.OpenAI(base_url=URL)",
        "openai.OpenAI(base_url='http://[broken')",
    ],
)
def test_script_other_address_is_not_named(install: Install, tmp_path: Path, line: str) -> None:
    assert said(tmp_path, f"import boto3, httpx, langfuse, openai, uvicorn\n{line}\n") == []


def test_script_host_named_by_a_variable_is_governed(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTED_VLLM_API_BASE", "https://llm.example.test/v1")
    line = "httpx.post('https://llm.example.test/v1/chat/completions')"
    assert said(tmp_path, f"import httpx\n{line}\n") == [(Severity.GOVERNED, "llm.example.test", "my_eval.py:2")]


def test_environment_names_the_hosts_of_variables_without_secrets() -> None:
    environ = {"OPENAI_API_BASE": "https://user:secret@llm.example.test/tok-secret/v1?k=secret", "OLLAMA_HOST": "gpu:1"}
    settings = tidegate.Settings(hosts=("other.test",))
    lines = [each.line() for each in hosts.in_environment(settings, environ)]
    assert lines == [
        "host governed llm.example.test: named by OPENAI_API_BASE",
        "host governed gpu: named by OLLAMA_HOST",
        "host governed other.test: named by TIDEGATE_HOSTS",
    ]


def test_environment_without_any_sdk_says_so(install: Install) -> None:
    install("requests", "2.34.2")
    (found,) = environment.sdks(Installed())
    assert found.line().startswith("sdk note none: no known SDK or framework is installed in this Python (")
    install("openai", "3.52.0")
    assert "none" not in [each.name for each in environment.sdks(Installed())]


def test_doctor_of_a_python_without_any_sdk_says_so_in_one_line(install: Install) -> None:
    said = [each.line() for each in findings(None) if each.section == "sdk"]
    assert len(said) == 1
    assert said[0].startswith("sdk note none: no known SDK or framework is installed in this Python (")


def test_doctor_tells_the_hosts_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LM_STUDIO_API_BASE", "http://studio.example.test:1234/v1")
    assert ("host", "studio.example.test") in [(each.section, each.name) for each in findings(None)]
