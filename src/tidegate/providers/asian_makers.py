"""Moonshot (Kimi), Z.ai (Zhipu), MiniMax and Volcengine (Ark): models of Chinese makers, at home and abroad.

They speak OpenAI's and Anthropic's protocols. Moonshot names quota headers; the others announce nothing. Their 429 has
many meanings, so the error's type or code decides. The quota of a subscription (5 hours, a week, a month) is not a
rate: such a refusal is handed back, as one for lack of money.
"""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._schema import Endpoint, ErrorRow, HeaderRow
from tidegate.providers.compatible import EVERY_DIALECT, hosted

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
        _ark("slope", Cause.SLOPE, "RequestBurstTooFast"),
        _ark("overloaded", Cause.OTHERS_CAPACITY, "ServerOverloaded"),
    ),
)
