"""Task of an experiment whose rows a provider's Batch API answers, and the rows of one batch."""

from __future__ import annotations

import hashlib
import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tidegate.errors import ConfigurationError, require
from tidegate.experiments.engine.fingerprint import fingerprint
from tidegate.experiments.engine.queues import Place
from tidegate.pool.threads import in_thread

ItemRanges = tuple[tuple[int, int, int], ...]
"""Items of a batch as (repetition, first ordinal, end ordinal)."""


class BatchTask:
    """Task of an experiment with `batch=True`: the provider's Batch API answers its rows.

    `build(row)` returns the body of one request, and `parse(body)` the output for the body of its answer; both are
    plain functions. `client` is a client of the `openai` or `anthropic` SDK, or a function that returns one. `endpoint`
    is that of an OpenAI batch. A batch has at most `max_requests`, and never more than the provider allows. Without
    `batch=True`, each row is one call through the same client. An invalid argument raises `ConfigurationError`.
    """

    def __init__(
        self,
        build: Callable[[Any], Mapping[str, Any]],
        parse: Callable[[Any], Any],
        *,
        client: Any,
        endpoint: str = "/v1/chat/completions",
        max_requests: int | None = None,
    ) -> None:
        for field, function in (("build", build), ("parse", parse)):
            plain = callable(function) and not inspect.iscoroutinefunction(function)
            require(plain, field, function, "a plain function of one argument")
        require(client is not None, "client", client, "a client of the openai or anthropic SDK")
        require(isinstance(endpoint, str) and endpoint.startswith("/"), "endpoint", endpoint, "a path such as /v1/…")
        whole = max_requests is None or (isinstance(max_requests, int) and max_requests >= 1)
        require(whole and not isinstance(max_requests, bool), "max_requests", max_requests, "1 or more")
        self.build = build
        self.parse = parse
        self.endpoint = endpoint
        self.max_requests = max_requests
        self.__name__ = getattr(build, "__name__", type(build).__name__)
        self._client = client

    @property
    def client(self) -> Any:
        """Return the client of the SDK."""
        return self._client() if inspect.isroutine(self._client) else self._client

    @property
    def fingerprint(self) -> str | None:
        """Return the fingerprint of both functions; None where that of one is unknown."""
        parts = [fingerprint(self.build), fingerprint(self.parse)]
        return None if None in parts else "-".join(str(part) for part in parts)

    def body(self, row: Any) -> dict[str, Any]:
        """Return the body of a row's request. Raise `ConfigurationError` if `build` returns no mapping."""
        body = self.build(row)
        if not isinstance(body, Mapping):
            raise ConfigurationError("build", type(body).__name__, "it returns the body of a request, a mapping")
        return dict(body)

    async def __call__(self, row: Any) -> Any:
        """Return the output of a row by a call of its own."""
        client = self.client
        path = "/v1/messages" if hasattr(client, "messages") else self.endpoint.removeprefix("/v1")
        answer = await called(client.post, path, body=self.body(row), cast_to=object)
        return self.parse(answer)


async def called(method: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """Return the result of an SDK's method: of an asynchronous client in this loop, of another one in a thread."""
    if inspect.iscoroutinefunction(inspect.unwrap(method)):
        return await method(*args, **given)
    result = await in_thread(lambda: method(*args, **given))
    return await result if inspect.isawaitable(result) else result


def custom_id(experiment: str, tag: str, place: Place) -> str:
    """Return the id of a request: no other experiment and no other attempt at the same row has it.

    `tag` is the random tag of the batch, which is one attempt at each of its rows. Source: providers allow
    `[a-zA-Z0-9_-]{1,64}` (Anthropic's Messages Batches reference).
    """
    told = "\n".join((experiment, tag, str(place.ordinal), str(place.repetition)))
    return f"tg-{hashlib.sha256(told.encode()).hexdigest()[:32]}"


class ItemSet:
    """Items of a batch; the stored form is `ranges`."""

    def __init__(self, ranges: Iterable[tuple[int, int, int]] = ()) -> None:
        self._ranges: dict[int, list[list[int]]] = {}
        for repetition, first, end in sorted(ranges):
            self._ranges.setdefault(repetition, []).append([first, end])

    @property
    def ranges(self) -> ItemRanges:
        """Return the items as (repetition, first ordinal, end ordinal)."""
        return tuple((repetition, first, end) for repetition in sorted(self._ranges)
                     for first, end in self._ranges[repetition])  # fmt: skip

    @property
    def first(self) -> int:
        return min(ranges[0][0] for ranges in self._ranges.values())

    @property
    def end(self) -> int:
        return max(ranges[-1][1] for ranges in self._ranges.values())

    def add(self, place: Place) -> None:
        ranges = self._ranges.setdefault(place.repetition, [])
        if ranges and ranges[-1][1] == place.ordinal:
            ranges[-1][1] += 1
        else:
            ranges.append([place.ordinal, place.ordinal + 1])

    def __contains__(self, place: Place) -> bool:
        ranges = self._ranges.get(place.repetition, [])
        at = bisect_right(ranges, [place.ordinal + 1]) - 1
        return at >= 0 and ranges[at][0] <= place.ordinal < ranges[at][1]

    def __iter__(self) -> Iterator[Place]:
        for repetition, first, end in self.ranges:
            for ordinal in range(first, end):
                yield Place(ordinal, repetition)

    def __len__(self) -> int:
        return sum(end - first for _, first, end in self.ranges)
