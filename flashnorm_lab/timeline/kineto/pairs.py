"""Finds which end belongs to which beginning, where a trace has them as two events."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Pairs(NamedTuple):
    """Indices into what was paired: ``first[k]`` begins, ``second[k]`` ends; the others have no partner."""

    first: np.ndarray
    second: np.ndarray
    unclosed: np.ndarray
    unopened: np.ndarray


def pair(group: np.ndarray, time: np.ndarray, opens: np.ndarray) -> Pairs:
    """Match beginnings and ends within each group (a thread, say) as brackets are matched.

    group int [events], time int64 [events], opens bool [events]: whether an event begins. Events go by their
    time, and by their order here where times are equal. An end closes the latest beginning that is open.
    """
    if not len(group):
        return Pairs(*[np.empty(0, dtype=np.int64)] * 4)
    order = np.lexsort((time, group))
    of, up = group[order], opens[order]
    begins = np.concatenate([[True], of[1:] != of[:-1]])
    rank = np.cumsum(begins) - 1
    depth = np.cumsum(np.where(up, 1, -1))
    depth -= np.concatenate([[0], depth[:-1]])[begins][rank]
    # Where the depth falls to a new low below zero, an end has nothing to close. The lows of one group are
    # put below those of the groups before it, so that one running minimum serves them all.
    apart = rank * (2 * len(order) + 1)
    low = np.minimum(np.minimum.accumulate(depth - apart) + apart, 0)
    before = np.where(begins, 0, np.concatenate([[0], low[:-1]]))
    lost = ~up & (depth < before)
    level = depth - low + ~up
    kept = np.flatnonzero(~lost)
    # On one level of one group, beginnings and ends alternate.
    kept = kept[np.lexsort((level[kept], of[kept]))]
    up = up[kept]
    same = (of[kept][1:] == of[kept][:-1]) & (level[kept][1:] == level[kept][:-1])
    closed = np.concatenate([up[:-1] & same & ~up[1:], [False]]) if len(kept) else up
    first = np.flatnonzero(closed)
    return Pairs(order[kept[first]], order[kept[first + 1]], order[kept[up & ~closed]], order[lost])
