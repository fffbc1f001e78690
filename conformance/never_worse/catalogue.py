"""The rows of the check: a program, its arguments, and the server that it meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from conformance.never_worse import servers
from conformance.never_worse.judging import HOPELESS_ALLOWANCE_SECONDS, Ended, late
from conformance.never_worse.servers import bucket, early, error, one_in_ten, page, slots
from conformance.never_worse.stub import Handler, Reply

PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True, slots=True)
class Row:
    """One program at one server.

    name       on the command line and in the table
    command    a file of `programs` and its arguments, or a module of pytest's
    server     makes the handler of a new server
    rows       that the program asks
    hopeless   whether no wait cures the errors of this program
    allowance  seconds for which tidegate may hold such an error back; more than the promise only by a named exception
    delay      seconds until the server listens, None for never
    short      whether the row is part of the short form
    settings   environment variables of the program
    seconds    after which a run is stopped
    address    of the server, where the program is told another one than the stub's; `{port}` is that of the stub
    """

    name: str
    command: tuple[str, ...]
    server: Callable[[], Handler]
    rows: int = 40
    hopeless: bool = False
    allowance: float = HOPELESS_ALLOWANCE_SECONDS
    delay: float | None = 0.0
    short: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 120.0
    address: str = ""

    @property
    def library(self) -> str:
        """Return the name of the SDK, HTTP library or framework that the program asks with."""
        program, word = (*self.command, "")[:2]
        named = program.startswith("-") or program in ("maker_rows.py", "http_rows.py", "around_rows.py")
        return (word if named else program).partition("_")[0]

    def late(self, plain: Ended, governed: Ended) -> list[str]:
        """Return the reasons of time for which a governed run of this row is worse than the plain one."""
        return late(plain, governed, self.hopeless, self.allowance)


def _row(name: str, command: str, server: Callable[[], Handler], rows: int = 40, **more: object) -> Row:
    return Row(name, tuple(command.split()), server, rows, **more)  # type: ignore[arg-type]


def _limited() -> Handler:
    return bucket(servers.limited, announced=True)


OWN_TESTS = "-m pytest -q -c /dev/null --rootdir . -p no:cacheprovider "
POISON_429 = error(429, "Rate limit exceeded", "rate_limit_exceeded", "requests")
HINTED_429 = error(429, "Too many requests, please try later", None, "requests", retry_after="1")
TOLD_APART_SECONDS = 60.0
"""Seconds after which a 429 for one request is told from a limit, beside calls that are answered."""
IN_FLIGHT = error(
    402,
    "This request would exceed your available credits given your current in-flight requests.",
    "in_flight_budget_exhausted",
    retry_after="2",
)
CLAUDE_BUSY = Reply(
    429,
    {},
    {
        "type": "error",
        "error": {
            "type": "rate_limit_error",
            "message": "Number of concurrent connections has exceeded your rate limit. Please try again later.",
        },
    },
)
LONG_CONTEXT = Reply(
    429,
    {},
    {
        "type": "error",
        "error": {"type": "rate_limit_error", "message": "Extra usage is required for long context requests."},
    },
)
OLLAMA_BUSY = Reply(503, {}, {"error": "server busy, please try again.  maximum pending requests exceeded"})
ZERO_QUOTA = Reply(
    429,
    {},
    {
        "error": {
            "code": 429,
            "message": "Quota exceeded for aiplatform.googleapis.com/online_prediction_requests_per_base_model with "
            "base model: anthropic-claude-sonnet-4. Please submit a quota increase request.",
            "status": "RESOURCE_EXHAUSTED",
        }
    },
)
NO_PATH = page(404, "Not Found")
REGAIN = "You have reached your specified API usage limits. You will regain access on 2126-12-01 at 00:00 UTC."
SPENT = {
    "money-400": Reply(400, {}, {"type": "error", "error": {"type": "invalid_request_error", "message": REGAIN}}),
    "money-402": Reply(402, {}, {"error": "Rate limited", "reasons": ["premium-usage-exceeded", "not-enough-credits"]}),
    "money-422": error(422, "Budget has been exceeded", None, "budget_exceeded"),
    "free-quota": Reply(429, {}, {"code": "EXCEED_TOKEN_QUOTA_LIMIT", "message": "Token usage exceeded quota limit."}),
}
"""Answers of accounts whose money, or free quota, is spent."""
POISON_402 = error(402, "Prompt tokens limit exceeded: 230799 > 91442. To increase, create a key with a higher limit")
FEWER_TOKENS = error(402, "This request requires more credits, or fewer max_tokens. You requested up to 8000 tokens.")
REVOKED = error(401, "Incorrect API key provided: sk-x.", "invalid_api_key", "invalid_request_error")

ROWS: tuple[Row, ...] = (
    # Nothing goes wrong.
    _row("calm-gather", "openai_rows.py gather", servers.calm, 200, short=True),
    _row("calm-loop", "openai_rows.py loop", lambda: servers.calm(0.05)),
    _row("calm-threads", "openai_rows.py threads", servers.calm, 200),
    _row("calm-long-answers", "openai_rows.py gather", lambda: servers.calm(4.0), 60),
    _row("calm-new-loops", "openai_rows.py loops", lambda: servers.calm(0.05), 20),
    _row("calm-fork", "openai_processes.py fork", servers.calm),
    _row("calm-spawn", "openai_processes.py spawn", servers.calm),
    _row("calm-responses", "openai_rows.py responses", servers.calm),
    _row("calm-embeddings", "openai_rows.py embeddings", servers.calm),
    _row("calm-raw-response", "openai_rows.py raw", servers.calm),
    _row("calm-stream-anthropic", "anthropic_rows.py stream", lambda: servers.stream(False)),
    _row("calm-websockets", "around_rows.py websockets", servers.calm),
    _row("calm-google-sync", "google_rows.py sync", servers.calm),
    # A rate limit, as each SDK meets it.
    _row("bucket-openai", "openai_rows.py gather", _limited, short=True),
    _row("bucket-openai-threads", "openai_rows.py threads", _limited),
    _row("bucket-openai-no-retries", "openai_rows.py gather 0", _limited),
    _row("bucket-uncaught", "openai_rows.py uncaught 0", lambda: bucket(servers.limited, per_second=30.0), 20),
    _row("bucket-tenacity", "around_rows.py tenacity", _limited),
    _row("bucket-anthropic", "anthropic_rows.py threads", lambda: bucket(servers.bare)),
    _row("bucket-google", "google_rows.py async", lambda: bucket(servers.bare)),
    _row("bucket-bedrock", "bedrock_rows.py 400", lambda: bucket(servers.bare)),
    _row("bucket-requests", "http_rows.py requests", lambda: bucket(servers.bare)),
    _row("bucket-httpx", "http_rows.py httpx", lambda: bucket(servers.bare)),
    _row("bucket-httpx2", "http_rows.py httpx2", lambda: bucket(servers.bare)),
    _row("bucket-aiohttp", "http_rows.py aiohttp", lambda: bucket(servers.bare)),
    _row("bucket-aiohttp-total", "http_rows.py aiohttp 6", lambda: bucket(servers.bare)),
    _row("bucket-ollama", "maker_rows.py ollama", lambda: bucket(servers.empty)),
    _row("bucket-huggingface", "maker_rows.py huggingface", lambda: bucket(servers.bare)),
    _row("bucket-cohere", "maker_rows.py cohere", lambda: bucket(servers.bare)),
    _row("bucket-mistral", "maker_rows.py mistral", lambda: bucket(servers.bare)),
    _row("bucket-groq", "maker_rows.py groq", lambda: bucket(servers.limited)),
    _row("bucket-together", "maker_rows.py together", lambda: bucket(servers.bare)),
    _row("bucket-replicate", "maker_rows.py replicate", lambda: bucket(servers.bare)),
    *(
        _row(f"bucket-{name.replace('_', '-')}", f"maker_rows.py {name}", lambda: bucket(servers.bare))
        for name in ("anthropic_bedrock", "anthropic_vertex", "anthropic_foundry", "google_vertex")
    ),
    _row("bucket-httpx-aiohttp", "maker_rows.py httpxaiohttp 6", _limited),
    _row("bucket-google-timeout", "google_rows.py async 6", lambda: bucket(servers.bare)),
    _row("bucket-proxy", "around_rows.py openai_proxy", _limited),
    _row("bucket-requests-proxy", "http_rows.py requests proxy", _limited),
    *(_row(f"bucket-{name}", f"around_rows.py {name}", _limited) for name in ("aiolimiter", "trio", "fastapi", "vcr")),
    _row("idle-then-burst", "openai_bursts.py idle", _limited, 54),
    _row("used-up-then-burst", "openai_bursts.py used_up", _limited),
    *(
        _row(f"bucket-retry-after-{form}", "openai_rows.py gather", partial(bucket, servers.hint(form)))
        for form in ("zero", "date", "past", "junk", "float", "negative", "year-9999", "ahead", "behind")
    ),
    # Limits in other words, or in none.
    _row("nginx-503", "openai_rows.py gather", lambda: bucket(servers.nginx), short=True),
    _row("empty-503", "openai_rows.py gather", lambda: bucket(servers.empty)),
    _row("html-502", "openai_rows.py gather", lambda: bucket(servers.gateway_error)),
    _row("nginx-503-anthropic", "anthropic_rows.py gather", lambda: bucket(servers.nginx)),
    _row("slots-429", "openai_rows.py gather", lambda: slots(6, POISON_429), 60),
    _row("slots-503", "openai_rows.py threads", lambda: slots(6, page(503, "Service Unavailable")), 60),
    _row(
        "slots-anthropic",
        "anthropic_rows.py gather 60",
        lambda: slots(5, CLAUDE_BUSY, 1.0, servers.CLAUDE_AMPLE),
        60,
    ),
    _row("slots-402", "openai_rows.py gather", lambda: slots(4, IN_FLIGHT, 0.25)),
    _row("line-503-ollama", "maker_rows.py ollama", lambda: servers.line(64, 4, OLLAMA_BUSY), 200),
    _row(
        "azure-minus-1",
        "maker_rows.py openai_azure",
        lambda: bucket(servers.azure("Too Many Requests"), headers=servers.MINUS_ONE),
    ),
    _row(
        "azure-says-seconds",
        "maker_rows.py openai_azure",
        lambda: bucket(servers.azure("Rate limit is exceeded. Try again in 2 seconds.")),
    ),
    _row("resets", "openai_rows.py gather", lambda: servers.resets(12), 80),
    _row("limit-in-200", "openai_rows.py gather", lambda: servers.odd_answers("error"), 30),
    _row("limit-in-200-minimax", "http_rows.py httpx told", lambda: servers.odd_answers("minimax"), 30),
    _row("empty-200", "openai_rows.py gather", lambda: servers.odd_answers("empty"), 30),
    _row("paused", "openai_rows.py threads", lambda: servers.paused(16, 6.0)),
    # Failures at random.
    *(
        _row(
            f"random-{status}-{100 * share:.0f}-percent",
            program,
            partial(servers.random_failures, share, failure, latency=0.3),
            1000,
        )
        for status, program, failure in (
            (503, "openai_rows.py many 20", servers.OVERLOADED),
            (529, "anthropic_rows.py gather 32 20", servers.ANTHROPIC_OVERLOADED),
        )
        for share in (0.03, 0.1)
    ),
    *(
        _row(
            f"random-{status}-named-{100 * share:.0f}-percent",
            program,
            partial(servers.random_failures, share, servers.named(failure), latency=0.3),
            1000,
        )
        for status, program, failure in (
            (503, "openai_rows.py many 20", servers.OVERLOADED),
            (529, "anthropic_rows.py gather 32 20", servers.ANTHROPIC_OVERLOADED),
        )
        for share in (0.03, 0.1)
    ),
    _row(
        "random-503",
        "openai_rows.py gather 20",
        lambda: servers.random_failures(0.05, servers.OVERLOADED),
        300,
        short=True,
    ),
    _row(
        "random-529",
        "anthropic_rows.py gather",
        lambda: servers.random_failures(0.05, servers.ANTHROPIC_OVERLOADED),
        200,
    ),
    _row("random-500", "openai_rows.py eight", lambda: servers.random_failures(0.05, servers.FAILED), 100),
    _row("random-500-no-retries", "openai_rows.py eight 0", lambda: servers.random_failures(0.05, servers.FAILED), 100),
    _row("stream-chunks", "openai_rows.py chunks", lambda: servers.chunks(12, 3), 12, short=True),
    _row("stream-errors", "anthropic_rows.py stream", lambda: servers.stream(True), 30, short=True),
    # Requests that no wait helps.
    _row("poison-400", "openai_rows.py eight", lambda: one_in_ten(error(400, "bad", None)), hopeless=True),
    _row("poison-402-output", "openai_rows.py eight", lambda: one_in_ten(FEWER_TOKENS), hopeless=True),
    _row("poison-402", "openai_rows.py eight", lambda: one_in_ten(POISON_402), hopeless=True),
    _row("poison-403", "openai_rows.py eight", lambda: one_in_ten(error(403, "moderated", None)), hopeless=True),
    _row("poison-500", "openai_rows.py eight", lambda: one_in_ten(error(500, "fails")), hopeless=True),
    _row("poison-500-loop", "openai_rows.py loop", lambda: one_in_ten(error(500, "fails")), 20, hopeless=True),
    _row("never-fits", "bedrock_rows.py 30000", servers.never_fits, hopeless=True),
    _row("revoked-key", "openai_rows.py eight", lambda: servers.always(REVOKED), hopeless=True, short=True),
    _row(
        "spent-money",
        "openai_rows.py eight",
        lambda: servers.always(
            error(
                429,
                "You exceeded your current quota, please check your plan.",
                "insufficient_quota",
                "insufficient_quota",
            )
        ),
        hopeless=True,
    ),
    *(
        _row(f"spent-{name}", "openai_rows.py eight", partial(servers.always, reply), hopeless=True)
        for name, reply in SPENT.items()
    ),
    # Libraries that tidegate does not govern.
    _row("poison-429-urllib", "http_rows.py urllib", lambda: one_in_ten(POISON_429), hopeless=True),
    _row("poison-429-urllib3", "http_rows.py urllib3", lambda: one_in_ten(POISON_429), hopeless=True),
    # A 429 that a request always gets: the first exception of docs/conformance.md. `max_wait` bounds the last ones.
    _row(
        "poison-429",
        "openai_rows.py eight",
        lambda: one_in_ten(POISON_429),
        hopeless=True,
        allowance=TOLD_APART_SECONDS,
        settings={"TIDEGATE_MAX_WAIT": f"{TOLD_APART_SECONDS:.0f}"},
        seconds=200.0,
    ),
    _row(
        "poison-429-hint",
        "openai_rows.py threads",
        lambda: early(HINTED_429, 100),
        200,
        hopeless=True,
        allowance=TOLD_APART_SECONDS,
    ),
    _row(
        "poison-503", "openai_rows.py threads", lambda: early(page(503, "Service Unavailable"), 100), 200, hopeless=True
    ),
    _row("poison-429-anthropic", "anthropic_rows.py gather 8", lambda: one_in_ten(LONG_CONTEXT), hopeless=True),
    # While no call of the key is answered, only `max_wait` bounds such a 429.
    _row(
        "zero-quota",
        "maker_rows.py anthropic_vertex",
        lambda: servers.always(ZERO_QUOTA),
        20,
        hopeless=True,
        settings={"TIDEGATE_MAX_WAIT": "20"},
    ),
    _row("wrong-path-anthropic", "anthropic_rows.py gather 8", lambda: servers.always(NO_PATH), hopeless=True),
    _row("wrong-path-google", "google_rows.py async", lambda: servers.always(NO_PATH), hopeless=True),
    _row("wrong-path", "openai_rows.py eight", lambda: servers.always(page(404, "Not Found")), hopeless=True),
    # A server that fails every call.
    _row("always-500", "openai_rows.py eight", lambda: servers.always(servers.FAILED), 20, hopeless=True),
    _row("always-500-loop", "openai_rows.py loop", lambda: servers.always(servers.FAILED), 3, hopeless=True),
    _row("always-502", "openai_rows.py eight", lambda: servers.always(page(502, "Bad Gateway")), 20, hopeless=True),
    _row("always-503", "anthropic_rows.py gather 8", lambda: servers.always(page(503, "Down")), 20, hopeless=True),
    _row("always-504", "google_rows.py async", lambda: servers.always(page(504, "Late")), 20, hopeless=True),
    # Addresses.
    _row("nobody-listens", "openai_rows.py gather", servers.calm, 20, hopeless=True, delay=None, short=True),
    _row(
        "no-such-host", "openai_rows.py gather", servers.calm, 20, hopeless=True, address="http://no-such-host.invalid"
    ),
    _row("nobody-listens-requests", "http_rows.py requests", servers.calm, 20, hopeless=True, delay=None),
    _row(
        "no-tls",
        "openai_rows.py gather",
        servers.calm,
        20,
        hopeless=True,
        address="https://127.0.0.1:{port}",
    ),
    _row("no-tls-aiohttp", "http_rows.py aiohttp", servers.calm, 20, hopeless=True, address="https://127.0.0.1:{port}"),
    _row("starts-late", "openai_rows.py gather", servers.calm, delay=12.0),
    _row(
        "loading-huggingface",
        "maker_rows.py huggingface",
        lambda: servers.loading(6.0, {"error": "Model o/m is currently loading"}),
        30,
    ),
    _row(
        "loading-llama",
        "openai_rows.py gather",
        lambda: servers.loading(6.0, {"message": "Loading model", "type": "unavailable_error", "code": 503}),
        30,
    ),
    # What ages.
    _row("token-by-hand", "openai_tokens.py by_hand 3", lambda: servers.ageing(servers.calm(0.4)), 12, short=True),
    _row(
        "token-callable",
        "openai_tokens.py callable 4",
        lambda: servers.ageing(bucket(servers.bare, per_second=2.0)),
        30,
    ),
    _row("token-azure", "openai_tokens.py azure 8", lambda: servers.ageing(bucket(servers.bare, per_second=2.0))),
    _row(
        "token-azure-at-once",
        "openai_tokens.py azure 8 40",
        lambda: servers.ageing(bucket(servers.bare, per_second=2.0)),
    ),
    _row("token-fixed", "openai_tokens.py fixed -100", lambda: servers.ageing(servers.calm(0.4)), 20, hopeless=True),
    _row("token-requests", "requests_tokens.py requests", lambda: servers.ageing(servers.calm(0.4)), 80),
    _row("token-auth-flow", "requests_tokens.py flow", lambda: servers.ageing(servers.calm(0.4)), 80),
    _row("two-keys", "openai_two_keys.py azure", servers.one_key, hopeless=True),
    _row("two-tokens", "openai_two_keys.py fork", servers.one_key, hopeless=True),
    # Programs that do not wait as asked.
    _row("abandoned-threads", "openai_abandoned.py 5", lambda: bucket(servers.limited, True, 3.0), seconds=150.0),
    _row(
        "abandoned-threads-of-60",
        "openai_abandoned.py 10",
        lambda: bucket(servers.limited, True, 2.0, 5.0, 0.2),
        60,
        seconds=150.0,
    ),
    _row("abandoned-loop", "openai_abandoned.py 5 loop", lambda: bucket(servers.limited, True, 3.0), seconds=150.0),
    _row("wait-for", "openai_rows.py wait_for", _limited),
    _row("wait-for-thread", "openai_rows.py to_thread", _limited),
    _row("alarm", "openai_alarm.py", lambda: servers.paused(3, 6.0), 8),
    _row("ctrl-c", "openai_interrupted.py", lambda: servers.paused(8, 60.0), hopeless=True, seconds=150.0),
    _row("ctrl-c-presses", "openai_interrupted.py presses", lambda: servers.paused(8, 60.0), hopeless=True),
    # A named pause is waited out by the SDK, and not by tidegate: the second exception of docs/conformance.md.
    _row("ctrl-c-cancels", "openai_interrupted.py cancel", lambda: servers.first(8, POISON_429), hopeless=True),
    _row("terminated", "openai_interrupted.py terminated", lambda: servers.paused(8, 60.0), hopeless=True),
    _row("own-stub-run", OWN_TESTS + "test_own_stub.py", servers.calm, 0, hopeless=True),
    _row("own-mocks-run", OWN_TESTS + "test_own_mocks.py", servers.calm, 0, hopeless=True),
    # What surrounds inference.
    # The SDK's last attempt comes 1.3 to 1.7 s after the first, however quickly a program starts: 3 units come back.
    _row("files", "openai_rows.py files", lambda: bucket(servers.bare, per_second=2.0)),
    _row("poll", "openai_rows.py poll", lambda: bucket(servers.bare, per_second=2.0)),
    _row("uploads", "openai_uploads.py", lambda: servers.once(Reply(429, {"retry-after": "1"}, {"error": "slow"})), 2),
    _row("uploads-http", "aiohttp_uploads.py", lambda: servers.once(Reply(429, {"retry-after": "1"}, {})), 7),
)
