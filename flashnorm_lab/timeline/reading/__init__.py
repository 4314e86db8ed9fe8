"""Reading trace files: from the bytes on disk to columns of events, and back to a single event.

``read_events(path)`` is the way in for Chrome and Kineto JSON, ``kind_of(path)`` tells it from other files,
and ``details(timeline, span)`` looks up all that the file says of one span.
"""

from .events import Events, events_of, read_events
from .origin import details, event_at, kind_of
from .text import load_json, read_text
from .times import MISSING, nanoseconds

__all__ = [
    "MISSING",
    "Events",
    "details",
    "event_at",
    "events_of",
    "kind_of",
    "load_json",
    "nanoseconds",
    "read_events",
    "read_text",
]
