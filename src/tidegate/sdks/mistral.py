"""mistralai: no retries unless a `retry_config` asks for them, and then by Speakeasy's loop.

Source: mistralai 3.7.0 `client/`, `azure/client/`, `gcp/client/`; mistralai 1.12.4 beside its azure and gcp packages.
"""

from __future__ import annotations

from tidegate.sdks import speakeasy
from tidegate.sdks.row import Hooks, Sdk

RETRIES = (
    "mistralai.client.utils.retries",
    "mistralai.azure.client.utils.retries",
    "mistralai.gcp.client.utils.retries",
    "mistralai.utils.retries",
    "mistralai_azure.utils.retries",
    "mistralai_gcp.utils.retries",
)

MISTRAL = Sdk(
    package="mistralai",
    clients=("Mistral",),
    family="mistral",
    places=("sdk_configuration.client", "sdk_configuration.async_client"),
    hooks=Hooks(dict.fromkeys(RETRIES, speakeasy.put)),
    source="mistralai 3.7.0 `client/basesdk.py` 269, 343",
)
