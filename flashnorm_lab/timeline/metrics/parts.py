"""Figures of the parts into which operations are divided: by name, by group, by step."""

from __future__ import annotations

import numpy as np

from .working import Work


def device_of(work: Work) -> np.ndarray:
    """The number of the device of each operation."""
    device = np.zeros(len(work.bounds), dtype=np.int64)
    for number, lanes in enumerate(work.devices.values()):
        device[list(lanes)] = number
    return device[work.lane]


def union_by(
    key: np.ndarray, device: np.ndarray, start: np.ndarray, end: np.ndarray, keys: int
) -> np.ndarray:
    """The length of the union of the intervals of each key, each device for itself; int64 [keys].

    The furthest end so far is a running maximum that must begin anew with each key and device. So it runs
    over ranks: the rank of an end among all, moved up by the number of intervals for each key and device.
    """
    total = np.zeros(keys, dtype=np.int64)
    if not len(key):
        return total
    part = key.astype(np.int64) * (int(device.max()) + 1) + device
    order = np.lexsort((start, part))
    part, start, end, key = part[order], start[order], end[order], key[order]
    new = np.concatenate([[True], part[1:] != part[:-1]])
    run = np.cumsum(new) - 1
    by_end = np.argsort(end, kind="stable")
    rank = np.empty(len(end), dtype=np.int64)
    rank[by_end] = np.arange(len(end))
    reach = end[by_end[np.maximum.accumulate(rank + run * len(end)) - run * len(end)]]
    before = np.concatenate([[0], reach[:-1]])
    covered = end - np.where(new, start, np.maximum(start, np.minimum(before, end)))
    np.add.at(total, key, covered)
    return total


def sums_by(key: np.ndarray, values: np.ndarray, keys: int) -> np.ndarray:
    """The sum of whole numbers of each key, int64 [keys]."""
    total = np.zeros(keys, dtype=np.int64)
    np.add.at(total, key, values)
    return total


def ends_by(key: np.ndarray, start: np.ndarray, end: np.ndarray, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """The first start and the last end of each key, int64 [keys]; of a key without any, the largest and the
    smallest number there is."""
    limits = np.iinfo(np.int64)
    first = np.full(keys, limits.max, dtype=np.int64)
    last = np.full(keys, limits.min, dtype=np.int64)
    np.minimum.at(first, key, start)
    np.maximum.at(last, key, end)
    return first, last
