"""What a timeline says in figures; each answer states its definition, denominator and what it left out."""

from .busy import Busy, Use, busy
from .checking import Checks, check
from .differing import Diff, NameDiff, Side, diff
from .differing_edges import EdgeDiff
from .finding import Finding
from .gaps import CAUSES, Gaps, Idle, gaps
from .groups import Groups
from .kinds import Kernels, KernelUse, kernels
from .launching import Launching, launching
from .measure import LaneUse, Metrics, intersection, length, measure, union
from .norms import NormShare, norm_share
from .operators import Operators, OperatorUse, operators
from .overlaps import Concurrency, Overlap, concurrency, overlap, overlaps
from .questions import Question
from .reporting import Report, report
from .stepping import Shift, Steps, StepUse, steps

__all__ = [
    "CAUSES",
    "Busy",
    "Checks",
    "Concurrency",
    "Diff",
    "EdgeDiff",
    "Finding",
    "Gaps",
    "Groups",
    "Idle",
    "KernelUse",
    "Kernels",
    "LaneUse",
    "Launching",
    "Metrics",
    "NameDiff",
    "NormShare",
    "OperatorUse",
    "Operators",
    "Overlap",
    "Question",
    "Report",
    "Shift",
    "Side",
    "StepUse",
    "Steps",
    "Use",
    "busy",
    "check",
    "concurrency",
    "diff",
    "gaps",
    "intersection",
    "kernels",
    "launching",
    "length",
    "measure",
    "norm_share",
    "operators",
    "overlap",
    "overlaps",
    "report",
    "steps",
    "union",
]
