"""NeMo DataDesigner's request admission: its client, executor and controller, called as its scheduler calls them.

The scheduler itself runs columns of a data set. What it does with refused calls is done here: they are set aside, and
taken up when the others are through; refused ones again and again, those that failed otherwise twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from data_designer.engine.models.clients.adapters.http_model_client import ClientConcurrencyMode
from data_designer.engine.models.clients.adapters.openai_compatible import OpenAICompatibleClient
from data_designer.engine.models.clients.errors import ProviderError, ProviderErrorKind
from data_designer.engine.models.clients.model_request_executor import ModelRequestExecutor
from data_designer.engine.models.clients.retry import RetryConfig
from data_designer.engine.models.clients.types import ChatCompletionRequest
from data_designer.engine.models.request_admission.controller import AdaptiveRequestAdmissionController

from bench.peers.drivers.work import WARM_SECONDS, Channel, Outcome, Work

# data_designer 0.9.6, engine/dataset_builders/async_scheduler.py: PRESERVED_RETRYABLE_ERRORS, salvage_max_rounds,
# RETRYABLE_RESALVAGE_BACKOFF_S; engine/models/errors.py: RETRYABLE_MODEL_ERRORS.
PRESERVED = {ProviderErrorKind.RATE_LIMIT, ProviderErrorKind.REQUEST_ADMISSION_TIMEOUT}
SALVAGED = {ProviderErrorKind.TIMEOUT, ProviderErrorKind.INTERNAL_SERVER, ProviderErrorKind.API_CONNECTION}
SALVAGE_ROUNDS = 2
PAUSE = 0.05

# data_designer 0.9.6, engine/models/clients/factory.py: _NO_TRANSPORT_RETRY_CONFIG
NO_RETRIES = RetryConfig(max_retries=0, retryable_status_codes=frozenset())

PROVIDER = "provider"


class Peer:
    """A model behind an admission controller whose cap is the number of callers."""

    def __init__(self, work: Work) -> None:
        self.work = work
        controller = AdaptiveRequestAdmissionController()
        controller.register(
            provider_name=PROVIDER, model_id=work.model, alias=work.model, max_parallel_requests=work.callers
        )
        client = OpenAICompatibleClient(
            provider_name=PROVIDER,
            endpoint=work.base_url,
            api_key=work.api_key,
            retry_config=NO_RETRIES,
            max_parallel_requests=work.callers,
            concurrency_mode=ClientConcurrencyMode.ASYNC,
        )
        self.executor = ModelRequestExecutor(client, controller, PROVIDER, work.model)

    async def send(self, number: int) -> None:
        """One call; raises ProviderError."""
        messages = self.work.messages(self.work.prompt(number))
        request = ChatCompletionRequest(self.work.model, messages, extra_body={"user": str(number)})
        await self.executor.acompletion(request)


async def rounds(peer: Peer, outcome: Outcome) -> None:
    """All calls, and then what was set aside, until nothing is."""
    failed: dict[int, int] = {}
    todo = list(range(len(peer.work.sizes)))
    while todo:
        todo = await _round(peer, todo, failed, outcome)
        await asyncio.sleep(PAUSE if todo else 0)


async def _round(peer: Peer, numbers: Iterable[int], failed: dict[int, int], outcome: Outcome) -> list[int]:
    left, aside = iter(numbers), []

    async def caller() -> None:
        for number in left:
            try:
                await peer.send(number)
            except ProviderError as error:
                failed[number] = failed.get(number, 0) + (error.kind in SALVAGED)
                if error.kind in PRESERVED or (error.kind in SALVAGED and failed[number] <= SALVAGE_ROUNDS):
                    aside.append(number)
                else:
                    outcome.lose(type(error).__name__)
            except Exception as error:
                outcome.lose(type(error).__name__)
            else:
                outcome.ok += 1

    await asyncio.gather(*(caller() for _ in range(peer.work.callers)))
    return sorted(aside)


async def main() -> None:
    """The whole driver."""
    channel, outcome = Channel(), Outcome()
    await asyncio.wait([asyncio.create_task(Peer(channel.work.trial).send(0))], timeout=WARM_SECONDS)
    peer = Peer(channel.work)
    channel.wait()
    with outcome.measured(channel.work):
        await asyncio.wait([asyncio.create_task(rounds(peer, outcome))], timeout=channel.work.deadline)
    channel.tell(outcome)


if __name__ == "__main__":
    asyncio.run(main())
