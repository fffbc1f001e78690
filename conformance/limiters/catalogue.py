"""The rows: a limiter with its configuration, the calls that meet it, the ideal and the bars."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.limiters import ideals, servers
from conformance.limiters.ideals import Ideal, ideal_seconds
from conformance.limiters.judging import ANNOUNCED, BLOCKING, SILENT, Bars
from conformance.limiters.servers import Limiter, haproxy, litellm, nginx, node, uvicorn


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One limiter.

    name     on the command line and in the table
    rule     in words, for the page
    limiter  prepares its processes
    calls    sent at once
    ideal    the schedule of a client that knows the rule
    bars     that the run with tidegate must hold
    period   seconds, where the limiter counts by the clock: calls begin `offset` seconds after a multiple; 0 for none
    short    whether the row is part of the short form
    """

    name: str
    rule: str
    limiter: Limiter
    calls: int
    ideal: Ideal
    bars: Bars = SILENT
    period: float = 0.0
    offset: float = 0.0
    short: bool = False

    @property
    def ideal_seconds(self) -> float:
        """Return the time of a client that knows the rule."""
        return ideal_seconds(self.ideal, self.calls)


KEYED = "limit_req_zone $http_authorization zone=calls:1m rate="
CONNECTIONS = "limit_conn_zone $http_authorization zone=open:1m;"

ROWS: tuple[Row, ...] = (
    Row(
        name="nginx-nodelay",
        rule="10 a second, burst of 20 without delay; 429",
        limiter=nginx("limit_req zone=calls burst=20 nodelay; limit_req_status 429;", f"{KEYED}10r/s;"),
        calls=200,
        ideal=ideals.bucket(10.0, 21),
        short=True,
    ),
    Row(
        name="nginx-delay",
        rule="300 a minute, burst of 5 that is delayed; 429",
        limiter=nginx("limit_req zone=calls burst=5; limit_req_status 429;", f"{KEYED}300r/m;"),
        calls=120,
        ideal=ideals.bucket(5.0, 1),
    ),
    Row(
        name="nginx-conn",
        rule="8 in flight; 503",
        limiter=nginx("limit_conn open 8;", CONNECTIONS),
        calls=400,
        ideal=ideals.slots(8),
    ),
    Row(
        name="nginx-default",
        rule="20 a second, no burst; 503",
        limiter=nginx("limit_req zone=calls;", f"{KEYED}20r/s;"),
        calls=300,
        ideal=ideals.bucket(20.0, 1),
    ),
    Row(
        name="nginx-both",
        rule="20 a second, burst of 10 without delay, and 4 in flight; 429",
        limiter=nginx(
            "limit_req zone=calls burst=10 nodelay; limit_req_status 429; limit_conn open 4; limit_conn_status 429;",
            f"{KEYED}20r/s; {CONNECTIONS}",
        ),
        calls=200,
        ideal=ideals.slots(4, 20.0, 11),
    ),
    Row(
        name="haproxy-table",
        rule="100 in a sliding 10 s, refused requests count; 429",
        limiter=haproxy("haproxy-table.cfg"),
        calls=250,
        ideal=ideals.sliding_counter(100, 10.0),
    ),
    Row(
        name="haproxy-queue",
        rule="6 in flight, 2 s in the queue; 503",
        limiter=haproxy("haproxy-queue.cfg"),
        calls=300,
        ideal=ideals.slots(6),
        short=True,
    ),
    Row(
        name="varnish-vsthrottle",
        rule="bucket of 50, 10 a second; 429",
        limiter=servers.varnish,
        calls=250,
        ideal=ideals.bucket(10.0, 50),
    ),
    *(
        Row(
            name=f"express-{form}",
            rule=f"100 in windows of 10 s, headers of {form}; 429",
            limiter=node(f"express-{form}"),
            calls=300,
            ideal=ideals.windows(100, 10.0),
            bars=ANNOUNCED,
            short=form == "draft-8",
        )
        for form in ("draft-6", "draft-7", "draft-8")
    ),
    Row(
        name="express-silent",
        rule="100 in windows of 10 s, no headers; 429",
        limiter=node("express-silent"),
        calls=300,
        ideal=ideals.windows(100, 10.0),
    ),
    Row(
        name="express-slow-down",
        rule="after 50 in 10 s, each call is held 20 ms longer; no refusals",
        limiter=node("express-slow-down"),
        calls=300,
        ideal=ideals.delays(50, 0.02),
    ),
    Row(
        name="flexible-window",
        rule="50 in windows of 5 s; 429 with Retry-After",
        limiter=node("flexible-window"),
        calls=220,
        ideal=ideals.windows(50, 5.0),
    ),
    Row(
        name="flexible-block",
        rule="50 in windows of 5 s, then blocked for 10 s; 429",
        limiter=node("flexible-block"),
        calls=220,
        ideal=ideals.windows(50, 5.0),
        bars=BLOCKING,
    ),
    Row(
        name="flexible-bursty",
        rule="10 in windows of 1 s, and 50 more in 20 s; 429",
        limiter=node("flexible-bursty"),
        calls=200,
        ideal=ideals.window_and_burst(10, 1.0, 50, 20.0),
    ),
    Row(
        name="fastify",
        rule="100 in windows of 10 s, x-ratelimit headers; 429",
        limiter=node("fastify"),
        calls=300,
        ideal=ideals.windows(100, 10.0),
        bars=ANNOUNCED,
    ),
    Row(
        name="slowapi-fixed",
        rule="100 in windows of 10 s; 429",
        limiter=uvicorn("slowapi_app:app", STRATEGY="fixed-window"),
        calls=300,
        ideal=ideals.windows(100, 10.0),
        short=True,
    ),
    Row(
        name="slowapi-moving",
        rule="100 in any 10 s; 429",
        limiter=uvicorn("slowapi_app:app", STRATEGY="moving-window"),
        calls=300,
        ideal=ideals.windows(100, 10.0),
    ),
    Row(
        name="slowapi-sliding",
        rule="100 in a sliding 10 s, counted in two windows of the clock; 429",
        limiter=uvicorn("slowapi_app:app", STRATEGY="sliding-window-counter"),
        calls=250,
        ideal=ideals.sliding_counter(100, 10.0, 9.0),
        period=10.0,
        offset=1.0,
    ),
    Row(
        name="litellm-rpm",
        rule="120 in windows of 60 s; 429 with Retry-After: 60",
        limiter=litellm(RPM_LIMIT="120"),
        calls=220,
        ideal=ideals.windows(120, 60.0),
        period=1.0,
        offset=0.05,
    ),
    Row(
        name="litellm-tpm",
        rule="6,240 tokens in windows of 60 s, 52 a call; 429 with Retry-After: 60",
        limiter=litellm(TPM_LIMIT="6240"),
        calls=220,
        ideal=ideals.windows(120, 60.0),
        period=1.0,
        offset=0.05,
    ),
    Row(
        name="ray-serve",
        rule="4 in flight, 8 in the queue; 503",
        limiter=servers.ray,
        calls=200,
        ideal=ideals.slots(4),
    ),
    Row(
        name="uvicorn-concurrency",
        rule="9 connections; 503",
        limiter=uvicorn("forwarding:app", "--limit-concurrency", "10"),
        calls=300,
        ideal=ideals.slots(9),
    ),
)
