"""Timelines: spans with integer-nanosecond start and duration on named lanes, and the edges between them.

::

    from flashnorm_lab import timeline

    t = plan.record(steps=8)                   # from a device ...
    t = timeline.open("trace.json.gz")         # ... or from a file: the lab's own, or one of torch.profiler
    print(timeline.metrics.measure(t))
    t.export_chrome("step.json")               # opens in Perfetto and in chrome://tracing
"""

from . import chrome, kineto, metrics
from .chrome import export_chrome, open
from .kineto import from_kineto
from .metrics import measure
from .table import CATEGORIES, OUTCOMES, PROVENANCES, Lane, Timeline, TimelineBuilder

__all__ = [
    "CATEGORIES",
    "OUTCOMES",
    "PROVENANCES",
    "Lane",
    "Timeline",
    "TimelineBuilder",
    "chrome",
    "export_chrome",
    "from_kineto",
    "kineto",
    "measure",
    "metrics",
    "open",
]
