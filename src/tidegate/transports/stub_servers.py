"""Bound of the waits for a stub server on this machine, in a test that runs under pytest and in programs it starts.

A test of code that meets a 429 starts such a server, expects the SDK's error, and would wait `max_wait` for it. The
simulators of `tidegate.testing` recover, so calls to them wait as to any provider. Programs that a test starts inherit
the test's variable of pytest and a variable of each simulator. This module imports no other part of tidegate.
"""

from __future__ import annotations

import os
from ipaddress import ip_address
from urllib.parse import urlsplit

MAX_STUB_WAIT_SECONDS = 2.0
"""Most seconds that a call to a stub server waits: four first waits of the openai and anthropic SDKs.

Chosen below the 5 s that tests allow an error of a provider (seen: `assert time.monotonic() - t < 5`), since an
SDK sends the call twice more: its three waits take 6 s, and 5 s each would take 15 s.
"""


def add_simulator(url: str) -> None:
    """Let calls to a simulator wait as to any provider, in this process and in those that it starts."""
    os.environ[_variable(url)] = url


def remove_simulator(url: str) -> None:
    """Forget a simulator that ended; another server may have its port next."""
    os.environ.pop(_variable(url), None)


def is_stub(base_url: str) -> bool:
    """Return whether a base URL is that of a stub server of a test that runs in this process or started it."""
    if "PYTEST_CURRENT_TEST" not in os.environ or _variable(base_url) in os.environ:
        return False
    return _is_this_machine(urlsplit(base_url).hostname or "")


def _variable(url: str) -> str:
    # By port alone: shells do not hand on a variable whose name has dots, and a simulator has several host names.
    return f"TIDEGATE_SIMULATOR_{urlsplit(url).netloc.rpartition(':')[2]}"


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    # Connecting to the unspecified address, which local servers print as theirs, reaches this machine.
    return address.is_loopback or address.is_unspecified
