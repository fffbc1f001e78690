"""Bound of the waits for a stub server on this machine, in a test that runs under pytest.

A test of code that meets a 429 starts such a server, expects the SDK's error, and would wait `max_wait` for it. The
simulators of `tidegate.testing` recover, so calls to them wait as to any provider. They import this module, which
imports no other part of tidegate.
"""

from __future__ import annotations

import os
import sys
from ipaddress import ip_address
from urllib.parse import urlsplit

MAX_STUB_WAIT_SECONDS = 2.0
"""Most seconds that a call to a stub server waits: four first waits of the openai and anthropic SDKs.

Chosen below the 5 s that tests allow an error of a provider (seen: `assert time.monotonic() - t < 5`), since an
SDK sends the call twice more: its three waits take 6 s, and 5 s each would take 15 s.
"""

simulators: set[str] = set()
"""Hosts with ports of the simulators that run."""


def is_stub(base_url: str) -> bool:
    """Return whether a base URL is that of a stub server of the test that runs in this process."""
    if "PYTEST_CURRENT_TEST" not in os.environ or "pytest" not in sys.modules:
        return False
    parts = urlsplit(base_url)
    return parts.netloc not in simulators and _is_this_machine(parts.hostname or "")


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
