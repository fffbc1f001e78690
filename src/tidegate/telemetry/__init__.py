"""OpenTelemetry: metrics, events on the caller's current span, and a span for each real wait; docs/telemetry.md.

Where an SDK is in the process every registry tells of itself; `instrument` and `uninstrument` are for other wishes.
"""

from tidegate.telemetry.instrument import instrument as instrument
from tidegate.telemetry.instrument import uninstrument as uninstrument

__all__ = ["instrument", "uninstrument"]
