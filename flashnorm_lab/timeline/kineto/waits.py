"""Edges of kind "order": a stream's waits for events, as the profiler's own entries tell of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ..table import Timeline


class StreamWait(NamedTuple):
    """One wait: launch numbers of the call that recorded the event and of the one that waits, the lanes that
    it was recorded on and that wait (-1 for whatever is not known), and the event's name."""

    recorded: int
    waited: int
    source_lane: int
    target_lane: int
    name: str


def order_edges(waits: Iterable[StreamWait], timeline: Timeline) -> tuple[list[tuple[int, int, str]], int]:
    """Edges (source span, target span, name), and the number of waits that the trace says too little about.

    An edge leads from the last work that was enqueued before the record to the first enqueued behind the
    wait, each on its stream; work is in the order of its calls.
    """
    calls = np.flatnonzero(~timeline.on_device() & (timeline.launch >= 0))
    calls = calls[np.lexsort((timeline.start_ns[calls], timeline.launch[calls]))]
    numbers, first = np.unique(timeline.launch[calls], return_index=True)
    called = dict(zip(numbers.tolist(), timeline.start_ns[calls[first]].tolist(), strict=True))
    by, work = timeline.launches().T
    order = np.lexsort((work, timeline.start_ns[by], timeline.lane[work]))
    by, work = by[order], work[order]
    lanes = np.arange(len(timeline.lanes))
    begin = np.searchsorted(timeline.lane[work], lanes).tolist()
    end = np.searchsorted(timeline.lane[work], lanes, side="right").tolist()
    starts = timeline.start_ns[by].tolist()
    edges, unknown = [], 0
    for wait in waits:
        recorded, waited = called.get(wait.recorded), called.get(wait.waited)
        if recorded is None or waited is None or wait.source_lane < 0 or wait.target_lane < 0:
            unknown += 1
            continue
        i = bisect_left(starts, recorded, begin[wait.source_lane], end[wait.source_lane]) - 1
        j = bisect_left(starts, waited, begin[wait.target_lane], end[wait.target_lane])
        if i >= begin[wait.source_lane] and j < end[wait.target_lane]:
            edges.append((int(work[i]), int(work[j]), wait.name))
        else:
            unknown += 1
    return edges, unknown
