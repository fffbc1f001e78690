"""The two lines of `tidegate run`: of the busiest key while it runs, of everything at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from tidegate.admission.hooks import NO_HOST
from tidegate.cli.end_line import end_line
from tidegate.cli.status_list import lines
from tidegate.cli.status_text import StatusText
from tidegate.core.wait_text import clock
from tidegate.launch.counter_row import KeyRow, QuotaRow
from tidegate.launch.runs import Ungoverned
from tidegate.launch.totals import KeyTotal, QuotaTotal, Totals, facts_of


def key(name: str, *, answered: int = 0, in_flight: int = 0, waiting: int = 0, **counts: int) -> KeyTotal:
    total = KeyTotal(name, in_flight=in_flight, waiting=waiting)
    total.counts |= {"attempts": answered + in_flight, "answered": answered, **counts}
    return total


def totals(*keys: KeyTotal, pythons: bool = True, failures: Mapping[str, int] = MappingProxyType({})) -> Totals:
    return Totals({each.key: each for each in keys}, pythons, failures=Counter(failures))


def limited(total: KeyTotal, used: float, limit: float = 120.0, window: float = 60.0, until: float = 100.0) -> KeyTotal:
    total.quotas["requests"] = QuotaTotal("requests", limit, window, used, 0.0, limit, until)
    return total


def test_before_the_first_call_there_is_no_line() -> None:
    assert StatusText().line(totals(), 0.0) == ""
    assert StatusText().line(totals(key("a")), 0.0) == ""


def before(total: KeyTotal, *quotas: QuotaRow, slots: int = 99, latency: float = 1.0, **instants: float) -> KeyTotal:
    """What lies before those who wait at a key, as its only process sees it."""
    total.slots = slots
    counts = Counter(waiting=total.waiting)
    total.here = [KeyRow(total.key, counts, 0.0, quotas, latency=latency, **instants)]
    return total


def test_the_line_has_rate_limit_flight_queue_and_end() -> None:
    status = StatusText()
    left = QuotaRow("requests", 120.0, 60.0, 10.0, 0.0, 120.0, level=-60.0, amount=1.0)
    status.line(totals(limited(key("a", answered=10, waiting=99), 10.0)), 0.0)
    now = before(limited(key("a", answered=70, in_flight=4, waiting=86), 74.0), left, looked_at=15.0)
    said = status.line(totals(now), 30.0)
    assert said == "tidegate  64 of 120 requests/min · 4 in flight · 86 waiting for quota requests · ETA 0:58 · a"


def test_where_slots_bind_the_end_is_by_what_answers_take() -> None:
    now = before(key("a", answered=70, in_flight=4, waiting=8), slots=4, latency=30.0)
    assert " · 8 waiting for a free slot · ETA 0:56 · " in StatusText().line(totals(now), 30.0)


PAUSED = {"paused_until": 148.0, "stated": 600.0, "stated_until": 628.0}
NAME = "openai · api.openai.com · gpt-4o-mini · key 1f00d5"


def test_long_pause_is_told_by_the_providers_word_and_not_by_the_slots_that_bind_after_it() -> None:
    now = before(key(NAME, answered=30, waiting=50), slots=20, **PAUSED)
    assert StatusText().line(totals(now), 30.0) == (
        "tidegate  paused: provider asks for 10:00, next try in 1:58 · 0 answered/min · 0 in flight · 50 waiting · "
        f"ETA 10:00 · {NAME}"
    )


@pytest.mark.parametrize("columns", [50, 58, 59, 80, 121, 122, 150, 189, 190, 199])
def test_row_fits_the_terminal_and_keeps_the_reason(columns: int) -> None:
    now = before(limited(key(NAME, answered=30, waiting=50), 10.0), slots=20, **PAUSED)
    said = StatusText().line(totals(now, key("b", waiting=1), key("c", waiting=1)), 30.0, columns)
    assert len(said) <= columns
    assert columns < 59 or said.startswith("tidegate  paused: provider asks for 10:00, next try in 1:58")
    assert columns < 122 or "gpt-4o-mini" in said
    assert columns < 190 or said.endswith(NAME)


def test_row_of_80_columns_names_the_gate_the_end_and_the_unit() -> None:
    left = QuotaRow("requests", 120.0, 60.0, 10.0, 0.0, 120.0, level=-60.0, amount=1.0)
    now = before(limited(key(NAME, answered=70, in_flight=4, waiting=86), 74.0), left, looked_at=15.0)
    status = StatusText()
    status.line(totals(limited(key(NAME, answered=10, waiting=99), 10.0)), 0.0)
    said = status.line(totals(now), 30.0, 79)
    assert said == "tidegate  64 of 120 requests/min · 86 waiting for quota requests · ETA 0:58"


def test_an_end_that_nothing_tells_is_left_out() -> None:
    now = before(key("a", in_flight=4, waiting=8), slots=4, latency=0.0)
    assert "ETA" not in StatusText().line(totals(now), 30.0)


def test_the_rate_is_of_the_quotas_own_window() -> None:
    status = StatusText()
    for second in range(0, 200, 10):
        said = status.line(totals(limited(key("a", answered=second * 2), second * 2.0)), float(second))
    assert said.startswith("tidegate  120 of 120 requests/min")


def test_burst_beyond_the_rate_is_all_of_the_limit_and_no_more() -> None:
    status = StatusText()
    for second in range(0, 200, 10):
        said = status.line(totals(limited(key("a", answered=second * 3), second * 3.0)), float(second))
    assert said.startswith("tidegate  120 of 120 requests/min")


def test_without_a_known_limit_it_tells_the_answers() -> None:
    status = StatusText()
    status.line(totals(key("a", answered=10)), 0.0)
    said = status.line(totals(key("a", answered=25, in_flight=2)), 30.0)
    assert said == "tidegate  15 answered/min · 2 in flight · 0 waiting · a"


def test_it_tells_of_the_busiest_key_and_that_there_are_others() -> None:
    said = StatusText().line(
        totals(key("a", answered=500), key("b", in_flight=1, waiting=9), key("c", in_flight=2), key("d", waiting=1)),
        0.0,
    )
    assert said == "tidegate  0 answered/min · 1 in flight · 9 waiting for a free slot · 2 more keys · b"


def test_the_quota_that_binds_is_told() -> None:
    busy = limited(key("a", answered=5), 5.0)
    busy.quotas["tokens"] = QuotaTotal("tokens", 90_000.0, 60.0, 88_000.0, 0.0, 90_000.0, 10.0)
    assert "of 90k tokens/min" in StatusText().line(totals(busy), 0.0)


def test_the_end_line_counts_calls_and_what_became_of_them() -> None:
    a = limited(key("a", answered=90, attempts=107, resent=10, refused=12, absorbed=10, failed=2), 300.0)
    a.counts |= {"given_up": 4, "unsent": 9, "failed_calls": 3, "abandoned": 1, "left": 5}
    assert end_line(totals(a)) == (
        "106 calls, 90 answered, 4 given up, 3 failed, 8 abandoned, 1 waiting at the end, "
        "12 refusals, 10 of them retried, 94% of the limit used (120 requests/min)"
    )


@pytest.mark.parametrize("carrier", ["file", "redis", "postgresql", "ray"])
def test_the_lines_say_by_what_and_by_how_many_a_key_is_shared(carrier: str) -> None:
    a, b = key("a", answered=3), key("b", answered=9)
    a.members, a.most_members, a.carrier = 4, 7, carrier
    assert end_line(totals(a, b)).endswith(f"0 refusals retried, shared by 7 processes ({carrier})")
    assert f" · shared by 4 processes ({carrier}) · a" in StatusText().line(totals(before(a)), 0.0)
    assert list(lines(a, 0.0))[-1].endswith(f" · shared by 4 processes ({carrier})")
    assert facts_of(a, 0.0)["shared_through"] == carrier
    # The others have left it.
    a.members = 1
    assert "shared" not in StatusText().line(totals(before(a)), 0.0)
    assert facts_of(a, 0.0)["shared_through"] == ""


def test_end_line_calls_cut_off_by_a_signal_is_each_in_one_number() -> None:
    # A killed process leaves its row as it was: 44 answered, 6 in flight, 5 refused and queued again, 190 never sent.
    a = key("a", attempts=55, answered=44, refused=5, unsent=190)
    assert (a.calls, a.abandoned, a.queued) == (245, 6, 195)
    assert end_line(totals(a)) == (
        "245 calls, 44 answered, 0 given up, 6 abandoned, 195 waiting at the end, 5 refusals, 0 of them retried"
    )


def test_end_line_overload_that_the_caller_saw_is_no_429_and_not_retried() -> None:
    # Twelve answers of status 529 to one call: the caller saw the last one.
    a = key("a", attempts=12, refused=12, resent=11, absorbed=11, given_up=1)
    assert end_line(totals(a)) == "1 call, 0 answered, 1 given up, 12 refusals, 11 of them retried"


def test_one_is_told_in_the_singular() -> None:
    said = end_line(totals(key("a", answered=1, attempts=2, resent=1, refused=1, absorbed=1)))
    assert said == "1 call, 1 answered, 0 given up, 1 refusal retried"


def test_the_line_at_the_end_says_why_calls_failed() -> None:
    a = limited(key("a", attempts=20, failed=20, failed_calls=20), 12.0, limit=600.0)
    assert end_line(totals(a, failures={"401: key rejected": 20})) == (
        "20 calls, 0 answered, 0 given up, 20 failed (401: key rejected), 0 refusals retried"
    )
    mixed = {"no connection": 2, "": 1, "401: key rejected": 9, "status 500\x1b": 5}
    assert "20 failed (9 × 401: key rejected, 5 × status 500\\x1b, 2 × no connection, more)" in end_line(
        totals(a, failures=mixed)
    )


def test_the_line_at_the_end_calls_a_spent_day_quota_used_up() -> None:
    a = limited(key("a", answered=15, attempts=200, refused=185, failed_calls=185, handed_back_day=185), 6.0)
    told = end_line(totals(a, failures={"429: day quota spent": 185}))
    assert "185 failed (429: day quota spent), 185 refusals" in told
    assert told.endswith("100% of the day quota used")


def test_the_line_at_the_end_names_calls_whose_url_has_no_host() -> None:
    missed = Ungoverned(Counter({NO_HOST: 3}))
    assert end_line(totals(), missed) == (
        "no LLM call was governed; 3 calls had a URL without a host (does the base URL begin with https://?)"
    )
    assert "2 calls to 1 host were not governed: a.example (set TIDEGATE_HOSTS=a.example to" in end_line(
        totals(), Ungoverned(Counter({NO_HOST: 1, "a.example": 2}))
    )


def test_an_attempt_that_execute_repeated_is_no_failed_call() -> None:
    assert "failed" not in end_line(totals(key("a", answered=1, attempts=2, resent=1, failed=1)))


def test_with_several_keys_it_says_whose_limit() -> None:
    said = end_line(totals(limited(key("a", answered=9), 6.0), key("b", answered=2)))
    assert said == "11 calls, 11 answered, 0 given up, 0 refusals retried, 2% of the limit used (120 requests/min) by a"


def test_nothing_seen_and_nothing_governed_are_two_things() -> None:
    assert end_line(totals()) == "no LLM call was seen; `tidegate doctor` lists what is governed"
    assert end_line(totals(pythons=False)).startswith("no LLM call was governed: no Python process loaded tidegate")


def test_end_line_hosts_passed_names_the_busiest_and_how_to_govern_them() -> None:
    passed = Ungoverned(Counter({"b.example": 9, "a.example": 18}))
    said = end_line(totals(key("a", answered=1, attempts=1)), passed)
    assert said == (
        "1 call, 1 answered, 0 given up, 0 refusals retried; 27 calls to 2 hosts were not governed: a.example, "
        "b.example (set TIDEGATE_HOSTS=a.example,b.example to govern such calls)"
    )
    assert end_line(totals(), Ungoverned(Counter({"a.example": 1}))) == (
        "no LLM call was governed; 1 call to 1 host was not governed: a.example "
        "(set TIDEGATE_HOSTS=a.example to govern such calls)"
    )


def test_end_line_many_hosts_passed_is_bounded_and_escaped() -> None:
    passed = Ungoverned(Counter({f"h{n}.example": 90 - n for n in range(8)} | {"\x1b]0;x\a": 99}), others=3)
    said = end_line(totals(key("a", answered=1, attempts=1)), passed)
    assert "calls to 9 or more hosts were not governed: \\x1b]0;x\\x07, h0.example, " in said
    assert "h3.example, more (" in said
    assert "h4" not in said
    assert said.isprintable()


def test_end_line_websocket_sessions_are_named_with_what_governs_their_calls() -> None:
    sockets = Ungoverned(Counter(), sockets=Counter({"api.openai.com": 2, "api.x.ai": 1}))
    assert end_line(totals(key("a", answered=1, attempts=1)), sockets).endswith(
        "0 refusals retried; 3 websocket sessions with 2 hosts were not governed: api.openai.com, api.x.ai "
        "(Realtime and the Responses API over a websocket; only calls over HTTP can be governed)"
    )
    one = end_line(totals(), Ungoverned(Counter(), sockets=Counter({"\x1b.example": 1})))
    assert one.startswith("no LLM call was governed; 1 websocket session with 1 host was not governed: \\x1b.example (")


def test_end_line_refused_requests_to_other_endpoints_are_counted() -> None:
    refused = Ungoverned(Counter(), refused=Counter({"api.openai.com": 69, "\x1b.example": 1}))
    assert end_line(totals(), refused) == (
        "no LLM call was governed; 70 requests to other endpoints were refused with status 429: api.openai.com, "
        "\\x1b.example (only calls for inference are governed)"
    )
    one = end_line(totals(), Ungoverned(Counter(), refused=Counter({"a.example": 1})))
    assert one.endswith("; 1 request to another endpoint was refused with status 429: a.example (only calls for "
                        "inference are governed)")  # fmt: skip


def test_end_line_ungoverned_processes_says_why() -> None:
    left = Ungoverned(Counter(), processes=("py: ImportError: no", "py: ImportError: no", "other: a\nb"))
    assert end_line(totals(), left) == (
        "no LLM call was governed; some processes ran ungoverned: py: ImportError: no | other: a\\nb"
    )


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0:00"), (59.6, "1:00"), (725.0, "12:05"), (3725.0, "1:02:05")])
def test_times_are_as_on_a_clock(seconds: float, said: str) -> None:
    assert clock(seconds) == said
