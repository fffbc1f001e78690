"""The rows of the check: a program, its arguments, and the server that it meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from conformance.never_worse import servers
from conformance.never_worse.servers import bucket, error, one_in_ten, page, slots
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
    delay      seconds until the server listens, None for never
    short      whether the row is part of the short form
    settings   environment variables of the program
    seconds    after which a run is stopped
    address    of the server, where the program is told another one than the stub's
    """

    name: str
    command: tuple[str, ...]
    server: Callable[[], Handler]
    rows: int = 40
    hopeless: bool = False
    delay: float | None = 0.0
    short: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 120.0
    address: str = ""


def _row(name: str, command: str, server: Callable[[], Handler], rows: int = 40, **more: object) -> Row:
    return Row(name, tuple(command.split()), server, rows, **more)  # type: ignore[arg-type]


def _limited() -> Handler:
    return bucket(servers.limited, announced=True)


OWN_TESTS = "-m pytest -q -c /dev/null --rootdir . -p no:cacheprovider test_own_stub.py"
POISON_429 = error(429, "Rate limit exceeded", "rate_limit_exceeded", "requests")
POISON_402 = error(402, "Prompt tokens limit exceeded: 230799 > 91442. To increase, create a key with a higher limit")
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
    _row("calm-google-sync", "google_rows.py sync", servers.calm),
    # A rate limit, as each SDK meets it.
    _row("bucket-openai", "openai_rows.py gather", _limited, short=True),
    _row("bucket-openai-threads", "openai_rows.py threads", _limited),
    _row("bucket-openai-no-retries", "openai_rows.py gather 0", _limited),
    _row("bucket-uncaught", "openai_rows.py uncaught 0", lambda: bucket(servers.limited, per_second=30.0), 20),
    _row("bucket-tenacity", "openai_tenacity.py", _limited),
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
        _row(f"bucket-retry-after-{form}", "openai_rows.py gather", partial(bucket, servers.hint(form)))
        for form in ("zero", "date", "past", "junk", "float")
    ),
    # Limits in other words, or in none.
    _row("nginx-503", "openai_rows.py gather", lambda: bucket(servers.nginx), short=True),
    _row("empty-503", "openai_rows.py gather", lambda: bucket(servers.empty)),
    _row("html-502", "openai_rows.py gather", lambda: bucket(servers.gateway_error)),
    _row("nginx-503-anthropic", "anthropic_rows.py gather", lambda: bucket(servers.nginx)),
    _row("slots-429", "openai_rows.py gather", lambda: slots(6, POISON_429), 60),
    _row("slots-503", "openai_rows.py threads", lambda: slots(6, page(503, "Service Unavailable")), 60),
    _row("resets", "openai_rows.py gather", lambda: servers.resets(12), 80),
    _row("limit-in-200", "openai_rows.py gather", lambda: servers.odd_answers("error"), 30),
    _row("empty-200", "openai_rows.py gather", lambda: servers.odd_answers("empty"), 30),
    _row("paused", "openai_rows.py threads", lambda: servers.paused(16, 6.0)),
    # Failures at random.
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
    _row("stream-errors", "anthropic_rows.py stream", lambda: servers.stream(True), 30, short=True),
    # Requests that no wait helps.
    _row("poison-400", "openai_rows.py eight", lambda: one_in_ten(error(400, "bad", None)), hopeless=True),
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
    _row("wrong-path", "openai_rows.py eight", lambda: servers.always(page(404, "Not Found")), hopeless=True),
    # Addresses.
    _row("nobody-listens", "openai_rows.py gather", servers.calm, 20, hopeless=True, delay=None, short=True),
    _row(
        "no-such-host", "openai_rows.py gather", servers.calm, 20, hopeless=True, address="http://no-such-host.invalid"
    ),
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
    # Programs that do not wait as asked.
    _row("abandoned-threads", "openai_abandoned.py 5", lambda: bucket(servers.limited, True, 3.0), seconds=150.0),
    _row("wait-for", "openai_rows.py wait_for", _limited),
    _row("wait-for-thread", "openai_rows.py to_thread", _limited),
    _row("alarm", "openai_alarm.py", lambda: servers.paused(3, 6.0), 8),
    _row("ctrl-c", "openai_interrupted.py", lambda: servers.paused(8, 60.0), hopeless=True, seconds=150.0),
    _row(
        "own-stub-run",
        OWN_TESTS,
        servers.calm,
        0,
        hopeless=True,
    ),
    # What surrounds inference.
    # The SDK's last attempt comes 1.3 to 1.7 s after the first, however quickly a program starts: 3 units come back.
    _row("files", "openai_rows.py files", lambda: bucket(servers.bare, per_second=2.0)),
    _row("poll", "openai_rows.py poll", lambda: bucket(servers.bare, per_second=2.0)),
    _row("uploads", "openai_uploads.py", lambda: servers.once(Reply(429, {"retry-after": "1"}, {"error": "slow"})), 2),
)
