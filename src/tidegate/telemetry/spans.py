"""Events on the caller's current span, and a span for a wait that was real."""

from __future__ import annotations

import time

from opentelemetry.trace import Tracer, get_current_span

from tidegate.core import events
from tidegate.telemetry.attributes import KeyAttributes
from tidegate.telemetry.signals import REAL_WAIT, SIGNALS, read


def note(tracer: Tracer, event: events.Event, key: KeyAttributes) -> None:
    """Puts an event on the span that is current here, or makes its span, as the table says.

    A wait has just ended when it is told, so its span ends now and began that long ago: no clock needs converting.
    """
    found = SIGNALS[type(event)].note
    if found is None:
        return
    if found.lasting is None:
        span = get_current_span()
        if span.is_recording():
            span.add_event(found.name, key.along(read(found.facts, event)))
        return
    lasting = found.lasting(event)
    if lasting > REAL_WAIT:
        now = time.time_ns()
        span = tracer.start_span(
            found.name, attributes=key.along(read(found.facts, event)), start_time=now - int(lasting * 1e9)
        )
        span.end(now)
