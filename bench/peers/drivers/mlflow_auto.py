"""MLflow's `genai.evaluate` at its default rate limit, "auto": its limiter, its retries and a pool of its size.

`rate_limiter.py` is loaded by itself; the constants around it are those of `harness.py`.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor, as_completed

import openai

from bench.peers.drivers.modules import alone
from bench.peers.drivers.sdk import request
from bench.peers.drivers.work import Channel, Outcome, Work

limiting = alone("mlflow", "mlflow/genai/evaluation/rate_limiter.py")

# mlflow 3.18.0, genai/evaluation/harness.py: AUTO_INITIAL_RPS, _AIMD_UPPER_MULTIPLIER, _pool_size;
# environment_variables.py: MLFLOW_GENAI_EVAL_MAX_RETRIES
INITIAL_RPS = 10.0
UPPER_MULTIPLIER = 2.0
POOL = 40
RETRIES = 3


class Peer:
    """A client behind the limiter, for any number of threads."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.limiter = limiting.RPSRateLimiter(INITIAL_RPS, adaptive=True, max_rps_multiplier=UPPER_MULTIPLIER)
        self.client = openai.OpenAI(base_url=work.base_url, api_key=work.api_key)

    def send(self, number: int) -> object:
        """One call, with the SDK's own two retries: MLflow switches off LiteLLM's alone."""
        arguments = request(self.work, number, self.work.prompt(number))
        answer: object = limiting.call_with_retry(
            lambda: self.client.chat.completions.create(**arguments), self.limiter, RETRIES
        )
        return answer


def main() -> None:
    """The whole driver."""
    channel, outcome = Channel(), Outcome()
    with contextlib.suppress(openai.OpenAIError):
        Peer(channel.work.trial).send(0)
    peer = Peer(channel.work)
    channel.wait()
    with outcome.measured(channel.work), contextlib.suppress(TimeoutError):
        pool = ThreadPoolExecutor(POOL)
        calls = [pool.submit(peer.send, number) for number in range(len(channel.work.sizes))]
        for done in as_completed(calls, timeout=channel.work.deadline):
            error = done.exception()
            if error is None:
                outcome.ok += 1
            else:
                outcome.lose(type(error).__name__)
    channel.tell(outcome)


if __name__ == "__main__":
    main()
