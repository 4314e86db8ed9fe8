"""Launch numbers: what a call and the work that it enqueued have in common, unique within the timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrows import agreed

_ROOM = 2**62


@dataclass(frozen=True)
class Launches:
    """launch int64 [slices], -1 for none. Several processes may use the same correlation numbers: then
    ``stride`` is what the numbers of one process are apart from those of the next, else 0.

    process int64 [slices]: the rank of the process of a call or its work among ``callers``, -1 if unknown.
    untold: how many slices had a number of which the process is not known.
    """

    launch: np.ndarray
    process: np.ndarray
    callers: np.ndarray
    stride: int = 0
    untold: int = 0

    def number(self, process: int, correlation: int) -> int:
        """The launch number for a correlation number that an event of this process names; -1 if unknown."""
        if correlation < 0 or (self.stride and process < 0) or correlation >= (self.stride or _ROOM):
            return -1
        return correlation + process * self.stride if self.stride else correlation


def number(
    correlation: np.ndarray, pid: np.ndarray, lane: np.ndarray, call: np.ndarray, work: np.ndarray
) -> Launches:
    """Launch numbers from correlation numbers.

    correlation int64 [slices], -1 for none; pid, lane int [slices]; call, work bool [slices]. A number that
    several processes use belongs to the process that the work itself names; or else to the one process that
    made all calls for the other work on its lane, of which the number is told by one process only.
    """
    callers = np.unique(pid[call])
    used = np.flatnonzero(call & (correlation >= 0))
    rank = np.searchsorted(callers, pid)
    called = call | (work & np.isin(pid, callers))
    process = np.where(called, np.minimum(rank, len(callers) - 1), -1)
    # The number of each process that uses a correlation; -2 where it is more than one.
    pairs = np.lexsort((process[used], correlation[used]))
    numbers, first = np.unique(correlation[used[pairs]], return_index=True)
    owner = np.full(len(numbers), -1, dtype=np.int64)
    if len(numbers):
        by = process[used[pairs]]
        last = np.append(first[1:], len(by)) - 1
        owner = np.where(by[first] == by[last], by[first], -2)
    place = np.minimum(np.searchsorted(numbers, correlation), max(len(numbers) - 1, 0))
    known = np.full(len(correlation), -1, dtype=np.int64)
    if len(numbers):
        hit = (correlation >= 0) & (numbers[place] == correlation)
        known[hit] = owner[place[hit]]
    open_ = work & (process < 0)
    process[open_] = np.maximum(known[open_], -1)
    if not (owner == -2).any():
        return Launches(correlation, process, callers)
    for by in (lane, pid):
        agreed = _agreed(by, process, work)
        rest = np.flatnonzero(open_ & (process < 0) & (correlation >= 0))
        process[rest] = agreed[by[rest]]
    stride = int(correlation.max()) + 1
    if stride * len(callers) > _ROOM:
        dense = np.unique(correlation[correlation >= 0])
        correlation = np.where(correlation >= 0, np.searchsorted(dense, correlation), -1)
        stride = len(dense)
    untold = (known == -2) & (process < 0)
    launch = np.where(correlation >= 0, correlation + np.maximum(process, 0) * stride, -1)
    launch[untold] = -1
    return Launches(launch, process, callers, stride, int(untold.sum()))


def _agreed(group: np.ndarray, process: np.ndarray, among: np.ndarray) -> np.ndarray:
    """The one process that all of a group belongs to as far as it is known, else -1; int64 [groups]."""
    return agreed(np.where(among, group, -1), process, int(group.max()) + 1)
