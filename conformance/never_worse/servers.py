"""The servers of the programs: situations from public reports, as handlers that count and answer.

Each function returns a new handler. A server knows nothing of tidegate, and says only what the reported one said.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import random
import re
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

from conformance.never_worse.stub import Handler, Headers, Reply, Request, answer_to, claude

HTML = (
    b"<html>\r\n<head><title>%d %s</title></head>\r\n<body><center><h1>%d %s</h1></center><hr>nginx</body></html>\r\n"
)


EMPTY: Headers = {}


class Bucket:
    """Token bucket of a server; `take` returns 0, or the seconds until there is room."""

    def __init__(self, per_second: float, burst: float) -> None:
        self.per_second, self.burst, self.level, self._at = per_second, burst, burst, time.monotonic()

    def take(self, amount: float = 1.0) -> float:
        """Take an amount if there is room."""
        now = time.monotonic()
        self.level = min(self.burst, self.level + (now - self._at) * self.per_second)
        self._at = now
        if self.level >= amount:
            self.level -= amount
            return 0.0
        return (amount - self.level) / self.per_second


def page(status: int, reason: str) -> Reply:
    """Return an intermediary's page."""
    return Reply(status, {"content-type": "text/html"}, HTML % (status, reason.encode(), status, reason.encode()))


def error(status: int, message: str, code: str | None = None, kind: str = "server_error", **headers: str) -> Reply:
    """Return an error of OpenAI's form."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(status, given, {"error": {"message": message, "type": kind, "code": code}})


def calm(latency: float = 0.1) -> Handler:
    """Answer everything."""

    async def handle(request: Request) -> Reply:
        await asyncio.sleep(latency)
        return Reply(body=answer_to(request))

    return handle


def bucket(
    refusal: Callable[[float, Bucket], Reply],
    announced: bool = False,
    per_second: float = 4.0,
    burst: float = 6.0,
    latency: float = 0.1,
    headers: Headers = EMPTY,
) -> Handler:
    """Refuse beyond a token bucket; `refusal` gets the seconds until there is room, and `headers` are of answers."""
    room = Bucket(per_second, burst)

    async def handle(request: Request) -> Reply:
        await asyncio.sleep(latency)
        wait = room.take()
        if wait:
            return refusal(wait, room)
        return Reply(200, _announced(room, per_second) if announced else headers, answer_to(request))

    return handle


def _announced(room: Bucket, per_second: float) -> Headers:
    return {
        "x-ratelimit-limit-requests": f"{60 * per_second:.0f}",
        "x-ratelimit-remaining-requests": f"{room.level:.0f}",
        "x-ratelimit-reset-requests": f"{(room.burst - room.level) / per_second:.3f}s",
    }


def limited(wait: float, room: Bucket) -> Reply:
    """Return OpenAI's 429, with its headers."""
    text = f"Rate limit reached for m on requests per min (RPM). Please try again in {wait:.2f}s."
    reply = error(429, text, "rate_limit_exceeded", "requests", retry_after=f"{wait:.0f}")
    return reply._replace(headers={**reply.headers, **_announced(room, room.per_second)})


def bare(wait: float, room: Bucket) -> Reply:
    """Return a 429 that says nothing."""
    return Reply(429, {}, {"error": "Too Many Requests"})


def hint(form: str) -> Callable[[float, Bucket], Reply]:
    """Return 429s whose `retry-after` has an odd form; the clock of a server may be an hour ahead or behind."""
    clock = {"ahead": 3600.0, "behind": -3600.0}.get(form, 0.0)
    forms: dict[str, Callable[[float], str]] = {
        "zero": lambda wait: "0",
        "past": lambda wait: "Wed, 21 Oct 2015 07:28:00 GMT",
        "junk": lambda wait: "soon",
        "float": lambda wait: f"{wait:.3f}",
        "negative": lambda wait: "-1",
        "year-9999": lambda wait: "Fri, 31 Dec 9999 23:59:59 GMT",
    }

    def refusal(wait: float, room: Bucket) -> Reply:
        now = time.time() + clock
        told = forms[form](wait) if form in forms else formatdate(now + 2.0, usegmt=True)
        given = {"retry_after": told, "date": formatdate(now, usegmt=True)}
        return error(429, "Rate limit exceeded", "rate_limit_exceeded", **given)

    return refusal


def nginx(wait: float, room: Bucket) -> Reply:
    """Return what nginx's `limit_req` says unless it is told otherwise."""
    return page(503, "Service Temporarily Unavailable")


def empty(wait: float, room: Bucket) -> Reply:
    """Return a 503 without a body."""
    return Reply(503, {}, b"")


def gateway_error(wait: float, room: Bucket) -> Reply:
    """Return a proxy's 502."""
    return page(502, "Bad Gateway")


def azure(words: str) -> Callable[[float, Bucket], Reply]:
    """Return Azure's 429s without `retry-after`; the body may say a time."""
    return lambda wait, room: Reply(429, MINUS_ONE, {"error": {"code": "429", "message": words}})


MINUS_ONE = {
    "x-ratelimit-limit-tokens": "-1",
    "x-ratelimit-remaining-tokens": "-1",
    "x-ratelimit-reset-tokens": "0",
    "x-ratelimit-limit-requests": "-1",
    "x-ratelimit-remaining-requests": "-1",
}
"""Headers of an Azure deployment that announces nothing."""

CLAUDE_AMPLE = {
    "anthropic-ratelimit-requests-limit": "1000",
    "anthropic-ratelimit-requests-remaining": "990",
    "anthropic-ratelimit-tokens-limit": "100000",
    "anthropic-ratelimit-tokens-remaining": "99000",
}
"""Headers of an Anthropic account far from its quotas."""


def slots(number: int, refusal: Reply, latency: float = 0.5, headers: Headers = EMPTY) -> Handler:
    """Refuse more than `number` requests at a time; `headers` are of all answers."""
    busy = 0

    async def handle(request: Request) -> Reply:
        nonlocal busy
        if busy >= number:
            return refusal._replace(headers={**refusal.headers, **headers})
        busy += 1
        try:
            await asyncio.sleep(latency)
        finally:
            busy -= 1
        return Reply(200, headers, answer_to(request))

    return handle


def line(places: int, workers: int, refusal: Reply, latency: float = 0.05) -> Handler:
    """Let requests wait for one of the workers, and refuse more than `places` of them."""
    waiting = 0
    free = asyncio.Semaphore(workers)

    async def handle(request: Request) -> Reply:
        nonlocal waiting
        if waiting >= places:
            return refusal
        waiting += 1
        async with free:
            waiting -= 1
            await asyncio.sleep(latency)
        return Reply(body=answer_to(request))

    return handle


def one_key() -> Handler:
    """Answer Azure's key `good` and bearer tokens in force, and reject the others."""

    async def handle(request: Request) -> Reply:
        await asyncio.sleep(0.05)
        if request.headers.get("api-key") == "good" or expires(request) > time.time():
            return Reply(body=answer_to(request))
        if "authorization" in request.headers:
            return error(401, "Provided authentication token is expired.", "token_expired", "authentication_error")
        return Reply(401, {}, {"error": {"code": "401", "message": "Access denied due to invalid subscription key."}})

    return handle


def resets(number: int, latency: float = 0.5) -> Handler:
    """Reset the connections of more than `number` requests at a time."""
    inner = slots(number, Reply(0), latency)

    async def handle(request: Request) -> Reply | None:
        reply = await inner(request)
        if reply is not None and not reply.status:
            request.writer.transport.abort()
            return None
        return reply

    return handle


def random_failures(share: float, failure: Reply, seed: int = 7, latency: float = 0.2) -> Handler:
    """Fail at random, with ample announced quotas."""
    draw = random.Random(seed)
    ample = {
        "x-ratelimit-limit-requests": "10000",
        "x-ratelimit-remaining-requests": "9990",
        "x-ratelimit-reset-requests": "60ms",
        "anthropic-ratelimit-requests-limit": "10000",
        "anthropic-ratelimit-requests-remaining": "9990",
    }

    async def handle(request: Request) -> Reply:
        await asyncio.sleep(latency * draw.lognormvariate(0.0, 0.3))
        if draw.random() < share:
            return failure._replace(headers={**failure.headers, **ample})
        return Reply(200, ample, answer_to(request))

    return handle


OVERLOADED = error(503, "The server is overloaded or not ready yet.")
ANTHROPIC_OVERLOADED = Reply(529, {}, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
FAILED = error(500, "The server had an error while processing your request.")


def named(reply: Reply, seconds: int = 1) -> Reply:
    """Return a reply that names the time of the next attempt, too."""
    return reply._replace(headers={**reply.headers, "retry-after": str(seconds)})


def loading(seconds: float, body: Any) -> Handler:
    """Say that the model is loading, for a while."""

    async def handle(request: Request) -> Reply:
        if request.at < seconds:
            left = round(seconds - request.at, 1)
            return Reply(503, {}, {**body, **({"estimated_time": left} if "error" in body else {})})
        await asyncio.sleep(0.2)
        return Reply(body=answer_to(request))

    return handle


def always(reply: Reply) -> Handler:
    """Give one answer to everything."""

    async def handle(request: Request) -> Reply:
        await asyncio.sleep(0.1)
        return reply

    return handle


def first(answered: int, reply: Reply, latency: float = 0.1) -> Handler:
    """Answer so many requests, and give `reply` to all others."""

    async def handle(request: Request) -> Reply:
        await asyncio.sleep(latency)
        return Reply(body=answer_to(request)) if request.number <= answered else reply

    return handle


def one_in_ten(reply: Reply, latency: float = 0.1) -> Handler:
    """Give `reply` to each request that has the word POISON in it, and a good answer to the others."""

    async def handle(request: Request) -> Reply:
        await asyncio.sleep(latency)
        return reply if b"POISON" in request.body else Reply(body=answer_to(request))

    return handle


def early(reply: Reply, rows: int) -> Handler:
    """Act as `one_in_ten` for the first rows, and answer the others: these tell a bad request from a limit."""
    refuse, accept = one_in_ten(reply), calm()

    async def handle(request: Request) -> Reply | None:
        found = re.search(rb"POISON q(\d+)", request.body)
        return await (refuse if found is not None and int(found[1]) < rows else accept)(request)

    return handle


def token(life: float) -> str:
    """Return a token in the form of a JWT that ends in `life` seconds."""
    now = time.time()
    parts = ({"alg": "none", "typ": "JWT"}, {"sub": "app", "iat": now, "exp": now + life})
    return ".".join(
        [*(base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=").decode() for each in parts), "s"]
    )


def expires(request: Request) -> float:
    """Return when the token of a request ends, in seconds since 1970; 0 for no token."""
    try:
        part = request.headers["authorization"].split(".")[1]
        ends: float = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"]
    except (KeyError, IndexError, ValueError):
        return 0.0
    return ends


def ageing(inner: Handler) -> Handler:
    """Answer tokens that have ended with a 401."""

    async def handle(request: Request) -> Reply | None:
        if expires(request) < time.time():
            return error(401, "Provided authentication token is expired.", "token_expired", "authentication_error")
        return await inner(request)

    return handle


def odd_answers(kind: str) -> Handler:
    """Answer two in three rows with an HTTP 200 that holds no answer: an error, or nothing."""
    room = Bucket(4.0, 6.0)

    async def handle(request: Request) -> Reply:
        await asyncio.sleep(0.1)
        if not room.take():
            return Reply(body=answer_to(request))
        if kind == "empty":
            return Reply(200, {}, b"")
        if kind == "minimax":
            return Reply(200, {}, {"base_resp": {"status_code": 1002, "status_msg": "rate limit exceeded(RPM)"}})
        said = {"error": {"message": "Rate limit exceeded: free-models-per-min.", "code": 429}, "user_id": "u"}
        return Reply(200, {}, said)

    return handle


def stream(fails: bool) -> Handler:
    """Stream Anthropic's events; where it `fails`, each third stream ends in an error event."""

    async def handle(request: Request) -> Reply | None:
        def event(kind: str, data: Any) -> bytes:
            return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()

        message = {**claude(), "content": [], "stop_reason": None}
        events = [
            event("message_start", {"message": message}),
            event("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
            event("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "part"}}),
        ]
        if fails and request.number % 3 == 0:
            events += [event("error", {"error": {"type": "overloaded_error", "message": "Overloaded"}})]
        else:
            delta = {"stop_reason": "end_turn", "stop_sequence": None}
            events += [
                event("content_block_stop", {"index": 0}),
                event("message_delta", {"delta": delta, "usage": {"output_tokens": 5}}),
                event("message_stop", {}),
            ]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
        request.writer.write(head)
        for each in events:
            request.writer.write(each)
            await request.writer.drain()
            await asyncio.sleep(0.05)
        return None

    return handle


def chunks(number: int, refusals: int) -> Handler:
    """Stream so many chunks of OpenAI's form; refuse the third, sixth ... of the other requests, until `refusals`."""
    others = refused = 0

    async def handle(request: Request) -> Reply | None:
        nonlocal others, refused
        if b'"stream":true' not in request.body.replace(b" ", b""):
            others += 1
            if others % 3 == 0 and refused < refusals:
                refused += 1
                return error(429, "Rate limit reached", "rate_limit_exceeded", "requests")
            return Reply(body=answer_to(request))
        request.writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        choice = {"index": 0, "delta": {"content": "part "}, "finish_reason": None}
        for _ in range(number):
            request.writer.write(b"data: %s\n\n" % json.dumps({**chunk, "choices": [choice]}).encode())
            await request.writer.drain()
            await asyncio.sleep(0.02)
        request.writer.write(b"data: [DONE]\n\n")
        return None

    return handle


def once(refusal: Reply) -> Handler:
    """Refuse the first request of each path."""
    seen: set[str] = set()

    async def handle(request: Request) -> Reply:
        if request.path not in seen:
            seen.add(request.path)
            return refusal
        return Reply(body=answer_to(request))

    return handle


def never_fits() -> Handler:
    """Refuse a request that asks for more tokens than the account has in a minute, with the words of any refusal."""
    room = Bucket(20000 / 60, 20000)

    async def handle(request: Request) -> Reply:
        await asyncio.sleep(0.2)
        need = 100 + json.loads(request.body or b"{}").get("inferenceConfig", {}).get("maxTokens", 400)
        if need > room.burst or room.take(need):
            said = {"message": "Too many tokens, please wait before trying again."}
            return Reply(429, {"x-amzn-errortype": "ThrottlingException"}, said)
        return Reply(body=answer_to(request))

    return handle


def paused(answered: int, seconds: float) -> Handler:
    """Answer so many requests, refuse all others for `seconds` from then on, and name that time.

    A pause that began at an instant would miss a program that ends before it.
    """
    ends = math.inf

    async def handle(request: Request) -> Reply:
        nonlocal ends
        await asyncio.sleep(0.1)
        if request.number <= answered or request.at >= ends:
            return Reply(body=answer_to(request))
        if ends == math.inf:
            ends = request.at + seconds
        return error(429, "Rate limit reached", "rate_limit_exceeded", retry_after=str(math.ceil(ends - request.at)))

    return handle
