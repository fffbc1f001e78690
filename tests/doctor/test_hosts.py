"""`doctor` on the hosts that the environment names, and on one without a known SDK."""

from __future__ import annotations

import pytest

import tidegate
from tests.doctor.conftest import Install
from tidegate.cli.doctor import environment
from tidegate.cli.doctor.command import findings
from tidegate.cli.doctor.environment import Installed


def test_environment_names_the_hosts_of_variables_without_secrets() -> None:
    environ = {"OPENAI_API_BASE": "https://user:secret@llm.example.test/tok-secret/v1?k=secret", "OLLAMA_HOST": "gpu:1"}
    settings = tidegate.Settings(hosts=("other.test",))
    lines = [each.line() for each in environment.hosts(settings, environ)]
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
