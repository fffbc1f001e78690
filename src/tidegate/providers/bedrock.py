"""AWS Bedrock: no header reports a limit, and the error's type is in `x-amzn-errortype`.

Errors: the service model of botocore@0e6e2404b (bedrock-runtime service-2.json), provider-facts.md section 3.
"""

from __future__ import annotations

from tidegate.core.values import Cause
from tidegate.providers._common import COMMON_ERRORS
from tidegate.providers._schema import Charging, Endpoint, ErrorRow, Provider

_MODEL = "botocore@0e6e2404b bedrock-runtime service-2.json, read 2026-11-21 (provider-facts.md section 3)"
_TOKENS = "https://docs.aws.amazon.com/bedrock/latest/userguide/quotas-token-burndown.html read 2026-11-21"

_429 = frozenset({429})

ERRORS = (
    ErrorRow(
        name="per_day",
        cause=Cause.DAY,
        source="capture bedrock-429-via-claude-code; provider-facts.md section 3 (the class of a minute's refusal)",
        status=_429 | {400},
        text=("tokens per day", "requests per day"),
    ),
    ErrorRow(
        name="service_quota",
        cause=Cause.RATE,
        source=f"{_MODEL}: status 400; provider-facts.md rule 7 (refusals of a rate that are no 429)",
        codes=frozenset({"servicequotaexceededexception"}),
    ),
    ErrorRow("model_timeout", Cause.OUTAGE, f"{_MODEL}: status 408", codes=frozenset({"modeltimeoutexception"})),
    ErrorRow(
        name="model_error",
        cause=Cause.OUTAGE,
        source=f"{_MODEL}: status 424, the model failed; in a stream as modelStreamErrorException",
        codes=frozenset({"modelerrorexception", "modelstreamerrorexception"}),
    ),
    ErrorRow(
        name="internal",
        cause=Cause.OUTAGE,
        source=f"{_MODEL}: status 500; in a stream as internalServerException",
        codes=frozenset({"internalserverexception"}),
    ),
    ErrorRow(
        name="validation",
        cause=Cause.INVALID,
        source=f"{_MODEL}: status 400; in a stream as validationException",
        codes=frozenset({"validationexception", "resourcenotfoundexception"}),
    ),
)

_OPENAI_ROUTES = ("chat/completions", "completions", "responses", "embeddings")

BEDROCK = Provider(
    name="bedrock",
    source=f"{_MODEL}; captures bedrock-200-no-headers and four refusals; section 19 for the key",
    hosts=("bedrock-runtime.*.amazonaws.com", "bedrock-runtime-fips.*.amazonaws.com", "bedrock-mantle.*.api.aws"),
    endpoints=(
        Endpoint("**/model/{+model}/invoke"),
        Endpoint("**/model/{+model}/invoke-with-response-stream", streams=True),
        Endpoint("**/model/{+model}/converse"),
        Endpoint("**/model/{+model}/converse-stream", streams=True),
        *(Endpoint(f"{prefix}/v1/{path}") for prefix in ("/openai", "") for path in _OPENAI_ROUTES),
        Endpoint("/anthropic/v1/messages"),
    ),
    credential=("authorization",),
    credential_part=("Credential=", "/"),  # SigV4: the access key's id; the region is in the host
    charging=Charging(
        tokens="input+max",
        input_tokens="input",
        output_tokens="mean",
        produced="nothing",
        source=f"{_TOKENS}: input + max_tokens at the start, settled to input + cache writes + output x its rate",
        cache_reads_free=True,
        gives_back=True,
        # Claude 3.7 and later count an output token five times; older models are listed by name.
        burndown=(
            ("claude-3-7", 5.0),
            ("claude-3-", 1.0),
            ("claude-v", 1.0),
            ("claude-instant", 1.0),
            ("claude-", 5.0),
        ),
    ),
    headers=(),
    errors=ERRORS,
    common_errors=COMMON_ERRORS,
    image_chars=6400,  # most pictures go to Claude: 1,600 tokens, as in the table of Anthropic
    code_headers=("x-amzn-errortype",),
)
"""Table of AWS Bedrock's runtime."""
