"""Which row of its lane a span is drawn on: how many other spans are open around it.

Calls nest: an operator calls another, which launches a kernel. A span then belongs one row below the one that
it stands in. Where spans of a lane overlap without nesting, no row tells more than that, so there each one
takes the first row that is free.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np


def in_order(lane: np.ndarray, start: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """Indices of all spans by lane, start, and the longest first, int64 [spans]."""
    order = np.argsort(start, kind="stable")
    if len(lane) and lane.max() < 2**15:  # numpy sorts 16 bits by their digits, which is much faster
        lane = lane.astype(np.int16)
    order = order[np.argsort(lane[order], kind="stable")]
    same = (lane[order[1:]] == lane[order[:-1]]) & (start[order[1:]] == start[order[:-1]])
    if (same & (duration[order[1:]] > duration[order[:-1]])).any():
        tied = np.zeros(len(order), dtype=bool)
        tied[1:] |= same
        tied[:-1] |= same
        group = np.cumsum(np.concatenate([[True], ~same]))[tied]
        members = order[tied]
        order[tied] = members[np.lexsort((-duration[members], group))]
    return order


def depths(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The row of each span of one lane, int32 [spans], so that no two on a row overlap.

    start, end: int64 nanoseconds, in the order of `in_order`.
    """
    if len(start) < 2:
        return np.zeros(len(start), dtype=np.int32)
    reach = np.maximum.accumulate(end)
    alone = start[1:] >= reach[:-1]
    if alone.all():
        return np.zeros(len(start), dtype=np.int32)
    closed = np.searchsorted(np.sort(end), start, side="right")
    empty = start == end
    if empty.any():  # those of no length are closed as they start, but do not come before those they follow
        so_far = np.cumsum(empty)
        closed -= so_far[np.searchsorted(start, start, side="right") - 1] - so_far + empty
    depth = (np.arange(len(start)) - closed).astype(np.int32)
    by_row = np.argsort(depth.astype(np.int16) if depth.max() < 2**15 else depth, kind="stable")
    clash = (depth[by_row[1:]] == depth[by_row[:-1]]) & (start[by_row[1:]] < end[by_row[:-1]])
    if clash.any():
        cluster = np.cumsum(np.concatenate([[0], alone]))
        unclear = np.zeros(cluster[-1] + 1, dtype=bool)
        unclear[cluster[by_row[1:][clash]]] = True
        mine = unclear[cluster]
        depth[mine] = _first_free(start[mine].tolist(), end[mine].tolist())
    return depth


def _first_free(start: list[int], end: list[int]) -> list[int]:
    """The lowest row that is free when each span starts."""
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    rows, highest = [], 0
    for begin, stop in zip(start, end, strict=True):
        while busy and busy[0][0] <= begin:
            heappush(free, heappop(busy)[1])
        if free:
            row = heappop(free)
        else:
            row, highest = highest, highest + 1
        heappush(busy, (stop, row))
        rows.append(row)
    return rows
