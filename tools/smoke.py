"""Smoke test of an installed tidegate, on any system: public names, a wrapped client, an installation, the commands.

Run `python tools/smoke.py` where tidegate and httpx are installed; no request leaves the process.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig

import httpx

import tidegate

ANSWER = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}


def client() -> httpx.Client:
    """Return a client that answers itself."""
    return httpx.Client(transport=httpx.MockTransport(lambda request: httpx.Response(200, json=ANSWER)))


def ask(by: httpx.Client) -> int:
    """Return the status of one call."""
    body = {"model": "m", "messages": []}
    url = "https://api.openai.com/v1/chat/completions"
    return by.post(url, json=body, headers={"authorization": "Bearer k"}).status_code


def main() -> int:
    """Run all checks; an exception is a failure."""
    for name in tidegate.__all__:
        getattr(tidegate, name)
    statuses = [ask(tidegate.wrap(client()))]
    tidegate.install()
    statuses.append(ask(client()))
    rows = list(tidegate.map(lambda row: row + 1, [1, 2]))
    for command in ("--version", "doctor"):
        program = shutil.which("tidegate", path=sysconfig.get_path("scripts"))
        if program is None:
            sys.exit("command tidegate not found: the scripts of this Python have none; install the package")
        subprocess.run([program, command], check=True, timeout=120)
    calls = tidegate.registry().snapshot().calls
    print(f"{sys.platform}: {calls} calls governed, statuses {statuses}, rows {rows}")
    return 0 if (calls, statuses, rows) == (2, [200, 200], [2, 3]) else 1


if __name__ == "__main__":
    sys.exit(main())
