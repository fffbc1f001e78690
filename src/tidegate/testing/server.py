"""Simulated provider: the endpoint of each path, and the course of each admitted call to its last byte.

A call is admitted or refused once its request is read. A task answers it, and is cancelled if its client leaves.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import itertools
import json
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tidegate.errors import ConfigurationError
from tidegate.testing.accounts import Accounts, AdmissionRecord, AdmittedCall
from tidegate.testing.admission import Call, Refusal
from tidegate.testing.batches import BatchApi
from tidegate.testing.dialects import DIALECT_TABLE, Headers, RefusalFacts, RefusalResponse, told
from tidegate.testing.formats import gemini
from tidegate.testing.formats.anthropic import BEDROCK_PREFIX, MESSAGES, bedrock_endpoint
from tidegate.testing.formats.base import (
    CHARS_PER_TOKEN,
    Body,
    SimulatedEndpoint,
    SimulatedQuestion,
    SimulatedReply,
    SimulatedStream,
    dumps,
    error_body,
    fitted,
    tokens_in,
)
from tidegate.testing.formats.openai import CHAT, EMBEDDINGS, RESPONSES
from tidegate.testing.scenario import Scenario
from tidegate.testing.specs import Fault
from tidegate.testing.wire import Connection, Request

JSON = "application/json"


class LiveCall:
    """Admitted call until its end: answered, broken by its fault, or abandoned by its client."""

    __slots__ = ("_accounts", "_admission", "_connection", "_headers", "_produced", "_reply", "_task")

    def __init__(
        self,
        accounts: Accounts,
        connection: Connection,
        admission: AdmittedCall,
        reply: SimulatedReply,
        headers: Headers,
        content: bytes | SimulatedStream,
    ) -> None:
        self._accounts = accounts
        self._connection = connection
        self._admission = admission
        self._reply = reply
        self._headers = headers
        self._produced = 0
        connection.on_lost = self._lost
        self._task = asyncio.get_running_loop().create_task(self._answer(content))

    async def _answer(self, content: bytes | SimulatedStream) -> None:
        """Answer after the latency; a whole body also after the pace of all its tokens."""
        fault, tokens = self._admission.fault, self._reply.output_tokens
        pace = self._admission.token_pace * tokens
        if delay := self._admission.latency + (pace if isinstance(content, bytes) else 0):
            await asyncio.sleep(delay)
        if fault is not None and not fault.kind.startswith("stream"):
            self._end("broken")
            if fault.kind == "drop":
                self._connection.cut()
            else:
                body = dumps(error_body("Injected error", "server_error"))
                self._connection.reply(fault.status, self._headers, body, JSON)
        elif isinstance(content, SimulatedStream):
            await self._stream(content, pace, fault)
        else:
            self._produced = tokens
            self._end("answered")
            self._connection.reply(200, self._headers, content, JSON)

    async def _stream(self, stream: SimulatedStream, pace: float, fault: Fault | None) -> None:
        """Write each piece at its share of the tokens' pace; a fault ends the stream in its middle."""
        connection, tokens, number = self._connection, self._reply.output_tokens, len(stream.pieces)
        connection.begin(200, self._headers, stream.content_type)
        if fault is None and not pace:
            self._produced = tokens
            self._end("answered")
            connection.write(stream.head + b"".join(stream.pieces) + stream.tail)
            connection.end()
            return
        connection.write(stream.head)
        for at, piece in enumerate(stream.pieces[: number if fault is None else number // 2], start=1):
            await asyncio.sleep(pace / number)
            connection.write(piece)
            self._produced = tokens * at // number
        self._end("answered" if fault is None else "broken")
        if fault is not None and fault.kind == "stream-drop":
            await asyncio.sleep(0)  # let what was written leave first
            connection.cut()
            return
        connection.write(stream.tail if fault is None else stream.broken)
        connection.end()

    def _end(self, how: str) -> None:
        self._connection.on_lost = None
        self._accounts.end(self._admission, how, self._produced)

    def _lost(self) -> None:
        self._task.cancel()
        self._end("abandoned")


ENDPOINTS: dict[str, SimulatedEndpoint] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/embeddings": EMBEDDINGS,
    "/v1/messages": MESSAGES,
    "/v1/interactions": gemini.INTERACTIONS,
    "/v1beta/interactions": gemini.INTERACTIONS,
    "/v2/chat": gemini.COHERE_CHAT,
    "/api/chat": gemini.OLLAMA_CHAT,
}

REQUEST_IDS = {"anthropic": "request-id", "bedrock": "x-amzn-requestid"}

MODELS = ("gpt-5-mini", "claude-sonnet-5", "text-embedding-3-small")

AnswerText = Callable[[str], str]


class LoggedRequest(NamedTuple):
    """Answer in the request log: `at` is in seconds since the start, `status` is 0 for a connection that was cut."""

    at: float
    method: str
    path: str
    key: str
    status: int

    def __str__(self) -> str:
        status = str(self.status) if self.status else "cut"
        return f"{self.at:9.3f}  {status:>3}  {self.method:<6} {self.path}  {self.key}"


RequestLog = Callable[[LoggedRequest], object]


class SimulatedProvider:
    """Simulated provider without its socket; it takes requests of `wire` connections.

    `answer` makes the text of an answer from the prompt (the last message of the user). By default the scenario's
    `answers` decide; a prompt that they lack gets a short echo. `log` is called for each answer.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        answer: AnswerText | None = None,
        clock: Callable[[], float] = time.monotonic,
        log: RequestLog | None = None,
    ) -> None:
        self.accounts = Accounts(scenario, clock)
        self._answer = answer
        self._numbers = itertools.count(1)
        self._log = log
        self._clock, self._began = clock, clock()
        self._batches = BatchApi(self._answer_one, lambda: self.accounts.scenario, clock)

    def on_request(self, request: Request, connection: Connection) -> None:
        """Answer a request, at once or by timers."""
        if self._log is not None:
            connection.on_status = partial(self._logged, self._log, request)
        try:
            self._dispatch(request, connection)
        except (ValueError, AttributeError, TypeError) as error:
            _send(connection, 400, error_body(str(error)))

    def _dispatch(self, request: Request, connection: Connection) -> None:
        """Answer a request; raise ValueError, AttributeError or TypeError for a body that cannot be read."""
        route = _route(request.path)
        if route is not None and request.method == "POST":
            self._infer(request, connection, route)
        elif request.path.endswith(":countTokens") and request.method == "POST":
            _send(connection, 200, gemini.count_tokens(_body(request)))
        elif request.path == "/v1/messages/count_tokens" and request.method == "POST":
            question = self._counted(MESSAGES.read({"max_tokens": 1, **_body(request)}))
            _send(connection, 200, {"input_tokens": question.input_tokens})
        elif (found := self._batches.handle(request)) is not None:
            connection.reply(found.status, found.headers, found.content, found.kind)
        elif request.path == "/v1/models" and request.method == "GET":
            _send(connection, 200, _models())
        elif request.path.startswith("/_tidegate/"):
            self._control(request, connection)
        else:
            _send(connection, 404, error_body(f"Unknown request URL: {request.method} {request.path}"))

    def _logged(self, log: RequestLog, request: Request, status: int) -> None:
        if not request.path.startswith("/_tidegate/"):
            log(LoggedRequest(self._clock() - self._began, request.method, request.path, _key(request, "", ""), status))

    def _answer_one(self, path: str, body: Body) -> tuple[int, dict[str, Any]]:
        route = _route(path)
        if route is None:
            return 400, error_body(f"The endpoint {path} cannot be used in batches")
        try:
            question = self._counted(route.endpoint.read(body))
            reply = self._reply(route.endpoint, question, str(body.get("model") or ""), self.accounts.scenario)
            return 200, route.endpoint.whole(body, reply)
        except Exception as error:  # as for a call of its own: the caller's `answer` may raise anything
            return 400, error_body(str(error))

    def _control(self, request: Request, connection: Connection) -> None:
        route = (request.method, request.path)
        if route == ("GET", "/_tidegate/truth"):
            connection.reply(200, (), self.accounts.truth().to_json(), JSON)
        elif route == ("POST", "/_tidegate/reset"):
            self.accounts.reset()
            _send(connection, 200, {})
        elif route == ("POST", "/_tidegate/configure"):
            try:
                changes = json.loads(request.body)
                outage, status = changes.pop("outage", None), changes.pop("outage_status", 503)
                self.accounts.configure(changes, outage=outage, status=status)
            except ConfigurationError as error:
                value = repr(error.value)
                _send(connection, 422, {"field": error.field, "value": value, "bound": error.bound})
            else:
                _send(connection, 200, {})
        else:
            _send(connection, 404, error_body(f"Unknown control: {request.method} {request.path}"))

    def _infer(self, request: Request, connection: Connection, route: RequestTarget) -> None:
        endpoint = route.endpoint
        body = _body(request)
        question = self._counted(endpoint.read(body))
        scenario = self.accounts.scenario
        model = route.model or str(body.get("model") or "")
        streams = endpoint.stream is not None and endpoint.streams(body)
        call = Call(question.input_tokens, max_tokens=question.max_tokens)
        verdict = self.accounts.admit(
            _key(request, model, scenario.scope),
            _row(request, body),
            call,
            stream=streams,
            owner=_key(request, model, "credential"),
        )
        dialect = route.dialect if scenario.dialect == "auto" else scenario.dialect
        headers = self._headers(verdict, dialect, scenario)
        if isinstance(verdict.outcome, Refusal):
            refusing = partial(_refuse, connection, verdict.outcome, dialect, model, scenario, headers)
            if verdict.delay:
                connection.on_lost = asyncio.get_running_loop().call_later(verdict.delay, refusing).cancel
            else:
                refusing()
            return
        try:
            reply = self._reply(endpoint, question, model, scenario)
            content: bytes | SimulatedStream
            if streams and endpoint.stream is not None:
                content = endpoint.stream(body, reply)
            else:
                content = dumps(endpoint.whole(body, reply))
        except Exception as error:  # the caller's `answer` may raise anything; its call must not stay in flight
            self.accounts.end(verdict.outcome, "broken", 0)
            _send(connection, 500, error_body(repr(error), "server_error"))
            return
        LiveCall(self.accounts, connection, verdict.outcome, reply, headers, content)

    def _counted(self, question: SimulatedQuestion) -> SimulatedQuestion:
        """Return the question with its input in tokens of this provider's models."""
        ratio = self.accounts.scenario.chars_per_token
        if ratio == CHARS_PER_TOKEN:
            return question
        tokens = max(1, math.ceil(question.input_tokens * CHARS_PER_TOKEN / ratio))
        return dataclasses.replace(question, input_tokens=tokens)

    def _reply(
        self, endpoint: SimulatedEndpoint, question: SimulatedQuestion, model: str, scenario: Scenario
    ) -> SimulatedReply:
        text = self._text(question.prompt, scenario)
        form = question.form
        if form is not None:
            text = fitted(text, form.schema)
        natural = self.accounts.output_tokens(tokens_in(len(text)))
        bound = natural if question.max_tokens is None else max(0, question.max_tokens)
        if natural > bound and scenario.output_tokens is None:
            text = text[: bound * 4]
        return SimulatedReply(
            id=f"{endpoint.dialect}-{next(self._numbers)}",
            model=model,
            text=text,
            input_tokens=question.input_tokens,
            output_tokens=min(natural, bound),
            cut_short=natural > bound,
            created=int(time.time()),
            tool=form.tool if form is not None else "",
            cached_tokens=min(scenario.cached_tokens, question.input_tokens),
        )

    def _text(self, prompt: str, scenario: Scenario) -> str:
        if self._answer is not None:
            return self._answer(prompt)
        if scenario.answers:
            found = [question for question in scenario.answers if question in prompt]
            if found:
                return scenario.answers[max(found, key=len)]
        return f"You said: {prompt[:60]}" if prompt else "Yes."

    def _headers(self, verdict: AdmissionRecord, dialect: str, scenario: Scenario) -> Headers:
        wall = time.time()
        request_id = REQUEST_IDS.get(dialect, "x-request-id")
        headers: Headers = [(request_id, f"req_{next(self._numbers):08d}")]
        if scenario.headers:
            headers += DIALECT_TABLE[dialect].headers(verdict.announced, wall, scenario.resets)
        return headers


class RequestTarget(NamedTuple):
    """Target of a path; `model` is empty where the body names it."""

    endpoint: SimulatedEndpoint
    model: str
    dialect: str


def _route(path: str) -> RequestTarget | None:
    endpoint, model, dialect = ENDPOINTS.get(path), "", ""
    if path.startswith("/openai/deployments/"):
        model, _, rest = path.removeprefix("/openai/deployments/").partition("/")
        endpoint, dialect = ENDPOINTS.get(f"/v1/{rest}"), "azure"
    elif path.startswith("/openai/v1/"):
        endpoint = ENDPOINTS.get(path.removeprefix("/openai"))
    elif path.startswith(BEDROCK_PREFIX):
        endpoint, model = bedrock_endpoint(path)
    elif endpoint is None:
        model, method = gemini.route(path)
        endpoint = gemini.METHODS.get(method)
    return RequestTarget(endpoint, model, dialect or endpoint.dialect) if endpoint is not None else None


def _body(request: Request) -> dict[str, Any]:
    body = json.loads(request.body)
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return body


def _key(request: Request, model: str, scope: str) -> str:
    headers = request.headers
    credential = headers.get("authorization") or headers.get("x-api-key") or headers.get("api-key") or ""
    credential = credential or headers.get("x-goog-api-key", "")
    if credential.startswith("AWS4-"):
        # Everything after the key's name differs with each request.
        credential = credential.partition("/")[0]
    digest = hashlib.sha256(credential.encode()).hexdigest()[:8] if credential else "anonymous"
    return {"global": "global", "model": model, "credential": digest}.get(scope, f"{model} {digest}")


def _row(request: Request, body: Body) -> str:
    row = request.headers.get("x-row") or body.get("user")
    metadata = body.get("metadata")
    if not row and isinstance(metadata, dict):
        row = metadata.get("row") or metadata.get("user_id")
    return str(row) if row else ""


def _refuse(
    connection: Connection, refusal: Refusal, dialect: str, model: str, scenario: Scenario, headers: Headers
) -> None:
    if refusal.drops:
        connection.cut()
        return
    if scenario.refusals:
        dialect, headers = scenario.refusals, []
    telling = RefusalFacts(model, told(scenario.retry_after, refusal.retry_after), scenario.prose)
    answer: RefusalResponse = DIALECT_TABLE[dialect].refuse(refusal, telling)
    rows = answer.headers if answer.status >= 500 else headers + answer.headers
    if isinstance(answer.body, str):
        connection.reply(answer.status, rows, answer.body.encode(), "text/html")
    else:
        connection.reply(answer.status, rows, dumps(answer.body), JSON)


def _models() -> dict[str, Any]:
    same = {"object": "model", "type": "model", "created": 0, "owned_by": "tidegate"}
    rows = [{"id": name, "display_name": name, "created_at": "2026-01-01T00:00:00Z", **same} for name in MODELS]
    return {"object": "list", "data": rows, "has_more": False, "first_id": MODELS[0], "last_id": MODELS[-1]}


def _send(connection: Connection, status: int, value: object) -> None:
    connection.reply(status, (), dumps(value), JSON)
