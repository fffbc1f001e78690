"""What is wrapped in an SDK, when: loaded or yet to come, once, and never after it was taken off."""

from __future__ import annotations

import copy
import logging
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from huggingface_hub import InferenceClient

from tidegate.admission.registry import RateLimitRegistry
from tidegate.transports.governance import BINDING
from tidegate.transports.patches import Patches
from tidegate.transports.sdk_hooks import Hooks, patch_speakeasy

SOURCE = "def decide(response):\n    return True\n"


def never(wrapped: object, instance: object, args: object, kwargs: object) -> bool:
    return False


def put(patches: Patches, module: ModuleType) -> None:
    patches.put(module, "decide", never)


@pytest.fixture
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that can be imported, of a name that no other test has."""
    name = f"sdk_of_{request.node.name}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_a_module_is_wrapped_when_it_is_imported(name: str) -> None:
    hooks = Hooks({name: put})
    hooks.put()
    assert name not in sys.modules
    assert __import__(name).decide(None) is False
    hooks.remove()
    assert sys.modules[name].decide(None) is True


def test_a_module_that_is_imported_after_all_was_taken_off_stays_as_it_is(name: str) -> None:
    hooks = Hooks({name: put})
    hooks.put()
    hooks.remove()
    assert __import__(name).decide(None) is True


def test_a_module_is_wrapped_again_after_it_was_taken_off(name: str) -> None:
    hooks = Hooks({name: put})
    hooks.put()
    module = __import__(name)
    hooks.remove()
    hooks.put()
    assert module.decide(None) is False
    hooks.remove()
    assert module.decide(None) is True


def test_an_sdk_of_another_shape_stays_as_it_is_and_is_named(name: str, caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks({name: patch_speakeasy})
    hooks.put()
    with caplog.at_level(logging.WARNING, "tidegate"):
        assert __import__(name).decide(None) is True
    assert f"module {name} not patched: its code is of an unknown version" in caplog.text


def test_a_wrapped_client_that_is_copied_counts_at_the_same_registry_and_pickled_as_if_never_wrapped(
    registry: RateLimitRegistry,
) -> None:
    client = registry.wrap(InferenceClient(token="hf_test"))
    assert getattr(copy.deepcopy(client), BINDING) is getattr(client, BINDING)
    assert getattr(pickle.loads(pickle.dumps(client)), BINDING) is None
