"""The peers: one row each, how it is installed, and what it is told that tidegate is not."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.environments import HOME, Environment
from bench.peers.node import NodeEnvironment

HERE = Path(__file__).parent
PINS = HERE / "pins"

OPENAI = "openai==3.52.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One way to send the same calls.

    name          on the command line and in the tables
    driver        a module of `drivers`
    installation  below .venv/peers, and its exact versions in `pins/<installation>.txt`
    requirements  what is installed: the peer, and the SDK that it drives
    alone         installed without what it needs, because one of its modules is used by itself
    given         what it is told that tidegate is not, in words; empty for nothing
    limits        whether it is told what the provider enforces
    node          whether npm installs it, from `<installation>/package.json`; this interpreter then runs its driver
    options       the driver's own
    settings      environment variables
    note          how it is driven
    """

    name: str
    driver: str
    installation: str
    requirements: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()
    given: str = ""
    limits: bool = False
    node: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    note: str

    @property
    def version(self) -> str:
        """What is measured, and its version."""
        if self.node:
            return " ".join(next(iter(self.environment.versions.items())))
        measured = (*self.alone, *self.requirements)[0].replace("==", " ")
        return f"this tree, over {measured}" if self is OURS else measured

    @property
    def environment(self) -> Environment | NodeEnvironment:
        """Where it is installed."""
        folder = HOME / "peers" / self.installation
        if self.node:
            return NodeEnvironment(folder=folder, packages=HERE / self.installation / "package.json")
        return Environment(
            folder=folder,
            pins=PINS / f"{self.installation}.txt",
            requirements=self.requirements,
            alone=self.alone,
            ours=self.installation == "tidegate",
        )

    @property
    def python(self) -> Path:
        """The interpreter that runs its driver."""
        return Path(sys.executable) if self.node else self.environment.bin / "python"

    @property
    def surroundings(self) -> dict[str, str]:
        """The environment variables that its driver needs."""
        command = {"PEER_COMMAND": str(self.environment.bin / self.installation)} if self.node else {}
        return {**self.settings, **command}


PEERS = (
    Peer(
        name="tidegate",
        driver="wrapped_sdk",
        installation="tidegate",
        requirements=(OPENAI,),
        note="`registry.wrap(AsyncOpenAI())`, nothing configured",
    ),
    Peer(
        name="sdk-2",
        driver="plain_sdk",
        installation="sdk",
        requirements=(OPENAI,),
        options={"retries": 2},
        note="the SDK's default of 2 retries",
    ),
    Peer(
        name="sdk-20",
        driver="plain_sdk",
        installation="sdk",
        requirements=(OPENAI,),
        options={"retries": 20},
        note="`max_retries=20`",
    ),
    Peer(
        name="tenacity",
        driver="semaphore_tenacity",
        installation="tenacity",
        requirements=("tenacity==9.2.1", OPENAI),
        options={"at_once": 20, "attempts": 6, "shortest": 1, "longest": 60},
        note="20 at once, 6 attempts 1 to 60 s apart at random: OpenAI's cookbook on rate limits",
    ),
    Peer(
        name="aiolimiter",
        driver="aiolimiter_truth",
        installation="aiolimiter",
        requirements=("aiolimiter==1.3.0", OPENAI),
        given="the true limits: requests, tokens (and each call's own), slots; of one that changes, the highest",
        limits=True,
        options={"attempts": 20, "shortest": 0.5, "longest": 8.0},
        note="one limiter for each limit, passed by every one of up to 20 attempts; the SDK's delays between them",
    ),
    Peer(
        name="langroid",
        driver="langroid_limiter",
        installation="langroid",
        requirements=(OPENAI, "pydantic-settings==2.16.3", "aiohttp==3.14.5", "requests==2.34.2"),
        alone=("langroid==0.69.16",),
        note="`RateLimitConfig(enabled=True)`, with langroid's own 5 retries",
    ),
    Peer(
        name="inspect",
        driver="inspect_adaptive",
        installation="inspect",
        requirements=("inspect_ai==0.3.285", OPENAI),
        note="`Model.generate` with adaptive connections, which are its default (10 to 100, from 20)",
    ),
    Peer(
        name="datadesigner",
        driver="datadesigner_admission",
        installation="datadesigner",
        requirements=("data-designer-engine==0.9.6",),
        note="its client, executor and admission controller; `max_parallel_requests` is the number of callers",
    ),
    Peer(
        name="litellm",
        driver="litellm_router",
        installation="litellm",
        requirements=("litellm==1.106.2",),
        options={"retries": 20},
        settings={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        note="`Router(num_retries=20)` before one deployment, no `rpm`",
    ),
    Peer(
        name="mlflow",
        driver="mlflow_auto",
        installation="mlflow",
        requirements=(OPENAI,),
        alone=("mlflow==3.18.0",),
        note='`genai.evaluate` at its default, "auto": 40 threads, 10 requests a second at first, 20 at most',
    ),
    Peer(
        name="promptfoo",
        driver="promptfoo_eval",
        installation="promptfoo",
        node=True,
        note="`promptfoo eval -j` the number of callers, with its adaptive scheduler",
    ),
)

NAMES = tuple(peer.name for peer in PEERS)

OURS = PEERS[0]
"""The one that is held against the others."""
