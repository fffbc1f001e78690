"""Tables of makers of models with an API of their own: xAI, DeepSeek, Mistral, Cohere, Perplexity, Qwen, ..."""

from __future__ import annotations

from dataclasses import replace

from tidegate.core.values import Cause, Unit
from tidegate.providers._common import MINUTE, MONTH, Part, as_produced, at_admission, endpoints, quota
from tidegate.providers._paths import Endpoint
from tidegate.providers._schema import ErrorRow, HeaderRow, Provider
from tidegate.providers.compatible import EVERY_DIALECT, hosted

# xAI: https://docs.x.ai/developers/rate-limits, and captured answers of 2025 and 2026.

_XAI_DOCS = "https://docs.x.ai/developers/rate-limits read 2026-11-20 (provider-facts.md section 6)"
_NO_RESET: tuple[Part, ...] = ("limit", "remaining")

XAI = Provider(
    name="xai",
    source=f"{_XAI_DOCS}; regional hosts [unv]",
    hosts=("api.x.ai", "*.api.x.ai"),
    endpoints=endpoints(
        "/v1", "chat/completions", "completions", "responses", "embeddings", "images/generations", "messages"
    ),
    credential=("authorization", "x-api-key"),
    charging=as_produced(
        f"{_XAI_DOCS}: cached, reasoning and image tokens count; capture xai-429-tokens counts what was used [inf]"
    ),
    headers=(
        quota(
            "requests",
            "requests",
            "capture xai-200 (2026-08-10: 1800 read as a minute's [inf]; the documents enforce a sixtieth a second)",
            window=MINUTE,
            parts=_NO_RESET,
        ),
        quota("tokens", "tokens", f"{_XAI_DOCS}: TPM; capture xai-200", window=MINUTE, parts=_NO_RESET),
    ),
    errors=(
        ErrorRow(
            name="wrong_key",
            cause=Cause.AUTH,
            source="provider-facts.md section 6 (400 with `error` as a string; the words [unv])",
            status=frozenset({400}),
            text=("incorrect api key",),
        ),
    ),
)


# DeepSeek: https://api-docs.deepseek.com/quick_start/error_codes. It limits concurrency, and sends no limit headers.
#
# While a call is queued there, it sends blank lines or comments: a long read is no failure.

_DEEPSEEK_DOCS = "https://api-docs.deepseek.com/quick_start/error_codes read 2026-11-20 (provider-facts.md section 8)"

DEEPSEEK = Provider(
    name="deepseek",
    source=_DEEPSEEK_DOCS,
    hosts=("api.deepseek.com",),
    endpoints=(
        *(e for base in ("", "/v1", "/beta") for e in endpoints(base, "chat/completions", "completions")),
        Endpoint("/anthropic/v1/messages"),
    ),
    credential=("authorization", "x-api-key"),
    charging=at_admission(f"{_DEEPSEEK_DOCS}: tokens are not limited, so nothing is paced by this"),
    errors=(
        ErrorRow(
            name="concurrency",
            cause=Cause.CONCURRENCY,
            source="capture deepseek-429-concurrency (2026: calls at once by account and model, no limit of a minute)",
            status=frozenset({429}),
        ),
        ErrorRow(
            name="overloaded",
            cause=Cause.OVERLOAD,
            source=f"{_DEEPSEEK_DOCS}: 503, retry after a brief wait; capture deepseek-503",
            status=frozenset({503}),
        ),
    ),
)


# Mistral: https://help.mistral.ai (225174), and captured answers of three generations of headers, 2024 to 2026.
#
# A minute follows the wall clock, and no header states its end. Streaming answers have no such headers, and a refusal
# names no time. Most of its headers describe themselves: `x-ratelimit-remaining-tokens-minute`.

_MISTRAL_DOCS = "https://help.mistral.ai 225174 read 2026-11-20 (provider-facts.md section 12)"


def _mistral_row(suffix: str, unit: Unit, captures: str) -> HeaderRow:
    source = f"{captures}; provider-facts.md section 12 (cleared at :00)"
    return quota(suffix, unit, source, window=MINUTE, refill="fixed", parts=_NO_RESET)


def _mistral_row_of_2024(name: str, window: float, *others: str) -> HeaderRow:
    return HeaderRow(
        name=f"size-{name}",
        label="tokens",
        unit="tokens",
        source="provider-facts.md section 12 (2024: ratelimitbysize, in tokens), read 2026-11-21",
        limit=(f"x-ratelimitbysize-limit-{name}", *(f"{other}-limit" for other in others)),
        remaining=(f"x-ratelimitbysize-remaining-{name}", *(f"{other}-remaining" for other in others)),
        reset=tuple(f"{other}-reset" for other in others),
        window=window,
        refill="fixed",
        bare="seconds",
    )


MISTRAL = Provider(
    name="mistral",
    source=_MISTRAL_DOCS,
    hosts=("api.mistral.ai", "codestral.mistral.ai"),
    endpoints=endpoints(
        "/v1",
        "chat/completions",
        "fim/completions",
        "agents/completions",
        "conversations",
        "conversations/{}",
        "embeddings",
        "ocr",
        "moderations",
        "chat/moderations",
        "classifications",
        "chat/classifications",
        "audio/transcriptions",
        "audio/speech",
    ),
    charging=as_produced(
        "capture mistral-200-magistral-5rpm: what was used without what was cached; max_tokens is not reserved",
        cache_reads_free=True,
    ),
    headers=(
        _mistral_row("audio-seconds-minute", "audio_seconds", "capture mistral-200-audio (2026-08-19)"),
        _mistral_row("ocr-pages-minute", "ocr_pages", "provider-facts.md section 12 (2026)"),
        _mistral_row("input-characters-minute", "input_characters", "capture mistral-200-tts (2026-08-19)"),
        _mistral_row_of_2024("minute", MINUTE, "ratelimitbysize"),
        _mistral_row_of_2024("month", MONTH),
    ),
    errors=(
        ErrorRow(
            name="capacity_code",
            cause=Cause.OTHERS_CAPACITY,
            source="provider-facts.md section 12 (3505), read 2026-11-21",
            codes=frozenset({"3505"}),
        ),
        ErrorRow(
            name="rate_limited",
            cause=Cause.RATE,
            source="provider-facts.md section 12 (1300), read 2026-11-21",
            codes=frozenset({"rate_limited", "1300"}),
        ),
    ),
)


# Cohere: limits for each endpoint and model; only trial keys get headers about remaining quota.
#
# Source: https://docs.cohere.com/docs/rate-limits and captures cohere-* (provider-facts.md section 18, read
# 2026-11-21).

_COHERE_LIMITS = "https://docs.cohere.com/docs/rate-limits (provider-facts.md section 18, read 2026-11-21)"
_429 = frozenset({429})

_COHERE_PATHS = {
    "chat": ("/v1/chat", "/v2/chat", "/compatibility/v1/chat/completions"),
    "embed": ("/v1/embed", "/v2/embed", "/compatibility/v1/embeddings"),
    "rerank": ("/v1/rerank", "/v2/rerank"),
    "generate": ("/v1/generate",),
    "classify": ("/v1/classify",),
    "summarize": ("/v1/summarize",),
}

COHERE = Provider(
    name="cohere",
    source=f"{_COHERE_LIMITS}; captures cohere-200-prod, cohere-429-trial-tokens",
    hosts=("api.cohere.com", "api.cohere.ai"),
    endpoints=tuple(Endpoint(path, family=family) for family, paths in _COHERE_PATHS.items() for path in paths),
    charging=at_admission(
        f"{_COHERE_LIMITS}: calls are counted; of tokens only a trial's embeddings (capture cohere-429-trial-tokens)"
    ),
    headers=(
        HeaderRow(
            name="trial-calls",
            label="requests",
            unit="requests",
            source="provider-facts.md section 18 (a rolling minute, absent on 429); a recorded answer of 2026-04-16",
            limit=("x-trial-endpoint-call-limit",),
            remaining=("x-trial-endpoint-call-remaining",),
            refill="fixed",
            window=60.0,
        ),
        HeaderRow(
            name="calls-month",
            label="requests",
            unit="requests",
            source=f"{_COHERE_LIMITS}: calls a month of a trial; a recorded answer of 2026-04-16",
            limit=("x-endpoint-monthly-call-limit",),
            refill="fixed",
            window=MONTH,
        ),
    ),
    errors=(
        ErrorRow(
            name="trial_month",
            cause=Cause.MONEY,
            source=f"{_COHERE_LIMITS}: 1,000 calls a month with a trial key, over all endpoints",
            status=_429,
            text=("api calls / month", "calls per month"),
        ),
        ErrorRow(
            name="too_many_tokens",
            cause=Cause.NEVER_FITS,
            source="capture cohere-400-too-many-tokens (2026-08-13): the model's context, not a rate",
            codes=frozenset({"too_many_tokens"}),
        ),
    ),
)
"""Table of Cohere's API."""


# Perplexity: https://docs.perplexity.ai/docs/admin/rate-limits-usage-tiers: a leaky bucket, in no header.
#
# Models, agents and the search have separate limits.

_PERPLEXITY_DOCS = (
    "https://docs.perplexity.ai/docs/admin/rate-limits-usage-tiers read 2026-11-21 (provider-facts.md section 18)"
)

PERPLEXITY = Provider(
    name="perplexity",
    source=_PERPLEXITY_DOCS,
    hosts=("api.perplexity.ai",),
    endpoints=(
        *endpoints("", "chat/completions", "v1/chat/completions", "v1/embeddings"),
        Endpoint("/async/chat/completions", family="async"),
        *(Endpoint(path, family="agent") for path in ("/v1/responses", "/responses", "/v1/agent")),
        Endpoint("/search", family="search"),
    ),
    charging=at_admission(f"{_PERPLEXITY_DOCS}: requests are limited, tokens are not, so nothing is paced by this"),
)


# Qwen on Alibaba's Model Studio (DashScope), in its OpenAI-compatible and native modes; and ModelScope.
#
# Limits: https://www.alibabacloud.com/help/en/model-studio/rate-limit. They apply to the main account, by model. They
# are also enforced per second, include a guard against steep growth, and are in no header. `insufficient_quota` and
# "exceeded your current quota" mean tokens per minute here, not money. A refusal may be the first event of a 200.

_QWEN_DOCS = "https://www.alibabacloud.com/help/en/model-studio/rate-limit (2026-04-17; provider-facts.md section 9)"

DASHSCOPE = Provider(
    name="dashscope",
    source=_QWEN_DOCS,
    hosts=("dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", "dashscope-us.aliyuncs.com"),
    endpoints=(
        *endpoints("/compatible-mode/v1", "chat/completions", "completions", "responses", "embeddings"),
        Endpoint("/api/v1/services/{}/{}/{}"),
    ),
    charging=as_produced(f"{_QWEN_DOCS}: TPM of input and output; no answer says when they are charged"),
    errors=(
        ErrorRow(
            name="rate_code",
            cause=Cause.RATE,
            source=f"{_QWEN_DOCS}; capture dashscope-429-rate; provider-facts.md section 9 (insufficient_quota)",
            codes=frozenset(
                {"throttling.ratequota", "throttling.allocationquota", "limit_requests", "insufficient_quota"}
            ),
        ),
    ),
)

MODELSCOPE = replace(
    DASHSCOPE,
    name="modelscope",
    source="capture modelscope-200-error (errors come as a 200); provider-facts.md section 9",
    hosts=("api-inference.modelscope.cn",),
    endpoints=endpoints("/v1", "chat/completions", "embeddings", "images/generations"),
)


# Moonshot (Kimi), Z.ai (Zhipu), MiniMax and Volcengine (Ark): models of Chinese makers, at home and abroad.
#
# They speak OpenAI's and Anthropic's protocols. Moonshot names quota headers; the others announce nothing. Their 429
# has many meanings, so the error's type or code decides. The quota of a subscription (5 hours, a week, a month) is not
# a rate: such a refusal ends the call, as one for lack of money.

_READ = "read 2026-11-23"
_403_429 = frozenset({403, 429})

_KIMI = f"https://www.kimi.com/code/docs/en/kimi-code/error-reference.html {_READ}"
_KIMI_LIMITS = f"https://platform.moonshot.ai/docs/pricing/limits {_READ}"

MOONSHOT = hosted(
    "moonshot",
    f"{_KIMI_LIMITS}: concurrency, RPM, TPM and TPD of the account, over all models and keys",
    "api.moonshot.ai",
    "api.moonshot.cn",
    "api.kimi.com",
    scope="account",
    headers=(
        HeaderRow(
            name="requests",
            unit="requests",
            source=f"https://www.kimi.com/help/kimi-api/api-rate-limits {_READ} (the reset is not explained)",
            limit=("x-ratelimit-limit",),
            remaining=("x-ratelimit-remaining",),
            reset=("x-ratelimit-reset",),
            refill="fixed",
        ),
    ),
    errors=(ErrorRow("engine_overloaded", Cause.OTHERS_CAPACITY, _KIMI, codes=frozenset({"engine_overloaded_error"})),),
)

_ZAI = f"https://docs.z.ai/api-reference/api-code and https://docs.bigmodel.cn/cn/api/api-code {_READ}"


def _zai(name: str, cause: Cause, *codes: str) -> ErrorRow:
    return ErrorRow(name, cause, _ZAI, status=_403_429, codes=frozenset(codes))


ZAI = hosted(
    "zai",
    f"{_ZAI}: concurrency of the account by model, in no header",
    "api.z.ai",
    "open.bigmodel.cn",
    headers=(),
    errors=(
        _zai("arrears", Cause.MONEY, "1113"),
        _zai("plan_window", Cause.MONEY, "1308", "1309", "1310"),
        _zai("account", Cause.AUTH, "1110", "1111", "1112", "1121", "1311", "1313"),
        _zai("concurrency", Cause.CONCURRENCY, "1302"),
        _zai("frequency", Cause.RATE, "1303", "1305"),
        _zai("per_day", Cause.DAY, "1304"),
        _zai("busy", Cause.OTHERS_CAPACITY, "1312"),
    ),
)

_MINIMAX = f"https://platform.minimax.io/docs/guides/rate-limits.md {_READ}"

_MINIMAX_CODES = f"https://platform.minimax.io/docs/api-reference/errorcode.md {_READ}"


def _minimax(name: str, cause: Cause, *codes: str) -> ErrorRow:
    return ErrorRow(name, cause, _MINIMAX_CODES, codes=frozenset(codes))


MINIMAX = hosted(
    "minimax",
    f"{_MINIMAX}: RPM and TPM (input and output) of the account by model, in no header",
    "api.minimax.io",
    "api.minimaxi.com",
    "api.minimax.chat",
    endpoints=(*EVERY_DIALECT, *(Endpoint(f"/v1/{path}") for path in ("text/chatcompletion_v2", "t2a_v2"))),
    headers=(),
    errors=(
        # Its own endpoints answer with status 200, and with these codes in `base_resp`.
        _minimax("rate_code", Cause.RATE, "1002", "1039"),
        _minimax("concurrency_code", Cause.CONCURRENCY, "1041"),
        _minimax("slope_code", Cause.SLOPE, "2045"),
        _minimax("account", Cause.AUTH, "1004", "2049"),
        _minimax("balance_code", Cause.MONEY, "1008"),
        _minimax("plan_code", Cause.MONEY, "2056"),
        _minimax("passing", Cause.NONE, "1000", "1001", "1024", "1033"),
    ),
)

_ARK = f"https://www.volcengine.com/docs/82379/1299023 {_READ}"
_ARK_USERS = f"{_ARK}; the newer codes as its users list them"


def _ark(name: str, cause: Cause, *codes: str) -> ErrorRow:
    codes = tuple(code.lower() for code in codes)
    return ErrorRow(name, cause, _ARK_USERS, codes=frozenset(codes))


VOLCENGINE = hosted(
    "volcengine",
    f"{_ARK}: RPM and TPM of the account by model or endpoint, in no header; BytePlus is the same abroad",
    "ark.*.volces.com",
    "ark.*.bytepluses.com",
    endpoints=(*EVERY_DIALECT, Endpoint("/api/v3/embeddings/multimodal")),
    headers=(),
    errors=(
        _ark("per_day", Cause.DAY, "RateLimitExceeded.FoundationModelTPDExceeded"),
        _ark("concurrency", Cause.CONCURRENCY, "InflightBatchsizeExceeded"),
        _ark("overloaded", Cause.OTHERS_CAPACITY, "ServerOverloaded"),
    ),
)


# Voyage, Jina, AI21 and Writer: makers of embeddings, rankers and models of their own.
#
# None announces a quota. Voyage and AI21 keep it by model. Jina keeps it by API and key, Writer for the account.

VOYAGE = hosted(
    "voyage",
    f"https://docs.voyageai.com/docs/rate-limits {_READ}: RPM and TPM of the organization by model, in no header; "
    "https://www.mongodb.com/docs/voyageai/management/rate-limits: lower ones of a project",
    "api.voyageai.com",
    "ai.mongodb.com",
    endpoints=endpoints("/v1", "embeddings", "multimodalembeddings", "contextualizedembeddings", "rerank"),
    headers=(),
)

_JINA = f"https://jina.ai/api-dashboard/pricing {_READ}"

JINA = hosted(
    "jina",
    f"{_JINA}: RPM, TPM and concurrency of the key, by API and not by model; in no header",
    "api.jina.ai",
    "deepsearch.jina.ai",
    endpoints=(
        *(Endpoint(f"/v1/{path}", family=path) for path in ("embeddings", "rerank", "classify")),
        Endpoint("/v1/chat/completions"),
    ),
    headers=(),
    scope="account",
)

AI21 = hosted(
    "ai21",
    f"https://docs.ai21.com/docs/rate-limits {_READ}: requests a second and a minute by model, in no header",
    "api.ai21.com",
    headers=(),
)

WRITER = hosted(
    "writer",
    f"https://dev.writer.com/api-reference/rate-limits {_READ}: RPM and TPM of the account, in no header",
    "api.writer.com",
    endpoints=(*EVERY_DIALECT, *endpoints("/v1", "chat", "completions"), Endpoint("/v1/applications/{}")),
    headers=(),
    scope="account",
)

KNOWN = (
    XAI,
    DEEPSEEK,
    MISTRAL,
    COHERE,
    PERPLEXITY,
    DASHSCOPE,
    MODELSCOPE,
    MOONSHOT,
    ZAI,
    MINIMAX,
    VOLCENGINE,
    VOYAGE,
    JINA,
    AI21,
    WRITER,
)
