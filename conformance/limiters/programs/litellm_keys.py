"""The keys of the LiteLLM proxy: each has the limits that the environment names."""

import os

from fastapi import Request
from litellm.proxy._types import UserAPIKeyAuth


async def user_api_key_auth(request: Request, api_key: str) -> UserAPIKeyAuth:
    """Return the account of a key."""
    limits = {name: int(os.environ[name.upper()]) for name in ("rpm_limit", "tpm_limit") if name.upper() in os.environ}
    return UserAPIKeyAuth(api_key=api_key, **limits)
