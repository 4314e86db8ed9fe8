"""Tracks of a viewer: rows on which spans nest. A lane whose spans cross each other needs several.

Viewers draw a track as a stack of slices, one within another; of two that cross, Perfetto drops one. So a
span that would cross another one goes to a further track of its lane.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..table import Lane, Timeline
from .files import unicode_text

NESTED = 8
"""So many tracks of a lane are searched for a span that encloses the next one; on further ones it stands
alone, so that a hundred thousand spans that all cross are still laid out in a moment."""
LEVELS = 64
"""So many levels are looked through for a whole lane at once; a deeper one is walked span by span."""


@dataclass(frozen=True)
class Tracks:
    """of: the track of each span, int32 [spans]. lane: the lane of each track. process: its place in
    ``processes``, whose entries are names, one at least. Both are in the order in which
    they are shown."""

    of: np.ndarray
    lane: list[int]
    process: list[int]
    processes: list[str]


def title(t: Timeline) -> str:
    """What the timeline is of: schedule, device and provenance, as far as they are known."""
    told = [str(t.meta[key]) for key in ("schedule", "device", "provenance") if t.meta.get(key)]
    return unicode_text(", ".join(told)) or "timeline"


def tracks(t: Timeline) -> Tracks:
    """Tracks for all spans of a timeline. The title names the process of lanes that belong to none."""
    groups = [_group(lane) or title(t) for lane in t.lanes]
    processes = list(dict.fromkeys(groups)) or [title(t)]
    start, end = relative(t)
    sub = layers(t.lane, start, end)
    count = np.ones(len(t.lanes), dtype=np.int64)
    np.maximum.at(count, t.lane, sub + 1)
    first = np.cumsum(count) - count
    lane = np.repeat(np.arange(len(t.lanes)), count).tolist()
    return Tracks(
        (first[t.lane] + sub).astype(np.int32), lane, [processes.index(groups[i]) for i in lane], processes
    )


def _group(lane: Lane) -> str:
    """A device is a process of a viewer, and so is what has threads."""
    words = [
        f"{what} {text}" if text.isdigit() else text
        for what, text in (("device", lane.device), ("process", lane.process))
    ]
    return ", ".join(dict.fromkeys(w for w in words if w))


def relative(t: Timeline, base: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each span in nanoseconds from ``base`` (the first start), uint64 [spans].

    Exact for all starts. An end that does not fit into 64 bits is the largest number that does.
    """
    if base is None:
        base = int(t.start_ns.min()) if len(t) else 0
    start = since(t.start_ns, base)
    end = start + t.duration_ns.astype(np.uint64)
    return start, np.where(end < start, np.uint64(2**64 - 1), end)


def since(times: np.ndarray, base: int) -> np.ndarray:
    """int64 times as uint64 from a base that is not above any of them. The difference always fits."""
    return times.view(np.uint64) - np.uint64(base % 2**64)


def nesting(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """An order in which each span stands behind those that enclose it: by start, the longest first."""
    return np.lexsort((~end, start))


def layers(lane: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """For each span the number, within its lane, of a track on which spans nest; int64 [spans].

    A lane whose spans all nest has track 0 alone.
    """
    sub = np.zeros(len(lane), dtype=np.int64)
    order = np.lexsort((~end, start, lane))
    bounds = np.flatnonzero(np.diff(lane[order], prepend=-1, append=-1)) if len(lane) else np.empty(0, int)
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        mine = order[first:last]
        if not _all_nest(start[mine], end[mine]):
            sub[mine] = _spread(start[mine].tolist(), end[mine].tolist())
    return sub


def _all_nest(start: np.ndarray, end: np.ndarray) -> bool:
    """Whether no two spans cross; they are in the order of `nesting`. False too where that takes long to see.

    The outermost spans are those that start when all before them are over. The others must end within the
    newest of those; then the same holds among the others, one level further in.
    """
    for _ in range(LEVELS):
        if len(start) < 2:
            return True
        over = np.maximum.accumulate(end)[:-1] <= start[1:]
        outer = np.concatenate([[True], over & (start[1:] > start[:-1])])
        if outer.all():
            return True
        newest = np.maximum.accumulate(np.where(outer, np.arange(len(start)), 0))
        if (end > end[newest]).any():
            return False
        start, end = start[~outer], end[~outer]
    return False


def _spread(start: Sequence[int], end: Sequence[int]) -> list[int]:
    """A track for each span, which are in the order of `nesting`: the first on which it fits."""
    stacks: list[list[tuple[int, int]]] = []
    busy: list[tuple[int, int]] = []  # (when it is free, its number) of the tracks beyond `NESTED`
    result = []
    for s, e in zip(start, end, strict=True):
        for number, stack in enumerate(stacks):
            while stack and stack[-1][1] <= s and stack[-1][0] < s:
                stack.pop()
            if not stack or e <= stack[-1][1]:
                stack.append((s, e))
                result.append(number)
                break
        else:
            if len(stacks) < NESTED:
                result.append(len(stacks))
                stacks.append([(s, e)])
            else:
                # Before, not at: what starts at the very end of a span of no length would lie within it.
                number = heapq.heappop(busy)[1] if busy and busy[0][0] < s else NESTED + len(busy)
                heapq.heappush(busy, (e, number))
                result.append(number)
    return result
