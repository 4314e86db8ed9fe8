"""The timeline itself: columns of numpy arrays, not objects, so that a million spans stay small and quick.

Times are whole nanoseconds in int64 from end to end. A float64 holds 2**53 (nine quadrillion) exactly, and
nanoseconds since 1970 are already two hundred times as many, so a float would lose the last digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import LabError

if TYPE_CHECKING:
    import pandas

CATEGORIES = (
    "launch",
    "record",
    "wait",
    "synchronize",
    "copy",
    "kernel",
    "range",
    "fill",
    "graph",
    "call",
    "op",
    "mark",
    "other",
)
"""What a span is. On a host lane: the call that enqueues work (launch, copy, fill, graph), that records an
event or has a stream wait for one, that waits for the device (synchronize), any other call of the runtime or
driver (call), an operator or function of a framework (op), or a named range around others. On a device lane:
the work itself (kernel, copy, fill, or a whole graph as one span), a range around it, or what a profiler says
of a stream that waits (wait, synchronize). Anywhere: a point in time (mark, which lasts 0 ns), or what a
trace names in words of its own (other). Columns hold the place, so a new one goes to the end."""

DEVICE_WORK = ("kernel", "copy", "fill", "graph")
"""The categories that are operations of the device when they stand on a device lane."""

ENQUEUES = ("launch", "copy", "fill", "graph")
"""The categories of host calls that give the device work."""

CALLS = (*ENQUEUES, "call", "synchronize", "record", "wait")
"""The categories of all calls of the runtime and driver."""

EDGE_KINDS = ("order", "flow")
"""What an edge says: that its target's stream waited for its source ("order"), or only that whoever wrote the
trace drew an arrow from one to the other ("flow": forward to backward, request to answer)."""

OUTCOMES = ("", "fresh", "stale", "torn", "early")
"""What a span's result turned out to be: not judged, of this step's y, of an earlier step's, of a mix, of a
later step's. Columns hold the place, so a new one goes to the end."""

PROVENANCES = ("measured", "recorded", "modelled")
"""Where the times come from: this machine just now, an earlier recording, or a calculation."""

NO_DELAY = int(np.iinfo(np.int64).min)
"""Stands in `Timeline.launch_delay_ns` where there is no delay to tell."""

COLUMNS: dict[str, type] = {
    "name": np.int32,
    "lane": np.int32,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "launch": np.int64,
    "category": np.int8,
    "step": np.int32,
    "outcome": np.int8,
    "origin": np.int32,
}
EDGE_COLUMNS: dict[str, type] = {
    "edge_source": np.int64,
    "edge_target": np.int64,
    "edge_name": np.int32,
    "edge_kind": np.int8,
}
COUNTER_COLUMNS: dict[str, type] = {
    "counter_name": np.int32,
    "counter_ns": np.int64,
    "counter_value": np.float64,
}
OPTIONAL: dict[str, tuple[str, int]] = {
    "origin": ("name", -1),
    "edge_kind": ("edge_source", 0),
    "counter_name": ("", 0),
    "counter_ns": ("", 0),
    "counter_value": ("", 0),
}
"""Columns that may be left away: the column whose length they then have ("" for none), and their value."""


@dataclass(frozen=True)
class Lane:
    """A row of the timeline: a host thread (``kind`` "host") or a stream (``kind`` "device").

    ``device``: which device a stream belongs to, in words that are the same for all of its streams ("0",
    "rank 1 device 0"). ``process``: which process a thread or a stream belongs to, where that is known.
    """

    name: str
    kind: str = "device"
    device: str = ""
    process: str = ""

    def __post_init__(self) -> None:
        if self.kind not in ("host", "device"):
            raise LabError(f"lane {self.name!r} has kind {self.kind!r}; it is 'host' or 'device'")


@dataclass(frozen=True, eq=False)
class Timeline:
    """Spans, lanes and edges. Immutable: the ``with_…`` methods give a changed copy.

    names: every text once; ``name`` and ``edge_name`` are indices into it.
    lanes: the rows; ``lane`` is an index into it.
    name, lane [spans] int32; start_ns, duration_ns [spans] int64, absolute nanoseconds.
    launch [spans] int64: the number that a host call shares with the device work it enqueued; -1 for none.
    category [spans] int8 into `CATEGORIES`; outcome [spans] int8 into `OUTCOMES`.
    step [spans] int32, -1 for none.
    origin [spans] int32: the place of its event in the file that it was read from; -1 for none.
    edge_source, edge_target [edges] int64, indices of spans; edge_name [edges] int32; edge_kind [edges] int8
    into `EDGE_KINDS`.
    counter_name, counter_ns, counter_value [samples] int32, int64, float64: what counters said, and when.
    meta: plain JSON values: device, provenance (one of `PROVENANCES`), clock_error_ns, versions, …

    ``LabError`` when columns do not fit together or a duration is negative.
    """

    names: tuple[str, ...]
    lanes: tuple[Lane, ...]
    name: np.ndarray
    lane: np.ndarray
    start_ns: np.ndarray
    duration_ns: np.ndarray
    launch: np.ndarray
    category: np.ndarray
    step: np.ndarray
    outcome: np.ndarray
    edge_source: np.ndarray
    edge_target: np.ndarray
    edge_name: np.ndarray
    meta: dict[str, Any] = field(default_factory=dict)
    origin: np.ndarray | None = None
    edge_kind: np.ndarray | None = None
    counter_name: np.ndarray | None = None
    counter_ns: np.ndarray | None = None
    counter_value: np.ndarray | None = None

    def __post_init__(self) -> None:
        for column, (like, value) in OPTIONAL.items():
            if getattr(self, column) is None:
                length = len(getattr(self, like)) if like else 0
                object.__setattr__(self, column, np.full(length, value, dtype=np.int64))
        for columns in (COLUMNS, EDGE_COLUMNS, COUNTER_COLUMNS):
            first = next(iter(columns))
            for column, dtype in columns.items():
                values = _column(column, getattr(self, column), dtype)
                if values.shape != (len(getattr(self, first)),):
                    raise LabError(
                        f"column {column} has shape {values.shape}; "
                        f"{first} has {len(getattr(self, first))} entries"
                    )
                values.flags.writeable = False
                object.__setattr__(self, column, values)
        for column, stop in (
            ("name", len(self.names)),
            ("lane", len(self.lanes)),
            ("category", len(CATEGORIES)),
            ("outcome", len(OUTCOMES)),
            ("edge_source", len(self)),
            ("edge_target", len(self)),
            ("edge_name", len(self.names)),
            ("edge_kind", len(EDGE_KINDS)),
            ("counter_name", len(self.names)),
        ):
            values = getattr(self, column)
            if values.size and (values.min() < 0 or values.max() >= stop):
                wrong = values[(values < 0) | (values >= stop)][0]
                raise LabError(f"column {column} holds {wrong}, which is outside 0 to {stop - 1}")
        if len(self) and self.duration_ns.min() < 0:
            i = int(self.duration_ns.argmin())
            raise LabError(
                f"span {i} ({self.names[self.name[i]]}) lasts {self.duration_ns[i]} ns; "
                "at least 0 was expected"
            )
        meta = _plain(self.meta, "meta")
        if meta.get("provenance", "measured") not in PROVENANCES:
            raise LabError(f"provenance={meta['provenance']!r} is not one of {', '.join(PROVENANCES)}")
        object.__setattr__(self, "meta", meta)

    def __len__(self) -> int:
        return len(self.start_ns)

    def __repr__(self) -> str:
        lanes = ", ".join(lane.name for lane in self.lanes)
        if len(self.lanes) > 8:
            lanes = ", ".join(lane.name for lane in self.lanes[:7]) + f" and {len(self.lanes) - 7} more lanes"
        return (
            f"<Timeline: {len(self)} span{'s' * (len(self) != 1)} on {lanes or 'no lane'}, "
            f"{len(self.edge_source)} edge{'s' * (len(self.edge_source) != 1)}>"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found odd in the file that this was read from, and what was made of it; a line each."""
        return tuple(self.meta.get("notes", ()))

    @property
    def end_ns(self) -> np.ndarray:
        """End of each span in absolute nanoseconds, int64 [spans]."""
        return self.start_ns + self.duration_ns

    @property
    def steps(self) -> tuple[int, ...]:
        """The numbers of the steps that spans belong to, in order."""
        return tuple(int(s) for s in np.unique(self.step) if s >= 0)

    def lane_index(self, name: str) -> int:
        """The index of a lane. ``LabError`` naming the lanes there are."""
        for i, lane in enumerate(self.lanes):
            if lane.name == name:
                return i
        there = ", ".join(lane.name for lane in self.lanes) or "none at all"
        raise LabError(f"there is no lane {name!r} in this timeline; there are {there}")

    def on_device(self) -> np.ndarray:
        """Whether each span is on a device lane, bool [spans]."""
        return np.array([lane.kind == "device" for lane in self.lanes], dtype=bool)[self.lane]

    def is_category(self, *categories: str) -> np.ndarray:
        """Whether each span is of one of these categories, bool [spans]. ``LabError`` for an unknown one."""
        return np.isin(self.category, [_index(CATEGORIES, c, "category") for c in categories])

    def operations(self) -> np.ndarray:
        """Indices of the operations of the device (`DEVICE_WORK` on device lanes), in the table's order."""
        return np.flatnonzero(self.on_device() & self.is_category(*DEVICE_WORK))

    def spans(
        self,
        *,
        name: str | None = None,
        lane: str | None = None,
        step: int | None = None,
        category: str | None = None,
        outcome: str | None = None,
    ) -> np.ndarray:
        """Indices of the spans that fit everything given, int64, in the table's order.

        ``LabError`` for a lane, category or outcome that cannot exist here; a name or step that does not
        occur gives an empty answer.
        """
        fits = np.ones(len(self), dtype=bool)
        if name is not None:
            fits &= self.name == (self.names.index(name) if name in self.names else -1)
        if lane is not None:
            fits &= self.lane == self.lane_index(lane)
        if step is not None:
            fits &= self.step == step
        if category is not None:
            fits &= self.category == _index(CATEGORIES, category, "category")
        if outcome is not None:
            fits &= self.outcome == _index(OUTCOMES, outcome, "outcome")
        return np.flatnonzero(fits)

    def launches(self) -> np.ndarray:
        """Which host call enqueued which device span, int64 [pairs, 2], in the order of the device spans.

        With one launch number on several host calls, the first of them counts; one call may have enqueued
        several device spans (a graph).
        """
        device = self.on_device()
        calls = self.is_category(*CALLS)
        host = np.flatnonzero(~device & calls & (self.launch >= 0))
        if not len(host):
            return np.empty((0, 2), dtype=np.int64)
        host = host[np.lexsort((self.start_ns[host], self.launch[host]))]
        numbers, first = np.unique(self.launch[host], return_index=True)
        work = np.flatnonzero(device & self.is_category(*DEVICE_WORK) & (self.launch >= 0))
        place = np.minimum(np.searchsorted(numbers, self.launch[work]), len(numbers) - 1)
        found = numbers[place] == self.launch[work]
        return np.stack([host[first[place[found]]], work[found]], axis=1)

    def launch_delay_ns(self) -> np.ndarray:
        """For each device span, how long after the start of its host call it started; int64 [spans].

        The smallest int64 (`NO_DELAY`) stands where a span has no host call in this timeline. A negative
        delay tells of two clocks that disagree.
        """
        delay = np.full(len(self), NO_DELAY, dtype=np.int64)
        calls, work = self.launches().T
        delay[work] = self.start_ns[work] - self.start_ns[calls]
        return delay

    def with_outcomes(self, outcomes: Mapping[int, str]) -> Timeline:
        """The same timeline with these spans judged: ``{span index: "stale"}``, see `OUTCOMES`."""
        column = self.outcome.copy()
        for span, label in outcomes.items():
            self._check_span(span)
            column[span] = _index(OUTCOMES, label, "outcome")
        return replace(self, outcome=column)

    def with_steps(self, steps: np.ndarray) -> Timeline:
        """The same timeline with another step for each span, whole numbers [spans], -1 for none."""
        return replace(self, step=steps)

    def with_edges(self, edges: Iterable[tuple[int, int, str]]) -> Timeline:
        """The same timeline with these edges of kind "order" added: ``(source span, target span, name)``."""
        names = {text: i for i, text in enumerate(self.names)}
        source, target, name = [], [], []
        for s, t, text in edges:
            self._check_span(s)
            self._check_span(t)
            source.append(s)
            target.append(t)
            name.append(names.setdefault(text, len(names)))
        return replace(
            self,
            names=tuple(names),
            edge_source=np.concatenate([self.edge_source, np.array(source, dtype=np.int64)]),
            edge_target=np.concatenate([self.edge_target, np.array(target, dtype=np.int64)]),
            edge_name=np.concatenate([self.edge_name, np.array(name, dtype=np.int32)]),
            edge_kind=np.concatenate([self.edge_kind, np.zeros(len(name), dtype=np.int8)]),
        )

    def with_meta(self, **meta: Any) -> Timeline:
        """The same timeline with these entries of ``meta`` added or replaced."""
        return replace(self, meta=self.meta | meta)

    def frame(self) -> pandas.DataFrame:
        """A pandas view, one row a span: name, lane, kind, category, step, start_ns, duration_ns, end_ns,
        launch, launch_delay_ns (missing where there is no host call), outcome. Texts are categoricals."""
        import pandas as pd

        def texts(codes: np.ndarray, values: Iterable[str]) -> pd.Series:
            return pd.Series(pd.Categorical.from_codes(codes, categories=list(values)))

        delay = self.launch_delay_ns()
        kinds = np.array([lane.kind == "device" for lane in self.lanes], dtype=np.int8)
        return pd.DataFrame(
            {
                "name": texts(self.name, self.names),
                "lane": texts(self.lane, [lane.name for lane in self.lanes]),
                "kind": texts(kinds[self.lane], ("host", "device")),
                "category": texts(self.category, CATEGORIES),
                "step": self.step,
                "start_ns": self.start_ns,
                "duration_ns": self.duration_ns,
                "end_ns": self.end_ns,
                "launch": self.launch,
                "launch_delay_ns": pd.arrays.IntegerArray(
                    np.where(delay == NO_DELAY, 0, delay), delay == NO_DELAY
                ),
                "outcome": texts(self.outcome, OUTCOMES),
            }
        )

    def equals(self, other: Timeline) -> bool:
        """Whether both hold the same spans, lanes, edges and meta, to the nanosecond."""
        return (
            self.names == other.names
            and self.lanes == other.lanes
            and self.meta == other.meta
            and all(
                np.array_equal(getattr(self, c), getattr(other, c), equal_nan=c == "counter_value")
                for c in (*COLUMNS, *EDGE_COLUMNS, *COUNTER_COLUMNS)
            )
        )

    @classmethod
    def open(cls, *paths: str | PathLike[str]) -> Timeline:
        """Read a timeline from a file of any kind that `flashnorm_lab.timeline.open` reads."""
        from . import open

        return open(*paths)

    def export(self, path: str | PathLike[str]) -> tuple[str, ...]:
        """Write the timeline in the format that the ending of the name asks for; see `timeline.write`."""
        from .writing import write

        return write(self, path)

    def export_chrome(self, path: str | PathLike[str]) -> None:
        """Write Chrome trace JSON for Perfetto and chrome://tracing; see `timeline.writing.chrome`."""
        from .writing.chrome import export_chrome

        export_chrome(self, path)

    def _check_span(self, span: int) -> None:
        if not 0 <= span < len(self):
            raise LabError(f"there is no span {span}; this timeline has spans 0 to {len(self) - 1}")


class TimelineBuilder:
    """Collects spans one by one and hands back a `Timeline`.

    Lanes keep the order in which they are first named. A lane that was not declared is a device lane,
    except "host".
    """

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._lanes: dict[str, tuple[int, Lane]] = {}
        self._spans: list[tuple[int, int, int, int, int, int, int, int, int]] = []
        self._edges: list[tuple[int, int, int, int]] = []
        self._counters: list[tuple[int, int, float]] = []

    def __len__(self) -> int:
        return len(self._spans)

    def lane(self, name: str, kind: str = "device", device: str = "", process: str = "") -> Lane:
        """Declare a lane. ``LabError`` if it is there already with the other kind."""
        lane = Lane(name, kind, device, process)
        known = self._lanes.setdefault(name, (len(self._lanes), lane))[1]
        if known.kind != lane.kind:
            raise LabError(f"lane {name!r} is already a {known.kind} lane; it cannot be a {kind} lane too")
        return known

    def span(
        self,
        name: str,
        lane: str | Lane,
        start_ns: int,
        duration_ns: int,
        category: str,
        launch: int = -1,
        step: int = -1,
        outcome: str = "",
        origin: int = -1,
    ) -> int:
        """Add a span and return its index. ``LabError`` for an unknown category or a negative duration."""
        if isinstance(lane, Lane):
            self.lane(lane.name, lane.kind, lane.device, lane.process)
            lane = lane.name
        elif lane not in self._lanes:
            self.lane(lane, "host" if lane == "host" else "device")
        if duration_ns < 0:
            raise LabError(f"span {name!r} lasts {duration_ns} ns; at least 0 was expected")
        self._spans.append(
            (
                self.name(name),
                self._lanes[lane][0],
                int(start_ns),
                int(duration_ns),
                int(launch),
                _index(CATEGORIES, category, "category"),
                int(step),
                _index(OUTCOMES, outcome, "outcome"),
                int(origin),
            )
        )
        return len(self._spans) - 1

    def counter(self, name: str, at_ns: int, value: float) -> None:
        """Add what the counter of that name said at that time."""
        self._counters.append((self.name(name), int(at_ns), float(value)))

    def edge(self, source: int, target: int, name: str, kind: str = "order") -> None:
        """Add an edge from one span to another; see `EDGE_KINDS`. "order": what the target's stream waited
        for before it went on."""
        for span in (source, target):
            if not 0 <= span < len(self._spans):
                raise LabError(
                    f"edge {name!r} names span {span}; there are spans 0 to {len(self._spans) - 1}"
                )
        self._edges.append((source, target, self.name(name), _index(EDGE_KINDS, kind, "edge kind")))

    def build(self, **meta: Any) -> Timeline:
        """The timeline of everything added so far. ``meta`` is kept with it."""
        columns: dict[str, Any] = {}
        for kinds, rows in (
            (COLUMNS, self._spans),
            (EDGE_COLUMNS, self._edges),
            (COUNTER_COLUMNS, self._counters),
        ):
            columns |= dict(zip(kinds, zip(*rows, strict=True) if rows else [()] * len(kinds), strict=True))
        return Timeline(
            names=tuple(self._names),
            lanes=tuple(lane for _, lane in self._lanes.values()),
            **columns,
            meta=meta,
        )

    def name(self, text: str) -> int:
        """The index of a text in the timeline's ``names``, where it is kept once."""
        return self._names.setdefault(str(text), len(self._names))


def _column(name: str, values: Any, dtype: type) -> np.ndarray:
    if dtype is np.float64:
        return np.array(values, dtype=np.float64)
    try:
        array = np.array(values, dtype=np.int64) if not isinstance(values, np.ndarray) else values
        if array.dtype.kind not in "iu" and array.size:
            raise LabError(f"column {name} holds {array.dtype}; whole numbers were expected")
        limits = np.iinfo(dtype)
        if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
            raise OverflowError
    except OverflowError:
        raise LabError(f"column {name} holds a number that does not fit into {np.dtype(dtype)}") from None
    return array.astype(dtype)


def _index(known: tuple[str, ...], value: str, what: str) -> int:
    try:
        return known.index(value)
    except ValueError:
        raise LabError(f"{what} {value!r} is not one of {', '.join(repr(k) for k in known)}") from None


def _plain(value: Any, where: str) -> Any:
    """The value as JSON can hold it, so that a timeline is equal to its own export read back."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | np.integer):
        return int(value)
    if isinstance(value, float | np.floating):
        if not np.isfinite(value):
            raise LabError(f"{where} holds {value}; a finite number was expected")
        return float(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{where}[{str(k)!r}]") for k, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(_plain(v, where) for v in value)
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(v, where) for v in value]
    if isinstance(value, PurePath):
        return str(value)
    raise LabError(f"{where} holds a {type(value).__name__}; a text, a number, a list or a dict was expected")
