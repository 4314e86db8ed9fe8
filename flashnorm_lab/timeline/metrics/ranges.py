"""Which of a set of spans stands closest around a moment on its lane."""

from __future__ import annotations

import numpy as np

from ..table import Timeline


def innermost(t: Timeline, around: np.ndarray, lane: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """For each moment on a lane, which of the spans ``around`` encloses it; int64 [moments], -1 for none.

    A span encloses a moment from its start up to, not including, its end. Of several, the one that started
    last counts, and of those that started together the shortest.

    around: indices of spans. lane, moment [moments]: indices of lanes, absolute nanoseconds.
    """
    found = np.full(len(moment), -1, dtype=np.int64)
    around = around[t.duration_ns[around] > 0]
    around = around[np.lexsort((-t.duration_ns[around], t.start_ns[around], t.lane[around]))]
    lanes = t.lane[around]
    for i in np.intersect1d(lanes, lane):
        mine = around[slice(*np.searchsorted(lanes, [i, i + 1]))]
        at = np.flatnonzero(lane == i)
        place = _enclosing(t.start_ns[mine], t.start_ns[mine] + t.duration_ns[mine], moment[at])
        found[at] = np.where(place >= 0, mine[place], -1)
    return found


def _enclosing(start: np.ndarray, end: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """The same on one lane, for spans in order; indices into them.

    Where spans nest, as many are open at a moment as have started less as have ended, and the innermost is
    the last one that started with so many open. Spans that overlap without nesting are walked through.
    """
    order = np.arange(len(start))
    closed = np.sort(end)
    depth = order - np.searchsorted(closed, start, side="right")
    started = np.searchsorted(start, moment, side="right")
    open_now = started - np.searchsorted(closed, moment, side="right")
    key = depth * len(start) + order
    sort = np.argsort(key)
    place = np.searchsorted(key[sort], (open_now - 1) * len(start) + started - 1, side="right") - 1
    place = np.where(open_now > 0, sort[np.maximum(place, 0)], -1)
    if _nested(start, end, depth, sort):
        return place
    return _walk(start, end, moment)


def _nested(start: np.ndarray, end: np.ndarray, depth: np.ndarray, sort: np.ndarray) -> bool:
    """Whether each span lies within the one that stands around it."""
    parent_key = (depth - 1) * len(start) + np.arange(len(start))
    key = (depth * len(start) + np.arange(len(start)))[sort]
    inner = np.flatnonzero(depth > 0)
    parent = sort[np.maximum(np.searchsorted(key, parent_key[inner], side="right") - 1, 0)]
    return bool(((depth[parent] == depth[inner] - 1) & (end[inner] <= end[parent])).all())


def _walk(start: np.ndarray, end: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """The same one by one: of the spans that have not ended, the one that started last."""
    found = np.full(len(moment), -1, dtype=np.int64)
    begins, ends = start.tolist(), end.tolist()
    stack: list[int] = []
    following = 0
    order = np.argsort(moment, kind="stable")
    for i, now in zip(order.tolist(), moment[order].tolist(), strict=True):
        while following < len(begins) and begins[following] <= now:
            stack.append(following)
            following += 1
        while stack and ends[stack[-1]] <= now:
            stack.pop()
        if stack:
            found[i] = stack[-1]
    return found
