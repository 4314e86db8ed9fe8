"""Pictures of timelines, schedules and results. Pure functions: values in, a figure out.

One palette for all of them, that of Okabe and Ito ("Color Universal Design", 2008), which people with any
colour vision can tell apart; and nothing is told by colour alone: a stale result is also hatched and
labelled. Texts from a trace are shown as text, never as markup.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import plotly.graph_objects as go

from . import program as programs
from .errors import LabError
from .schedule import Copy, HostRead, HostWrite, Launch, Record, Schedule, Synchronize, Wait, describe
from .timeline.table import CATEGORIES, NO_DELAY, OUTCOMES, Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure as StaticFigure

    from .hazards import Hazard
    from .lessons import Curves, Spoken
    from .program import Program

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
VERMILION, PURPLE, YELLOW = "#D55E00", "#CC79A7", "#F0E442"
RUST = "#A84300"  # vermilion, dark enough for small text on white
INK, GREY, PALE, FAINT = "#333333", "#8C8C8C", "#C9C9C9", "#ECECEC"

KERNELS = {
    "projection": BLUE,
    "fused_norm_projection": BLUE,
    "inv_rms": GREEN,
    "rms_norm": GREEN,
    "post_scale": SKY,
    "spin": ORANGE,
}
OTHER_KERNELS = (BLUE, GREEN, SKY, ORANGE, YELLOW)
OUTCOME_STYLE = {  # colour, plotly's hatch, matplotlib's hatch
    "fresh": (SKY, "", ""),
    "stale": (VERMILION, "/", "///"),
    "torn": (PURPLE, "x", "xxx"),
    "early": (ORANGE, "\\", "\\\\\\"),
}
MARKS = {  # plotly's marker, matplotlib's
    "stale": ("triangle-down", "v"),
    "torn": ("diamond", "D"),
    "early": ("triangle-up", "^"),
}
STATES = ("fresh", "stale", "neither", "early")
STATE_COLOURS = ("#DCEBF5", VERMILION, "#2B2B2B", ORANGE)  # of four lightnesses, so that they differ in grey
BAD_FIRST = (2, 3, 1, 0)
"""States of an element, the one first that a cell shows where it holds several."""

MAX_SPANS = 4000
MAX_SENTENCES = 5
MAX_WORDS = 12
MAX_NODES = 32
BAR = 0.5
PLOT_PX = 760
ROW_PX = 95
FONT = {
    "family": "system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif",
    "color": INK,
    "size": 12,
}


def timeline(t: Timeline, steps: int | Iterable[int] | None = None, title: str | None = None) -> go.Figure:
    """The timeline as lanes of bars: host calls on top, then main, matrix, vector and any other stream.

    Bars start and last in microseconds from the first span shown; hover tells exact nanoseconds. Black arrows
    are edges (what a stream waited for), dotted lines lead from a host call to the work it enqueued. A result
    that is not fresh is hatched, coloured and labelled with its kernel's name (marked only, where there are
    more than `MAX_WORDS`). A line leads from a stale or torn one to the work of the same step that was not
    done when it began, and on to that work's end; from an early one back to the end of a later step's work
    that was done before it began. Bars too short to see are drawn 2 pixels wide.

    steps: one step, several, or None for all. Beyond `MAX_SPANS` spans the earliest are shown, and the
    subtitle says so. ``LabError`` for steps that are not there.
    """
    view = _View(t, steps)
    data: list[dict[str, Any]] = []
    for label, spans, style in view.groups():
        wide = view.duration[spans] / view.width * PLOT_PX
        names = [view.name(i) for i in spans]
        is_range = style["kind"] == "range"
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": _text(_short(label)),
                "base": view.start[spans],
                "x": np.maximum(view.duration[spans], 2 * view.width / PLOT_PX),
                "y": view.row[spans],
                "width": 0.78 if is_range else BAR,
                "marker": {
                    "color": style["colour"],
                    "line": {"color": style["line"], "width": 0.6},
                    "pattern": {
                        "shape": style["hatch"],
                        "fgcolor": "white",
                        "fillmode": "overlay",
                        "size": 7,
                        "solidity": 0.35,
                    },
                },
                "text": [
                    _text(n) if w > 7.5 * len(n) and style["kind"] == "kernel" else ""
                    for n, w in zip(names, wide, strict=True)
                ],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "textfont": {"color": style["text"], "size": 11},
                "hovertext": [view.hover(i) for i in spans],
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )
    launches = view.pairs(t.launches(), "start")
    data += _lines(
        "launch to start", launches, PALE, "dot", visible=True if len(launches) <= 24 else "legendonly"
    )
    edges = np.stack([t.edge_source, t.edge_target], axis=1)
    data += _lines("edge: waits for", view.pairs(edges, "end", t.edge_name), INK, "solid", arrow=True)
    data += _read_lines("input not done yet", view.early_reads())
    data += _read_lines("input replaced already", view.late_reads())
    data += view.labels()
    below = 52 + 19 * _legend_rows([trace["name"] for trace in data if "name" in trace])
    layout = _layout(title or view.title(), view.subtitle(), 75 + 58 * max(1, len(view.rows)) + below)
    figure = go.Figure(data, layout=layout)
    figure.update_layout(
        barmode="overlay",
        margin={"b": below},
        bargap=0,
        xaxis={
            "title": {"text": "µs from the first span shown"},
            "range": [-0.015 * view.width, 1.02 * view.width],
            "gridcolor": FAINT,
            "zeroline": False,
            "exponentformat": "none",
            "separatethousands": True,
        },
        yaxis={
            "tickvals": list(range(len(view.rows))),
            "ticktext": [f"<b>{_text(t.lanes[lane].name)}</b> " for lane in view.rows],
            "range": [len(view.rows) - 0.4, -0.6],
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
    )
    for row in range(1, len(view.rows)):
        figure.add_shape(type="line", xref="paper", x0=0, x1=1, y0=row - 0.5, y1=row - 0.5,
                         line={"color": FAINT, "width": 1}, layer="below")  # fmt: skip
    return figure


def timeline_static(
    t: Timeline, steps: int | Iterable[int] | None = None, title: str | None = None
) -> StaticFigure:
    """The picture of `timeline` as a matplotlib figure, for PNG, SVG and pages without JavaScript."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    view = _View(t, steps)
    subtitle = "\n".join(_fold(view.subtitle()))
    groups = view.groups()
    columns = 5
    above = 0.62 + 0.17 * subtitle.count("\n")
    below = 0.65 + 0.2 * -(-len(groups) // columns)
    height = above + 0.6 * max(1, len(view.rows)) + below
    figure = Figure(figsize=(9, height), dpi=110)
    figure.subplots_adjust(left=0.085, right=0.985, top=1 - above / height, bottom=below / height)
    axes = figure.add_subplot()
    handles = []
    for label, spans, style in groups:
        hatch = OUTCOME_STYLE[label][2] if label in OUTCOME_STYLE else 3 * style["hatch"]
        thick = 0.78 if style["kind"] == "range" else BAR
        for row in np.unique(view.row[spans]):
            mine = spans[view.row[spans] == row]
            bars = np.stack(
                [view.start[mine], np.maximum(view.duration[mine], 2 * view.width / PLOT_PX)], axis=1
            )
            look = {
                "facecolor": style["colour"],
                "edgecolor": "white" if hatch else style["line"],
                "linewidth": 0.5,
            }
            axes.broken_barh(bars, (row - thick / 2, thick), hatch=hatch, zorder=2, **look)
        handles.append(Patch(facecolor=style["colour"], edgecolor="white", hatch=hatch, label=_short(label)))
    edges = np.stack([t.edge_source, t.edge_target], axis=1)
    arrow = {
        "arrowstyle": "-|>",
        "color": INK,
        "linewidth": 1,
        "shrinkA": 0,
        "shrinkB": 0,
        "mutation_scale": 9,
    }
    for x0, y0, x1, y1, _ in view.pairs(edges, "end", t.edge_name):
        axes.annotate("", (x1, y1), (x0, y0), arrowprops=arrow, zorder=4)
    for x0, y0, x1, y1, _ in view.early_reads() + view.late_reads():
        axes.plot([x0, x0, x1], [y0, y1, y1], color=VERMILION, linestyle="--", linewidth=1.2, zorder=4)
        axes.plot([x1], [y1], color=VERMILION, marker="x", markersize=5, zorder=4)
    for x, y, label, word, side in view.marks():
        axes.plot([x], [y], marker=MARKS[label][1], color=OUTCOME_STYLE[label][0], markersize=4, zorder=5)
        anchor = {"left": "right", "right": "left"}.get(side, side)  # matplotlib names the text's own side
        axes.text(x, y - 0.07, word, ha=anchor, va="bottom", fontsize=8, color=INK, parse_math=False)
    axes.set_xlim(-0.015 * view.width, 1.02 * view.width)
    axes.set_ylim(len(view.rows) - 0.4, -0.7)
    axes.set_yticks(range(len(view.rows)), [t.lanes[lane].name for lane in view.rows], fontweight="bold")
    for label in axes.get_yticklabels():
        label.set_parse_math(False)
    axes.tick_params(length=0, labelcolor=INK)
    axes.set_xlabel("µs from the first span shown", color=INK, fontsize=9)
    axes.grid(axis="x", color=FAINT)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)
    figure.text(
        0.012, 1 - 0.08 / height, title or view.title(), va="top", fontsize=12, color=INK, parse_math=False
    )
    figure.text(0.012, 1 - 0.34 / height, subtitle, va="top", fontsize=9, color="#555555", parse_math=False)
    legend = figure.legend(handles=handles, loc="lower left", ncols=columns, frameon=False, fontsize=8)
    for label in legend.get_texts():
        label.set_parse_math(False)
    return figure


class _View:
    """What `timeline` and `timeline_static` draw: the spans chosen, their rows, places and words."""

    def __init__(self, t: Timeline, steps: int | Iterable[int] | None) -> None:
        self.t = t
        chosen = np.ones(len(t), dtype=bool)
        self.steps = None
        if steps is not None:
            self.steps = [steps] if isinstance(steps, int | np.integer) else sorted(set(steps))
            chosen = np.isin(t.step, self.steps)
            if not chosen.any():
                there = f"steps {t.steps[0]} to {t.steps[-1]}" if t.steps else "no steps"
                raise LabError(f"no span belongs to steps {self.steps}; this timeline has {there}")
        spans = np.flatnonzero(chosen)
        self.left_out = max(0, len(spans) - MAX_SPANS)
        self.spans = np.sort(spans[np.argsort(t.start_ns[spans], kind="stable")][:MAX_SPANS])
        self.shown = np.zeros(len(t), dtype=bool)
        self.shown[self.spans] = True
        self.base = int(t.start_ns[self.spans].min()) if len(self.spans) else 0
        self.start = (t.start_ns - self.base) / 1000
        self.duration = t.duration_ns / 1000
        self.width = float((self.start + self.duration)[self.spans].max()) if len(self.spans) else 1.0
        self.width = self.width or 1.0
        used = set(t.lane[self.spans].tolist())
        known = ("main", "matrix", "vector")
        self.rows = sorted(
            (i for i in range(len(t.lanes)) if i in used),
            key=lambda i: (
                t.lanes[i].kind != "host",
                known.index(t.lanes[i].name) if t.lanes[i].name in known else len(known),
                i,
            ),
        )
        place = np.zeros(max(1, len(t.lanes)), dtype=np.int64)
        place[self.rows] = np.arange(len(self.rows))
        self.row = place[t.lane]
        self.delay = t.launch_delay_ns()
        self.device = t.on_device()

    def name(self, span: int) -> str:
        return self.t.names[self.t.name[span]]

    def groups(self) -> list[tuple[str, np.ndarray, dict[str, str]]]:
        """Label, spans and style of each kind of bar, those drawn first in front."""
        t = self.t
        groups: dict[tuple[int, str], list[int]] = {}
        kernels = [i for i in self.spans if self.device[i] and CATEGORIES[t.category[i]] == "kernel"]
        total: dict[str, float] = {}
        for i in kernels:
            total[self.name(i)] = total.get(self.name(i), 0) + self.duration[i]
        foreign = sorted((n for n in total if n not in KERNELS), key=lambda n: -total[n])
        colours = KERNELS | dict(zip(foreign, OTHER_KERNELS, strict=False))
        styles: dict[tuple[int, str], dict[str, str]] = {}

        def put(
            i: int, order: int, label: str, colour: str, kind: str, hatch: str = "", line: str = ""
        ) -> None:
            groups.setdefault((order, label), []).append(i)
            text = "white" if colour in (BLUE, GREEN, GREY, VERMILION) else INK
            styles[order, label] = {
                "colour": colour, "hatch": hatch, "kind": kind, "text": text, "line": line or colour
            }  # fmt: skip

        for i in self.spans:
            category, outcome, name = CATEGORIES[t.category[i]], OUTCOMES[t.outcome[i]], self.name(i)
            if outcome in MARKS:
                put(i, 5, outcome, OUTCOME_STYLE[outcome][0], "outcome", OUTCOME_STYLE[outcome][1])
            elif category == "range":
                put(i, 0, "named range", "#F4F4F4", "range", line=PALE)
            elif not self.device[i]:
                if category == "synchronize":
                    put(i, 2, "host waits for the device", FAINT, "call", "-", line=GREY)
                else:
                    put(i, 1, "host call", PALE, "call", line="white")
            elif category == "copy":
                put(i, 4, "copy", GREY, "kernel")
            elif category != "kernel":
                put(i, 4, "event on a stream", INK, "call")
            elif name in colours:
                put(i, 3, name, colours[name], "kernel", line="white")
            else:
                put(i, 4, "other kernels", "#B9A98F", "kernel")
        return [(key[1], np.array(groups[key]), styles[key]) for key in sorted(groups, key=lambda k: k[0])]

    def hover(self, i: int) -> str:
        t = self.t
        where = f"{t.lanes[t.lane[i]].name}" + (f", step {t.step[i]}" if t.step[i] >= 0 else "")
        lines = [
            f"<b>{_text(_wrap(self.name(i)))}</b>".replace("\n", "<br>"),
            f"{CATEGORIES[t.category[i]]} on {_text(where)}",
            f"start {int(t.start_ns[i]) - self.base:,} ns",
            f"duration {int(t.duration_ns[i]):,} ns",
        ]
        if self.delay[i] != NO_DELAY:
            lines.append(f"launch to start {int(self.delay[i]):,} ns")
        if t.outcome[i]:
            lines.append(f"result: {OUTCOMES[t.outcome[i]]}")
        return "<br>".join(lines)

    def pairs(
        self, pairs: np.ndarray, leave: str, names: np.ndarray | None = None
    ) -> list[tuple[float, float, float, float, str]]:
        """x0, y0, x1, y1 and hover text of the lines between spans that are shown."""
        found = []
        for n, (source, target) in enumerate(pairs.tolist()):
            if not (self.shown[source] and self.shown[target]):
                continue
            x0 = self.start[source] + (self.duration[source] if leave == "end" else 0)
            y0, y1 = self._between(source, target)
            what = f"edge {self.t.names[names[n]]}: " if names is not None else ""
            end_ns = int(self.t.start_ns[source]) + (int(self.t.duration_ns[source]) if leave == "end" else 0)
            gap = int(self.t.start_ns[target]) - end_ns
            text = _text(f"{what}{self.name(source)} to {self.name(target)}, {gap:,} ns")
            found.append((x0, y0, self.start[target], y1, text))
        return found

    def early_reads(self) -> list[tuple[float, float, float, float, str]]:
        """For each stale or torn span, where it began (x, y), the end of its step's last work and the height
        of that work's bar (x, y), and a sentence."""
        t, found = self.t, []
        end = t.end_ns
        for i in self._judged("stale", "torn"):
            late = np.flatnonzero(
                self.shown
                & self.device
                & (t.category == CATEGORIES.index("kernel"))
                & (t.step == t.step[i])
                & (t.lane != t.lane[i])
                & (end > t.start_ns[i])
            )
            if t.step[i] < 0 or not len(late):
                continue
            other = int(late[np.argmax(end[late])])
            y0, y1 = self._between(i, other)
            y1 -= 0.09 * np.sign(self.row[other] - self.row[i])
            x0, x1 = self.start[i], self.start[other] + self.duration[other]
            early = int(end[other] - t.start_ns[i])
            text = f"{self.name(i)} began {early:,} ns before {self.name(other)} was done"
            found.append((x0, y0, x1, y1, _text(text)))
        return found

    def late_reads(self) -> list[tuple[float, float, float, float, str]]:
        """The same for each early span: to the last of a later step's work that was done when it began."""
        t, found = self.t, []
        end = t.end_ns
        for i in self._judged("early"):
            ahead = np.flatnonzero(
                self.shown
                & self.device
                & (t.step > t.step[i])
                & (t.lane != t.lane[i])
                & (end <= t.start_ns[i])
            )
            if t.step[i] < 0 or not len(ahead):
                continue
            other = int(ahead[np.argmax(end[ahead])])
            y0, y1 = self._between(i, other)
            y1 -= 0.09 * np.sign(self.row[other] - self.row[i])
            x0, x1 = self.start[i], self.start[other] + self.duration[other]
            late = int(t.start_ns[i] - end[other])
            text = (
                f"{self.name(i)} began {late:,} ns after {self.name(other)} of step {t.step[other]} was done"
            )
            found.append((x0, y0, x1, y1, _text(text)))
        return found

    def marks(self) -> list[tuple[float, float, str, str, str]]:
        """x, y, outcome, words above and their side (center, or left or right to stay in the picture) of each
        span that is not fresh. Where words would overlap, the rarer outcome keeps them and the other has its
        mark alone; so have all where there are more than `MAX_WORDS`."""
        judged = self._judged(*MARKS)
        labels = [OUTCOMES[self.t.outcome[i]] for i in judged]
        pixel = self.width / PLOT_PX
        found, placed = [], []
        for i in sorted(judged, key=lambda i: (labels.count(OUTCOMES[self.t.outcome[i]]), self.start[i])):
            x, row = float(self.start[i] + self.duration[i] / 2), int(self.row[i])
            label = OUTCOMES[self.t.outcome[i]]
            words = f"{_short(self.name(i), 20)}: {label}"
            half = (2 + 3.4 * len(words)) * pixel
            side, middle = "center", x
            if x < half:
                side, middle = "right", x + half
            elif x > self.width - half:
                side, middle = "left", x - half
            room = len(judged) <= MAX_WORDS and all(
                r != row or abs(middle - other) > half + h for other, r, h in placed
            )
            if room:
                placed.append((middle, row, half))
            found.append((x, row - BAR / 2 - 0.07, label, words if room else "", side))
        return found

    def labels(self) -> list[dict[str, Any]]:
        marks = self.marks()
        if not marks:
            return []
        return [
            {
                "type": "scatter",
                "mode": "markers+text",
                "x": [m[0] for m in marks],
                "y": [m[1] for m in marks],
                "text": [f"<b>{_text(m[3])}</b>" if m[3] else "" for m in marks],
                "textposition": [f"top {m[4]}" for m in marks],
                "textfont": {"color": INK, "size": 11},
                "marker": {
                    "symbol": [MARKS[m[2]][0] for m in marks],
                    "size": 7,
                    "color": [OUTCOME_STYLE[m[2]][0] for m in marks],
                },
                "hoverinfo": "skip",
                "showlegend": False,
                "cliponaxis": False,
            }
        ]

    def title(self) -> str:
        meta = self.t.meta
        name = str(meta.get("schedule", "")).splitlines()[0] if meta.get("schedule") else ""
        return (
            f"Timeline of the {name} step"
            if name.isidentifier()
            else f"Timeline: {name}"
            if name
            else "Timeline"
        )

    def subtitle(self) -> str:
        t, meta = self.t, self.t.meta
        where = f"{meta.get('provenance', 'of unstated origin')}"
        if meta.get("device"):
            where += f" on {meta['device']}"
        if meta.get("source"):
            where += f", from {PurePath(str(meta['source'])).name}"
        parts = [where]
        numbers = sorted({int(s) for s in t.step[self.spans] if s >= 0})
        if len(numbers) == 1:
            parts.append(f"step {numbers[0]}")
        elif numbers:
            whole = numbers[-1] - numbers[0] + 1 == len(numbers)
            parts.append(f"steps {numbers[0]} to {numbers[-1]}" if whole else f"{len(numbers)} steps")
        if meta.get("dropped"):
            parts.append(f"left out: {', '.join(map(str, meta['dropped']))}")
        if meta.get("force"):
            parts.append(f"forced: {meta['force']}")
        judged = [OUTCOMES[o] for o in t.outcome[self.spans] if o]
        if judged:
            parts.append(", ".join(f"{judged.count(o)} {o}" for o in OUTCOMES[1:] if o in judged))
        if self.left_out:
            parts.append(f"the first {len(self.spans):,} of {len(self.spans) + self.left_out:,} spans")
        return " · ".join(parts)

    def _judged(self, *labels: str) -> list[int]:
        wanted = [OUTCOMES.index(label) for label in labels]
        return [int(i) for i in self.spans if self.t.outcome[i] in wanted]

    def _between(self, source: int, target: int) -> tuple[float, float]:
        """Where a line leaves the source's bar and meets the target's: at the edges that face each other."""
        down = np.sign(self.row[target] - self.row[source])
        return self.row[source] + down * BAR / 2, self.row[target] - down * BAR / 2


def _read_lines(name: str, reads: Sequence[tuple[float, float, float, float, str]]) -> list[dict[str, Any]]:
    """Down from where each wrong read began, then along the work it should have come after, or before, to a
    cross at that work's end."""
    if not reads:
        return []
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "x": [v for x0, _, x1, _, _ in reads for v in (x0, x0, x1, None)],
            "y": [v for _, y0, _, y1, _ in reads for v in (y0, y1, y1, None)],
            "line": {"color": VERMILION, "width": 2, "dash": "4px,2px"},
            "marker": {
                "symbol": "x-thin",
                "size": [v for _ in reads for v in (0, 0, 8, 0)],
                "line": {"color": VERMILION, "width": 2},
                "opacity": 1,
            },
            "hovertext": [v for *_, text in reads for v in (text, text, text, "")],
            "hovertemplate": "%{hovertext}<extra></extra>",
        }
    ]


def _lines(
    name: str,
    pairs: Sequence[tuple[float, float, float, float, str]],
    colour: str,
    dash: str,
    arrow: bool = False,
    visible: bool | str = True,
) -> list[dict[str, Any]]:
    """One trace for any number of lines, with a head on each where asked."""
    if not pairs:
        return []
    head = 10 if arrow else 4
    return [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": name,
            "visible": visible,
            "x": [v for x0, _, x1, _, _ in pairs for v in (x0, x1, None)],
            "y": [v for _, y0, _, y1, _ in pairs for v in (y0, y1, None)],
            "line": {"color": colour, "width": 1.4 if arrow else 1, "dash": dash},
            "marker": {
                "symbol": "arrow" if arrow else "circle",
                "angleref": "previous" if arrow else "up",
                "size": [v for _ in pairs for v in (0, head, 0)],
                "color": colour,
                "opacity": 1,
            },
            "hovertext": [v for *_, text in pairs for v in (text, text, "")],
            "hovertemplate": "%{hovertext}<extra></extra>",
        }
    ]


def schedule_graph(
    schedule: Schedule, hazards: Iterable[Hazard] | None = None, title: str | None = None
) -> go.Figure:
    """One step of a schedule as a graph: a row for each stream, launches and copies in their order.

    Grey arrows are a stream's own order, black ones the edges in place; an edge that is left out is dotted,
    crossed out and labelled "missing". ``hazards`` (from `flashnorm_lab.hazards.find`) puts a red frame and
    the kind and buffer of each hazard on the operation that comes second, and a sentence for each below. The
    layout does not change with the edges, so that a switch moves nothing but the arrow.
    """
    graph = _Graph(schedule)
    row = {name: i for i, name in enumerate(graph.rows)}
    at = {key: (graph.column[key], row[graph.stream[key]]) for key in graph.column}
    found = list(hazards) if hazards is not None else []
    warnings: dict[str, list[str]] = {}
    for hazard in found:
        warnings.setdefault(hazard.second, []).append(f"{hazard.kind} on {hazard.buffer}")
    annotations: list[dict[str, Any]] = []

    def arrow(source: int, target: int, colour: str, width: float, text: str = "") -> None:
        (x0, y0), (x1, y1) = at[source], at[target]
        away = [graph.clearance(key, x1 - x0, y1 - y0) for key in (source, target)]
        annotations.append(_arrow(at[source], at[target], away, colour, width))
        if text:
            annotations.append(_edge_label(at[source], at[target], graph.stream[source] == "main", text, INK))

    for source, target in graph.order:
        arrow(source, target, PALE, 1.6)
    for source, target in graph.host:
        arrow(source, target, GREY, 1.4)
    missing: list[tuple[float, float, float, float, str]] = []
    for name, source, target in graph.edges:
        if name in schedule.dropped:
            missing.append((*at[source], *at[target], name))
            forks = graph.stream[source] == "main"
            annotations.append(_edge_label(at[source], at[target], forks, f"missing: {name}", RUST))
        else:
            arrow(source, target, INK, 1.8, name)
    for key, (x, y) in at.items():
        alarm = warnings.get(graph.text[key], [])
        text = f"<b>{_text(graph.text[key])}</b>"
        annotations += _box((x, y), text, graph.hover[key], graph.minor[key], alarm)
    sentences = _sentences([_hazard_text(hazard) for hazard in found])
    annotations += _below(sentences)
    data: list[dict[str, Any]] = []
    if missing:
        data = [
            {
                "type": "scatter", "mode": "lines", "hoverinfo": "skip",
                "x": [v for x0, _, x1, _, _ in missing for v in (x0, x1, None)],
                "y": [v for _, y0, _, y1, _ in missing for v in (y0, y1, None)],
                "line": {"color": GREY, "width": 1.8, "dash": "dot"},
            },
            {
                "type": "scatter", "mode": "markers",
                "x": [x0 + 0.5 * (x1 - x0) for x0, _, x1, _, _ in missing],
                "y": [y0 + 0.5 * (y1 - y0) for _, y0, _, y1, _ in missing],
                "marker": {"symbol": "x-thin", "size": 13, "line": {"color": VERMILION, "width": 3}},
                "hovertext": [f"no {name}: the second does not wait for the first" for *_, name in missing],
                "hovertemplate": "%{hovertext}<extra></extra>",
            },
        ]  # fmt: skip
    tokens, n, k = schedule.shape
    subtitle = f"{tokens} token{'s' * (tokens != 1)}, n={n}, k={k}"
    if schedule.all_edges:
        subtitle += (
            " · without " + ", ".join(schedule.dropped) if schedule.dropped else " · all edges in place"
        )
    if hazards is not None:
        subtitle += f" · {len(found)} hazard{'s' * (len(found) != 1)}" if found else " · no hazard"
    if title is None:
        title = (
            f"One {schedule.name} step: {len(schedule.launches)} launch{'es' * (len(schedule.launches) != 1)}"
        )
    below = 12 + 17 * len(sentences)
    layout = _layout(title, subtitle, 80 + ROW_PX * len(graph.rows) + below)
    figure = go.Figure(data, layout=layout)
    columns = 1 + max(graph.column.values(), default=0)
    _lay_out(figure, annotations, [f"<b>{name}</b> " for name in graph.rows], columns, below)
    return figure


def _arrow(
    start: tuple[float, float], end: tuple[float, float], away: Sequence[float], colour: str, width: float
) -> dict[str, Any]:
    """An arrow between two boxes, ``away`` pixels from the middle of each."""
    return {
        "x": end[0], "y": end[1], "ax": start[0], "ay": start[1], "axref": "x", "ayref": "y", "xref": "x",
        "yref": "y", "showarrow": True, "arrowhead": 2, "arrowsize": 1, "arrowwidth": width, "text": "",
        "arrowcolor": colour, "standoff": away[1], "startstandoff": away[0],
    }  # fmt: skip


def _box(
    at: tuple[float, float],
    text: str,
    hover: str,
    minor: bool,
    alarm: Sequence[str],
    size: int = 12,
    above: bool = True,
) -> list[dict[str, Any]]:
    """A piece of work in a frame; red where there is an alarm, which stands beside it. ``text`` is markup."""
    x, y = at
    box = {
        "x": x, "y": y, "showarrow": False, "text": text,
        "bgcolor": "#FBE9E0" if alarm else "white" if minor else "#EAF3F9",
        "bordercolor": VERMILION if alarm else GREY if minor else BLUE,
        "borderwidth": 2.5 if alarm else 1.2, "borderpad": 6, "font": {"size": size, "color": INK},
        "hovertext": _text(hover),
    }  # fmt: skip
    if not alarm:
        return [box]
    shift = 10 + 6 * (1 + text.count("<br>"))
    badge = {
        "x": x, "y": y, "yshift": shift if above else -shift, "yanchor": "bottom" if above else "top",
        "showarrow": False, "text": f"⚠ {_text(', '.join(dict.fromkeys(alarm)))}",
        "font": {"size": 11, "color": RUST}, "bgcolor": "rgba(255,255,255,0.8)",
    }  # fmt: skip
    return [box, badge]


def _sentences(texts: Sequence[str]) -> list[str]:
    """As many as a picture has room for."""
    more = [f"and {len(texts) - MAX_SENTENCES} more"] if len(texts) > MAX_SENTENCES else []
    return [*texts[:MAX_SENTENCES], *more]


def _below(sentences: Sequence[str]) -> list[dict[str, Any]]:
    """Warnings in words, under the picture."""
    if not sentences:
        return []
    return [
        {
            "xref": "paper", "yref": "paper", "x": 0, "y": 0, "yanchor": "top", "xanchor": "left",
            "text": "<br>".join(_text(f"⚠ {text}") for text in sentences),
            "align": "left", "showarrow": False, "font": {"size": 12, "color": RUST},
        }
    ]  # fmt: skip


def _lay_out(
    figure: go.Figure, annotations: list[dict[str, Any]], rows: Sequence[str], columns: int, below: int
) -> None:
    """Give a graph its rows, with their names as markup, and its columns."""
    figure.update_layout(
        showlegend=False,
        annotations=annotations,
        margin={"b": below},
        xaxis={"visible": False, "range": [-0.5, columns - 0.5], "fixedrange": True},
        yaxis={
            "tickvals": list(range(len(rows))),
            "ticktext": list(rows),
            "range": [len(rows) - 0.5, -0.5],
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
        },
    )
    for i in range(len(rows)):
        figure.add_shape(type="rect", xref="paper", x0=0, x1=1, y0=i - 0.42, y1=i + 0.42, layer="below",
                         fillcolor="#FAFAFA", line={"width": 0})  # fmt: skip


class _Graph:
    """Nodes and arrows of one step; the columns come from all edges, in place or not."""

    def __init__(self, schedule: Schedule) -> None:
        self.stream: dict[int, str] = {}
        self.text: dict[int, str] = {}
        self.hover: dict[int, str] = {}
        self.minor: dict[int, bool] = {}
        self.column: dict[int, int] = {}
        self.order: list[tuple[int, int]] = []
        self.host: list[tuple[int, int]] = []
        self.edges: list[tuple[str, int, int]] = []
        last: dict[str, int] = {}
        recorded: dict[str, int] = {}
        waiting: dict[str, list[str]] = {}
        done: list[int] = []

        def node(key: int, stream: str, text: str, hover: str, minor: bool) -> int:
            before = [last[stream]] if stream in last else []
            before += [recorded[event] for event in waiting.get(stream, [])]
            if stream == "host":
                before += done
                self.host.extend((source, key) for source in done)
                done.clear()
            self.stream[key], self.text[key], self.hover[key], self.minor[key] = stream, text, hover, minor
            self.column[key] = 1 + max((self.column[source] for source in before), default=-1)
            if stream in last:
                self.order.append((last[stream], key))
            self.edges.extend((event, recorded[event], key) for event in waiting.pop(stream, []))
            last[stream] = key
            return key

        for i, step in enumerate(schedule.all_steps):
            match step:
                case Launch():
                    node(i, step.stream, step.name, describe(step), False)
                case Copy():
                    node(i, step.stream, step.name, describe(step), True)
                case HostWrite():
                    node(i, "host", f"host write of {step.buffer}", describe(step), True)
                case HostRead():
                    node(i, "host", f"host read of {step.buffer}", describe(step), True)
                case Record():
                    if step.stream not in last:
                        node(-1 - i, step.stream, "step before", "what this stream was given before", True)
                    recorded[step.event] = last[step.stream]
                case Wait():
                    waiting.setdefault(step.stream, []).append(step.event)
                case Synchronize():
                    streams = [step.stream] if step.stream else [s for s in last if s != "host"]
                    done.extend(last[s] for s in streams if s in last)
        streams = list(schedule.streams)
        if (
            len(streams) == 3
        ):  # main between the two that fork from it and join it, so that no arrow crosses a row
            streams = [streams[1], streams[0], streams[2]]
        self.rows = [*(["host"] if "host" in last else []), *streams]

    def clearance(self, key: int, dx: float, dy: float) -> float:
        """Pixels from the middle of a node to its frame along a line, on a page of the usual width."""
        return _clearance(len(self.text[key]), dx, dy, 1 + max(self.column.values()))


def _clearance(letters: int, dx: float, dy: float, columns: int, high: float = 15) -> float:
    """Pixels from the middle of a box to its frame along a line; ``high`` is half the box's height."""
    across = abs(dx) * PLOT_PX / columns
    down = abs(dy) * ROW_PX
    half = min((10 + 3.8 * letters) / (across or 1e-9), high / (down or 1e-9))
    return 4 + half * math.hypot(across, down)


def program_graph(
    program: Program, hazards: Iterable[Hazard] | None = None, title: str | None = None
) -> go.Figure:
    """Any program as a graph: a row for each stream, and its work from left to right in the host's order.

    Grey arrows are a stream's own order, and what CUDA's default stream and the streams of its context have
    between them. Black ones are waits, from the last piece of work that the event stands for. A dotted line
    across all rows is a place where the host waits. ``hazards`` (from `flashnorm_lab.hazards.find`) puts a
    dashed red arrow from the first access to the second, and a red frame on that one. What the host sets up
    before the first launch is left out. `MAX_NODES` are drawn at most; where there are more, the subtitle
    says so. Boxes stay where they are, whatever waits are added.
    """
    graph = _ProgramGraph(program)
    columns = max(1, len(graph.nodes))
    place = {key: (node.column, graph.rows.index(node.row)) for key, node in graph.nodes.items()}
    room = max(10, PLOT_PX // columns // 7 - 1)
    words = {
        key: textwrap.wrap(node.text, room, max_lines=2, placeholder=" …") or [""]
        for key, node in graph.nodes.items()
    }
    rows_of_text = {key: len(lines) + graph.cites for key, lines in words.items()}
    annotations: list[dict[str, Any]] = []

    def away(source: int, target: int) -> list[float]:
        (x0, y0), (x1, y1) = place[source], place[target]
        return [
            _clearance(max(map(len, words[k])), x1 - x0, y1 - y0, columns, 8 + 7 * rows_of_text[k])
            for k in (source, target)
        ]

    for source, target in graph.order:
        annotations.append(_arrow(place[source], place[target], away(source, target), PALE, 1.6))
    for source, target in graph.implied:
        annotations.append(_arrow(place[source], place[target], away(source, target), GREY, 1.4))
        annotations.append(_edge_label(place[source], place[target], False, "default stream", "#6B6B6B"))
    for event, source, target in graph.edges:
        annotations.append(_arrow(place[source], place[target], away(source, target), INK, 1.8))
        annotations.append(_edge_label(place[source], place[target], False, event, INK))
    found = list(hazards) if hazards is not None else []
    drawn = [h for h in found if h.first_index in place and h.second_index in place]
    alarms: dict[int, list[str]] = {}
    from_above = {h.second_index: place[h.first_index][1] < place[h.second_index][1] for h in drawn}
    for hazard in drawn:
        alarms.setdefault(hazard.second_index, []).append(_alarm(hazard))
    size = 12 if columns <= 8 else 11
    for key, node in graph.nodes.items():
        text = f"<b>{'<br>'.join(map(_text, words[key]))}</b>"
        if graph.cites:
            text += f'<br><span style="font-size:10px">{_text(graph.cited(node)) or " "}</span>'
        above = not from_above.get(key, False)
        annotations += _box(place[key], text, node.hover, node.minor, alarms.get(key, ()), size, above)
        if node.idle:
            annotations.append(
                {
                    "x": place[key][0], "y": place[key][1], "yshift": -8 - 7 * rows_of_text[key],
                    "yanchor": "top",
                    "text": _text(f"{node.idle}: nothing recorded yet"), "showarrow": False,
                    "font": {"size": 10, "color": RUST},
                }
            )  # fmt: skip
    for x, text in graph.host_waits.items():
        annotations.append(
            {
                "x": x, "y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False, "text": _text(text),
                "font": {"size": 10, "color": "#6B6B6B"},
            }
        )  # fmt: skip
    sentences = _sentences([h.title() for h in found])
    annotations += _below(sentences)
    below = 12 + 17 * len(sentences)
    data = [_hazard_arrow(place[h.first_index], place[h.second_index], h.explain()) for h in drawn]
    if title is None:
        title = f"{program.name}: {len(graph.nodes)} pieces of work, in the order of the host's calls"
    subtitle = [f"the first {MAX_NODES} only"] * graph.cut
    if hazards is not None:
        subtitle.append(f"{len(found)} hazard{'s' * (len(found) != 1)}" if found else "no hazard")
    layout = _layout(title, " · ".join(subtitle), 95 + ROW_PX * max(1, len(graph.rows)) + below)
    figure = go.Figure(data, layout=layout)
    rows = [f"<b>{_text(_short(name, 16))}</b> <br>{kind} " for name, kind in graph.named_rows()]
    _lay_out(figure, annotations, rows, columns, below)
    figure.update_layout(margin={"l": 105, "t": 85})
    for x in graph.host_waits:
        figure.add_shape(type="line", yref="paper", x0=x, x1=x, y0=0, y1=1, layer="below",
                         line={"color": GREY, "width": 1.4, "dash": "dot"})  # fmt: skip
    return figure


def _alarm(hazard: Hazard) -> str:
    """A hazard in three words."""
    if hazard.new_buffer:
        text = f"{hazard.buffer}'s bytes as {hazard.new_buffer}"
    else:
        text = f"{hazard.kind} {'of' if hazard.kind.startswith('use') else 'on'} {hazard.buffer}"
    return f"{text}, {hazard.count} times" if hazard.count > 1 else text


def _hazard_arrow(start: tuple[float, float], end: tuple[float, float], text: str) -> dict[str, Any]:
    """Dashed, from what comes first to what does not wait for it."""
    return {
        "type": "scatter", "mode": "lines+markers", "x": [start[0], end[0]], "y": [start[1], end[1]],
        "line": {"color": VERMILION, "width": 2.4, "dash": "dash"},
        "marker": {
            "symbol": "arrow", "size": [0, 15], "color": VERMILION, "angleref": "previous", "standoff": 24,
            "opacity": 1, "line": {"width": 0},
        },
        "hovertext": _text(text), "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip


@dataclass
class _Node:
    """A box in the graph of a program."""

    row: str
    column: int
    text: str
    hover: str
    minor: bool
    source: str
    idle: str = ""


class _ProgramGraph:
    """Nodes and arrows of a program, by each step's place in the unrolled list."""

    def __init__(self, program: Program) -> None:
        self.streams = program.streams
        self.nodes: dict[int, _Node] = {}
        self.order: list[tuple[int, int]] = []
        self.implied: list[tuple[int, int]] = []
        self.edges: list[tuple[str, int, int]] = []
        self.host_waits: dict[float, str] = {}
        self.cut = False
        self.last: dict[str, list[int]] = {}  # what a stream's next work is behind, by the stream alone
        self.given: dict[str, list[int]] = {}  # all of an out-of-order queue's work since its last barrier
        self.recorded: dict[str, list[int]] = {}
        self.waiting: dict[str, list[tuple[str, list[int]]]] = {}
        self.linked: dict[tuple[str, str], int] = {}
        for index, step in enumerate(program.unrolled()):
            if len(self.nodes) == MAX_NODES:
                self.cut = True
                break
            self._take(index, step)
        self.host_waits = {x: t for x, t in self.host_waits.items() if x < len(self.nodes) - 1}
        own = [n.row for n in self.nodes.values() if n.row not in program.streams]
        self.rows = [*dict.fromkeys(own), *program.streams]
        files = {n.source.rpartition(":")[0] for n in self.nodes.values() if n.source}
        self.cites = bool(files)
        self.one_file = len(files) == 1

    def named_rows(self) -> list[tuple[str, str]]:
        """Each row's name and what it is."""
        words = {name: what.kind for name, what in self.streams.items()} | {"host": ""}
        return [(name, words.get(name, "host thread")) for name in self.rows]

    def cited(self, node: _Node) -> str:
        """Where a node comes from: the line alone where all come from one file."""
        number = node.source.rpartition(":")[2]
        return f"line {number}" if self.one_file and number.isdigit() else _short(node.source, 18)

    def _take(self, index: int, step: Any) -> None:
        match step:
            case programs.Launch() | programs.GraphLaunch():
                for event in getattr(step, "after", ()):
                    self._await(event, step.stream)
                self._on_stream(index, step.stream, step)
                if getattr(step, "event", ""):
                    self.recorded[step.event] = [index]
                if getattr(step, "blocks", False):
                    self._host_waits("host waits")
            case programs.Free(how="stream") | programs.Allocate(stream=str()):
                self._on_stream(index, step.stream, step)
            case (
                programs.HostRead()
                | programs.HostWrite()
                | programs.SetEvent()
                | programs.Free()
                | programs.Allocate()
                | programs.RecordStream()
            ):
                if self.nodes:
                    self._node(index, step.thread, step, minor=True)
            case programs.Barrier():
                for event in step.after:
                    self._await(event, step.stream)
                if self.streams[step.stream].kind == "out-of-order":
                    self._barrier(index, step)
                if step.event:
                    self.recorded[step.event] = self._all_of(step.stream)
            case programs.Record():
                self.recorded[step.event] = self._all_of(step.stream)
            case programs.Wait():
                self._await(step.event, step.stream)
            case programs.UserEvent() | programs.DestroyEvent():
                self.recorded.pop(step.event, None)
            case programs.Synchronize() | programs.Query(done=True):
                self._host_waits(f"host waits for {step.event or step.stream or 'all'}")

    def _node(self, index: int, row: str, step: Any, minor: bool) -> _Node:
        node = self.nodes[index] = _Node(
            row, len(self.nodes), programs.label(step), programs.describe(step), minor, step.source
        )
        return node

    def _on_stream(self, index: int, stream: str, step: Any) -> None:
        node = self._node(index, stream, step, minor=getattr(step, "category", "kernel") != "kernel")
        self._default_stream(index, stream)
        self.order += [(source, index) for source in self.last.get(stream, [])]
        for event, sources in self.waiting.pop(stream, []):
            self.edges += [(event, source, index) for source in sources if self.nodes[source].row != stream]
            if not sources:
                node.idle = f"{node.idle}, {event}" if node.idle else event
        if self.streams[stream].kind == "out-of-order":
            self.given.setdefault(stream, []).append(index)
        else:
            self.last[stream] = [index]

    def _barrier(self, index: int, step: Any) -> None:
        """On an out-of-order queue: behind all that the queue has, and before all that it gets."""
        stream = step.stream
        given = self.given.pop(stream, []) if not step.after else []
        self._on_stream(index, stream, step)
        self.nodes[index].minor = True
        self.order += [(source, index) for source in given]
        self.last[stream] = [index]
        self.given[stream] = []

    def _all_of(self, stream: str) -> list[int]:
        """The work that stands for everything that a stream was given."""
        return self.given.get(stream) or self.last.get(stream, [])

    def _await(self, event: str, stream: str) -> None:
        self.waiting.setdefault(stream, []).append((event, self.recorded.get(event, [])))

    def _default_stream(self, index: int, stream: str) -> None:
        """What the legacy default stream's rule puts this work behind, where that is new."""
        this = self.streams[stream]
        others = {"legacy": ("blocking", "per-thread"), "blocking": ("legacy",), "per-thread": ("legacy",)}
        for name, other in self.streams.items():
            if other.context != this.context or other.kind not in others.get(this.kind, ()):
                continue
            for source in self.last.get(name, []):
                if self.linked.get((name, stream), -1) < source:
                    self.linked[name, stream] = source
                    self.implied.append((source, index))

    def _host_waits(self, text: str) -> None:
        x = len(self.nodes) - 0.5
        if x > 0:
            self.host_waits[x] = text


def _hazard_text(hazard: Hazard) -> str:
    may, has = {"RAW": ("read", "written"), "WAR": ("overwrite", "read"), "WAW": ("overwrite", "written")}[
        hazard.kind
    ]
    which = " of the step before" if hazard.distance else ""
    return (
        f"{hazard.kind} on {hazard.buffer}: {hazard.second} may {may} it before {hazard.first}{which} "
        f"has {has} it · repair: {hazard.repair}"
    )


def _edge_label(
    start: tuple[float, float], end: tuple[float, float], forks: bool, text: str, colour: str
) -> dict[str, Any]:
    """Beside the middle of a line, on the outer side: left of one that leaves main, else right."""
    return {
        "x": (start[0] + end[0]) / 2, "y": (start[1] + end[1]) / 2, "showarrow": False,
        "xshift": -14 if forks else 14, "xanchor": "right" if forks else "left",
        "text": _text(text), "font": {"size": 11, "color": colour},
        "bgcolor": "rgba(255,255,255,0.8)",
    }  # fmt: skip


def stale_map(mask: Any, k: int | None = None, title: str | None = None) -> go.Figure:
    """Where in z the stale elements are: a row for each step, a column for each output (or bin of outputs).

    mask: 0 fresh, 1 stale, 2 neither, 3 early (of a later step); [steps, k] or [steps, tokens, k], any
    integer dtype, or a list of such rows. Tokens of one step share its row. A cell shows the worst state in
    it (neither before early before stale before fresh); hover counts them all. Above 1024 outputs, neighbours
    share a column. Early is in the key only where it occurs. ``k``: the expected number of outputs;
    ``LabError`` if the mask has another, or holds anything but 0 to 3.
    """
    states = np.asarray(mask)
    if states.ndim == 1:
        states = states[None]
    if states.ndim not in (2, 3) or not states.size:
        raise LabError(f"mask has shape {states.shape}; [steps, k] or [steps, tokens, k] was expected")
    if k is not None and states.shape[-1] != k:
        raise LabError(f"mask has {states.shape[-1]} outputs in its last dimension; k={k} were expected")
    if states.dtype.kind not in "iub" or states.min() < 0 or states.max() >= len(STATES):
        raise LabError("mask holds something else than 0 (fresh), 1 (stale), 2 (neither) and 3 (early)")
    states = states.reshape(len(states), -1, states.shape[-1])
    steps, tokens, k = states.shape
    size = -(-k // 1024)
    bins = -(-k // size)
    counts = np.zeros((len(STATES), steps, bins), dtype=np.int64)
    for state in range(len(STATES)):
        per_output = (states == state).sum(axis=1)
        counts[state] = np.add.reduceat(per_output, np.arange(0, k, size), axis=1)
    worst = np.select([counts[state] > 0 for state in BAD_FIRST], BAD_FIRST)
    known = len(STATES) if counts[3].any() else 3
    first = np.arange(bins) * size
    total = states.shape[1] * k
    per_step = counts.sum(axis=2)
    heat = {
        "type": "heatmap",
        "z": worst,
        "x": first + (size - 1) / 2,
        "y": np.arange(steps),
        "zmin": -0.5,
        "zmax": known - 0.5,
        "colorscale": _steps_of_colour(STATE_COLOURS[:known]),
        "colorbar": {
            "tickvals": list(range(known)),
            "ticktext": list(STATES[:known]),
            "thickness": 14,
            "len": 1.0,
            "outlinewidth": 1,
            "outlinecolor": GREY,
            "x": 1.1 if steps <= 40 else 1.02,
        },
        "xgap": 0,
        "ygap": 1 if steps <= 64 else 0,
        "customdata": np.moveaxis(counts[:known], 0, -1),
        "hovertemplate": (
            "step %{y}, output "
            + ("%{x}" if size == 1 else f"%{{x}} ± {(size - 1) / 2:g}")
            + "<br>"
            + ", ".join(f"%{{customdata[{i}]}} {state}" for i, state in enumerate(STATES[:known]))
            + "<extra></extra>"
        ),
    }
    sums = per_step.sum(axis=1)
    parts = [f"{steps} step{'s' * (steps != 1)} of {total:,} elements"]
    if tokens > 1:
        parts.append(f"{tokens} tokens in a row")
    if size > 1:
        parts.append(f"{size} outputs in a column")
    parts.append(", ".join(f"{int(sums[i]):,} {state}" for i, state in enumerate(STATES[:known])))
    title = title or ("Where z is stale" if known == 3 else "Where z is stale or early")
    layout = _layout(title, " · ".join(parts), min(640, 190 + max(18 * steps, 60)))
    figure = go.Figure([heat], layout=layout)
    figure.update_layout(
        xaxis={
            "title": {"text": f"index of the output in z (0 to {k - 1})"},
            "range": [-0.5, k - 0.5],
            "showgrid": False,
        },
        yaxis={
            "title": {"text": "step"},
            "range": [steps - 0.5, -0.5],
            "showgrid": False,
            "tickmode": "linear" if steps <= 24 else "auto",
            "dtick": 1,
        },
        margin={"r": 140 if steps <= 40 else 90},
    )
    if steps <= 40:
        beside = {"x": 1.005, "xref": "paper", "xanchor": "left", "showarrow": False, "font": {"size": 10}}
        labels = []
        for step in range(steps):
            wrong = int(per_step[1:, step].sum())
            share = f"{100 * wrong / total:.1f} %" if wrong >= total / 1000 else "< 0.1 %" if wrong else "0"
            labels.append(beside | {"y": step, "text": share})
        labels.append(beside | {"y": 1, "yref": "paper", "yanchor": "bottom", "text": "not fresh"})
        figure.layout.annotations = labels  # all at once: plotly checks the whole list at each addition
    return figure


def outcome_counts(counts: Mapping[str, int], title: str | None = None) -> go.Figure:
    """How many results were fresh, stale, torn and, where any was, early: a bar each, with its number and its
    share of all."""
    for label, n in counts.items():
        if label not in OUTCOME_STYLE or n < 0:
            expected = "numbers for fresh, stale, torn and early were expected"
            raise LabError(f"counts holds {label!r}: {n!r}; {expected}")
    labels = [label for label in OUTCOME_STYLE if label != "early" or counts.get("early")]
    values = [int(counts.get(label, 0)) for label in labels]
    total = sum(values)
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": labels,
        "width": 0.6,
        "marker": {
            "color": [OUTCOME_STYLE[label][0] for label in labels],
            "pattern": {
                "shape": [OUTCOME_STYLE[label][1] for label in labels],
                "fgcolor": "white",
                "fillmode": "overlay",
                "size": 8,
                "solidity": 0.35,
            },
        },
        "text": [f"{v} ({100 * v / total:.0f} %)" if total else "0" for v in values],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{x}<extra></extra>",
    }
    figure = go.Figure([bar], layout=_layout(title or "What the results were", f"{total} results", 230))
    figure.update_layout(
        xaxis={
            "range": [0, max(1, *values) * 1.15],
            "title": {"text": "results"},
            "rangemode": "tozero",
            "gridcolor": FAINT,
        },
        yaxis={"autorange": "reversed", "tickfont": {"size": 13}, "showgrid": False},
    )
    return figure


def bars(
    values: Mapping[str, float], unit: str, title: str, note: str = "", highlight: Iterable[str] = ()
) -> go.Figure:
    """Plain horizontal bars from zero, each with its number. ``highlight`` names bars to be hatched."""
    marked = set(highlight)
    labels = list(values)
    bar = {
        "type": "bar",
        "orientation": "h",
        "x": [float(values[label]) for label in labels],
        "y": [_text(label) for label in labels],
        "width": 0.6,
        "marker": {
            "color": [ORANGE if label in marked else BLUE for label in labels],
            "pattern": {
                "shape": ["/" if label in marked else "" for label in labels],
                "fgcolor": "white",
                "fillmode": "overlay",
                "size": 8,
                "solidity": 0.35,
            },
        },
        "text": [f"{values[label]:,.4g} {unit}" for label in labels],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": "%{y}: %{x} " + _text(unit) + "<extra></extra>",
    }
    figure = go.Figure([bar], layout=_layout(title, note, 130 + 40 * max(2, len(labels))))
    top = max([abs(float(v)) for v in values.values()] or [1.0]) or 1.0
    figure.update_layout(
        xaxis={"range": [0, 1.18 * top], "title": {"text": unit}, "gridcolor": FAINT},
        yaxis={"autorange": "reversed", "tickfont": {"size": 12}, "showgrid": False, "automargin": True},
    )
    return figure


def site_map(spoken: Spoken, title: str | None = None) -> go.Figure:
    """Where a model read data that was not fresh: a row for each token, a column for each site."""
    states = spoken.outcomes
    tokens = spoken.said[1:]
    known = 4 if (states == 3).any() else 3
    names = ("not judged", *list(OUTCOME_STYLE)[:known])
    colours = ("#FFFFFF", *STATE_COLOURS[:known])
    texts = [escape(repr(t.text), quote=False) for t in tokens]
    heat = {
        "type": "heatmap",
        "z": states,
        "x": np.arange(len(spoken.sites)),
        "y": np.arange(len(tokens)),
        "zmin": -1.5,
        "zmax": known - 0.5,
        "colorscale": _steps_of_colour(colours),
        "colorbar": {
            "tickvals": list(range(-1, known)),
            "ticktext": names,
            "thickness": 14,
            "outlinewidth": 1,
            "outlinecolor": GREY,
        },
        "xgap": 1,
        "ygap": 1,
        "hovertext": [
            [f"token {t.number} {text}<br>{site}: {names[state + 1]}"
             for site, state in zip(spoken.sites, row, strict=True)]
            for t, text, row in zip(tokens, texts, states, strict=True)
        ],
        "hovertemplate": "%{hovertext}<extra></extra>",
    }  # fmt: skip
    wrong, judged = int((states > 0).sum()), int((states >= 0).sum())
    words = "not fresh" if known == 4 else "stale or torn"
    note = f"{spoken.wiring} · {wrong:,} of {judged:,} {words} · measured on {spoken.device}"
    layout = _layout(title or "What each site read", note, 150 + 18 * max(4, len(tokens)))
    figure = go.Figure([heat], layout=layout)
    shown = [*range(0, len(spoken.sites) - 5, 10), len(spoken.sites) - 1]
    figure.update_layout(
        xaxis={
            "title": {"text": "site, in the order of a decode step"},
            "tickvals": shown,
            "ticktext": [spoken.sites[i] for i in shown],
            "showgrid": False,
        },
        yaxis={
            "tickvals": list(range(len(tokens))),
            "ticktext": [f"{text} " for text in texts],
            "range": [len(tokens) - 0.5, -0.5],
            "showgrid": False,
            "automargin": True,
        },
    )
    return figure


LINES = (  # colour, plotly's dash, matplotlib's, plotly's marker, matplotlib's
    (BLUE, "solid", "-", "circle", "o"),
    (VERMILION, "dash", "--", "square", "s"),
    (GREEN, "dot", ":", "diamond", "D"),
    (PURPLE, "dashdot", "-.", "triangle-up", "^"),
)


def curves(c: Curves) -> go.Figure:
    """Lines over a common axis, both axes logarithmic. What is NaN, infinite or not above zero is a gap."""
    data: list[dict[str, Any]] = []
    for (label, values), (colour, dash, _, marker, _) in zip(c.lines.items(), LINES, strict=False):
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": escape(label, quote=False),
                "x": c.x,
                "y": _positive(values),
                "line": {"color": colour, "dash": dash, "width": 2},
                "marker": {"symbol": marker, "size": 6},
                "connectgaps": False,
                "hovertemplate": "%{x:.3g}: %{y:.3g}",
            }
        )
    layout = _layout(c.title, c.note, 380)
    figure = go.Figure(data, layout=layout)
    axis = {"type": "log", "gridcolor": FAINT, "exponentformat": "power"}
    x_range, y_range = _decades(c.x), _decades(*c.lines.values())
    figure.update_layout(
        margin={"b": 85},
        xaxis=axis | {"title": {"text": c.x_label}, "range": x_range, "dtick": 1},
        yaxis=axis | {"title": {"text": c.y_label}, "range": y_range, "dtick": _every(y_range)},
        hovermode="x unified",
    )
    return figure


def curves_static(c: Curves) -> StaticFigure:
    """The picture of `curves` as a matplotlib figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.8), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for (label, values), (colour, _, dash, _, marker) in zip(c.lines.items(), LINES, strict=False):
        axes.plot(
            c.x, _positive(values), color=colour, linestyle=dash, marker=marker, markersize=3.5, label=label
        )
    for scale, limits in ((axes.set_xlim, _decades(c.x)), (axes.set_ylim, _decades(*c.lines.values()))):
        scale(*(10.0**limit for limit in limits))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(f"{c.title}\n{c.note}", loc="left", fontsize=10, color=INK, parse_math=False)
    axes.set_xlabel(c.x_label, color=INK, fontsize=9)
    axes.set_ylabel(c.y_label, color=INK, fontsize=9)
    axes.grid(color=FAINT)
    for side in axes.spines.values():
        side.set_visible(False)
    for text in axes.legend(frameon=False, fontsize=8).get_texts():
        text.set_parse_math(False)
    return figure


def _positive(values: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(values) & (values > 0), values, np.nan)


def _decades(*lines: np.ndarray) -> list[float]:
    """Powers of ten that all values lie between, with a little room on both sides; two decades at least."""
    values = np.concatenate([_positive(line) for line in lines])
    values = values[np.isfinite(values)]
    if not len(values):
        return [-1.0, 1.0]
    low, high = math.log10(values.min()), math.log10(values.max())
    room = 0.03 * (high - low) + max(0, 1 - (high - low) / 2)
    return [low - room, high + room]


def _every(decades: list[float]) -> int:
    """After how many decades a label is due, so that there are at most seven."""
    return max(1, math.ceil((decades[1] - decades[0]) / 7))


def _steps_of_colour(colours: Sequence[str]) -> list[list[Any]]:
    """A plotly colour scale of equal steps, one a colour."""
    share = 1 / len(colours)
    return [c for i, v in enumerate(colours) for c in ([i * share, v], [(i + 1) * share, v])]


def _layout(title: str, subtitle: str, height: int) -> dict[str, Any]:
    lines = _fold(subtitle)
    more = 16 * (len(lines) - 1)
    return {
        "template": "plotly_white",
        "font": FONT,
        "height": height + more,
        "margin": {"l": 70, "r": 20, "t": 70 + more, "b": 40},
        "title": {
            "text": _text(title),
            "font": {"size": 16},
            "x": 0.01,
            "xanchor": "left",
            "y": 0.97,
            "yanchor": "top",
            "subtitle": {
                "text": "<br>".join(_text(line) for line in lines),
                "font": {"size": 12, "color": "#555555"},
            },
        },
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "yref": "container",
            "y": 0.01,
            "yanchor": "bottom",
            "font": {"size": 11},
        },
        "hoverlabel": {"align": "left", "bgcolor": "white", "font": {"size": 12, "color": INK}},
        "hovermode": "closest",
    }


def _legend_rows(names: Sequence[str]) -> int:
    """How many rows plotly needs for a legend of these entries on a page of the usual width."""
    columns = max(1, int(PLOT_PX / (60 + 6 * max(map(len, names), default=1))))
    return -(-len(names) // columns)


def _fold(subtitle: str, width: int = 120) -> list[str]:
    """The subtitle in lines, broken between its parts."""
    lines = [""]
    for part in subtitle.split(" · "):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append(part)
        else:
            lines[-1] += f" · {part}" if lines[-1] else part
    return lines


def _text(text: str) -> str:
    """A text that plotly shows as it is: neither HTML nor, where MathJax is loaded, TeX."""
    return escape(text, quote=False).replace("$", "&#36;")


def _short(text: str, limit: int = 34) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _wrap(text: str, width: int = 76, lines: int = 5) -> str:
    rows = [text[i : i + width] for i in range(0, len(text), width)] or [""]
    return "\n".join(rows[:lines]) + ("…" if len(rows) > lines else "")
