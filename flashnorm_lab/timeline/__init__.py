"""Timelines: spans with integer-nanosecond start and duration on named lanes, and the edges between them.

::

    from flashnorm_lab import timeline

    t = plan.record(steps=8)                   # from a device ...
    t = timeline.open("trace.json.gz")         # ... or from a file: Kineto, Chrome, Nsight Systems, our own
    print(timeline.metrics.report(t))          # what is odd in it, then the figures, each with its definition
    t.export("step.html")                      # .json .json.gz .pftrace .csv .parquet .html .svg .png
"""

from . import kineto, metrics
from .kineto import from_kineto
from .merge import merge
from .metrics import measure, report
from .nsight import from_nsight
from .opening import open
from .ordering import edges, order
from .reading import details
from .table import CATEGORIES, EDGE_KINDS, OUTCOMES, PROVENANCES, Lane, Timeline, TimelineBuilder
from .writing import chrome, export_chrome, write

__all__ = [
    "CATEGORIES",
    "EDGE_KINDS",
    "OUTCOMES",
    "PROVENANCES",
    "Lane",
    "Timeline",
    "TimelineBuilder",
    "chrome",
    "details",
    "edges",
    "export_chrome",
    "from_kineto",
    "from_nsight",
    "kineto",
    "measure",
    "merge",
    "metrics",
    "open",
    "order",
    "report",
    "write",
]
