"""OpenTelemetry: metrics, events on the caller's current span, and a span for each real wait; see docs/telemetry.md.

With an SDK in the process every registry reports by itself. `instrument` and `uninstrument` serve all other cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.admission.registry import RateLimitRegistry
from tidegate.admission.registry import registry as default_registry
from tidegate.telemetry import activation

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["instrument", "uninstrument"]


def instrument(
    registry: RateLimitRegistry | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Report the events of a registry (the default one) to OpenTelemetry, whatever else is in the process.

    Only three cases need this call: providers other than the process's, `Settings.telemetry` off, and a registry after
    `uninstrument`. Otherwise the import of an SDK has the same effect. A repeated call replaces the providers.
    """
    activation.begin(registry or default_registry(), tracer_provider, meter_provider)


def uninstrument(registry: RateLimitRegistry | None = None) -> None:
    """Stop reporting a registry (the default one), also where an SDK is imported later."""
    activation.end(registry or default_registry())
