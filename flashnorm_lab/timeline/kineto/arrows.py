"""Arrows of a trace (phases s, t, f): which slices their ends lie on, and which ends belong together."""

from __future__ import annotations

import numpy as np


def enclosing(
    thread: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    at_thread: np.ndarray,
    at: np.ndarray,
) -> np.ndarray:
    """The innermost slice of the same thread that encloses each time, int64 [times]; -1 where there is none.

    thread int, start, end int64 [slices]; at_thread int, at int64 [times]. Innermost is the one that starts
    last; of two that start together, the one that ends first, then the later one here.
    """
    order, last = _last_started(thread, start, end, at_thread, at, inclusive=True)
    if not len(order):
        return np.full(len(at), -1, dtype=np.int64)
    outer = _ends_later(thread[order], end[order])
    ends = end[order]
    while (short := (last >= 0) & (ends[last] < at)).any():
        last[short] = outer[last[short]]
    return np.where(last >= 0, order[last], -1)


def following(
    thread: np.ndarray, start: np.ndarray, end: np.ndarray, at_thread: np.ndarray, at: np.ndarray
) -> np.ndarray:
    """The first slice of the same thread that starts at or after each time, int64 [times]; -1 for none."""
    order, last = _last_started(thread, start, end, at_thread, at, inclusive=False)
    if not len(order):
        return np.full(len(at), -1, dtype=np.int64)
    first_of = np.searchsorted(thread[order], at_thread)
    behind = np.where(last >= 0, last + 1, first_of)
    found = np.minimum(behind, len(order) - 1)
    return np.where((behind < len(order)) & (thread[order[found]] == at_thread), order[found], -1)


def starting(thread: np.ndarray, start: np.ndarray, at_thread: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The only slice of the same thread that starts at exactly this time, int64 [times]; -1 for none, and
    where several do."""
    order, last = _last_started(thread, start, start, at_thread, at, inclusive=True)
    if not len(order):
        return np.full(len(at), -1, dtype=np.int64)
    before = order[np.maximum(last - 1, 0)]
    alone = (last < 1) | (start[before] != at) | (thread[before] != at_thread)
    return np.where((last >= 0) & (start[order[last]] == at) & alone, order[last], -1)


def agreed(group: np.ndarray, number: np.ndarray, groups: int) -> np.ndarray:
    """The number that all members of a group have, int64 [groups]; -1 where none has one, or they differ.

    group, number int64 [members], -1 where there is none.
    """
    told = np.flatnonzero((group >= 0) & (number >= 0))
    least = np.full(groups, np.iinfo(np.int64).max)
    most = np.full(groups, -1, dtype=np.int64)
    np.minimum.at(least, group[told], number[told])
    np.maximum.at(most, group[told], number[told])
    return np.where(least == most, most, -1)


def _last_started(
    thread: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    at_thread: np.ndarray,
    at: np.ndarray,
    *,
    inclusive: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """The order of slices by thread and start, outer ones first; and in that order, for each time, the last
    slice of its thread that has started, -1 for none. ``inclusive``: one that starts at that time has."""
    order = np.lexsort((-end, start, thread))
    slices, times = len(thread), len(at)
    behind = np.concatenate([np.zeros(slices, np.int8), np.full(times, 1 if inclusive else -1, np.int8)])
    merged = np.lexsort((behind, np.concatenate([start, at]), np.concatenate([thread, at_thread])))
    query = merged >= slices
    last = np.empty(times, dtype=np.int64)
    last[merged[query] - slices] = np.cumsum(~query)[query] - 1
    if slices:
        last[(last >= 0) & (thread[order[last]] != at_thread)] = -1
    return order, last


def _ends_later(thread: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For slices in order of thread and start: the nearest one before each that ends no earlier; -1 for none.

    Everything between a slice and its candidate ends earlier than the slice; so a candidate that does too can
    hand on its own candidate, and long rows of siblings are passed in doubling steps.
    """
    candidate = np.arange(-1, len(thread) - 1)
    candidate[np.concatenate([[True], thread[1:] != thread[:-1]])] = -1
    open_ = np.flatnonzero(candidate >= 0)
    while len(open_ := open_[(candidate[open_] >= 0) & (end[candidate[open_]] < end[open_])]):
        candidate[open_] = candidate[candidate[open_]]
    return candidate


START, STEP, END = ord("s"), ord("t"), ord("f")


def chains(key: np.ndarray, time: np.ndarray, phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which arrow ends lead to which: (source, target) indices into the ends.

    key int [ends]: what the ends of one arrow share; phase: `START`, `STEP` or `END`. An end (or step) comes
    from the latest start or step before it; several ends of one start are several arrows. A start and an end
    that are alone with each other belong together whatever their times say.
    """
    late = np.select([phase == START, phase == STEP], [0, 1], 2)
    order = np.lexsort((late, time, key))
    of = key[order]
    begins = np.concatenate([[True], of[1:] != of[:-1]])
    first = np.flatnonzero(begins)
    rank = np.cumsum(begins) - 1
    size = np.diff(np.append(first, len(of)))
    swapped = first[(size == 2)]
    swapped = swapped[(late[order[swapped]] == 2) & (late[order[swapped + 1]] == 0)]
    order[swapped], order[swapped + 1] = order[swapped + 1], order[swapped].copy()
    kind = late[order]
    place = np.arange(len(order))
    source = np.maximum.accumulate(np.where(kind < 2, place, -1))
    source = np.concatenate([[-1], source[:-1]])
    fits = (kind > 0) & (source >= first[rank])
    return order[source[fits]], order[fits]
