"""Two timelines of the same work side by side: what got faster, slower, appeared, went away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..answer import Answer, Table, ratio, told_time
from ..table import CALLS, Timeline
from .aligning import PAIRED_BY, Pairs, pair_up
from .checking import check
from .differing_edges import EdgeDiff, edges_apart
from .layout import shortened, shown
from .parts import device_of, sums_by, union_by
from .stepping import Steps, steps
from .working import Work, plural, work_of

REPEATS = 4
"""With fewer steady steps on either side, their spread is not taken as known."""
NAME_WIDTH = 56
EDGES = 8
"""So many names of edges are told in words; `Diff.edges` holds all."""
POSITIONS = 50
"""So many positions, those with the largest change, go into `Diff.as_dict`."""


@dataclass(frozen=True)
class Side:
    """One of the two timelines as a whole.

    device, provenance, source: as the timeline names them. operations, kernels: on devices. launches: host
    launch calls. window_ns: from the first start to the last end of the operations. busy_ns: the time in
    which at least one operation ran, on each device for itself, added up. steps: of them steady ones are
    compared; step_ns, step_spread_ns: median and width of the middle half of their lengths; step_idle_ns:
    median over them of the time in which no operation of the step ran; None without any.
    """

    device: str
    provenance: str
    source: str
    operations: int
    kernels: int
    launches: int
    window_ns: int
    busy_ns: int
    steps: int
    steady: int
    step_ns: float | None
    step_spread_ns: float | None
    step_idle_ns: float | None


@dataclass(frozen=True)
class NameDiff:
    """A name in both timelines. kind: "device" (an operation) or "host" (a call).

    verdict: "faster" or "slower" (in the second), "same", "appeared" (only in the second), "went away".
    count, total, median: of the whole timeline; medians of single durations, None where there is none.
    unit_a_ns, unit_b_ns: what is compared: the median over the steady steps of the summed time in a step, or
    the total where steps are not compared. change_ns: unit_b_ns - unit_a_ns; ratio: unit_b_ns / unit_a_ns.
    spread_ns: the wider of both middle halves over the steps; within_spread: whether the change is no larger
    than that. Both None where no spread is known.
    """

    name: str
    kind: str
    verdict: str
    count_a: int
    count_b: int
    total_a_ns: int
    total_b_ns: int
    median_a_ns: float | None
    median_b_ns: float | None
    unit_a_ns: float
    unit_b_ns: float
    change_ns: float
    ratio: float | None
    spread_ns: float | None
    within_spread: bool | None


@dataclass(frozen=True, kw_only=True)
class Diff(Answer):
    """How the second timeline differs from the first. unit: "step" or "whole" (what the figures are of).

    a, b: a `Side` each. names: a `NameDiff` for each name, the largest change first, whatever its sign.
    edges: an `EdgeDiff` for each name of edges and two lanes that has more in one than in the other.
    pairs: kernels matched one by one; see `Pairs`.
    """

    unit: str
    a: Side
    b: Side
    names: tuple[NameDiff, ...]
    edges: tuple[EdgeDiff, ...]
    pairs: Pairs = field(repr=False)

    def of(self, verdict: str) -> tuple[NameDiff, ...]:
        """The names of which that holds: "faster", "slower", "same", "appeared" or "went away"."""
        return tuple(entry for entry in self.names if entry.verdict == verdict)

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each name that changed, the largest change first."""
        changed = [entry for entry in self.names if entry.verdict != "same"]
        rows = [
            (
                shortened(shown(entry.name), NAME_WIDTH),
                entry.kind,
                entry.verdict + (" (within the spread)" if entry.within_spread else ""),
                f"{entry.count_a:,}",
                f"{entry.count_b:,}",
                told_time(entry.unit_a_ns),
                told_time(entry.unit_b_ns),
                f"{'+' if entry.change_ns > 0 else ''}{told_time(entry.change_ns)}",
                "-" if entry.ratio is None else f"{entry.ratio:.3f}",
            )
            for entry in changed[:most]
        ]
        per = " a step" if self.unit == "step" else ""
        head = ("name", "on", "verdict", "count a", "count b", f"a{per}", f"b{per}", "change", "b/a")
        return Table(head, tuple(rows), len(changed) - len(rows)) if rows else None

    def summary(self) -> str:
        """The whole, and how many names changed."""
        if not self.names:
            return "there is nothing to compare: no operation and no call in either"
        told = [self._whole()]
        spread = [s for s in (self.a.step_spread_ns, self.b.step_spread_ns) if s is not None]
        times = (self.a.step_ns or 0, self.b.step_ns or 0)
        if self.same:
            told.append("no name, no edge and no single kernel differs")
        elif self.unit == "step" and min(self.a.steady, self.b.steady) >= REPEATS:
            within = abs(times[1] - times[0]) <= max(spread)
            told.append(
                f"{'no more than' if within else 'more than'} the spread of repeated steps "
                f"({told_time(max(spread))})"
            )
        else:
            told.append("too few steady steps to tell a change from noise")
        counts = []
        for verdict in ("faster", "slower", "appeared", "went away"):
            entries = self.of(verdict)
            noise = sum(bool(entry.within_spread) for entry in entries)
            if entries:
                counts.append(
                    f"{len(entries)} {verdict}" + (f" ({noise} within the spread)" if noise else "")
                )
        if counts:
            told.append(f"names: {', '.join(counts)}")
        return "; ".join(told)

    @property
    def same(self) -> bool:
        """Whether nothing that is compared differs."""
        pairs = self.pairs
        alike = not (pairs.only_a or pairs.only_b or (pairs.a_ns != pairs.b_ns).any() or self.edges)
        return alike and all(
            entry.verdict == "same" and entry.count_a == entry.count_b for entry in self.names
        )

    def lines(self) -> tuple[str, ...]:
        """What the table does not show, a line each: kernels one by one, and edges."""
        lines = []
        pairs = self.pairs
        if len(pairs) or pairs.only_a or pairs.only_b:
            slower, faster = int((pairs.b_ns > pairs.a_ns).sum()), int((pairs.b_ns < pairs.a_ns).sum())
            of = " of a typical step" if self.unit == "step" else ""
            lines.append(
                f"kernels{of} one by one: {len(pairs):,} matched ({faster:,} faster, {slower:,} slower, "
                f"{len(pairs) - faster - slower:,} the same), {len(pairs.only_a):,} in a only, "
                f"{len(pairs.only_b):,} in b only"
            )
        for edge in self.edges[:EDGES]:
            lines.append(
                f"edges {shown(edge.name)} ({edge.kind}) from {shown(edge.source_lane)} to "
                f"{shown(edge.target_lane)}: {edge.count_a:,} in a, {edge.count_b:,} in b"
            )
        if len(self.edges) > EDGES:
            lines.append(f"and {len(self.edges) - EDGES:,} more names of edges of which one has more")
        return tuple(lines)

    def text(self, most: int | None = 20) -> str:
        """What every answer prints, and the lines on single kernels and edges."""
        return "\n".join([super().text(most), *self.lines()])

    def _whole(self) -> str:
        """How long a step, or the whole, takes in both."""
        if self.unit == "step":
            times, what = (self.a.step_ns or 0, self.b.step_ns or 0), "a step takes"
        else:
            times, what = (float(self.a.window_ns), float(self.b.window_ns)), "the operations span"
        told = f"{what} {told_time(times[0])} in a and {told_time(times[1])} in b"
        if (share := ratio(times[1], times[0])) is not None:
            told += f" ({share:.3f} of a)"
        if self.unit == "step":
            idle = (told_time(self.a.step_idle_ns), told_time(self.b.step_idle_ns))
            told += f", of which no operation runs for {idle[0]} in a and {idle[1]} in b"
        return told

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; of the pairs those with the largest change."""
        return {
            **self.words(),
            "unit": self.unit,
            "a": asdict(self.a),
            "b": asdict(self.b),
            "same": self.same,
            "names": [asdict(entry) for entry in self.names],
            "edges": [asdict(entry) for entry in self.edges],
            "pairs": self.pairs.as_dict(POSITIONS),
        }


def diff(a: Timeline, b: Timeline) -> Diff:
    """The differences between two timelines of the same work, matched by name and by position."""
    works = (work_of(a), work_of(b))
    found = (steps(a), steps(b))
    by_step = all(answer.steady for answer in found)
    index: dict[str, int] = {}
    for name in (*a.names, *b.names):
        index.setdefault(name, len(index))
    names = list(index)
    code = [np.array([index[name] for name in t.names], dtype=np.int64) for t in (a, b)]
    rows: list[NameDiff] = []
    for kind in ("device", "host"):
        sides = [
            _sums(t, w, s, c, kind, len(names), by_step)
            for t, w, s, c in zip((a, b), works, found, code, strict=True)
        ]
        rows += _rows(names, kind, *sides, spread=by_step and all(len(s.steady) >= REPEATS for s in found))
    rows.sort(key=lambda entry: (-abs(entry.change_ns), entry.kind, entry.name))
    sides = [_side(t, w, s) for t, w, s in zip((a, b), works, found, strict=True)]
    pairs = pair_up((a, b), works, found if by_step else None, code, names)
    return Diff(
        title="Differences",
        definition=(
            "matched by name: operations of the devices, and calls of the host; compared is "
            + (
                "the median over the steady steps of the time that a name sums up to in one step"
                if by_step
                else "the time that a name sums up to in the whole timeline"
            )
            + "; edges are counted by name and the two lanes; matched by position: "
            + PAIRED_BY[pairs.how]
            + "; a change within the spread is no larger than the wider of both middle halves (interquartile "
            f"ranges) over the steps, known from {REPEATS} steady steps on"
        ),
        denominator="the first timeline (a): ratios are b / a",
        left_out=(*_faults(a, b), *_left_out(sides, found, by_step)),
        unit="step" if by_step else "whole",
        a=sides[0],
        b=sides[1],
        names=tuple(rows),
        edges=edges_apart(a, b),
        pairs=pairs,
    )


@dataclass(frozen=True, eq=False)
class _Sums:
    """By name: count, total and median duration; the unit that is compared, and its middle half's width."""

    count: np.ndarray
    total: np.ndarray
    median: np.ndarray
    unit: np.ndarray
    spread: np.ndarray


def _sums(
    t: Timeline, work: Work, found: Steps, code: np.ndarray, kind: str, names: int, by_step: bool
) -> _Sums:
    # Of the host its calls: operators and ranges only enclose them.
    spans = work.span if kind == "device" else np.flatnonzero(~t.on_device() & t.is_category(*CALLS))
    name = code[t.name[spans]] if len(spans) else np.empty(0, dtype=np.int64)
    took = t.duration_ns[spans]
    count = np.bincount(name, minlength=names)
    order = np.lexsort((took, name))
    stop = np.cumsum(count)
    some = np.flatnonzero(count)
    middle = [took[order[(stop - count)[some] + rank]] for rank in ((count[some] - 1) // 2, count[some] // 2)]
    median = np.zeros(names)
    median[some] = (middle[0] + middle[1]) / 2
    total = sums_by(name, took, names)
    if not by_step:
        return _Sums(count, total, median, total.astype(float), np.zeros(names))
    steady = np.array(sorted(found.steady))
    at = np.isin(found.step[spans], steady)
    step = np.searchsorted(steady, found.step[spans[at]])
    cells, cell = np.unique(name[at] * len(steady) + step, return_inverse=True)
    values = sums_by(cell, took[at], len(cells))
    low, high, first, third = _ranked(cells // len(steady), values, names, len(steady))
    return _Sums(count, total, median, (low + high) / 2, (third - first).astype(float))


def _ranked(name: np.ndarray, values: np.ndarray, names: int, steps: int) -> list[np.ndarray]:
    """For each name the two values in the middle, and the first and third quartile (by rank, outwards), of
    its sums over so many steps; a step in which it does not occur counts as 0."""
    order = np.lexsort((values, name))
    values = values[order]
    present = np.bincount(name, minlength=names)
    start = np.cumsum(present) - present
    zeros = steps - present
    ranks = ((steps - 1) // 2, steps // 2, (steps - 1) // 4, -(-3 * (steps - 1) // 4))
    found = []
    for rank in ranks:
        place = np.clip(start + rank - zeros, 0, max(len(values) - 1, 0))
        found.append(np.where(rank >= zeros, values[place] if len(values) else 0, 0))
    return found


def _rows(names: Sequence[str], kind: str, a: _Sums, b: _Sums, spread: bool) -> list[NameDiff]:
    rows = []
    change = b.unit - a.unit
    wide = np.maximum(a.spread, b.spread)
    for i in np.flatnonzero((a.count > 0) | (b.count > 0)).tolist():
        if not b.count[i]:
            verdict = "went away"
        elif not a.count[i]:
            verdict = "appeared"
        else:
            verdict = "slower" if change[i] > 0 else "faster" if change[i] < 0 else "same"
        judged = spread and verdict in ("faster", "slower", "same")
        rows.append(
            NameDiff(
                name=names[i],
                kind=kind,
                verdict=verdict,
                count_a=int(a.count[i]),
                count_b=int(b.count[i]),
                total_a_ns=int(a.total[i]),
                total_b_ns=int(b.total[i]),
                median_a_ns=float(a.median[i]) if a.count[i] else None,
                median_b_ns=float(b.median[i]) if b.count[i] else None,
                unit_a_ns=float(a.unit[i]),
                unit_b_ns=float(b.unit[i]),
                change_ns=float(change[i]),
                ratio=ratio(float(b.unit[i]), float(a.unit[i])),
                spread_ns=float(wide[i]) if judged else None,
                within_spread=bool(abs(change[i]) <= wide[i]) if judged else None,
            )
        )
    return rows


def _side(t: Timeline, work: Work, found: Steps) -> Side:
    one = np.zeros(len(work), dtype=np.int64)
    steady = set(found.steady)
    idle = [use.length_ns - use.busy_ns for use in found.uses if use.number in steady]
    return Side(
        device=str(t.meta.get("device", "")),
        provenance=str(t.meta.get("provenance", "measured")),
        source=str(t.meta.get("source", "")),
        operations=len(work),
        kernels=int(t.is_category("kernel")[work.span].sum()),
        launches=int((t.is_category("launch") & ~t.on_device()).sum()),
        window_ns=int(work.end.max() - work.start.min()) if len(work) else 0,
        busy_ns=int(union_by(one, device_of(work), work.start, work.end, 1)[0]),
        steps=len(found.uses),
        steady=len(found.steady),
        step_ns=found.median_ns,
        step_spread_ns=found.spread_ns,
        step_idle_ns=float(np.median(idle)) if idle else None,
    )


def _faults(a: Timeline, b: Timeline) -> list[str]:
    """What speaks against either timeline, and waits that no edge stands for."""
    lines = []
    for name, t in (("a", a), ("b", b)):
        kinds = [found.kind for found in check(t).findings if found.severity != "note"]
        if kinds:
            lines.append(f"what speaks against {name} (see its report): {', '.join(dict.fromkeys(kinds))}")
    waits = [int(t.meta.get("edges_unknown", 0) or 0) for t in (a, b)]
    if any(waits):
        lines.append(
            f"waits whose record is not known, so that there is no edge: {waits[0]:,} in a, {waits[1]:,} in b"
        )
    return lines


def _left_out(sides: Sequence[Side], found: Sequence[Steps], by_step: bool) -> tuple[str, ...]:
    a, b = sides
    lines = []
    if a.device != b.device:
        of = [shown(side.device) or "a device not named" for side in sides]
        lines.append(f"a is of {of[0]}, b of {of[1]}: a change may be the device's")
    if a.provenance != b.provenance:
        lines.append(f"a is {a.provenance}, b is {b.provenance}")
    if by_step:
        for name, side in (("a", a), ("b", b)):
            apart = side.steps - side.steady
            if apart:
                lines.append(
                    f"{name}: {plural(apart, 'step')} of warm-up or cut off, not in what is compared"
                )
        if found[0].source != found[1].source:
            lines.append(f"steps of a: {found[0].how}; of b: {found[1].how}")
    else:
        for name, answer in zip(("a", "b"), found, strict=True):
            if not answer.steady:
                lines.append(f"{name} has no steady steps ({answer.how}): the whole timelines are compared")
    return tuple(lines)
