"""What to draw of a timeline at some zoom: long spans one by one, short ones merged, nothing lost.

A million spans do not fit on a screen, so a picture asks for a `Tile`: the part of time it shows, on so many
pixels. Spans of a pixel or more come one by one. Shorter ones that begin in the same pixel of the same row
become one cell, which knows how many they are, how much of it they cover and which is the longest.

::

    detail = Detail(timeline)
    tile = detail.view(*detail.extent, pixels=1500)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import LabError
from .nesting import depths, in_order
from .table import EDGE_KINDS, Timeline

ARROWS = ("launch", *EDGE_KINDS)
"""Kinds of arrows: from a host call to the work it enqueued, and the kinds of edges."""

MOST_ARROWS = 400
MOST_PIXELS = 16_384


@dataclass(frozen=True, eq=False)
class Tile:
    """What is to be seen from ``t0_ns`` to ``t1_ns`` (absolute nanoseconds, half open) on so many pixels.

    rows: int32 [rows], the rows shown from top to bottom, as indices into `Detail.row_lane` and
    `Detail.row_depth`. What follows names a row by its place in this list.

    span: int64 [drawn], indices into the timeline of the spans to draw one by one; span_row: int32 [drawn].

    cell_row int32, cell_start_ns and cell_end_ns int64 (first start and last end of its spans, which may lie
    outside of the view by less than a pixel), cell_count int32 (at least 2), cell_busy_ns int64 (the sum of
    their durations: a row's spans never overlap), cell_longest int64 (index of the longest), cell_outcome
    int8 (into `OUTCOMES`: the greatest of its spans', so that one stale result is not lost among many fresh):
    all [cells].

    arrow_source, arrow_target: int64 [arrows], indices of spans that are both drawn one by one; arrow_kind
    int8 into `ARROWS`; arrow_name int32 into the timeline's names, -1 for a launch. arrows_left_out: how many
    more there are between spans in view.

    counter: int32 [samples], indices into `Detail.counters`; counter_px int32, where from the view's left
    edge, -1 for what held before it; counter_low, counter_high, counter_last float64: the least, the greatest
    and the last value in that pixel.

    hidden: how many spans are in view on lanes that are not shown.
    """

    t0_ns: int
    t1_ns: int
    pixels: int
    rows: np.ndarray
    span: np.ndarray
    span_row: np.ndarray
    cell_row: np.ndarray
    cell_start_ns: np.ndarray
    cell_end_ns: np.ndarray
    cell_count: np.ndarray
    cell_busy_ns: np.ndarray
    cell_longest: np.ndarray
    cell_outcome: np.ndarray
    arrow_source: np.ndarray
    arrow_target: np.ndarray
    arrow_kind: np.ndarray
    arrow_name: np.ndarray
    arrows_left_out: int
    counter: np.ndarray
    counter_px: np.ndarray
    counter_low: np.ndarray
    counter_high: np.ndarray
    counter_last: np.ndarray
    hidden: int

    @property
    def count(self) -> int:
        """How many spans are in view on the rows shown, drawn or merged."""
        return len(self.span) + int(self.cell_count.sum())

    @property
    def cell_share(self) -> np.ndarray:
        """How much of each cell's own extent its spans cover, float64 [cells], 0 to 1."""
        width = self.cell_end_ns - self.cell_start_ns
        return np.divide(self.cell_busy_ns, width, out=np.zeros(len(width)), where=width > 0)


class Detail:
    """Prepares a timeline once for `view`, which is then quick at any zoom.

    lanes: indices of the lanes that have spans, host threads first, else in the timeline's order.
    row_lane, row_depth: int32 [rows], the lane of each row and its place in the lane (0 is the outermost).
    extent: first start and one behind the last nanosecond, absolute, of spans and counters.
    counters: names of the counters there are, as indices into the timeline's names; counter_order: int64
    [samples], the timeline's samples counter by counter, by time.

    order: int32 [spans], the spans row by row, by start; start, end, length: int64 nanoseconds [spans] in
    that order; bounds: int64 [rows + 1], where each row begins in it.
    """

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = t = timeline
        host = np.array([lane.kind == "host" for lane in t.lanes], dtype=bool)
        shown = np.concatenate([np.flatnonzero(host), np.flatnonzero(~host)]).astype(np.int64)
        place = np.zeros(max(1, len(t.lanes)), dtype=np.int32)
        place[shown] = np.arange(len(shown))
        end = t.end_ns
        order = in_order(place[t.lane], t.start_ns, t.duration_ns)
        lane, start = place[t.lane[order]], t.start_ns[order]
        depth = np.zeros(len(t), dtype=np.int32)
        bounds = np.searchsorted(lane, np.arange(len(shown) + 1))
        stop = end[order]
        for i in range(len(shown)):
            mine = slice(bounds[i], bounds[i + 1])
            depth[mine] = depths(start[mine], stop[mine])
        rows = np.zeros(len(shown), dtype=np.int64)
        filled = np.flatnonzero(bounds[1:] > bounds[:-1])
        if len(filled):
            rows[filled] = np.maximum.reduceat(depth, bounds[filled]) + 1
        first_row = np.concatenate([[0], np.cumsum(rows)])
        row = first_row[lane] + depth
        by_row = np.argsort(row.astype(np.int16) if first_row[-1] < 2**15 else row, kind="stable")
        self.order = order[by_row].astype(np.int32)
        self.start, self.end = start[by_row], stop[by_row]
        self.length = self.end - self.start
        self._until = np.concatenate([[0], np.cumsum(self.length)])
        self.bounds = np.searchsorted(row[by_row], np.arange(first_row[-1] + 1))
        self.lanes = tuple(int(i) for i in shown[filled])
        self.row_lane = np.repeat(shown, rows).astype(np.int32)
        self.row_depth = (np.arange(first_row[-1]) - np.repeat(first_row[:-1], rows)).astype(np.int32)
        if len(t) or len(t.counter_ns):
            low = min(int(column.min()) for column in (t.start_ns, t.counter_ns) if len(column))
            high = max(int(column.max()) for column in (end, t.counter_ns) if len(column))
            self.extent = (low, high + 1)
        else:
            self.extent = (0, 1)
        self.counter_order = np.lexsort((t.counter_ns, t.counter_name))
        self.counters = tuple(int(i) for i in np.unique(t.counter_name))

    def view(
        self,
        t0_ns: int,
        t1_ns: int,
        pixels: int,
        lanes: Iterable[int | str] | None = None,
        *,
        arrows: Iterable[str] = ARROWS,
        most_arrows: int = MOST_ARROWS,
    ) -> Tile:
        """The `Tile` of a part of time, in absolute nanoseconds, on so many pixels.

        lanes: indices or names of the lanes to show; None for all. arrows: which `ARROWS` are wanted; of more
        than ``most_arrows``, edges come first, and the others evenly.
        ``LabError`` for a part of time that is empty, a lane that is not there, or no number of pixels.
        """
        t0, t1, pixels = int(t0_ns), int(t1_ns), int(pixels)
        if t1 <= t0:
            raise LabError(f"the view from {t0} to {t1} ns is empty; it has to end after it starts")
        if not 1 <= pixels <= MOST_PIXELS:
            raise LabError(f"pixels={pixels}: give a number from 1 to {MOST_PIXELS}")
        first, last = self._range(t0, t1)
        rows = self._rows(lanes)
        everywhere = int((last - first).sum())
        first, last = first[rows], last[rows]
        single, single_row, cells = self._merge(first, last, t0, t1, pixels)
        return Tile(
            t0,
            t1,
            pixels,
            rows.astype(np.int32),
            self.order[single].astype(np.int64),
            single_row,
            *cells,
            *self._visible_arrows(first, last, single, arrows, most_arrows),
            *self._visible_counters(t0, t1, pixels),
            everywhere - int((last - first).sum()),
        )

    def select(self, t0_ns: int, t1_ns: int, lanes: Iterable[int | str] | None = None) -> np.ndarray:
        """Indices of all spans that are in a part of time, on all rows of these lanes, in the table's order.

        Half open: what ends as the part starts is out. A span of no length counts where it stands.
        """
        first, last = self._range(int(t0_ns), int(t1_ns))
        rows = self._rows(lanes)
        return np.sort(self.order[_places(first[rows], last[rows])]).astype(np.int64)

    def count(self, t0_ns: int, t1_ns: int, lanes: Iterable[int | str] | None = None) -> int:
        """How many spans `select` would give."""
        first, last = self._range(int(t0_ns), int(t1_ns))
        return int((last - first)[self._rows(lanes)].sum())

    def search(self, text: str, limit: int | None = None) -> np.ndarray:
        """Indices of the spans whose name holds this text, capitals or not, by start; at most ``limit``."""
        wanted = text.casefold()
        if not wanted:
            return np.empty(0, dtype=np.int64)
        fits = np.array([wanted in name for name in self._names], dtype=bool)
        if not fits.any():
            return np.empty(0, dtype=np.int64)
        found = np.flatnonzero(fits[self.timeline.name])
        return found[np.argsort(self.timeline.start_ns[found], kind="stable")][:limit]

    def row_of(self, span: int) -> int:
        """The row that a span stands on, as an index into `row_lane`."""
        return int(np.searchsorted(self.bounds, self._position[span], side="right")) - 1

    def arrows_of(self, span: int) -> list[tuple[int, int, int, int]]:
        """Source, target, kind (into `ARROWS`) and name (-1 for none) of each arrow that a span has."""
        source, target, kind, name = self.arrows
        mine = np.flatnonzero((source == span) | (target == span))
        return [
            tuple(int(column[i]) for column in (source, target, kind, name))  # type: ignore[misc]
            for i in mine
        ]

    def overview(self, pixels: int, t0_ns: int | None = None, t1_ns: int | None = None) -> np.ndarray:
        """How busy each lane is from one end to the other, float32 [lanes, pixels], 0 to 1: its fullest row.

        In the order of `lanes`; over the whole extent unless a part of time is given.
        """
        low, high = self.extent if t0_ns is None or t1_ns is None else (t0_ns, t1_ns)
        edges = _edges(int(low), int(high), pixels)
        share = np.zeros((len(self.lanes), pixels), dtype=np.float32)
        place = {lane: i for i, lane in enumerate(self.lanes)}
        for row, lane in enumerate(self.row_lane):
            first, last = self.bounds[row], self.bounds[row + 1]
            at = first + np.searchsorted(self.start[first:last], edges, side="right")
            done = self._until[at] - np.maximum(0, np.where(at > first, self.end[at - 1], edges) - edges)
            mine = share[place[int(lane)]]
            np.maximum(mine, np.diff(done) / np.diff(edges).clip(1), out=mine)
        return share

    @cached_property
    def arrows(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """All arrows, edges first: source and target spans int64, kind int8 into `ARROWS`, name int32."""
        t = self.timeline
        pairs = t.launches()
        return (
            np.concatenate([t.edge_source, pairs[:, 0]]),
            np.concatenate([t.edge_target, pairs[:, 1]]),
            np.concatenate([t.edge_kind + 1, np.zeros(len(pairs))]).astype(np.int8),
            np.concatenate([t.edge_name, np.full(len(pairs), -1)]).astype(np.int32),
        )

    @cached_property
    def _position(self) -> np.ndarray:
        """Where each span stands in the order of rows, int32 [spans]."""
        position = np.empty(len(self.order), dtype=np.int32)
        position[self.order] = np.arange(len(self.order), dtype=np.int32)
        return position

    @cached_property
    def _arrow_places(self) -> tuple[np.ndarray, np.ndarray]:
        return self._position[self.arrows[0]], self._position[self.arrows[1]]

    @cached_property
    def _judged(self) -> np.ndarray | None:
        """The outcomes in the order of rows, int8 [spans]; None where nothing was judged."""
        outcome = self.timeline.outcome
        return outcome[self.order] if outcome.any() else None

    @cached_property
    def _names(self) -> list[str]:
        return [name.casefold() for name in self.timeline.names]

    def _rows(self, lanes: Iterable[int | str] | None) -> np.ndarray:
        """Indices of the rows of these lanes, from top to bottom."""
        wanted = np.ones(max(1, len(self.timeline.lanes)), dtype=bool)
        if lanes is not None:
            wanted[:] = False
            wanted[self._lanes(lanes)] = True
        return np.flatnonzero(wanted[self.row_lane])

    def _lanes(self, lanes: Iterable[int | str]) -> list[int]:
        found = []
        for lane in lanes:
            i = self.timeline.lane_index(lane) if isinstance(lane, str) else int(lane)
            if not 0 <= i < len(self.timeline.lanes):
                raise LabError(
                    f"there is no lane {i}; this timeline has lanes 0 to {len(self.timeline.lanes) - 1}"
                )
            found.append(i)
        return found

    def _range(self, t0: int, t1: int) -> tuple[np.ndarray, np.ndarray]:
        """Where in the order of rows each row's spans in view begin and stop, int64 [all rows] each."""
        begin = np.minimum(self._first(self.end, t0 + 1), self._first(self.start, t0))
        return begin, np.maximum(begin, self._first(self.start, t1))

    def _first(self, values: np.ndarray, time: int) -> np.ndarray:
        """For every row at once, the first place whose value is at least a time: a search by halves."""
        low, high = self.bounds[:-1].copy(), self.bounds[1:].copy()
        while (low < high).any():
            middle = (low + high) // 2
            before = (low < high) & (values[np.minimum(middle, len(values) - 1)] < time)
            high = np.where((low < high) & ~before, middle, high)
            low = np.where(before, middle + 1, low)
        return low

    def _merge(
        self, first: np.ndarray, last: np.ndarray, t0: int, t1: int, pixels: int
    ) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
        """Places of the spans to draw one by one, their rows, and the columns of the cells."""
        count = last - first
        start = _pieces(self.start, first, last)
        length = _pieces(self.length, first, last)
        row = np.repeat(np.arange(len(count), dtype=np.int32), count)
        pixel = (np.maximum(start, t0) - t0) * (pixels / (t1 - t0))
        pixel = pixel.astype(np.int32)
        short = length < -(-(t1 - t0) // pixels)
        opens = np.ones(len(start), dtype=bool)
        if len(start):
            opens[1:] = (pixel[1:] != pixel[:-1]) | (row[1:] != row[:-1])
            opens[1:] |= ~(short[1:] & short[:-1])
        begin = np.flatnonzero(opens)
        size = np.diff(np.append(begin, len(start)))
        offset = first - (np.cumsum(count) - count)  # from a place among those in view to one of all
        place = begin + offset[row[begin]]
        merged = size > 1
        single, single_row = place[~merged], row[begin[~merged]]
        low, high = place[merged], place[merged] + size[merged]
        longest, outcome = np.empty(0, dtype=np.int64), np.zeros(len(low), dtype=np.int8)
        if merged.any() and self._judged is not None:
            outcome = np.maximum.reduceat(_pieces(self._judged, first, last), begin)[merged]
        if merged.any():
            greatest = np.maximum.reduceat(length, begin)
            at = np.flatnonzero(length == np.repeat(greatest, size))
            at = at[np.searchsorted(at, begin[merged])]
            longest = self.order[at + offset[row[at]]].astype(np.int64)
        return single, single_row, (
            row[begin[merged]],
            self.start[low],
            self.end[high - 1],
            size[merged].astype(np.int32),
            self._until[high] - self._until[low],
            longest,
            outcome,
        )  # fmt: skip

    def _visible_arrows(
        self, first: np.ndarray, last: np.ndarray, single: np.ndarray, kinds: Iterable[str], most: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
        wanted = np.zeros(len(ARROWS), dtype=bool)
        for kind in kinds:
            if kind not in ARROWS:
                raise LabError(f"arrows {kind!r} are not among {', '.join(ARROWS)}")
            wanted[ARROWS.index(kind)] = True
        if not wanted.any() or not len(self.arrows[0]):
            nothing = np.empty(0, dtype=np.int64)
            return nothing, nothing, nothing.astype(np.int8), nothing.astype(np.int32), 0
        source, target = self._arrow_places
        seen = np.zeros(len(self.order), dtype=np.int8)
        for low, high in zip(first.tolist(), last.tolist(), strict=True):
            seen[low:high] = 1
        seen[single] = 2
        both = np.minimum(seen[source], seen[target])
        both[~wanted[self.arrows[2]]] = 0
        drawn = np.flatnonzero(both == 2)
        if len(drawn) > most:
            edges = drawn[: np.count_nonzero(self.arrows[2][drawn])][:most]
            others = drawn[np.count_nonzero(self.arrows[2][drawn]) :]
            room = most - len(edges)
            drawn = np.concatenate([edges, others[(np.arange(room) * len(others)) // max(1, room)]])
        left_out = int(np.count_nonzero(both)) - len(drawn)
        source, target, kind, name = (column[drawn] for column in self.arrows)
        return source, target, kind, name, left_out

    def _visible_counters(self, t0: int, t1: int, pixels: int) -> tuple[np.ndarray, ...]:
        t = self.timeline
        found: list[tuple[np.ndarray, ...]] = []
        names = t.counter_name[self.counter_order]
        for i, name in enumerate(self.counters):
            low, high = np.searchsorted(names, [name, name + 1])
            mine = self.counter_order[low:high]
            first, last = np.searchsorted(t.counter_ns[mine], [t0, t1])
            mine = mine[max(0, first - 1) : last]
            if not len(mine):
                continue
            at = t.counter_ns[mine]
            pixel = np.where(at < t0, -1, (np.maximum(at, t0) - t0) * (pixels / (t1 - t0))).astype(np.int32)
            value = t.counter_value[mine]
            begin = np.flatnonzero(np.concatenate([[True], pixel[1:] != pixel[:-1]]))
            found.append(
                (
                    np.full(len(begin), i, dtype=np.int32),
                    pixel[begin],
                    np.fmin.reduceat(value, begin),
                    np.fmax.reduceat(value, begin),
                    value[np.append(begin[1:], len(value)) - 1],
                )
            )
        if not found:
            return (*[np.empty(0, dtype=np.int32)] * 2, *[np.empty(0)] * 3)
        return tuple(np.concatenate(column) for column in zip(*found, strict=True))


def _pieces(values: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The parts of a column from each first to each last, one behind the other; not copied if it is one."""
    parts = [(low, high) for low, high in zip(first.tolist(), last.tolist(), strict=True) if low < high]
    if len(parts) == 1:
        return values[slice(*parts[0])]
    return np.concatenate([values[low:high] for low, high in parts] or [values[:0]])


def _places(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    count = last - first
    return np.arange(count.sum()) + np.repeat(first - (np.cumsum(count) - count), count)


def _edges(t0: int, t1: int, pixels: int) -> np.ndarray:
    """The borders of the pixels, int64 [pixels + 1], exact for any width."""
    whole, rest = divmod(t1 - t0, pixels)
    place = np.arange(pixels + 1, dtype=np.int64)
    return t0 + place * whole + place * rest // pixels
