"""SVG and PNG of a timeline, or of a part of its time: a row for each lane, drawn by matplotlib.

A million spans are drawn as a viewer draws them (`flashnorm_lab.timeline.detail`): spans of a pixel or more
one by one, shorter ones merged, paler where they leave gaps. Texts from a trace are drawn as text, never as
mathematics or markup, with characters that have no picture (control characters, line ends, turns of the
direction of writing) written out. In SVG they are text too, which can be searched and copied.
"""

from __future__ import annotations

import textwrap
import warnings
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cutting import nothing_there
from ..detail import Detail
from ..looks import PALETTE, label
from ..metrics.layout import shortened, shown
from ..table import OUTCOMES, Timeline
from .files import whole
from .picture_choice import ARROW_STYLE, INK, NOT_FRESH, OUTCOME_STYLE, PIXELS, Choice, Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY, FAINT, BLUE = "#555555", "#ECECEC", "#0072B2"
DPI = 130
WIDTH, LEFT, RIGHT, ROW, GAP, STRIP = 11.0, 1.7, 0.25, 0.26, 0.13, 0.6
"""Inches: of the picture, beside the rows, of a row, between lanes, of a counter."""
MOST_WORDS, MOST_LABELS = 12, 400
HIGHEST = 1e300
"""Where a counter's curve is cut off."""
RASTER = 4000
"""Beyond so many bars an SVG holds them as an image: it stays small, and its texts stay texts."""


def picture(
    timeline: Timeline | Detail, window: tuple[int, int] | None = None, title: str | None = None
) -> Figure:
    """The timeline as a matplotlib figure, from one time to another (absolute nanoseconds), or all of it.

    Colours are by name where there are few names on the device, else by group; a result that is not fresh is
    hatched, and named in words where there are few. Lines lead from host calls to their work, arrows along
    edges, where there are few enough to be followed; the subtitle says what is not drawn. ``LabError`` for a
    window that does not end after it starts.
    """
    detail = timeline if isinstance(timeline, Detail) else Detail(timeline)
    return _Picture(Choice(detail, window, title)).figure


def export_picture(
    timeline: Timeline | Detail,
    path: str | PathLike[str],
    kind: str,
    window: tuple[int, int] | None = None,
    title: str | None = None,
) -> tuple[str, ...]:
    """Write `picture` to a file, whole or not at all; ``kind`` is "svg" or "png".

    Returns what it does not show, a line each. ``LabError`` when the file cannot be written, and for a window
    in which there is nothing.
    """
    import matplotlib

    detail = timeline if isinstance(timeline, Detail) else Detail(timeline)
    choice = Choice(detail, window, title)
    if window is not None and not detail.count(choice.t0, choice.t1):
        raise nothing_there(detail.timeline, choice.t0, choice.t1)
    about: dict[str, Any] = {"Title": choice.title}
    if kind == "svg":
        about |= {"Date": None, "Creator": "flashnorm_lab"}
    options = {"svg.fonttype": "none", "svg.hashsalt": "flashnorm_lab", "text.usetex": False}
    with whole(path) as file, matplotlib.rc_context(options), warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        _Picture(choice).figure.savefig(file, format=kind, dpi=DPI, metadata=about)
    return tuple(choice.lacks)


class _Picture:
    """Draws a `Choice` as ``figure``."""

    def __init__(self, choice: Choice) -> None:
        from matplotlib.figure import Figure

        self.choice, self.t, self.tile = choice, choice.t, choice.tile
        self.t0, self.t1, self.size = choice.t0, choice.t1, choice.size
        self.top, rows_height = self._place_rows()
        above, below = 0.42 + 0.18 * len(choice.about), 0.55 + 0.21 * -(-len(choice.legend) // 4)
        strips_height = STRIP * len(choice.counters)
        height = above + rows_height + strips_height + below
        self.figure = figure = Figure(figsize=(WIDTH, height), dpi=DPI)
        left, width = LEFT / WIDTH, 1 - (LEFT + RIGHT) / WIDTH
        bottom = (below + strips_height) / height
        axes = figure.add_axes((left, bottom, width, rows_height / height))
        axes.set_xlim(0, 1.003 * (self.t1 - self.t0) / self.size)
        axes.set_ylim(rows_height, 0)
        self._draw_rows(axes)
        for i, counter in enumerate(choice.counters):
            place = (left, bottom - (i + 1) * STRIP / height, width, 0.8 * STRIP / height)
            self._draw_counter(figure.add_axes(place, sharex=axes), counter)
        self._draw_frame()
        _say(figure, 0.12 / WIDTH, 1 - 0.1 / height, choice.title, 13, INK)
        _say(figure, 0.12 / WIDTH, 1 - 0.36 / height, "\n".join(choice.about), 9, GREY)
        self._draw_legend(choice.legend)

    def _place_rows(self) -> tuple[np.ndarray, float]:
        """The top of each row in inches from the top of the first, and the height of all."""
        lane = self.choice.detail.row_lane[self.tile.rows]
        gaps = np.cumsum(np.concatenate([[0], np.diff(lane) != 0])) if len(lane) else np.empty(0)
        top = 0.5 * GAP + np.arange(len(lane)) * ROW + gaps * GAP
        return top, (float(top[-1]) + ROW if len(top) else ROW) + 0.5 * GAP

    def _x(self, times: Any) -> Any:
        """int64 absolute nanoseconds, as numbers of the axis."""
        return (times - self.t0) / self.size

    def _draw_rows(self, axes: Axes) -> None:
        from matplotlib.collections import PolyCollection

        t, tile = self.t, self.tile
        row = np.concatenate([tile.span_row, tile.cell_row])
        start = np.concatenate([t.start_ns[tile.span], tile.cell_start_ns])
        end = np.concatenate([t.end_ns[tile.span], tile.cell_end_ns])
        span = np.concatenate([tile.span, tile.cell_longest])
        outcome = np.concatenate([t.outcome[tile.span], tile.cell_outcome])
        share = np.concatenate([np.ones(len(tile.span)), np.clip(tile.cell_share, 0.25, 1)])
        left = self._x(np.clip(start, self.t0, self.t1))
        least = (self.t1 - self.t0) / self.size / PIXELS
        right = np.maximum(self._x(np.clip(end, self.t0, self.t1)), left + least)
        top = self.top[row] + 0.02
        bottom = self.top[row] + ROW - 0.02
        fill = np.array([_rgb(colour) for colour, _ in PALETTE])[self.choice.colour[span]]
        fill = 1 - (1 - fill) * share[:, None]
        corners = np.stack([np.stack([left, right, right, left]), np.stack([top, top, bottom, bottom])]).T
        style = {"linewidth": 0.4, "zorder": 2, "rasterized": len(row) > RASTER}
        plain = ~np.isin(outcome, NOT_FRESH)
        wide = right - left > 4 * least
        edge = np.where((plain & wide)[:, None], 1.0, fill)
        axes.add_collection(
            PolyCollection(corners[plain], facecolors=fill[plain], edgecolors=edge[plain], **style),
            autolim=False,
        )
        for word, (colour, hatch) in OUTCOME_STYLE.items():
            mine = np.flatnonzero(outcome == OUTCOMES.index(word))
            if len(mine):
                look = {
                    "facecolor": colour,
                    "edgecolor": "white",
                    "hatch": hatch,
                    "linewidth": 0,
                    "zorder": 3,
                }
                axes.add_collection(PolyCollection(corners[mine], **look), autolim=False)
        self._label_bars(axes, left, right, plain)
        self._name_results(axes)
        self._draw_arrows(axes)

    def _label_bars(self, axes: Axes, left: np.ndarray, right: np.ndarray, plain: np.ndarray) -> None:
        """Names in the bars that are wide enough, the widest first."""
        singles = len(self.tile.span)
        per_letter = (self.t1 - self.t0) / self.size * 4.5 / (72 * (WIDTH - LEFT - RIGHT))
        room = ((right - left)[:singles] / per_letter - 1).astype(np.int64)
        room[~plain[:singles]] = 0
        for i in np.argsort(-room, kind="stable")[:MOST_LABELS].tolist():
            if room[i] < 3:
                break
            span = int(self.tile.span[i])
            text = label(shown(self.t.names[self.t.name[span]]))
            if len(text) > room[i] < 8:
                continue
            y = self.top[self.tile.span_row[i]] + ROW / 2
            colour = PALETTE[self.choice.colour[span]][1]
            text = shortened(text, int(room[i]))
            _say(
                axes,
                (left[i] + right[i]) / 2,
                y,
                text,
                7,
                colour,
                ha="center",
                va="center_baseline",
                zorder=4,
            )

    def _name_results(self, axes: Axes) -> None:
        t, tile = self.t, self.tile
        marked = [
            i for i, span in enumerate(tile.span.tolist()) if OUTCOMES[t.outcome[span]] in OUTCOME_STYLE
        ]
        if len(marked) > MOST_WORDS:
            return
        for i in marked:
            span = int(tile.span[i])
            word = f"{OUTCOMES[t.outcome[span]]}: {label(shown(t.names[t.name[span]]))}"
            x = self._x(max(int(t.start_ns[span]), self.t0))
            y = self.top[tile.span_row[i]]
            _say(axes, x, y, word, 7, INK, va="bottom", zorder=6, clip_on=False)

    def _draw_arrows(self, axes: Axes) -> None:
        row = {int(span): int(r) for span, r in zip(self.tile.span, self.tile.span_row, strict=True)}
        for source, target, kind in self.choice.arrows:
            _, colour, line = ARROW_STYLE[kind]
            leaves = self.t.end_ns[source] if kind == "order" else self.t.start_ns[source]
            ends = [(leaves, row[source]), (self.t.start_ns[target], row[target])]
            x = [float(self._x(min(max(int(time), self.t0), self.t1))) for time, _ in ends]
            y = [self.top[r] + ROW / 2 for _, r in ends]
            look = {
                "arrowstyle": "-|>" if kind == "order" else "-",
                "color": colour,
                "linewidth": 1 if kind == "order" else 0.8,
                "linestyle": line,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 8,
            }
            axes.annotate("", (x[1], y[1]), (x[0], y[0]), arrowprops=look, zorder=5, annotation_clip=False)

    def _draw_counter(self, axes: Axes, counter: int) -> None:
        tile = self.tile
        mine = tile.counter == counter
        width = (self.t1 - self.t0) / self.size / PIXELS
        x, last = np.maximum(tile.counter_px[mine], 0) * width, tile.counter_last[mine]
        x, last = np.append(x, PIXELS * width), np.append(last, last[-1:])
        last, low, high = (  # an axis has no room for the largest floats
            np.clip(values, -HIGHEST, HIGHEST)
            for values in (last, tile.counter_low[mine], tile.counter_high[mine])
        )
        axes.step(x, last, where="post", color=BLUE, linewidth=1)
        axes.vlines(x[:-1], low, high, color=BLUE, linewidth=0.8)
        axes.locator_params(axis="y", nbins=2)
        axes.tick_params(axis="y", length=0, labelcolor=GREY, labelsize=7)
        axes.yaxis.set_major_formatter("{x:.4g}")
        name = shortened(shown(self.t.names[self.choice.detail.counters[counter]]), 19)
        _say(
            axes,
            -(LEFT - 0.12) / (WIDTH - LEFT - RIGHT),
            0.5,
            name,
            8,
            INK,
            va="center",
            transform=axes.transAxes,
        )

    def _draw_frame(self) -> None:
        """Names of lanes, the axis of time, lines to guide the eye."""
        axes, *strips = self.figure.axes
        axes.set_yticks([])
        lanes = self.choice.detail.row_lane[self.tile.rows]
        same = len({lane.name for lane in self.t.lanes}) < len(self.t.lanes)
        for lane in dict.fromkeys(lanes.tolist()):
            rows = np.flatnonzero(lanes == lane)
            y = (self.top[rows[0]] + self.top[rows[-1]] + ROW) / 2
            what = self.t.lanes[lane]
            x = -(LEFT - 0.12) / (WIDTH - LEFT - RIGHT)
            place = {"va": "center", "transform": axes.get_yaxis_transform(), "clip_on": False}
            more = ", ".join(text for text in (what.device and f"device {what.device}", what.process) if text)
            text = textwrap.wrap(shown(what.name), 23) or [""]
            text = [shortened(line, 24) for line in (*text[:1], " ".join(text[1:])) if line]
            if same and more and len(text) < 2:
                text.append(shortened(shown(more), 24))
            _say(axes, x, y, "\n".join(text), 8 if len(text) < 2 else 7, INK, **place)
            if rows[0]:
                axes.axhline(self.top[rows[0]] - GAP / 2, color=FAINT, linewidth=0.8, zorder=0)
        if not len(lanes):
            _say(axes, 0.5, 0.5, "no spans here", 9, GREY, ha="center", va="center", transform=axes.transAxes)
        for each in (axes, *strips):
            each.grid(axis="x", color=FAINT, linewidth=0.8)
            each.set_axisbelow(True)
            for side in each.spines.values():
                side.set_visible(False)
            bottom = each is self.figure.axes[-1]
            each.tick_params(axis="x", length=0, labelcolor=INK, labelsize=9, labelbottom=bottom)
        last = self.figure.axes[-1]
        last.ticklabel_format(axis="x", style="plain", useOffset=False)
        after = "the first span's start" if self.choice.whole else "the start of this view"
        last.set_xlabel(f"{self.choice.unit} from {after}", color=INK, fontsize=9)

    def _draw_legend(self, entries: list[Entry]) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        handles = [
            Line2D([], [], color=e.colour, linestyle=e.line, linewidth=1)
            if e.line
            else Patch(facecolor=e.colour, edgecolor="white", hatch=e.hatch)
            for e in entries
        ]
        if not handles:
            return
        # Texts come after: a label that begins with "_" would be left out.
        made = self.figure.legend(
            handles, ["."] * len(handles), loc="lower left", ncols=4, frameon=False, fontsize=8
        )
        for place, entry in zip(made.get_texts(), entries, strict=True):
            place.set_parse_math(False)
            place.set_text(entry.words)


def _say(where: Figure | Axes, x: float, y: float, text: str, size: float, color: str, **more: Any) -> None:
    where.text(x, y, text, fontsize=size, color=color, parse_math=False, **({"va": "top"} | more))


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
