"""The public switches of telemetry, for the cases in which an SDK in the process is not enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.registry import registry as default_registry
from tidegate.telemetry import activation

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider


def instrument(
    registry: RateLimitRegistry | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Tell OpenTelemetry of a registry (the default one), whatever else is in the process.

    Needed only for providers that are not the process's own, for a registry with `Settings.telemetry` off, and after
    `uninstrument`: otherwise the import of an SDK does it. Repeating it replaces the providers.
    """
    activation.begin(registry or default_registry(), tracer_provider, meter_provider)


def uninstrument(registry: RateLimitRegistry | None = None) -> None:
    """Stop telling of a registry (the default one), also where an SDK is imported later."""
    activation.end(registry or default_registry())
