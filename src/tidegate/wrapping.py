"""`tidegate.wrap(client)`: governs one client, whatever server it talks to."""

from __future__ import annotations

from typing import TypeVar

from tidegate.default import registry as default_registry
from tidegate.errors import ConfigurationError
from tidegate.registries import RateLimitRegistry
from tidegate.transports.govern import MARK, Mark, policy_of
from tidegate.transports.stacks import Transport, transport_of

T = TypeVar("T")

SDK_FAMILIES: dict[str, str] = {
    "openai": "openai",
    "anthropic": "anthropic",
    "botocore": "bedrock",
}
"""SDK package: the family of its dialect."""

INNER = {"botocore": "_endpoint"}
"""SDK package: where its clients keep what sends (botocore 1.44); in `_client` else (openai 3, anthropic 2)."""

AZURE_CLIENTS = frozenset({"AzureOpenAI", "AsyncAzureOpenAI"})

WRAPPABLE = (
    "openai.OpenAI, AsyncOpenAI, AzureOpenAI, AsyncAzureOpenAI; anthropic.Anthropic, AsyncAnthropic; "
    "httpx.Client, AsyncClient; httpx2.Client, AsyncClient; requests.Session; a bedrock-runtime client of boto3"
)


def wrap(
    client: T, *, registry: RateLimitRegistry | None = None, max_wait: float | None = None, priority: int = 0
) -> T:
    """Returns the same client; from now on each of its attempts passes its key's queue.

    `max_wait` (seconds) and `priority` (higher goes first within a key) hold for this client; by default the
    registry's setting and 0. Copies that share its HTTP client (`with_options`, `copy`) are governed too. Wrapping
    again replaces these options. Raises `TypeError` for what cannot be wrapped.
    """
    if max_wait is not None and not 0 <= max_wait <= 31_536_000:
        raise ConfigurationError("max_wait", max_wait, "between 0 and 31536000 seconds")
    http_client, transport, family = _http_client(client)
    transport.put(transport.module_of(http_client))
    registry = registry or default_registry()
    mark = Mark(registry, policy_of(registry, max_wait), priority, family, any_host=True)
    setattr(http_client, MARK, mark)
    transport.remember(http_client)
    return client


def _http_client(client: object) -> tuple[object, Transport, str | None]:
    """The HTTP client that sends for `client`, its transport, and the SDK family it belongs to."""
    transport = transport_of(client)
    if transport is not None:
        return client, transport, None
    names = [(each.__module__.partition(".")[0], each.__name__) for each in type(client).__mro__]
    package = next((package for package, _ in names if package in SDK_FAMILIES), "")
    family = SDK_FAMILIES.get(package)
    inner = getattr(client, INNER.get(package, "_client"), None)
    transport = transport_of(inner)
    if family is None or transport is None:
        raise TypeError(
            f"tidegate cannot wrap a {type(client).__module__}.{type(client).__qualname__}; it can wrap {WRAPPABLE}"
        )
    if any(name in AZURE_CLIENTS for _, name in names):
        family = "azure"
    return inner, transport, family
