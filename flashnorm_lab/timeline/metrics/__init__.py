"""What a timeline says in figures; each answer states its definition, its denominator and what it left out."""

from .measure import LaneUse, Metrics, intersection, length, measure, union

__all__ = ["LaneUse", "Metrics", "intersection", "length", "measure", "union"]
