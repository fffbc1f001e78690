"""Texts and hooks of the notebook extension, without a kernel."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

import tidegate
from tests.test_exports import FORBIDDEN, run
from tidegate.admission.registry import RateLimitRegistry
from tidegate.core.values import Key
from tidegate.integrations.call_totals import CallTotals, read_keys, totals_since
from tidegate.integrations.ipython import DisplayedText, board_lines, final_text
from tidegate.testing import Limit, Scenario, Simulator
from tidegate.transports.governance import Installation


@pytest.fixture(autouse=True)
def own_registry(registry: RateLimitRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default registry of the process may have the keys of other tests."""
    for name in ("tidegate.integrations.call_totals.registry", "tidegate.transports.install.default_registry"):
        monkeypatch.setattr(name, lambda: registry)


class Shell:
    """What the extension needs of IPython's shell; as on a terminal, it has no kernel."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[Any]] = {"pre_run_cell": [], "post_run_cell": []}
        self.magics: dict[str, dict[str, Any]] = {"line": {}}
        self.events = self.magics_manager = self

    def register(self, name: str, hook: Any) -> None:
        self.hooks[name].append(hook)

    def unregister(self, name: str, hook: Any) -> None:
        self.hooks[name].remove(hook)

    def register_magic_function(self, function: Any, magic_kind: str, magic_name: str) -> None:
        self.magics[magic_kind][magic_name] = function


def ask(url: str) -> int:
    body = {"model": "<b>m</b>", "messages": [{"role": "user", "content": "2"}]}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers={"authorization": "Bearer k"}).status_code


def test_an_import_of_tidegate_loads_nothing_of_notebooks() -> None:
    loaded = f"print([name for name in {(*FORBIDDEN, 'IPython')!r} if name in sys.modules])"
    assert run(f"import sys, tidegate; {loaded}") == "[]"
    assert run(f"import sys, tidegate; assert callable(tidegate.load_ipython_extension); {loaded}") == "[]"


def test_load_and_unload_leave_the_shell_and_the_process_as_they_were() -> None:
    shell = Shell()
    tidegate.load_ipython_extension(shell)
    tidegate.load_ipython_extension(shell)
    assert Installation.binding is not None
    assert [len(hooks) for hooks in shell.hooks.values()] == [1, 1]
    assert repr(shell.magics["line"]["tidegate"]("")) == "no governed call so far"
    tidegate.unload_ipython_extension(shell)
    tidegate.unload_ipython_extension(shell)
    assert Installation.binding is None
    assert shell.hooks == {"pre_run_cell": [], "post_run_cell": []}
    assert shell.magics == {"line": {}}


def test_an_installation_of_the_program_outlives_the_extension() -> None:
    tidegate.install()
    shell = Shell()
    tidegate.load_ipython_extension(shell)
    tidegate.unload_ipython_extension(shell)
    assert Installation.binding is not None


def test_a_cell_counts_what_happened_since_its_start() -> None:
    own = RateLimitRegistry()
    tidegate.install(own)
    with Simulator(Scenario(limiters=(Limit(limit=100, window=60, burst=100),))) as provider:
        assert ask(provider.url) == 200
        before = read_keys()
        assert totals_since(before, read_keys()) == totals_since({}, {})
        assert [ask(provider.url) for _ in range(2)] == [200, 200]
        totals = totals_since(before, read_keys())
        (state,) = totals.used
        line = final_text(totals, state, 61.0)
        # On a slow machine units come back between two calls.
        assert re.sub("9[789]|100(?= of)", "97", line) == (
            "tidegate  2 calls, 2 answered, 0 given up, 0 refusals retried, in 1:01 · 97 of 100 requests/min left · "
            f"{state.key.provider} <b>m</b>"
        )
        assert "&lt;b&gt;m" in DisplayedText((line,))._repr_html_()
        assert "<b>" not in DisplayedText((line,))._repr_html_()
        shown = list(board_lines(read_keys()))
        assert shown[0] == str(state.key)
        assert len(shown) == 4
        assert shown[2] == "  3 calls, 3 answered, 0 given up, 0 refusals retried"
        assert re.fullmatch("  (9[789]|100) of 100 requests/min left [(]stated[)]", shown[3])


@pytest.mark.parametrize(("handed_back", "text"), [(0, "2 refusals retried"), (1, "3 refusals, 2 of them retried")])
def test_refusals_that_were_handed_back_are_told_apart(handed_back: int, text: str) -> None:
    own = RateLimitRegistry()
    own.execute(Key("p", "u"), lambda: None)
    (key,) = own.snapshot().keys.values()
    counts = {"calls": 5, "answered": 2, "given_up": 1, "failed_calls": 1, "abandoned_calls": 0}
    line = final_text(CallTotals({**counts, "refused": 2 + handed_back, "absorbed": 2}, (key, key)), key, 1.0)
    assert (
        line == f"tidegate  5 calls, 2 answered, 1 given up, 1 failed, 1 not ended, {text}, in 1.0 s · p · 1 more key"
    )
