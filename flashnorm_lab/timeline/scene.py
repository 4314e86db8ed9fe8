"""Answers what view.js asks: one timeline or several, one above the other on a common clock.

A question is a dict of plain values, an answer a dict of plain values and some bytes, so that this can be
tested without a browser. Times in both are nanoseconds from the origin of each timeline (`Scene.origins`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LabError
from .detail import ARROWS, Detail, Tile
from .looks import DIM, KERNELS, PALETTE, colours, describe, exact_time, group_colours, label, source_name
from .metrics.layout import shown
from .table import Timeline

ALIGNMENTS = ("start", "clock")
OVERVIEW_PIXELS = 1024
DEEP = 6
"""A thread of more nested rows than this starts out folded."""

Answer = tuple[dict[str, Any], list[bytes]]


def script() -> str:
    """The viewer's JavaScript: what a panel's module and a page's script both begin with."""
    folder = Path(__file__).parent
    return "".join((folder / name).read_text("utf-8") for name in ("paint.js", "view.js"))


class Scene:
    """What a viewer shows, and its answers to it.

    timelines: one or more. align: "start" puts their first starts below each other, "clock" keeps what their
    clocks say. titles: a name for each, shown where there are several. ``LabError`` for what is no timeline,
    and for a number of titles that is not that of the timelines.
    """

    def __init__(
        self,
        timelines: Sequence[Timeline],
        align: str = "start",
        titles: Sequence[str] | None = None,
    ) -> None:
        self.timelines = tuple(timelines)
        for t in self.timelines:
            if not isinstance(t, Timeline):
                raise LabError(f"{shown(repr(t)[:80])} is no timeline; timeline.open reads one from a file")
        if titles is not None and len(titles) != len(self.timelines):
            raise LabError(f"titles: {len(titles)} for {len(self.timelines)} timelines; give one for each")
        self.details = tuple(Detail(t) for t in self.timelines)
        self.titles = tuple(titles) if titles is not None else tuple(map(title, self.timelines))
        self._found: tuple[str, list[np.ndarray]] | None = None
        self.put(align)

    def put(self, align: str) -> None:
        """Lay the timelines on a common clock. ``LabError`` for a word that is none of `ALIGNMENTS`."""
        if align not in ALIGNMENTS:
            raise LabError(f"align={align!r}: choose one of {', '.join(ALIGNMENTS)}")
        self.align = align
        starts = [detail.extent[0] for detail in self.details]
        self.origins = tuple(starts if align == "start" else [min(starts)] * len(starts))
        ends = [d.extent[1] - o for d, o in zip(self.details, self.origins, strict=True)]
        self.extent = (0, max(ends))

    def info(self) -> dict[str, Any]:
        """What the viewer has to know before it asks: lanes, counters, palette, extent, an overview."""
        return {
            "align": self.align,
            "extent": list(self.extent),
            "palette": [list(pair) for pair in PALETTE],
            "colour": "group" if len(self.legend) > 1 and not self._own_kernels else "name",
            "groups": [list(pair) for pair in self.legend],
            "overview": self._overview(),
            "label": f"timeline of {' and '.join(self.titles)}; {exact_time(self.extent[1])} long",
            "parts": [self._part(i) for i in range(len(self.details))],
        }

    def answer(self, question: dict[str, Any]) -> Answer:
        """The answer to a question of view.js. ``LabError`` for one that makes no sense."""
        kind = question.get("kind")
        if kind == "view":
            return self._view(question)
        if kind == "span":
            told = self.span(int(question["part"]), int(question["span"]), brief=bool(question.get("brief")))
            return told, []
        if kind == "search":
            return self._search(str(question["text"]), int(question["number"])), []
        raise LabError(f"the viewer asked {kind!r}; view, span and search are known")

    def span(self, part: int, span: int, brief: bool = False) -> dict[str, Any]:
        """A span in words, where it stands, and (unless ``brief``) its arrows. ``LabError`` if it is none."""
        detail, origin = self.details[part], self.origins[part]
        t = detail.timeline
        if not 0 <= span < len(t):
            raise LabError(f"there is no span {span}; this timeline has spans 0 to {len(t) - 1}")
        told = self._stands(part, span) | {
            "part": part,
            "name": shown(t.names[t.name[span]]),
            "lines": [list(pair) for pair in describe(t, span, origin, int(self._delays[part][span]))],
        }
        if not brief:
            arrows = detail.arrows_of(span)
            told["arrows"] = [
                {
                    "kind": ARROWS[kind],
                    "source": self._stands(part, source),
                    "target": self._stands(part, target),
                }
                for source, target, kind, _ in arrows
            ]
            for source, target, kind, name in arrows[:12]:
                way, other = ("to", target) if source == span else ("from", source)
                what = f"{ARROWS[kind]} {t.names[name] if name >= 0 else ''}".strip()
                where = t.lanes[t.lane[other]].name
                told["lines"].append([way, shown(f"{t.names[t.name[other]]} on {where} ({what})")])
            if len(arrows) > 12:
                told["lines"].append(["and", f"{len(arrows) - 12:,} more arrows"])
        return told

    def find(self, text: str) -> list[np.ndarray]:
        """The spans whose name holds a text, for each timeline; see `Detail.search`."""
        if self._found is None or self._found[0] != text:
            self._found = (text, [detail.search(text) for detail in self.details])
        return self._found[1]

    def window(self, part: int, t0: int, t1: int) -> tuple[int, int]:
        """A part of the common clock in absolute nanoseconds of one timeline."""
        return int(t0) + self.origins[part], int(t1) + self.origins[part]

    @cached_property
    def legend(self) -> list[tuple[str, int]]:
        """The groups of kernels that occur, by colour: their names, and the colour's number."""
        names: dict[int, list[str]] = {}
        for group, number in dict(pair for _, legend in self._groups for pair in legend).items():
            names.setdefault(number, []).append(group)
        return [(", ".join(groups), number) for number, groups in names.items()]

    @cached_property
    def _own_kernels(self) -> bool:
        """Whether kernels of the lab run here, whose colours are known from its other figures."""
        return any(name in KERNELS for t in self.timelines for name in t.names)

    @cached_property
    def _groups(self) -> list[tuple[np.ndarray, list[tuple[str, int]]]]:
        return [group_colours(t) for t in self.timelines]

    @cached_property
    def _names(self) -> list[np.ndarray]:
        return [colours(t) for t in self.timelines]

    @cached_property
    def _delays(self) -> list[np.ndarray]:
        return [t.launch_delay_ns() for t in self.timelines]

    def _part(self, part: int) -> dict[str, Any]:
        detail, t = self.details[part], self.timelines[part]
        lanes = []
        first = np.searchsorted(np.cumsum(detail.row_depth == 0), np.arange(1, len(detail.lanes) + 1))
        rows = np.diff(np.append(first, len(detail.row_lane)))
        for i, row, number in zip(detail.lanes, first.tolist(), rows.tolist(), strict=True):
            lane = t.lanes[i]
            about = ["host thread" if lane.kind == "host" else "stream"]
            about += [f"device {lane.device}"] if lane.device else []
            about += [f"process {lane.process}"] if lane.process else []
            lanes.append(
                {
                    "id": i,
                    "name": shown(lane.name),
                    "kind": lane.kind,
                    "device": lane.device,
                    "note": shown(", ".join(about)),
                    "row": row,
                    "rows": number,
                }
            )
        return {
            "title": self.titles[part],
            "lanes": lanes,
            "folded": [lane["id"] for lane in lanes if lane["rows"] > DEEP],
            "rows": len(detail.row_lane),
            "counters": [shown(t.names[i]) for i in detail.counters],
            "spans": len(t),
        }

    def _overview(self) -> list[list[int]]:
        """How busy the fullest host thread and the fullest stream are over the whole extent, 0 to 255."""
        bands: dict[str, np.ndarray] = {}
        for detail, origin in zip(self.details, self.origins, strict=True):
            shades = detail.overview(OVERVIEW_PIXELS, self.extent[0] + origin, self.extent[1] + origin)
            for lane, shade in zip(detail.lanes, shades, strict=True):
                kind = detail.timeline.lanes[lane].kind
                bands[kind] = np.maximum(bands.get(kind, 0), shade)
        return [
            np.ceil(255 * bands[k]).astype(int).tolist() if k in bands else [] for k in ("host", "device")
        ]

    def _stands(self, part: int, span: int) -> dict[str, int]:
        detail = self.details[part]
        t = detail.timeline
        return {
            "span": int(span),
            "row": detail.row_of(span),
            "lane": int(t.lane[span]),
            "start": int(t.start_ns[span]) - self.origins[part],
            "length": int(t.duration_ns[span]),
        }

    def _search(self, text: str, number: int) -> dict[str, Any]:
        found = self.find(text)
        count = sum(map(len, found))
        if not count:
            return {"count": 0, "number": -1}
        number %= count
        part, place = 0, number
        while place >= len(found[part]):
            place -= len(found[part])
            part += 1
        return {"count": count, "number": number, "span": self.span(part, int(found[part][place]))}

    def _view(self, question: dict[str, Any]) -> Answer:
        t0, t1 = (int(question[key]) for key in ("t0", "t1"))
        inner = [int(edge) for edge in question.get("inner", (t0, t1))]
        arrows = {"none": (), "order": ("order",), "launch": ("order", "launch"), "all": ARROWS}
        kinds = arrows.get(str(question.get("arrows", "order")), ARROWS)
        by_group, text = question.get("colour") == "group", str(question.get("text", "")).strip()
        heads, buffers = [], []
        for part, lanes in enumerate(question["lanes"]):
            detail = self.details[part]
            tile = detail.view(
                *self.window(part, t0, t1),
                int(question["pixels"]),
                lanes,
                arrows=kinds,
            )
            colour = self._groups[part][0] if by_group else self._names[part]
            if text:
                fits = np.zeros(len(detail.timeline), dtype=bool)
                fits[self.find(text)[part]] = True
                colour = np.where(fits, colour, np.uint8(DIM))
            head, buffer = pack(tile, detail.timeline, colour)
            low, high = self.window(part, *inner)
            seen = detail.count(low, high, lanes)
            near = (tile.cell_start_ns < high) & (tile.cell_end_ns > low)
            heads.append(
                head
                | {"t0": t0, "t1": t1, "pixels": tile.pixels, "count": seen}
                | {"hidden": detail.count(low, high) - seen}
                | {"merged": min(seen, int(tile.cell_count[near].sum()))}
            )
            buffers.append(buffer)
        return {"parts": heads}, buffers


def title(t: Timeline) -> str:
    """A timeline in a few words: its source or schedule, its device."""
    meta = t.meta
    words = [source_name(t) or str(meta.get("schedule") or "timeline"), str(meta.get("device") or "")]
    return shown(", ".join(word for word in words if word))


def pack(tile: Tile, t: Timeline, colour: np.ndarray) -> tuple[dict[str, Any], bytes]:
    """A tile as bytes, and a head that says where its columns are: [name, type, offset, length] each.

    Times are float64 from the tile's own start; of cells, which no name hangs on, pixels in float32. Columns
    start at multiples of 8 bytes.
    """
    place = np.zeros(len(t), dtype=np.int32)
    place[tile.span] = np.arange(len(tile.span), dtype=np.int32)
    length = t.duration_ns[tile.span]
    wide = length * tile.pixels > 24 * (tile.t1_ns - tile.t0_ns)
    named = np.unique(t.name[tile.span[wide]])
    pixel = tile.pixels / (tile.t1_ns - tile.t0_ns)
    columns = {
        "spanStart": (t.start_ns[tile.span] - tile.t0_ns).astype("f8"),
        "spanLength": length.astype("f8"),
        "counterLow": tile.counter_low.astype("f8"),
        "counterHigh": tile.counter_high.astype("f8"),
        "counterLast": tile.counter_last.astype("f8"),
        "cellStart": ((tile.cell_start_ns - tile.t0_ns) * pixel).astype("f4"),
        "cellEnd": ((tile.cell_end_ns - tile.t0_ns) * pixel).astype("f4"),
        "cellShare": tile.cell_share.astype("f4"),
        "span": tile.span.astype("i4"),
        "spanRow": tile.rows[tile.span_row].astype("i4"),
        "spanName": t.name[tile.span].astype("i4"),
        "cellRow": tile.rows[tile.cell_row].astype("i4"),
        "cellCount": tile.cell_count.astype("i4"),
        "cellLongest": tile.cell_longest.astype("i4"),
        "arrowSource": place[tile.arrow_source].astype("i4"),
        "arrowTarget": place[tile.arrow_target].astype("i4"),
        "counter": tile.counter.astype("i4"),
        "counterPx": tile.counter_px.astype("i4"),
        "spanColour": colour[tile.span].astype("u1"),
        "spanOutcome": t.outcome[tile.span].astype("u1"),
        "cellColour": colour[tile.cell_longest].astype("u1"),
        "cellOutcome": tile.cell_outcome.astype("u1"),
        "arrowKind": tile.arrow_kind.astype("u1"),
    }
    where, content = lay_out(columns)
    names = {int(i): label(t.names[i]) for i in named}
    return {"columns": where, "names": names, "leftOut": tile.arrows_left_out}, content


def lay_out(columns: dict[str, np.ndarray]) -> tuple[list[list[Any]], bytes]:
    """Columns one behind the other, each at a multiple of 8 bytes; and name, type, place, length of each."""
    where, parts, offset = [], [], 0
    for name, column in columns.items():
        little = column.astype(column.dtype.newbyteorder("<"), copy=False)
        where.append([name, f"{column.dtype.kind}{column.dtype.itemsize}", offset, len(column)])
        parts += [little.tobytes(), bytes(-little.nbytes % 8)]
        offset += little.nbytes + len(parts[-1])
    return where, b"".join(parts)
