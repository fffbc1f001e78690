"""Routes of the experiments view. The database library is imported by the first request, not with this module."""

from __future__ import annotations

import contextlib
import io
import json
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tidegate.errors import StoreError
from tidegate.experiments.screens.source import ExperimentComparisons, ExperimentSource, SourceProblem
from tidegate.server.app import RouteTable

if TYPE_CHECKING:
    from tidegate.experiments.storage import ExperimentRow, Store
    from tidegate.experiments.storage.row_pages import RowFilter
    from tidegate.experiments.storage.tally import StageTally

PAGE_ITEMS = 100
"""Experiments, or rows, of one page. Chosen: a screen shows about 30."""

MEDIA_TYPES = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8", "parquet": "application/octet-stream"}

Answer = Callable[[Request], Awaitable[Response]]


def experiment_routes(url: str, source: ExperimentSource | None = None) -> RouteTable:
    """Return the routes of the experiments in the database at `url`; nothing is opened before the first request."""
    view = ExperimentView(source or ExperimentSource(url))
    number = "/api/experiments/{number:int}"

    @contextlib.asynccontextmanager
    async def work() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await view.comparisons.close()
            await view.source.close()

    return RouteTable(
        [
            Route("/api/experiments", _guarded(view.listed)),
            Route("/api/experiments/compare", _guarded(view.compared)),
            Route("/api/experiments/compare", _guarded(view.compared_again), methods=["POST"]),
            Route(number, _guarded(view.shown)),
            Route(f"{number}/rows", _guarded(view.rows)),
            Route(f"{number}/rows/{{ordinal:int}}/{{repetition:int}}", _guarded(view.row)),
            Route(f"{number}/export", _guarded(view.export)),
            Route(f"{number}/stop", _guarded(view.stop), methods=["POST"]),
            Route(f"{number}/resume", _guarded(view.resume), methods=["POST"]),
        ],
        work,
    )


class ExperimentView:
    """Answers to the requests for experiments."""

    def __init__(self, source: ExperimentSource) -> None:
        self.source = source
        self.comparisons = ExperimentComparisons()

    async def listed(self, request: Request) -> Response:
        before = _number(request, "before")
        store = await self.source.store()
        from tidegate.experiments.screens import answers

        rows = await store.experiments.page(before, PAGE_ITEMS + 1)
        numbers = [row.id for row in rows[:PAGE_ITEMS]]
        tallies, spends = await store.tallies.of(numbers), await store.usages.spends(numbers)
        active = await store.experiments.last_activities(numbers)
        found = [
            {
                **answers.summary(row, tallies[row.id], spends[row.id], self.source),
                "active": active.get(row.id, row.created_on).timestamp(),
            }
            for row in rows[:PAGE_ITEMS]
        ]
        return _json({"experiments": found, "more": len(rows) > PAGE_ITEMS})

    async def shown(self, request: Request) -> Response:
        store, row = await self._found(request)
        from tidegate.experiments.screens import answers

        stages = (await store.tallies.of([row.id]))[row.id]
        return _json(await answers.details(store, row, stages, self.source))

    async def compared(self, request: Request) -> Response:
        """Return the comparison of two experiments, or for how long it has been computed."""
        a, b = _number(request, "a"), _number(request, "b")
        if a is None or b is None or a == b:
            raise SourceProblem("a and b not usable: they must be the numbers of two experiments", status=400)
        store = await self.source.store()
        sides = await self._numbered(store, a), await self._numbered(store, b)
        from tidegate.experiments.screens import answers

        tallies, spends = await store.tallies.of([a, b]), await store.usages.spends([a, b])
        told = {
            name: answers.summary(row, tallies[row.id], spends[row.id], self.source)
            for name, row in zip("ab", sides, strict=True)
        }
        progress = tuple((row.id, row.rows, _counted(tallies[row.id])) for row in sides)
        return _json({**told, **self.comparisons.of(store, sides, progress)})

    async def compared_again(self, request: Request) -> Response:
        a, b = _number(request, "a"), _number(request, "b")
        if a is not None and b is not None:
            self.comparisons.forget((a, b))
        return await self.compared(request)

    async def rows(self, request: Request) -> Response:
        wanted = _filter(request)
        after, before = _cursor(request, "after"), _cursor(request, "before")
        store, row = await self._found(request)
        from tidegate.experiments.screens import answers
        from tidegate.experiments.storage.row_pages import row_page

        found = await row_page(store.database, row.id, wanted, after=after, before=before, limit=PAGE_ITEMS)
        return _json(answers.page(found))

    async def row(self, request: Request) -> Response:
        store, row = await self._found(request)
        place = request.path_params
        run = await store.reports.result(row.id, place["ordinal"], place["repetition"]) if _is_place(place) else None
        if run is None:
            return _json({"problem": "row not found: it has no result"}, 404)
        from tidegate.experiments.screens import answers

        return _json(await answers.one_row(store, row.id, run))

    async def export(self, request: Request) -> Response:
        form = request.query_params.get("format", "jsonl")
        if form not in MEDIA_TYPES:
            raise SourceProblem(f"format not usable: it must be {', '.join(MEDIA_TYPES)}", status=400)
        store, row = await self._found(request)
        from tidegate.errors import ConfigurationError
        from tidegate.experiments.storage.export_formats import FORMATS, layout_of, pages

        read = pages(store, row.id)
        first: list[Any] = await anext(read, [])
        buffer = io.BytesIO()
        try:
            writer = FORMATS[form](buffer, await layout_of(store, row.id, first))
        except ConfigurationError as error:
            return _json({"problem": str(error)}, 400)

        async def written() -> AsyncIterator[bytes]:
            writer.write(first)
            yield _taken(buffer)
            async for page in read:
                writer.write(page)
                yield _taken(buffer)
            writer.close()
            yield _taken(buffer)

        named = {"content-disposition": f'attachment; filename="experiment-{row.id}.{form}"'}
        return StreamingResponse(written(), media_type=MEDIA_TYPES[form], headers=named)

    async def stop(self, request: Request) -> Response:
        store, row = await self._found(request)
        from tidegate.experiments.engine.replica import actor

        toggled = await store.claims.stop(row.id, actor())
        return _json({"result": toggled.value, "cooling": await _cooling(store, row)})

    async def resume(self, request: Request) -> Response:
        """Start a process that resumes an experiment, with nothing from the request but the experiment's number."""
        _, row = await self._found(request)
        from tidegate.experiments.engine.replica import is_dead
        from tidegate.experiments.screens import answers
        from tidegate.experiments.storage import Status, Toggle

        told: dict[str, Any] = {"command": answers.command("run", row.name, self.source.url)}
        started = self.source.started.get(row.id)
        if started is not None and started.code is None:
            return _json({**told, "result": Toggle.ALREADY.value, "pid": started.process.pid})
        if row.status is Status.RUNNING and not is_dead(row.claimed_by):
            return _json({**told, "result": Toggle.ALREADY.value})
        if row.cooling > 0.0:
            return _json({**told, "result": Toggle.COOLING.value, "cooling": row.cooling})
        started = self.source.resume(row.id, row.name)
        return _json({**told, "result": Toggle.DONE.value, "pid": started.process.pid})

    async def _found(self, request: Request) -> tuple[Store, ExperimentRow]:
        number = request.path_params["number"]
        store = await self.source.store()
        return store, await self._numbered(store, number)

    async def _numbered(self, store: Store, number: int) -> ExperimentRow:
        row = await store.experiments.find(number) if number < 2**63 else None
        if row is None:
            raise SourceProblem(f"experiment {number} not found: it may have been deleted")
        return row


def _guarded(answer: Answer) -> Answer:

    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except SourceProblem as problem:
            return _json({"problem": str(problem), "missing": problem.missing}, problem.status)
        except StoreError as error:
            return _json({"problem": str(error), "missing": False})

    return guarded


def _json(values: dict[str, Any], status: int = 200) -> Response:
    # Escaped: a lone surrogate of a stored text has no bytes in UTF-8.
    body = json.dumps({**values, "as_of": time.time()}, separators=(",", ":"))
    return Response(body, status, media_type=JSONResponse.media_type)


def _counted(stages: Mapping[str, StageTally]) -> Hashable:
    return tuple((name, *sorted(tally.counts.items())) for name, tally in sorted(stages.items()))


async def _cooling(store: Store, row: ExperimentRow) -> float:
    now = await store.experiments.find(row.id)
    return now.cooling if now is not None else 0.0


def _taken(buffer: io.BytesIO) -> bytes:
    taken = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return taken


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise SourceProblem(f"{name} not usable: it must be a number", status=400)
    return int(text)


def _cursor(request: Request, name: str) -> tuple[int, int] | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    parts = text.split(".")
    if len(parts) != 2 or not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise SourceProblem(f"{name} not usable: it must be ORDINAL.REPETITION", status=400)
    return int(parts[0]), int(parts[1])


def _is_place(place: dict[str, int]) -> bool:
    return place["ordinal"] < 2**31 and 0 < place["repetition"] < 2**31


def _filter(request: Request) -> RowFilter:
    from tidegate.experiments.storage import ResultStatus
    from tidegate.experiments.storage.row_pages import RowFilter

    given = request.query_params
    statuses = {"failed": ResultStatus.ERROR, "parked": ResultStatus.PARKED, "invalid": ResultStatus.INVALID}
    status = given.get("status")
    if status is not None and status not in statuses:
        raise SourceProblem(f"status not usable: it must be {', '.join(statuses)}", status=400)
    evaluator = given.get("evaluator")
    if evaluator is None and any(name in given for name in ("label", "low", "high")):
        raise SourceProblem("filter not usable: a label or a score needs its evaluator", status=400)
    if evaluator is not None and given.get("text"):
        raise SourceProblem("filter not usable: choose a text or a judgement", status=400)
    return RowFilter(
        statuses[status] if status is not None else None,
        evaluator,
        given.get("output"),
        given.get("label"),
        _score(request, "low"),
        _score(request, "high"),
        given.get("text") or None,
    )


def _score(request: Request, name: str) -> float | None:
    text = request.query_params.get(name)
    try:
        score = None if text is None else float(text)
    except ValueError:
        score = math.nan
    if score is not None and not math.isfinite(score):
        raise SourceProblem(f"{name} not usable: it must be a number", status=400)
    return score
