"""`install()`, `uninstall()` and `tidegate.auto`, each in a process of its own: order must not matter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from tests.effort import some
from tests.sdk.asking import OPENAI_3
from tidegate.testing import Limit, Scenario, Simulator

HTTP = "httpx2" if OPENAI_3 else "httpx"

PRELUDE = f"""
import importlib, os, sys
BODY = {{"model": "m", "messages": [{{"role": "user", "content": "hi"}}]}}
def make():
    import openai
    return openai.OpenAI(base_url=os.environ["URL"] + "/v1", api_key="k")
def chat(client):
    return client.chat.completions.create(**BODY)
def bare():
    return importlib.import_module(HTTP).Client(base_url=os.environ["URL"] + "/v1")
def post(client):
    return client.post("/chat/completions", json=BODY).raise_for_status()
def attempts():
    return tidegate.registry().snapshot().attempts
HTTP = "{HTTP}"
"""

ORDERS = {
    "before the import": """
        import tidegate
        tidegate.install()
        assert HTTP not in sys.modules
        chat(make())
        print(attempts())
    """,
    "after the import": """
        import openai, tidegate
        assert HTTP in tidegate.install()
        chat(make())
        print(attempts())
    """,
    "after the client exists": """
        client = make()
        import tidegate
        tidegate.install()
        chat(client)
        print(attempts())
    """,
    "twice": """
        import tidegate
        tidegate.install()
        client = make()
        tidegate.install()
        chat(client)
        print(attempts())
    """,
    "by the auto module": """
        import tidegate.auto
        chat(make())
        print(attempts())
    """,
    "and wrapped as well": """
        import tidegate
        tidegate.install()
        client = tidegate.wrap(make())
        chat(client)
        print(attempts())
    """,
}


def run(code: str, url: str = "") -> str:
    program = PRELUDE + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"URL": url, "PATH": "", "SSL_CERT_FILE": os.environ.get("SSL_CERT_FILE", "")},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ALIKE = ["after the import", "twice", "and wrapped as well"]


@pytest.mark.parametrize("order", some([order for order in ORDERS if order not in ALIKE], ALIKE))
def test_one_call_is_one_permit_whenever_it_was_installed(order: str) -> None:
    with Simulator(Scenario(limiters=(Limit(limit=100),))) as provider:
        assert run(ORDERS[order], provider.url) == "1"


def test_uninstall_restores_the_methods_and_governs_nothing() -> None:
    code = """
        import tidegate
        module = importlib.import_module(HTTP)
        classes = (module.Client, module.AsyncClient)
        before = [each.__dict__["send"] for each in classes]
        tidegate.install()
        assert not any(each.__dict__["send"] is was for each, was in zip(classes, before))
        tidegate.uninstall()
        assert all(each.__dict__["send"] is was for each, was in zip(classes, before))
        post(bare())
        print(attempts())
    """
    with Simulator() as provider:
        assert run(code, provider.url) == "0"


def test_uninstall_leaves_wrapped_clients_governed() -> None:
    code = """
        import tidegate
        client = tidegate.wrap(bare())
        tidegate.install()
        tidegate.uninstall()
        post(client)
        post(bare())
        print(attempts())
    """
    with Simulator() as provider:
        assert run(code, provider.url) == "1"


def test_uninstall_under_a_foreign_wrapper_leaves_an_inert_patch() -> None:
    code = """
        import functools, tidegate
        module = importlib.import_module(HTTP)
        tidegate.install()
        ours = module.Client.send
        @functools.wraps(ours)
        def foreign(self, *args, **kwargs):
            return ours(self, *args, **kwargs)
        module.Client.send = foreign
        tidegate.uninstall()
        post(bare())
        print(attempts())
    """
    with Simulator() as provider:
        assert run(code, provider.url) == "0"


def test_an_unknown_host_passes_through_an_installed_process() -> None:
    code = """
        import tidegate
        module = importlib.import_module(HTTP)
        tidegate.install()
        seen = []
        def handler(request):
            seen.append(request)
            return module.Response(429)
        client = module.Client(transport=module.MockTransport(handler))
        assert client.post("https://example.test/v1/chat/completions", json={}).status_code == 429
        assert client.get("https://api.openai.com/v1/models").status_code == 429
        print(len(seen), attempts())
    """
    assert run(code) == "2 0"


@pytest.mark.skipif(not OPENAI_3, reason="openai 2 does not bring httpx2")
def test_httpx2_standing_in_for_httpx_is_patched_once() -> None:
    code = """
        import tidegate
        tidegate.install()
        import httpx2
        httpx2.alias_httpx()
        import httpx
        tidegate.install()
        post(bare())
        print(attempts())
    """
    with Simulator() as provider:
        assert run(code, provider.url) == "1"


def test_a_host_that_a_variable_names_after_install_is_governed() -> None:
    code = """
        import tidegate
        module = importlib.import_module(HTTP)
        tidegate.install()
        client = module.Client(transport=module.MockTransport(lambda request: module.Response(200, json={})))
        client.post("https://other.test/v1/chat/completions", json={"model": "m"})
        os.environ["OPENAI_BASE_URL"] = "https://gateway.test/v1"
        client.post("https://gateway.test/v1/chat/completions", json={"model": "m"})
        print([str(key) for key in tidegate.registry().snapshot().keys])
    """
    assert run(code) == "['compatible · gateway.test/v1 · m']"


def test_known_hosts_are_governed_by_install_without_being_wrapped() -> None:
    code = """
        import tidegate
        module = importlib.import_module(HTTP)
        tidegate.install()
        client = module.Client(transport=module.MockTransport(lambda request: module.Response(200, json={})))
        for url in ("https://api.openai.com/v1/chat/completions", "https://api.anthropic.com/v1/messages",
                    "https://models.github.ai/inference/chat/completions", "http://localhost:8000/v1/chat/completions"):
            client.post(url, json={"model": "m"})
        print(sorted(key.provider for key in tidegate.registry().snapshot().keys))
    """
    assert run(code) == "['anthropic', 'compatible', 'github-models', 'openai']"
