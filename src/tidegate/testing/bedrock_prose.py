"""The refusals of Bedrock: status, error and message.

Sources: captures bedrock-429-too-many-tokens, bedrock-429-via-claude-code and bedrock-503-ServiceUnavailable; names and
statuses are those of botocore's bedrock-runtime service-2.json. It never names a limit or a time.
"""

from __future__ import annotations

from tidegate.testing.gate import Refusal
from tidegate.testing.limiters import Reason

TOO_MANY_TOKENS = "Too many tokens, please wait before trying again."

_BROKEN = {
    500: ("InternalServerException", "The system encountered an unexpected error during processing. Try your request."),
    503: ("ServiceUnavailableException", "The service isn't currently available."),
}
_CONNECTIONS = "Too many connections, please wait before trying again."


def bedrock_words(refusal: Refusal) -> tuple[int, str, str]:
    """Status, error and message of a refusal."""
    if refusal.reason is Reason.OUTAGE:
        status = refusal.status or 503
        return status, *_BROKEN.get(status, _BROKEN[503])
    if refusal.reason is Reason.MONEY:
        return 403, "AccessDeniedException", "Model access is denied due to INVALID_PAYMENT_INSTRUMENT."
    if refusal.reason is Reason.TOO_LARGE:
        return 400, "ValidationException", "Input is too long for requested model."
    if refusal.reason is Reason.SLOTS:
        status = 429 if refusal.status == 429 else 503
        return status, "ThrottlingException" if status == 429 else "ServiceUnavailableException", _CONNECTIONS
    counted = "requests" if refusal.level.unit == "requests" else "tokens"
    if refusal.reason is Reason.DAY:
        return 429, "ThrottlingException", f"Too many {counted} per day, please wait before trying again."
    return 429, "ThrottlingException", TOO_MANY_TOKENS.replace("tokens", counted)
