"""What a part of a timeline says of itself: the figures beneath a viewer's selection, and beneath a page."""

from __future__ import annotations

from . import metrics
from .answer import Answer
from .cutting import clipped
from .metrics.kinds import kernels
from .table import Timeline


def figures(t: Timeline, window: tuple[int, int] | None = None) -> list[Answer]:
    """Busy time of streams and devices, launches, overlap of the two busiest streams, kernels by name.

    window: start and end in absolute nanoseconds, or None for what the work of the devices takes; spans that
    cross its edge count with what is inside; launches are those of calls that start in it. Empty where no
    device worked. ``LabError`` for a window in which there is nothing.
    """
    part = t if window is None else clipped(t, window)
    if not len(part.operations()):
        return []
    use = metrics.busy(part, window)
    found: list[Answer] = [use]
    cost = metrics.launching(t, window)
    if cost.launches:
        found.append(cost)
    busiest = sorted((lane for lane in use.lanes if lane.busy_ns), key=lambda lane: -lane.busy_ns)[:2]
    if len(busiest) == 2:
        found.append(metrics.overlap(part, busiest[0].name, busiest[1].name, window=window))
    if part.is_category("kernel").any():
        found.append(kernels(part, by="name"))
    return found
