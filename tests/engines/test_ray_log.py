"""The log in a named actor of a real Ray cluster, which these tests start: joins, a killed actor, forks, and no Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.engines.test_examples import BOUND, ROOT
from tests.shared_log.store_members import StorePeer, is_alone, together, until
from tidegate.shared_log.carrier import ENDED
from tidegate.shared_log.ray_log import NAME, NAMESPACE, ray_carrier

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("default")]

START = (
    "ray.init(num_cpus=1, include_dashboard=False, logging_level='ERROR', log_to_driver=False, "
    "object_store_memory=100_000_000)"
)


def said(program: str, folder: Path) -> str:
    """What a program prints until it ends well, in a process that Ray was not started in."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEGATE_", "PYTEST_", "RAY_"))}
    made = {**own, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "RAY_USAGE_STATS_ENABLED": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=made, cwd=folder, capture_output=True, text=True, timeout=BOUND
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    assert find_spec("ray") is not None, "ray is not installed; `make engines` installs it"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    import ray

    exec(START, {"ray": ray})
    yield ray
    ray.shutdown()


@pytest.fixture
def peers(ray: Any) -> Iterator[list[StorePeer]]:
    name = os.urandom(8)
    found = [StorePeer(ray_carrier(), name) for _ in range(2)]
    try:
        together(*found)
        found[0].say(b"before")
        until(lambda: b"before" in found[1].state, "what was said before", *found)
        yield found
    finally:
        for peer in found:
            peer.carrier.close()


def test_members_share_one_order_and_a_late_one_gets_the_state(peers: list[StorePeer]) -> None:
    one, two = peers
    for number in range(10):
        one.say(b"a%d" % number)
        two.say(b"b%d" % number)
    three = StorePeer(ray_carrier(), one.log.name)
    try:
        together(one, two, three)
        until(lambda: {len(peer.state) for peer in (one, two, three)} == {21}, "all entries", one, two, three)
        assert len({tuple(sorted(peer.state)) for peer in (one, two, three)}) == 1
    finally:
        three.carrier.close()
    together(one, two)


def test_members_return_to_a_new_actor_after_the_first_was_killed(ray: Any, peers: list[StorePeer]) -> None:
    one, two = peers
    ray.kill(ray.get_actor(NAME, namespace=NAMESPACE))
    until(lambda: all(peer.last is not None and peer.last.away for peer in peers), "to be away", one, two)
    assert one.last is not None
    assert one.last.members == 2, "the limits are divided by both"
    until(lambda: one.returned and two.returned, "the return", one, two)
    together(one, two)
    one.say(b"news")
    until(lambda: b"news" in two.state, "what is said afterwards", one, two)
    assert [(peer.log.ended, peer.carrier.error) for peer in peers] == [("", "")] * 2


def test_a_fork_is_not_shared_and_its_parent_goes_on(peers: list[StorePeer]) -> None:
    one, two = peers
    pid = os.fork()
    if not pid:
        code = 1
        try:
            until(lambda: one.step() is ENDED, "its end", one)
            code = int("a fork" not in one.log.ended)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    one.say(b"parent")
    until(lambda: b"parent" in two.state, "the word of the parent", one, two)


ALONE = """
import logging
logging.basicConfig(level=logging.WARNING, format="%(message)s")
import ray
from tests.shared_log.store_members import StorePeer, until
from tidegate.shared_log.ray_log import ray_carrier

peer = StorePeer(ray_carrier(), b"name")
until(lambda: peer.last is not None and peer.last.away, "to be away", peer)
assert peer.last.members == 1 and not ray.is_initialized()
print("alone")
"""

LATER = f"""
{START}
until(lambda: peer.last is ALONE, "to be the only member", peer)
print("joined")
ray.shutdown()
until(lambda: peer.last is not None and peer.last.away, "to be away", peer)
assert not ray.is_initialized()
peer.carrier.close()
print("ended")
"""


def test_a_process_without_ray_decides_alone_and_joins_once_ray_is_there(tmp_path: Path) -> None:
    """Nothing starts Ray: neither before the program does, nor after it has ended it."""
    text = said("from tidegate.shared_log.carrier import ALONE\n" + ALONE + LATER, tmp_path)
    assert [line for line in text.splitlines() if line in ("alone", "joined", "ended")] == ["alone", "joined", "ended"]
    assert text.count("this process is not connected to Ray") <= 2
    assert "is back" in text


def test_the_first_member_is_alone(ray: Any) -> None:
    peer = StorePeer(ray_carrier(), os.urandom(8))
    try:
        until(lambda: is_alone(peer), "to be alone", peer)
    finally:
        peer.carrier.close()
