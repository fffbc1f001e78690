"""Simulated LLM provider with real limiters and the ground truth, for tests, benchmarks and demonstrations.

    from tidegate.testing import Limit, Scenario, Simulator

    scenario = Scenario(limiters=(Limit(limit=600),), dialect="openai")
    with Simulator(scenario) as provider:
        client = openai.OpenAI(base_url=provider.openai_url, api_key="any")
        ...
        provider.truth().total.refused            # {} if no call exceeded the limit

It serves OpenAI's chat completions, responses and embeddings (also under Azure's paths), Anthropic's messages, and
Bedrock's converse and invoke, plain and streamed. It also serves Gemini and the chats of Cohere and Ollama. It answers
over HTTP on this machine only. `SimulatorProcess` is the same in a separate process. `ideal_makespan` returns the
earliest finish of a client that knows every limit.
"""

from __future__ import annotations

from tidegate.testing.accounts import Counts, Truth
from tidegate.testing.admission import Call, Gate, Pricing, Refusal, Ticket
from tidegate.testing.bucket import ContinuousBucket, Refill, ResizedBucket, Slope
from tidegate.testing.limiters import (
    Credit,
    DayQuota,
    FixedWindow,
    Level,
    Limiter,
    Outage,
    Reason,
    RollingWindow,
    Slots,
)
from tidegate.testing.oracle import Schedule, VirtualClock, ideal_makespan, ideal_schedule
from tidegate.testing.scenario import Scenario
from tidegate.testing.simulator import Simulator, SimulatorProcess, serve
from tidegate.testing.specs import Distribution, Fault, Limit, OutageSpan

__all__ = [
    "Call",
    "ContinuousBucket",
    "Counts",
    "Credit",
    "DayQuota",
    "Distribution",
    "Fault",
    "FixedWindow",
    "Gate",
    "Level",
    "Limit",
    "Limiter",
    "Outage",
    "OutageSpan",
    "Pricing",
    "Reason",
    "Refill",
    "Refusal",
    "ResizedBucket",
    "RollingWindow",
    "Scenario",
    "Schedule",
    "Simulator",
    "SimulatorProcess",
    "Slope",
    "Slots",
    "Ticket",
    "Truth",
    "VirtualClock",
    "ideal_makespan",
    "ideal_schedule",
    "serve",
]
