"""The HTTP stacks and the SDKs whose clients can be wrapped, and the binding of one client to a registry.

`install` and `wrap` use the tables `TRANSPORTS` and `SDKS`; `tidegate.wrap` is the public function of `attach`. The
hooks that end an SDK's own retries are in `sdk_hooks`.

google-genai's client has an HTTP client, an asynchronous one with inner ones per event loop, and aiohttp sessions made
on first use. It also has google-auth's session for mutual TLS. So it carries the binding itself. Source: google-genai
3.4.0, 2.34.0 and 1.75.0, `_api_client.py` and (not 1.75.0) `_gaos/`.

huggingface_hub's inference clients send through HTTP clients of the whole process. So a wrapped one carries the binding
itself: other users of those HTTP clients stay ungoverned. Source: huggingface_hub 2.4.0 `inference/_client.py` 259,
`inference/_generated/_async_client.py` 258 (`_inner_post`).

mistralai has one client in each of its packages. Source: mistralai 3.7.0 `client/`, `azure/client/`, `gcp/client/`;
mistralai 1.12.4 beside its azure and gcp packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TypeVar

from tidegate.admission import redaction
from tidegate.admission.arguments import checked_max_wait, checked_priority
from tidegate.admission.key_table import KeyTable
from tidegate.transports import aiohttp, bearer, botocore, httpx, requests, sigv4
from tidegate.transports.governance import BINDING, Binding, policy_of
from tidegate.transports.patches import Clients
from tidegate.transports.sdk_hooks import (
    Hooks,
    noted,
    patch_cohere,
    patch_google_genai,
    patch_inference,
    patch_openai_bedrock,
    patch_speakeasy,
)


@dataclass(frozen=True, eq=False)
class Sdk:
    """An SDK whose clients can be wrapped.

    - `package`: dotted name of the package of its client classes
    - `clients`: their names, as listed to users
    - `family`: API family that an unknown host is assumed to speak (`providers.adopt`); `families` overrides it by
      class name
    - `places`: dotted attributes of a client that hold its HTTP clients; an absent or None one is skipped
    - `carrier`: attribute of the object that carries the binding because its HTTP clients change ("": the client
      itself; None: there is none)
    - `hooks`: patches of its functions
    - `source`: file and version that show this
    """

    package: str
    clients: tuple[str, ...]
    family: str
    source: str
    places: tuple[str, ...] = ()
    carrier: str | None = None
    families: Mapping[str, str] = field(default_factory=dict)
    hooks: Hooks = field(default_factory=lambda: Hooks({}))

    def has(self, client: object) -> bool:
        return any(f"{each.__module__}.".startswith(f"{self.package}.") for each in type(client).__mro__)

    def family_of(self, client: object) -> str:
        names = [each.__name__ for each in type(client).__mro__]
        return next((self.families[name] for name in names if name in self.families), self.family)

    def http_clients(self, client: object) -> Iterator[object]:
        """Yield the HTTP clients at the places."""
        for place in self.places:
            try:
                found = attrgetter(place)(client)
            except AttributeError:
                continue
            if found is not None:
                yield found

    def carrier_of(self, client: object) -> object | None:
        """Return the object that carries the binding, None if there is none."""
        return getattr(client, self.carrier, None) if self.carrier else None if self.carrier is None else client


GOOGLE_GENAI = Sdk(
    package="google.genai",
    clients=("Client",),
    family="gemini",
    places=("_api_client._httpx_client", "_api_client._async_httpx_client"),
    carrier="_api_client",
    hooks=Hooks(
        {
            "google.genai._api_client": patch_google_genai,
            "google.genai._gaos.utils.retries": patch_speakeasy,
            "google.genai._gaos.lib.compat_errors": noted("APIStatusError", "__init__"),
        }
    ),
    source="google-genai 3.4.0 `client.py`, `_api_client.py` 1357-1374; gaos shares both (`_gaos/google_genai.py` 218)",
)


HUGGING_FACE = Sdk(
    package="huggingface_hub.inference",
    clients=("InferenceClient", "AsyncInferenceClient"),
    family="huggingface",
    carrier="",
    hooks=Hooks(
        {
            "huggingface_hub.inference._client": patch_inference,
            "huggingface_hub.inference._generated._async_client": patch_inference,
            "huggingface_hub.errors": noted("HfHubHTTPError", "__init__"),
        }
    ),
    source="huggingface_hub 2.4.0 `inference/_client.py` 245 (`get_session`)",
)


COHERE = Sdk(
    package="cohere",
    clients=("Client", "AsyncClient", "ClientV2", "AsyncClientV2"),
    family="cohere",
    places=("_client_wrapper.httpx_client.httpx_client",),
    hooks=Hooks(
        {
            "cohere.core.http_client": patch_cohere,
            "cohere.core.api_error": noted("ApiError", "__init__"),
        }
    ),
    source="cohere 7.3.1 `client.py` 178, 427 (`close`)",
)


RETRIES = (
    "mistralai.client.utils.retries",
    "mistralai.azure.client.utils.retries",
    "mistralai.gcp.client.utils.retries",
    "mistralai.utils.retries",
    "mistralai_azure.utils.retries",
    "mistralai_gcp.utils.retries",
)
"""Modules of mistralai that hold Speakeasy's loops."""

ERRORS = {
    "mistralai.client.errors.mistralerror": noted("MistralError", "__init__"),
    "mistralai.azure.client.errors.mistralazureerror": noted("MistralAzureError", "__init__"),
    "mistralai.gcp.client.errors.mistralgcperror": noted("MistralGCPError", "__init__"),
    "mistralai.models.mistralerror": noted("MistralError", "__init__"),
    "mistralai_azure.models.mistralazureerror": noted("MistralAzureError", "__init__"),
    "mistralai_gcp.models.mistralgcperror": noted("MistralGcpError", "__init__"),
}
"""Hooks of the base classes of mistralai's errors, by module."""

MISTRAL = Sdk(
    package="mistralai",
    clients=("Mistral",),
    family="mistral",
    places=("sdk_configuration.client", "sdk_configuration.async_client"),
    hooks=Hooks({**dict.fromkeys(RETRIES, patch_speakeasy), **ERRORS}),
    source="mistralai 3.7.0 `client/basesdk.py` 269, 343",
)


STAINLESS = noted("BaseClient", "_make_status_error_from_response")
"""Hook for the error of an answer, for `_base_client` of the SDKs that Stainless generates."""

OPENAI = Sdk(
    package="openai",
    clients=("OpenAI", "AsyncOpenAI", "AzureOpenAI", "AsyncAzureOpenAI"),
    family="openai",
    families={"AzureOpenAI": "azure", "AsyncAzureOpenAI": "azure"},
    places=("_client",),
    hooks=Hooks(
        {**bearer.of("openai"), "openai.providers.bedrock": patch_openai_bedrock, "openai._base_client": STAINLESS}
    ),
    source="openai 3.52 and 2.54 `_base_client.py`",
)
ANTHROPIC = Sdk(
    package="anthropic",
    clients=("Anthropic", "AsyncAnthropic"),
    family="anthropic",
    places=("_client",),
    hooks=Hooks({**sigv4.of("anthropic"), **bearer.of("anthropic"), "anthropic._base_client": STAINLESS}),
    source="anthropic 2.11 `_base_client.py`",
)
BOTO3 = Sdk(
    package="botocore.client",
    clients=("BedrockRuntime",),
    family="bedrock",
    places=("_endpoint",),
    hooks=Hooks({"botocore.exceptions": noted("ClientError", "__init__")}),
    source="botocore 1.44.5 `client.py` (boto3 has no client classes of its own)",
)
GROQ = Sdk(
    package="groq",
    clients=("Groq", "AsyncGroq"),
    family="groq",
    places=("_client",),
    hooks=Hooks({"groq._base_client": STAINLESS}),
    source="groq 1.7.0 `_base_client.py`",
)
TOGETHER = Sdk(
    package="together",
    clients=("Together", "AsyncTogether"),
    family="together",
    places=("_client",),
    hooks=Hooks({"together._base_client": STAINLESS}),
    source="together 2.36.0 and 3.1.1 `_base_client.py` (3.x adds the version to a base URL itself)",
)
OLLAMA = Sdk(
    package="ollama",
    clients=("Client", "AsyncClient"),
    family="ollama",
    places=("_client",),
    hooks=Hooks({"ollama._types": noted("ResponseError", "__init__")}),
    source="ollama 0.6.3 `_client.py` 116",
)
REPLICATE = Sdk(
    package="replicate",
    clients=("Client",),
    family="replicate",
    places=("_client", "_async_client"),
    hooks=Hooks({"replicate.exceptions": noted("ReplicateError", "from_response")}),
    source="replicate 1.0.7 `client.py` 64, 76 (both are made when they are asked for)",
)

SDKS = (
    OPENAI,
    ANTHROPIC,
    BOTO3,
    GOOGLE_GENAI,
    GROQ,
    TOGETHER,
    MISTRAL,
    COHERE,
    OLLAMA,
    REPLICATE,
    HUGGING_FACE,
)


def sdk_of(client: object) -> Sdk | None:
    return next((sdk for sdk in SDKS if sdk.has(client)), None)


TRANSPORTS: tuple[Clients, ...] = (httpx.TRANSPORT, requests.TRANSPORT, aiohttp.TRANSPORT, botocore.TRANSPORT)
"""The governed HTTP stacks. Each is one module of this package."""


def transport_of(client: object) -> Clients | None:
    return next((transport for transport in TRANSPORTS if transport.is_client(client)), None)


T = TypeVar("T")

HTTP_CLIENTS = "httpx.Client, AsyncClient; httpx2.Client, AsyncClient; requests.Session; aiohttp.ClientSession"
WRAPPABLE = "; ".join([*(f"{sdk.package}.{', '.join(sdk.clients)}" for sdk in SDKS), HTTP_CLIENTS])


def attach(client: T, registry: KeyTable, max_wait: float | None, priority: int) -> T:
    """Bind a client to a registry, and return it; see `tidegate.wrap`.

    `max_wait` is in seconds, None for the registry's setting. An option out of range raises at once, because below an
    SDK the error would stay hidden.
    """
    if max_wait is not None:
        checked_max_wait(max_wait)
    checked_priority(priority)
    senders, sdk = _senders(client)
    family = sdk.family_of(client) if sdk is not None else None
    binding = Binding(registry, policy_of(registry, max_wait), priority, family, any_host=True)
    for sender in senders:
        _put(sender)
        # This acts as `setattr`, without the warning of aiohttp's sessions about foreign attributes.
        object.__setattr__(sender, BINDING, binding)
    redaction.remember(redaction.in_client(client))
    if sdk is not None:
        sdk.hooks.put()
    return client


def _senders(client: object) -> tuple[list[object], Sdk | None]:
    """Return the objects that carry the binding of `client` (its HTTP clients, or their carrier), and its SDK."""
    if transport_of(client) is not None:
        return [client], None
    sdk = sdk_of(client)
    senders: list[object] = []
    if sdk is not None:
        senders += [each for each in sdk.http_clients(client) if transport_of(each) is not None]
        carrier = sdk.carrier_of(client)
        senders += [carrier] if carrier is not None else []
    if not senders:
        if isinstance(client, type):
            raise TypeError(f"client not wrapped: {client.__qualname__} is a class; wrap an instance of it")
        raise TypeError(
            f"client not wrapped: tidegate does not know {type(client).__module__}.{type(client).__qualname__}; "
            f"it can wrap {WRAPPABLE}"
        )
    return senders, sdk


def _put(sender: object) -> None:
    """Patch the stack of an HTTP client, or every stack below a carrier; the patches stay on while it lives."""
    transport = transport_of(sender)
    if transport is not None:
        transport.put(transport.module_of(sender))
        transport.remember(sender)
        return
    for each in TRANSPORTS:
        for module in each.loaded():
            each.put(module)
        each.remember(sender)
