"""Steps from annotated ranges: which step each host slice starts in."""

from __future__ import annotations

import heapq

import numpy as np

from .words import STEP


def step_names(names: tuple[str, ...], used: np.ndarray) -> np.ndarray:
    """The step that each name states, int32 [names]; -1 for none. ``used``: indices of names to look at."""
    found = np.full(len(names), -1, dtype=np.int32)
    for i in used.tolist():
        match = STEP.fullmatch(names[i])
        if match:
            found[i] = int(match[1])
    return found


def steps_at(start: np.ndarray, end: np.ndarray, number: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The step that each of these times lies in, int32 [times]; -1 for none.

    start, end, number [steps]: the annotated ranges, which may lie on several threads and within each other.
    A time belongs to the one that started last of those that are not over.
    """
    if not len(start):
        return np.full(len(at), -1, dtype=np.int32)
    begin = sorted(zip(start.tolist(), end.tolist(), number.tolist(), strict=True))
    times = np.unique(np.concatenate([start, end]))
    values = np.full(len(times), -1, dtype=np.int32)
    open_: list[tuple[int, int, int]] = []
    next_ = 0
    for i, time in enumerate(times.tolist()):
        while next_ < len(begin) and begin[next_][0] <= time:
            heapq.heappush(open_, (-begin[next_][0], begin[next_][1], begin[next_][2]))
            next_ += 1
        while open_ and open_[0][1] <= time:
            heapq.heappop(open_)
        if open_:
            values[i] = open_[0][2]
    place = np.searchsorted(times, at, side="right") - 1
    return np.where(place >= 0, values[np.maximum(place, 0)], -1).astype(np.int32)
