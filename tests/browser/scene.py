"""Fixed data for pictures: ten minutes of four programs, as their counter files would say them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tidegate.core.values import Cause, Source
from tidegate.launch.counter_row import INTEGERS, RING_BYTES, SOURCE_CODES, ChangeRing, KeyRow, QuotaRow
from tidegate.launch.runs import ProgramRun
from tidegate.launch.totals import KeyTotal, Totals, note_others
from tidegate.server.limit_history import LimitHistory

SECONDS = 600
NOW = 100_000.0
"""Monotonic instant of the pictures."""

WALL = 1_782_129_787.0
"""Instant of the pictures in seconds since 1970: 22 June 2026, 12:03:07 UTC."""

STATED, SAVED = SOURCE_CODES[Source.HEADERS], SOURCE_CODES[Source.EARLIER_RUN]
ASSUMED = SOURCE_CODES[Source.DEFAULT]
INFERRED, ANSWERS = SOURCE_CODES[Source.REFUSALS], SOURCE_CODES[Source.ANSWERS]


class Ring(ChangeRing):
    """Changes at seconds before the picture."""

    def __init__(self) -> None:
        self.memory = bytearray(RING_BYTES)
        super().__init__(memoryview(self.memory).cast("d"))

    def ago(self, at: float, kind: str, before: float, after: float, *facts: Any, **named: Any) -> None:
        """Add a change at `at` seconds from the picture, which is negative."""
        self.add(NOW + at, kind, before, after, *facts, **named)


def busy_changes() -> bytes:
    ring = Ring()
    ring.ago(-575.0, "limit", 0.0, 500.0, origin=Source.HEADERS)
    ring.ago(-575.0, "limit", 0.0, 200_000.0, origin=Source.HEADERS, quota=1)
    ring.ago(-566.0, "concurrency", 8.0, 24.0, origin=Source.ANSWERS)
    ring.ago(-540.0, "members", 1.0, 3.0)
    ring.ago(-372.0, "concurrency", 46.0, 30.0, Cause.OVERLOAD, Source.REFUSALS)
    ring.ago(-372.0, "cooldown", 20.0, 20.0, Cause.OVERLOAD, Source.RETRY_AFTER)
    ring.ago(-301.0, "concurrency", 30.0, 40.0, origin=Source.ANSWERS)
    ring.ago(-208.0, "limit", 500.0, 300.0, Cause.RATE, Source.HEADERS)
    ring.ago(-96.0, "limit", 300.0, 500.0, origin=Source.HEADERS)
    return bytes(ring.memory)


def down_changes() -> bytes:
    ring = Ring()
    ring.ago(-430.0, "pace", 0.0, 4.0, Cause.RATE, Source.REFUSALS)
    ring.ago(-331.0, "pace", 4.0, 2.4, Cause.RATE, Source.REFUSALS)
    ring.ago(-61.0, "breaker_opened", 0.0, 9.0, Cause.OUTAGE, Source.FAILURES)
    return bytes(ring.memory)


def counts(**known: int) -> dict[str, int]:
    return dict.fromkeys(INTEGERS, 0) | {"members": 1, "most_members": 1} | known


def busy(at: float, used: float, tokens: float) -> KeyRow:
    limit = 300.0 if -208.0 <= at < -96.0 else 500.0
    slots = 46 if at < -372.0 else 30 if at < -301.0 else 40
    flying = 0 if -372.0 <= at < -352.0 else min(slots, round(slots * 0.78 + 5 * math.sin(at / 19.0)))
    answered = int(used)
    return KeyRow(
        "openai · api.openai.com · gpt-5-mini · key 3fa81c",
        counts(
            attempts=answered + 61 + flying,
            answered=answered,
            refused=61,
            resent=61,
            absorbed=61,
            waiting=1184,
            slots=slots,
            members=3,
            most_members=3,
            carrier=1,
            absorbed_rate=22,
            absorbed_overload=39,
            unsent=1184,
        ),
        NOW + at,
        (
            QuotaRow("requests", limit, 60.0, used, NOW - 600.0, 500.0, 0.2, 0.0, 1.0, STATED, NOW + at - 0.6, STATED),
            QuotaRow(
                "tokens",
                200_000.0,
                60.0,
                tokens,
                NOW - 600.0,
                2e5,
                61_300.0,
                0.0,
                410.0,
                STATED,
                NOW + at - 0.6,
                STATED,
            ),
        ),
        looked_at=NOW + at,
        latency=2.1,
        latency_p50=1.8,
        latency_p99=6.4,
        slots_origin=ANSWERS,
        slots_known_at=NOW - 41.0,
        ring=busy_changes(),
    )


def helper(at: float, used: float, tokens: float) -> KeyRow:
    """Return the same key in another program, which has sent a tenth of the calls."""
    row = busy(at, used, tokens)
    answered = int(used) // 10
    flying = row.in_flight // 10
    few = dict.fromkeys(("refused", "resent", "absorbed", "absorbed_rate", "absorbed_overload"), 0)
    return row._replace(
        counts=row.counts | few | {"attempts": answered + flying, "answered": answered, "waiting": 40, "unsent": 40}
    )


def hidden(at: float) -> KeyRow:
    """Return a key whose limit no answer names: six calls a minute, and half of them wait."""
    answered = int((at + SECONDS) / 10.0)
    refused = max(0, int((at + SECONDS - 240.0) / 120.0))
    return KeyRow(
        "mistral · api.mistral.ai · mistral-large-2 · key 77d05b",
        counts(
            attempts=answered + refused + 1,
            answered=answered,
            refused=refused,
            resent=refused,
            absorbed=refused,
            absorbed_rate=refused,
            waiting=12,
            unsent=12,
            slots=4,
        ),
        NOW + at,
        (),
        looked_at=NOW + at,
        latency=1.4,
        latency_p50=1.2,
        latency_p99=3.0,
        pace=0.1 if at > -360.0 else 0.15,
        pace_origin=INFERRED,
        pace_known_at=NOW - 120.0,
        paced_until=NOW + at + 4.0,
        ring=hidden_changes(),
    )


def hidden_changes() -> bytes:
    ring = Ring()
    ring.ago(-590.0, "pace", 0.0, 0.15, Cause.RATE, Source.REFUSALS)
    ring.ago(-360.0, "pace", 0.15, 0.1, Cause.RATE, Source.REFUSALS)
    ring.ago(-120.0, "pace", 0.1, 0.1033, origin=Source.ANSWERS)
    return bytes(ring.memory)


def quick(at: float) -> KeyRow:
    answered = int(6.0 * (at + SECONDS))
    return KeyRow(
        "openai · api.openai.com · gpt-5-nano · key 3fa81c",
        counts(attempts=answered + 2, answered=answered, slots=12),
        NOW + at,
        (
            QuotaRow(
                "requests", 400.0, 60.0, float(answered), NOW - 600.0, 400.0, 30.0, 0.0, 1.0, STATED, NOW + at, STATED
            ),
        ),
        looked_at=NOW + at,
        latency=0.5,
        latency_p50=0.4,
        latency_p99=1.1,
    )


def idle(number: int) -> KeyRow:
    return KeyRow(
        f"openai · api.openai.com · text-embedding-{number} · key 3fa81c",
        counts(attempts=90, answered=90, slots=8),
        NOW - 700.0,
        (
            QuotaRow(
                "requests", 3_000.0, 60.0, 90.0, NOW - 900.0, 3_000.0, 3_000.0, 0.0, 1.0, STATED, NOW - 700.0, STATED
            ),
        ),
        looked_at=NOW - 700.0,
        latency=0.2,
        latency_p50=0.2,
        latency_p99=0.4,
    )


def calm(at: float, used: float) -> KeyRow:
    answered = int(used)
    return KeyRow(
        "anthropic · api.anthropic.com · claude-sonnet-4-5 · key 90be17",
        counts(attempts=answered + 3, answered=answered, slots=8, given_up=0),
        NOW + at,
        (
            QuotaRow("requests", 50.0, 60.0, used, NOW - 600.0, 50.0, 21.0, 0.0, 1.0, SAVED, 0.0, 0),
            QuotaRow(
                "input tokens", 30_000.0, 60.0, used * 412, NOW - 600.0, 3e4, 18_400.0, 0.0, 0.0, STATED, NOW - 97.0, 0
            ),
        ),
        looked_at=NOW + at,
        latency=3.2,
        latency_p50=2.9,
        latency_p99=8.1,
    )


def down(at: float, used: float) -> KeyRow:
    broken = at >= -61.0
    answered = int(used)
    return KeyRow(
        "gemini · generativelanguage.googleapis.com · gemini-2.5-flash · key c411d0",
        counts(
            attempts=answered + 31 + (0 if broken else 2),
            answered=answered,
            refused=19,
            failed=12,
            resent=31,
            absorbed=14,
            given_up=2,
            failed_calls=3,
            waiting=57,
            unsent=57,
            slots=6,
            breaker=1 if broken else 0,
            absorbed_rate=14,
            given_up_rate=2,
            handed_back_day=3,
        ),
        NOW + at,
        (QuotaRow("requests", 1_500.0, 86_400.0, used, NOW - 600.0, 1_400.0, 212.0, 0.0, 1.0, ASSUMED, 0.0, 0),),
        looked_at=NOW + at,
        broken_until=NOW + at + 11.4 if broken else 0.0,
        latency=0.9,
        latency_p50=0.7,
        latency_p99=2.2,
        pace=2.4,
        pace_origin=INFERRED,
        pace_known_at=NOW - 331.0,
        slots_origin=INFERRED,
        slots_known_at=NOW - 331.0,
        ring=down_changes(),
    )


def run(pid: int, command: str, elapsed: float, *rows: KeyRow, **lost: str) -> ProgramRun:
    totals: dict[str, KeyTotal] = {}
    for row in rows:
        totals[row.key] = KeyTotal(row.key)
        totals[row.key].add(row, running=True)
    return ProgramRun(pid, command, Totals(totals, True, {int(each[1:]): why for each, why in lost.items()}), elapsed)


def history() -> LimitHistory:
    """Return the history of the ten minutes before `WALL`."""
    now = [-float(SECONDS)]
    made = LimitHistory(lambda: WALL + now[0])
    used = tokens = quiet = flash = 0.0
    while now[0] < 0.0:
        now[0] += 1.0
        at = now[0]
        cut, held = -208.0 <= at < -96.0, -372.0 <= at < -352.0
        rate = 0.0 if held else 300.0 / 60.0 if cut else 496.0 / 60.0
        used += rate
        tokens += rate * (395.0 + 25.0 * math.sin(at / 37.0))
        quiet += 0.45 + 0.2 * math.sin(at / 50.0)
        flash += 0.0 if at >= -61.0 else 2.2 + 0.3 * math.sin(at / 11.0)
        programs = [
            run(48_112, "python run_suite.py --split test", at + 730.0, busy(at, used, tokens), calm(at, quiet)),
            run(51_907, "python -m bot.worker", at + 5_412.0, down(at, flash), _51933="it has 40 of 88192 bytes"),
            run(52_640, "python judge.py", at + 640.0, helper(at, used, tokens), hidden(at)),
            run(41_300, "python index.py", at + 9_000.0, idle(3), idle(4)),
        ]
        if at < -150.0:
            programs.append(run(47_001, "pytest evals", at + 700.0, quick(at)))
        note_others(each.totals for each in programs)
        made.take(programs, NOW + at)
    return made


def answers() -> Callable[[int], dict[str, Any]]:
    """Return the answers of the server to a page that has the samples until a number."""
    return history().answer
