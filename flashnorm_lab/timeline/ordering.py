"""Order: the edges that a timeline has, and whether they put one operation behind another.

A timeline shows what happened once: A ended before B started, and still nothing may guarantee it. What
guarantees it is that a stream runs its work in order, that a stream waits for an event's record, or that the
host waited in between. A timeline of the lab keeps all of that. A profiler's trace keeps what the profiler
knew: `flashnorm_lab.trace_order` reads it from the file, and what it does not know stays unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import LabError
from .answer import Answer, Table, cut
from .metrics.layout import shortened, shown
from .ordered_paths import Paths
from .table import EDGE_KINDS, Timeline

if TYPE_CHECKING:
    from .. import trace_order

VERDICTS = ("yes", "no", "cannot be known")
_NAME = 64
"""Letters of a name that are shown."""
_ORDERED = (
    "ordered means: on every run that makes these calls, the second starts only when the first is done, "
    "because a stream runs its work in order, a stream waits for an event's record, or the host waited in "
    "between; a case is an occurrence of the second with the nearest earlier one of the first, in the order "
    "of their calls"
)


@dataclass(frozen=True)
class EdgeGroup:
    """Edges of one name from one lane to another. ``early``: those whose target started before their source
    had ended, which an edge of kind "order" rules out unless clocks are off."""

    name: str
    source: str
    target: str
    kind: str
    count: int
    early: int


@dataclass(frozen=True, kw_only=True)
class Edges(Answer):
    """The edges of a timeline. groups: by name, lanes and kind, the most frequent first; order, flow: how
    many there are of each kind; unknown: waits of streams of which the record is not known, no edges."""

    groups: tuple[EdgeGroup, ...]
    order: int
    flow: int
    unknown: int

    @property
    def count(self) -> int:
        """How many edges there are."""
        return self.order + self.flow

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each group."""
        rows = [
            (_short(g.name), _short(g.source), _short(g.target), g.kind, f"{g.count:,}", f"{g.early:,}")
            for g in self.groups
        ]
        return cut(rows, ("edge", "from", "to", "kind", "count", "target began early"), most)

    def summary(self) -> str:
        """How many there are of each kind, and of how many waits the record is not known."""
        if not self.count and not self.unknown:
            return "none is recorded"
        text = f"{self.order:,} that order work, {self.flow:,} that only show a flow"
        waits = "wait of a stream is" if self.unknown == 1 else "waits of streams are"
        return text + f"; {self.unknown:,} {waits} for a record that is not known" * bool(self.unknown)

    def as_dict(self) -> dict[str, Any]:
        """Every figure as plain values."""
        return asdict(self) | {"count": self.count}


def edges(t: Timeline) -> Edges:
    """The edges recorded in a timeline, by name and by the lanes that they join."""
    key = np.stack([t.edge_name, t.lane[t.edge_source], t.lane[t.edge_target], t.edge_kind])
    early = t.start_ns[t.edge_target] < t.end_ns[t.edge_source]
    kinds, which, counts = np.unique(key, axis=1, return_inverse=True, return_counts=True)
    late = np.bincount(which.ravel(), weights=early, minlength=len(counts)).astype(int)
    groups = [
        EdgeGroup(t.names[n], t.lanes[s].name, t.lanes[d].name, EDGE_KINDS[k], int(count), int(before))
        for (n, s, d, k), count, before in zip(kinds.T.tolist(), counts, late, strict=True)
    ]
    order = int((t.edge_kind == EDGE_KINDS.index("order")).sum())
    unknown = int(t.meta.get("edges_unknown", 0))
    left_out = (f"waits of streams of which the record is not known: {unknown:,}",) * bool(unknown)
    return Edges(
        title="Edges",
        definition="an edge of kind order leads from the last work before an event's record to the first "
        "work behind the wait for it; an edge of kind flow is an arrow of the trace, which orders nothing",
        left_out=left_out,
        groups=tuple(sorted(groups, key=lambda g: -g.count)),
        order=order,
        flow=len(t.edge_kind) - order,
        unknown=unknown,
    )


@dataclass(frozen=True, kw_only=True)
class Ordering(Answer):
    """Whether ``first`` is ordered before ``second``.

    verdict: one of `VERDICTS`. "yes": in every case, whatever is not known; "no": in some case nothing orders
    them, nor may anything that is not known; "cannot be known" else. reason: why, in a line. path: one way
    that orders them, turn by turn. cases = ordered + unknown + unordered. ended_before: in how many the first
    had ended when the second started, which is no promise. lacks: what is not known, a line each.
    by: what was asked, "trace" (the profiler's file) or "timeline" (lanes, edges and host calls alone).
    """

    first: str
    second: str
    verdict: str
    reason: str
    cases: int
    ordered: int
    unknown: int
    unordered: int
    ended_before: int
    path: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    by: str = "timeline"

    def table(self, most: int | None = 20) -> Table | None:
        """The path, turn by turn; None where there is none."""
        rows = [(shown(turn),) for turn in self.path]
        return cut(rows, ("what orders them",), most) if rows else None

    def summary(self) -> str:
        """The verdict and why."""
        return f"{self.verdict}: {self.reason}"

    def as_dict(self) -> dict[str, Any]:
        """Every figure as plain values."""
        return asdict(self)


def order(
    what: Timeline | str | PathLike[str],
    first: str | int,
    second: str | int,
    *,
    kinds: Mapping[str, str] | None = None,
) -> Ordering:
    """Is ``first`` ordered before ``second``: yes, no, or does what is recorded not tell?

    what: a timeline, or the path of a trace or of the lab's own export. first, second: a kernel's name, or a
    part of it that only one has ("NAME on stream 7" takes only those on that lane), which makes a case of
    every occurrence of the second with the nearest earlier first; or, with a timeline, the number of a span,
    which makes one case of two. kinds: what the profiler may not know of streams, as `trace_order.load` takes
    it.

    For a profiler's trace the answer comes from its file, which tells more than its timeline does (host calls
    that wait, kinds of streams): a timeline is matched to the file that it was read from, if that is there
    and unchanged. For a timeline of the lab it comes from lanes, edges and host calls, which are all there.

    Raises ``LabError`` for a name that no operation or several have, for a span that is no operation of a
    device, and for a file that cannot be read.
    """
    if isinstance(what, Timeline):
        return _of_timeline(what, first, second, kinds)
    if not isinstance(what, str | PathLike):
        raise LabError(f"{str(what)[:60]!r} is neither a timeline nor the path of one; give one of the two")
    from .reading import kind_of

    if kind_of(what) == "own" or isinstance(first, int) or isinstance(second, int):
        return _of_timeline(Timeline.open(what), first, second, kinds)
    from .. import trace_order

    program = trace_order.load(what, kinds)
    return _told(trace_order.answer(program, first, second), program)


def _told(
    answer: trace_order.Answer, program: trace_order.TraceProgram, names: tuple[str, str] | None = None
) -> Ordering:
    """An answer of `trace_order` in this module's words."""
    names = names or (answer.first, answer.second)
    counts = (answer.ordered, answer.unknown, answer.unordered)
    path = next((pair.chain for pair in answer.pairs if pair.chain), ())
    doubts = [pair.doubt for pair in answer.pairs if pair.doubt]
    lacks = tuple(dict.fromkeys([*doubts, *program.unseen]))
    verdict = VERDICTS[2] if answer.verdict == "unknown" or not answer.cases else answer.verdict
    return Ordering(
        title="Order",
        definition=_ORDERED,
        left_out=(*_not_known(lacks), *map(shown, answer.notes)),
        first=names[0],
        second=names[1],
        verdict=verdict,
        reason=_reason(names, counts, answer.ended_before) if answer.cases else _none(names),
        cases=answer.cases,
        ordered=answer.ordered,
        unknown=answer.unknown,
        unordered=answer.unordered,
        ended_before=answer.ended_before,
        path=path,
        lacks=lacks,
        by="trace",
    )


# A timeline


def _of_timeline(
    t: Timeline, first: str | int, second: str | int, kinds: Mapping[str, str] | None
) -> Ordering:
    work = t.operations()
    paths = Paths(t, work)
    chosen = [_choose(t, work, wanted) for wanted in (first, second)]
    names = (chosen[0][0], chosen[1][0])
    single = isinstance(first, int) and isinstance(second, int)
    cases = [(chosen[0][1][0], chosen[1][1][0])] if single else paths.nearest(chosen[0][1], chosen[1][1])
    if single and not paths.issued_before(*cases[0]):
        return _never(
            names, f"{_short(names[1])} was not issued behind {_short(names[0])}, of these two spans"
        )
    if not cases:
        return _never(names, _none(names))
    foreign = t.meta.get("provenance") == "recorded"
    if foreign and (told := _by_file(t, cases, names, kinds)):
        return told
    return _by_edges(t, paths, cases, names, foreign)


def _none(names: tuple[str, str]) -> str:
    return f"{_short(names[0])} is never issued before {_short(names[1])} here"


def _not_known(lacks: Sequence[str]) -> list[str]:
    return [f"not known: {shown(what)}" for what in lacks]


def _never(names: tuple[str, str], reason: str) -> Ordering:
    """There is no case to judge."""
    return Ordering(
        title="Order",
        definition=_ORDERED,
        first=names[0],
        second=names[1],
        verdict=VERDICTS[2],
        reason=reason,
        cases=0,
        ordered=0,
        unknown=0,
        unordered=0,
        ended_before=0,
    )


def _choose(t: Timeline, work: np.ndarray, wanted: str | int) -> tuple[str, list[int]]:
    """The operations that a person means, and how they are called in full."""
    if isinstance(wanted, int | np.integer) and not isinstance(wanted, bool):
        return _choose_span(t, work, int(wanted))
    name, lane = str(wanted), -1
    head, _, tail = name.rpartition(" on ")
    lanes = [i for i, known in enumerate(t.lanes) if known.kind == "device"]
    said = [i for i in lanes if t.lanes[i].name == tail] or [
        i for i in lanes if t.lanes[i].name.endswith(f" {tail}")
    ]
    if head and len(said) > 1:
        listed = ", ".join(t.lanes[i].name for i in said)
        raise LabError(f"{wanted!r}: several lanes are called {tail}: {listed}; name one in full")
    if head and said:
        name, lane = head, said[0]
        work = work[t.lane[work] == lane]
    counts = Counter(t.name[work].tolist())
    texts = {t.names[code]: code for code in counts}
    found = [text for text in texts if text == name] or [text for text in texts if text.startswith(name)]
    if len(found) != 1:
        found = found or [text for text in texts if name in text]
    where = f" on {t.lanes[lane].name}" if lane >= 0 else ""
    if not found:
        most = ", ".join(_short(t.names[code]) for code, _ in counts.most_common(5)) or "none"
        raise LabError(f"no kernel, copy or fill{where} has {name!r} in its name; most frequent: {most}")
    if len(found) > 1:
        listed = "; ".join(_short(text) for text in found[:5])
        more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
        raise LabError(f"{name!r} is part of {len(found)} names{where}; give more of one: {listed}{more}")
    return found[0] + where, work[t.name[work] == texts[found[0]]].tolist()


def _choose_span(t: Timeline, work: np.ndarray, span: int) -> tuple[str, list[int]]:
    """One operation, or the one that a host call enqueued."""
    if not 0 <= span < len(t):
        raise LabError(f"there is no span {span}; this timeline has spans 0 to {len(t) - 1}")
    if span not in work:
        enqueued = [op for call, op in t.launches().tolist() if call == span]
        if len(enqueued) != 1:
            raise LabError(
                f"span {span} ({t.names[t.name[span]]} on {t.lanes[t.lane[span]].name}) is no operation of a "
                f"device, and enqueued {len(enqueued)}; choose a kernel, copy or fill"
            )
        span = enqueued[0]
    return f"{t.names[t.name[span]]} on {t.lanes[t.lane[span]].name}", [span]


def _by_file(
    t: Timeline, cases: Sequence[tuple[int, int]], names: tuple[str, str], kinds: Mapping[str, str] | None
) -> Ordering | None:
    """The answer of the trace's file; None where it is gone, was changed, or cannot be read for order."""
    file = t.meta.get("file")
    if not isinstance(file, dict):
        return None
    try:
        stat = Path(file["path"]).stat()
    except OSError:
        return None
    if (stat.st_size, stat.st_mtime_ns) != (file["bytes"], file["mtime_ns"]):
        return None
    from .. import trace_order

    try:
        program = trace_order.load(file["path"], kinds)
    except LabError:
        if kinds:
            raise
        return None
    steps: dict[tuple[int, int, str], list[int]] = {}
    for number, times in program.times.items():
        steps.setdefault((*times, program.steps[number].name), []).append(number)
    numbers = {}
    for span in {span for case in cases for span in case}:
        start, end = int(t.start_ns[span]), int(t.end_ns[span])
        found = steps.get((start, end, t.names[t.name[span]]), [])
        if len(found) != 1:
            return None
        numbers[span] = found[0]
    return _told(
        trace_order.answer_for(program, [(numbers[a], numbers[b]) for a, b in cases]), program, names
    )


def _by_edges(
    t: Timeline, paths: Paths, cases: Sequence[tuple[int, int]], names: tuple[str, str], foreign: bool
) -> Ordering:
    """The answer of lanes, edges and host calls."""
    lacks = list(paths.lacks)
    if foreign:
        lacks.append(
            "what the host waited for, and of what kind streams are: the trace's file cannot be asked"
        )
    ordered, doubtful = paths.judge(cases)
    doubtful |= ~ordered & bool(lacks)
    unordered = ~ordered & ~doubtful
    ended = int(sum(t.end_ns[a] <= t.start_ns[b] for a, b in cases))
    counts = (int(ordered.sum()), int(doubtful.sum()), int(unordered.sum()))
    verdict = VERDICTS[1] if counts[2] else VERDICTS[2] if counts[1] else VERDICTS[0]
    path = paths.way(*cases[int(np.argmax(ordered))]) if counts[0] else ()
    return Ordering(
        title="Order",
        definition=_ORDERED,
        left_out=(*_not_known((*lacks, *paths.doubts)), *paths.aside),
        first=names[0],
        second=names[1],
        verdict=verdict,
        reason=_reason(names, counts, ended),
        cases=len(cases),
        ordered=counts[0],
        unknown=counts[1],
        unordered=counts[2],
        ended_before=ended,
        path=path,
        lacks=(*lacks, *paths.doubts),
    )


def _reason(names: tuple[str, str], counts: tuple[int, int, int], ended: int) -> str:
    a, b = _short(names[0]), _short(names[1])
    ordered, unknown, unordered = counts
    cases = sum(counts)
    often = "the one case" if cases == 1 else f"all {cases} cases"
    if ordered == cases:
        return f"{b} starts only when the {a} before it is done, in {often}"
    told = [f"ordered in {ordered}"] * bool(ordered)
    told += [f"not ordered by anything in {unordered}"] * bool(unordered)
    told += [f"not told in {unknown}"] * bool(unknown)
    text = f"{a} before {b}: {', '.join(told)} of {cases} case{'s' * (cases != 1)}"
    return text + "; it had ended before in all of them here, which is no promise" * (ended == cases)


def _short(name: str) -> str:
    return shortened(shown(name), _NAME)
