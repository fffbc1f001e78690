"""OpenTelemetry: metrics, events on the caller's current span, and a span for each real wait; see docs/telemetry.md.

With an SDK in the process every registry reports by itself. `instrument` and `uninstrument` serve all other cases.
"""

from tidegate.telemetry.instrument import instrument as instrument
from tidegate.telemetry.instrument import uninstrument as uninstrument

__all__ = ["instrument", "uninstrument"]
