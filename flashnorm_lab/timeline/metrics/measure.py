"""What a timeline says in figures: launches, host time, delays, busy and idle time, overlap.

Every figure is computed in whole nanoseconds over unions of intervals, so that nothing counts twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...errors import LabError
from ..answer import ratio, told_share, told_time
from ..table import CATEGORIES, DEVICE_WORK, ENQUEUES, Timeline

WORK = {"device": DEVICE_WORK, "host": (*ENQUEUES, "record", "wait")}
"""The categories that make a lane busy. A stream that waits for an event is idle, and so is a host that waits
for the device (synchronize); a named range only encloses others."""


@dataclass(frozen=True)
class LaneUse:
    """One lane over the window.

    spans: spans on it that are work (`WORK`).
    busy_ns: the union of their intervals, cut to the window.
    idle_ns: the window less busy_ns.
    busy_share: busy_ns / window; None for an empty window.
    """

    spans: int
    busy_ns: int
    idle_ns: int
    busy_share: float | None


@dataclass(frozen=True)
class Metrics:
    """Figures of a timeline over a window. Times in nanoseconds; None where there is nothing to divide by.

    window_ns: length of the window, which is the denominator of every share "of the window".
    steps: the number of distinct steps that host launches in the window belong to.
    launches: host spans of category "launch" or "graph" that start in the window, less those that enqueued
        copies and fills only.
    launches_per_step: launches that belong to a step / steps.
    host_ns_total, host_ns_mean, host_ns_median: duration of those launch calls on the host; the mean and the
        median are over ``launches``.
    delays: launches and copies whose host call and device span are both in the timeline, the device span
        starting in the window.
    delay_ns_mean, delay_ns_median, delay_ns_min, delay_ns_max: start of the device span less start of its
        host call, over ``delays``. It includes the call itself, and any wait in the stream's queue.
    delays_negative: how many of them are below zero, which only clocks that disagree can bring about.
    lanes: `LaneUse` of each lane by name.
    units: the two lanes that are compared.
    both_busy_ns: time in the window in which both units were busy.
    both_share_of_first, both_share_of_second: both_busy_ns / busy_ns of that unit.
    both_share_of_window: both_busy_ns / window_ns.
    The five last are None where the timeline lacks one of the two lanes.
    """

    window_ns: int
    steps: int
    launches: int
    launches_per_step: float | None
    host_ns_total: int
    host_ns_mean: float | None
    host_ns_median: float | None
    delays: int
    delays_negative: int
    delay_ns_mean: float | None
    delay_ns_median: float | None
    delay_ns_min: int | None
    delay_ns_max: int | None
    lanes: dict[str, LaneUse]
    units: tuple[str, str] | None
    both_busy_ns: int | None
    both_share_of_first: float | None
    both_share_of_second: float | None
    both_share_of_window: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self) | {"units": list(self.units) if self.units else None}

    def __str__(self) -> str:
        per_step = f" ({self.launches_per_step:g} a step)" if self.launches_per_step is not None else ""
        rows = [
            ("window", told_time(self.window_ns)),
            ("launches", f"{self.launches}{per_step}, {self.steps} step{'s' * (self.steps != 1)}"),
            (
                "host time a launch",
                f"median {told_time(self.host_ns_median)}, mean {told_time(self.host_ns_mean)}, "
                f"together {told_time(self.host_ns_total)}",
            ),
            (
                "launch to start",
                f"median {told_time(self.delay_ns_median)}, mean {told_time(self.delay_ns_mean)}, "
                f"{told_time(self.delay_ns_min)} to {told_time(self.delay_ns_max)} ({self.delays} pairs"
                + (
                    f", {self.delays_negative} negative: the clocks disagree)"
                    if self.delays_negative
                    else ")"
                ),
            ),
        ]
        for name, use in self.lanes.items():
            rows.append(
                (
                    f"{name} busy",
                    f"{told_time(use.busy_ns)}, {told_share(use.busy_share)} of the window; "
                    f"idle {told_time(use.idle_ns)}",
                )
            )
        if self.units:
            first, second = self.units
            rows.append(
                (
                    f"{first} and {second}",
                    f"both busy {told_time(self.both_busy_ns)}: "
                    f"{told_share(self.both_share_of_first)} of {first}'s busy time, "
                    f"{told_share(self.both_share_of_second)} of {second}'s, "
                    f"{told_share(self.both_share_of_window)} of the window",
                )
            )
        width = max(len(label) for label, _ in rows)
        return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def measure(
    timeline: Timeline,
    units: tuple[str, str] = ("matrix", "vector"),
    steps: Iterable[int] | None = None,
    window: tuple[int, int] | None = None,
) -> Metrics:
    """The figures of `Metrics`.

    units: two lane names whose overlap is wanted; the default pair may be absent, any other must exist.
    steps: only spans of these steps count; None for all spans.
    window: start and end in absolute nanoseconds; by default from the first start to the last end of the
    spans that count. A span that crosses the window's edge counts as launch or delay if it starts inside, and
    for busy time with the part inside.

    Raises ``LabError`` for a lane that does not exist, no such steps, or a window that ends before it starts.
    """
    counts = np.ones(len(timeline), dtype=bool)
    if steps is not None:
        wanted = sorted(set(steps))
        counts = np.isin(timeline.step, wanted)
        if not counts.any():
            raise LabError(
                f"no span belongs to steps {wanted}; this timeline has steps {_span_of(timeline.steps)}"
            )
    if window is None:
        start = int(timeline.start_ns[counts].min()) if counts.any() else 0
        stop = int(timeline.end_ns[counts].max()) if counts.any() else 0
    else:
        start, stop = (int(edge) for edge in window)
        if stop < start:
            raise LabError(f"window={window!r} ends before it starts")
    width = stop - start
    inside = counts & (timeline.start_ns >= start) & (timeline.start_ns < max(stop, start + 1))
    device = timeline.on_device()

    pairs = timeline.launches()
    copies = timeline.is_category("copy", "fill")[pairs[:, 1]]
    only_copies = np.setdiff1d(pairs[copies, 0], pairs[~copies, 0])
    launches = inside & ~device & timeline.is_category("launch", "graph")
    launches[only_copies] = False
    host = timeline.duration_ns[launches]
    launch_steps = timeline.step[launches]
    known_steps = len(np.unique(launch_steps[launch_steps >= 0]))
    pairs = pairs[inside[pairs[:, 1]]]
    delay = timeline.start_ns[pairs[:, 1]] - timeline.start_ns[pairs[:, 0]]

    lanes, busy = {}, {}
    for i, lane in enumerate(timeline.lanes):
        kinds = [CATEGORIES.index(c) for c in WORK[lane.kind]]
        mine = counts & (timeline.lane == i) & np.isin(timeline.category, kinds)
        busy[lane.name] = union(timeline.start_ns[mine], timeline.end_ns[mine], start, stop)
        total = length(busy[lane.name])
        touching = mine & (timeline.end_ns >= start) & (timeline.start_ns <= stop)
        lanes[lane.name] = LaneUse(int(touching.sum()), total, width - total, ratio(total, width))

    both = None
    if units != ("matrix", "vector") or all(unit in busy for unit in units):
        for unit in units:
            timeline.lane_index(unit)
        both = length(intersection(busy[units[0]], busy[units[1]]))
    return Metrics(
        window_ns=width,
        steps=known_steps,
        launches=int(launches.sum()),
        launches_per_step=ratio(int((launch_steps >= 0).sum()), known_steps),
        host_ns_total=int(host.sum()),
        host_ns_mean=float(host.mean()) if len(host) else None,
        host_ns_median=float(np.median(host)) if len(host) else None,
        delays=len(delay),
        delays_negative=int((delay < 0).sum()),
        delay_ns_mean=float(delay.mean()) if len(delay) else None,
        delay_ns_median=float(np.median(delay)) if len(delay) else None,
        delay_ns_min=int(delay.min()) if len(delay) else None,
        delay_ns_max=int(delay.max()) if len(delay) else None,
        lanes=lanes,
        units=(units[0], units[1]) if both is not None else None,
        both_busy_ns=both,
        both_share_of_first=None if both is None else ratio(both, lanes[units[0]].busy_ns),
        both_share_of_second=None if both is None else ratio(both, lanes[units[1]].busy_ns),
        both_share_of_window=None if both is None else ratio(both, width),
    )


def union(start_ns: np.ndarray, end_ns: np.ndarray, window_start: int, window_end: int) -> np.ndarray:
    """The union of half-open intervals, cut to a window: disjoint, in order, int64 [intervals, 2]."""
    start, end = np.maximum(start_ns, window_start), np.minimum(end_ns, window_end)
    start, end = start[start < end], end[start < end]
    if not len(start):
        return np.empty((0, 2), dtype=np.int64)
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    opens = np.flatnonzero(np.concatenate([[True], start[1:] > reach[:-1]]))
    closes = np.concatenate([opens[1:] - 1, [len(start) - 1]])
    return np.stack([start[opens], reach[closes]], axis=1)


def intersection(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What two results of `union` have in common, int64 [intervals, 2]."""
    if not len(a) or not len(b):
        return np.empty((0, 2), dtype=np.int64)
    cuts = np.unique(np.concatenate([a.ravel(), b.ravel()]))
    left, right = cuts[:-1], cuts[1:]

    def covers(intervals: np.ndarray) -> np.ndarray:
        i = np.searchsorted(intervals[:, 0], left, side="right") - 1
        return (i >= 0) & (left < intervals[i, 1])

    inside = covers(a) & covers(b)
    return np.stack([left[inside], right[inside]], axis=1)


def length(intervals: np.ndarray) -> int:
    """The total length of disjoint intervals in nanoseconds."""
    return int((intervals[:, 1] - intervals[:, 0]).sum())


def _span_of(steps: tuple[int, ...]) -> str:
    return f"{steps[0]} to {steps[-1]}" if steps else "none"
