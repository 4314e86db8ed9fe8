"""What a picture of a timeline shows: rows, arrows, counters and colours; and what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ...errors import LabError
from ..detail import ARROWS, Detail, Tile
from ..looks import (
    CALL,
    COPY,
    OPERATOR,
    OPERATORS,
    OTHER_CALL,
    PALETTE,
    RANGE,
    colours,
    exact_time,
    group_colours,
    label,
)
from ..metrics.layout import shortened, shown
from ..table import OUTCOMES

INK, PALE, VERMILION = "#333333", "#B0B0B0", "#D55E00"
OUTCOME_STYLE = {"stale": (VERMILION, "///"), "torn": ("#CC79A7", "xxx"), "early": ("#E69F00", "\\\\\\")}
"""Colour and hatch of results that are not fresh, as in `flashnorm_lab.figures`."""
NOT_FRESH = [OUTCOMES.index(outcome) for outcome in OUTCOME_STYLE]
OTHER_WORDS = {COPY: "copies and fills", CALL: "launching calls", OTHER_CALL: "other calls", RANGE: "ranges"}
"""What the legend calls the colours that are not of kernels."""
ARROW_STYLE = {  # what the legend says, colour, line
    "order": ("edge: waits for", INK, "-"),
    "launch": ("launch to start", PALE, ":"),
    "flow": ("flow", "#7A7A7A", "--"),
}
PIXELS = 1200
MOST_ROWS, MOST_STRIPS, MOST_NAMES = 80, 4, 8
MOST_ARROWS = {"launch": 40, "order": 150, "flow": 40}
UNITS = (("s", 10**9), ("ms", 10**6), ("µs", 10**3), ("ns", 1))


class Entry(NamedTuple):
    """A line of the legend: a patch with a hatch, or (``line`` is not "") a line."""

    colour: str
    words: str
    hatch: str = ""
    line: str = ""


class Choice:
    """What is shown from one time to another, all of the timeline for None.

    unit, size: of the axis, and its nanoseconds. tile: the spans and cells of the rows that are shown.
    arrows: source span, target span and kind of each that is drawn. counters: indices into
    ``Detail.counters``. colour: of each span, as a number of `PALETTE`. legend: its entries. about: the lines
    below the title. lacks: what is not shown, a line each.

    ``LabError`` for a window that does not end after it starts.
    """

    def __init__(self, detail: Detail, window: tuple[int, int] | None, title: str | None) -> None:
        self.detail, self.t = detail, detail.timeline
        self.t0, self.t1 = detail.extent if window is None else (int(edge) for edge in window)
        if self.t1 <= self.t0:
            raise LabError(f"window {self.t0} to {self.t1} ns: it must end after it starts")
        self.whole = window is None
        self.unit, self.size = next((u for u in UNITS if self.t1 - self.t0 >= 2 * u[1]), UNITS[-1])
        self.title = shown(title or self._usual_title())
        self.lacks: list[str] = []
        self.tile = self._choose_rows(detail.view(self.t0, self.t1, PIXELS, most_arrows=1000))
        self.arrows = self._choose_arrows()
        self.counters = self._choose_counters()
        self.colour, self.legend = self._choose_colours()
        self.about = _lines(self._subtitle())

    def _usual_title(self) -> str:
        told = [str(self.t.meta[key]) for key in ("schedule", "device") if self.t.meta.get(key)]
        return "Timeline" + (f": {', '.join(told)}" if told else "")

    def _choose_rows(self, tile: Tile) -> Tile:
        """The tile with `MOST_ROWS` rows at most: the outermost of each lane, then level by level,
        those of the device first; of very many lanes those with the most in them."""
        lane, depth = self.detail.row_lane[tile.rows], self.detail.row_depth[tile.rows]
        kept = np.zeros(len(lane), dtype=bool)
        kept[tile.span_row] = kept[tile.cell_row] = True  # rows with nothing in this view are not shown
        if kept.sum() > MOST_ROWS:
            kept[self._less_important(lane, depth, kept)] = False
        place = np.cumsum(kept) - 1
        spans, cells = kept[tile.span_row], kept[tile.cell_row]
        gone = tile.count - int(spans.sum()) - int(tile.cell_count[cells].sum())
        if gone:
            self.lacks.append(f"not shown, nested or on lanes with little in them: {gone:,}")
        seen = np.zeros(len(self.t), dtype=bool)
        seen[tile.span[spans]] = True
        arrows = seen[tile.arrow_source] & seen[tile.arrow_target]
        return replace(
            tile,
            rows=tile.rows[kept],
            span=tile.span[spans],
            span_row=place[tile.span_row[spans]],
            **{
                key: getattr(tile, key)[cells]
                for key in (
                    "cell_start_ns",
                    "cell_end_ns",
                    "cell_count",
                    "cell_busy_ns",
                    "cell_longest",
                    "cell_outcome",
                )
            },
            cell_row=place[tile.cell_row[cells]],
            **{
                key: getattr(tile, key)[arrows]
                for key in ("arrow_source", "arrow_target", "arrow_kind", "arrow_name")
            },
            arrows_left_out=tile.arrows_left_out + int((~arrows).sum()),
        )

    def _less_important(self, lane: np.ndarray, depth: np.ndarray, there: np.ndarray) -> np.ndarray:
        """Of the rows that are there, those beyond the `MOST_ROWS` most important ones."""
        busy = np.bincount(self.t.lane, weights=self.t.duration_ns, minlength=len(self.t.lanes))
        host = np.array([lane.kind == "host" for lane in self.t.lanes], dtype=bool)
        order = np.lexsort((-busy[lane], depth, host[lane] & (depth > 0), depth > 0, ~there))
        return order[MOST_ROWS:]

    def _choose_arrows(self) -> list[tuple[int, int, str]]:
        """Source span, target span and kind of each arrow that is drawn."""
        tile = self.tile
        chosen: list[tuple[int, int, str]] = []
        missing = tile.arrows_left_out
        for number, kind in enumerate(ARROWS):
            mine = np.flatnonzero(tile.arrow_kind == number)
            # A few launches of many would look as if the others had none.
            some = kind == "launch" and tile.arrows_left_out > len(mine)
            if some or len(mine) > MOST_ARROWS[kind]:
                missing += len(mine)
            else:
                ends = zip(tile.arrow_source[mine].tolist(), tile.arrow_target[mine].tolist(), strict=True)
                chosen += [(source, target, kind) for source, target in ends]
        if missing:
            self.lacks.append(f"arrows not drawn: {missing:,}")
        return chosen

    def _choose_counters(self) -> list[int]:
        there = np.unique(self.tile.counter).tolist()
        if len(there) > MOST_STRIPS:
            self.lacks.append(f"counters not shown: {len(there) - MOST_STRIPS}")
        return there[:MOST_STRIPS]

    def _choose_colours(self) -> tuple[np.ndarray, list[Entry]]:
        """The colour of each span, and the legend."""
        t, tile = self.t, self.tile
        seen = np.concatenate([tile.span, tile.cell_longest])
        colour = colours(t)
        words: dict[int, list[str]] = {}
        is_work = t.on_device()[seen] & t.is_category("kernel", "graph")[seen]
        work = seen[is_work]
        names = np.unique(t.name[work])
        if len(names) <= MOST_NAMES:
            for name in names.tolist():
                number = int(colour[work[t.name[work] == name][0]])
                words.setdefault(number, []).append(label(shown(t.names[name])))
        else:
            colour, groups = group_colours(t)
            for group, number in groups:
                words.setdefault(number, []).append(group)
        for number in np.unique(colour[seen[~is_work]]).tolist():
            if number in OTHER_WORDS:
                words.setdefault(number, []).append(OTHER_WORDS[number])
        judged = np.concatenate([t.outcome[tile.span], tile.cell_outcome])
        used = np.unique(colour[seen][~np.isin(judged, NOT_FRESH)]).tolist()
        entries = [
            Entry(PALETTE[number][0], shortened(", ".join(dict.fromkeys(words[number])), 40))
            for number in used
            if number in words
        ]
        tints = range(OPERATOR, OPERATOR + OPERATORS)
        if any(number in tints for number in used):
            entries.append(Entry(PALETTE[OPERATOR][0], "operators, in four tints"))
        if rest := [number for number in used if number not in words and number not in tints]:
            entries.append(Entry(PALETTE[rest[0]][0], "others, by name"))
        for outcome, (fill, hatch) in OUTCOME_STYLE.items():
            if (judged == OUTCOMES.index(outcome)).any():
                entries.append(Entry(fill, outcome, hatch))
        drawn = {kind for _, _, kind in self.arrows}
        entries += [
            Entry(fill, text, line=line) for kind, (text, fill, line) in ARROW_STYLE.items() if kind in drawn
        ]
        return colour, entries

    def _subtitle(self) -> list[str]:
        t, tile = self.t, self.tile
        told = [str(t.meta["provenance"])] if t.meta.get("provenance") else []
        lanes = len(np.unique(self.detail.row_lane[tile.rows]))
        told.append(f"{tile.count:,} spans on {lanes} {'lane' if lanes == 1 else 'lanes'}")
        told.append(f"{exact_time(self.t1 - self.t0 - self.whole)} shown")
        if not self.whole:
            told.append(f"from {exact_time(self.t0 - self.detail.extent[0])} after the first span")
        if len(tile.cell_count):
            told.append(f"{int(tile.cell_count.sum()):,} too short for this scale are merged (paler: gaps)")
        return [shown(text) for text in told] + self.lacks


def _lines(parts: Sequence[str], width: int = 130) -> list[str]:
    """The parts in lines, broken between them."""
    lines = [""]
    for part in parts:
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append(part)
        else:
            lines[-1] += f" · {part}" if lines[-1] else part
    return lines
