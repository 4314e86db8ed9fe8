"""Chrome trace JSON. It opens in Perfetto and chrome://tracing, and reads back to the nanosecond.

- A process (``pid``) for each device and for each process that has threads, a track (``tid``) for each lane,
  all named and in the timeline's order; a further track where spans of a lane cross (see `tracks`).
- A span is a complete event (``ph`` "X"), a mark that lasts 0 ns an instant ("i"), a counter's sample a
  counter event ("C"). ``ts`` and ``dur`` are microseconds with exactly three decimals, written from whole
  nanoseconds. ``ts`` counts from ``baseTimeNanoseconds``, as torch.profiler writes it, since viewers hold
  times in a float64, which cannot hold nanoseconds since 1970.
- ``cat`` is the span's category. ``args`` has the place of the span in the table, and what is known of its
  step, its launch (as ``correlation``), its ``stream``, outcome and origin: the words of torch.profiler, so
  that readers of its traces find their way.
- An edge that orders is a flow arrow of category "edge": it starts ("s") at the last nanosecond of its source
  and ends ("f", bound to the enclosing slice) at the start of its target. An edge of kind "flow" is an arrow
  of category "flow", and one of category "launch" leads from each host call to the work it enqueued; both
  from start to start. Where the clocks or a long wait would turn an arrow back in time, its ends are moved
  within their own slices; one that cannot point forward even so, or that has an instant at one end, is left
  out of the picture, counted in ``arrows_not_drawn``, and still kept in ``otherData``.
- A result that is not fresh has its outcome in ``args`` and a colour of its own, and stands in words on a
  track below the lanes, so that it does not depend on colour.
- ``otherData`` keeps what the events do not: texts, lanes, edges, counters and ``meta``, exactly.

`flashnorm_lab.timeline.own` reads all of it again.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from ..own import FORMAT, VERSION
from ..table import CATEGORIES, EDGE_KINDS, NO_DELAY, OUTCOMES, Timeline
from .files import is_unicode, unicode_text, whole
from .tracks import layers, nesting, relative, since, title, tracks

COLOURS = {"stale": "terrible", "torn": "bad", "early": "yellow"}
"""Names of chrome://tracing for a red, an orange and a yellow."""
ARROWS = ("edge", "flow", "launch")
"""Categories of arrows: the two kinds of edges, then that from a call to what it enqueued."""
NOT_FRESH = "results that are not fresh"
BLOCK = 1 << 16

_SPAN, _MARK, _JUDGED, _ARROW, _ARROW_END, _SAMPLE = range(6)


def export_chrome(timeline: Timeline, path: str | PathLike[str]) -> tuple[str, ...]:
    """Write the timeline to ``path``, whole or not at all; with gzip where the name ends in ``.gz``.

    Returns what the picture lacks, a line each; the file itself lacks nothing. ``LabError`` when the file
    cannot be written.
    """
    with whole(path, "ascii") as file:
        picture = _Picture(timeline)
        file.writelines(picture.text())
    return picture.lacks


class _Picture:
    """The events of a timeline in the order in which a viewer wants them."""

    def __init__(self, t: Timeline) -> None:
        self.t = t
        first = [int(times.min()) for times in (t.start_ns, t.counter_ns) if len(times)]
        self.base = min(first, default=0)
        self.start, self.end = relative(t, self.base)
        self.rank = np.empty(len(t), dtype=np.int64)
        self.rank[nesting(self.start, self.end)] = np.arange(len(t))
        self.tracks = tracks(t)
        self.judged = np.flatnonzero(np.isin(t.outcome, [OUTCOMES.index(label) for label in COLOURS]))
        self.judged_track = layers(
            np.zeros(len(self.judged), dtype=np.int64), self.start[self.judged], self.end[self.judged]
        )
        self.marks = (t.category == CATEGORIES.index("mark")) & (t.duration_ns == 0)
        self.arrows = _arrows(t, self.start, self.end, self.marks)
        self.samples = np.flatnonzero(np.isfinite(t.counter_value))

    @property
    def lacks(self) -> tuple[str, ...]:
        lines = []
        if self.arrows.not_drawn:
            lines.append(f"arrows that cannot point forward and are not drawn: {self.arrows.not_drawn:,}")
        if missing := len(self.t.counter_name) - len(self.samples):
            lines.append(f"samples of counters that are no finite number and are not drawn: {missing:,}")
        return tuple(lines)

    def text(self) -> Iterator[str]:
        t = self.t
        other: dict[str, Any] = {
            "meta": t.meta,
            "lanes": [[lane.name, lane.kind, lane.device, lane.process] for lane in t.lanes],
            "tracks": self.tracks.lane,
            "names": t.names,
            "spans": len(t),
            "edges": {
                "source": t.edge_source.tolist(),
                "target": t.edge_target.tolist(),
                "name": t.edge_name.tolist(),
                "kind": t.edge_kind.tolist(),
                "kinds": EDGE_KINDS,
            },
            "counters": {
                "name": t.counter_name.tolist(),
                "at_ns": t.counter_ns.tolist(),
                "value": [v if math.isfinite(v) else str(v) for v in t.counter_value.tolist()],
            },
        }
        exact = json.dumps(other, ensure_ascii=False)
        if not is_unicode(exact):
            # Half of a surrogate pair is no Unicode, and many a reader of JSON refuses a file that holds one.
            other = {"base64": base64.b64encode(exact.encode("utf-8", "surrogatepass")).decode("ascii")}
        other = {
            "format": FORMAT,
            "version": VERSION,
            **other,
            "arrows_not_drawn": self.arrows.not_drawn,
            "samples_not_drawn": len(t.counter_name) - len(self.samples),
        }
        yield f'{{"displayTimeUnit":"ns","baseTimeNanoseconds":{self.base},\n'
        yield f'"otherData":{json.dumps(other)},\n'
        yield '"traceEvents":[\n'
        yield ",\n".join(self._heads())
        yield from self._events()
        yield "\n]}\n"

    def _heads(self) -> Iterator[str]:
        """The names of processes and tracks, and the order in which they are shown."""
        processes = self.tracks.processes
        for place, name in enumerate(processes):
            yield _head("process_name", place + 1, 0, name=unicode_text(name))
            if len(processes) > 1:
                yield _head("process_sort_index", place + 1, 0, sort_index=place)
                yield _head("process_labels", place + 1, 0, labels=title(self.t))
        rows = [(p, self.t.lanes[i].name) for p, i in zip(self.tracks.process, self.tracks.lane, strict=True)]
        rows += [(0, NOT_FRESH)] * (int(self.judged_track.max(initial=-1)) + 1)
        for place, (process, name) in enumerate(rows):
            yield _head("thread_name", process + 1, place + 1, name=unicode_text(name))
            yield _head("thread_sort_index", process + 1, place + 1, sort_index=place)

    def _events(self) -> Iterator[str]:
        """Every event in the order of its time, an enclosing span before what it encloses, in blocks."""
        t, arrows = self.t, self.arrows
        source, target = self.rank[arrows.source], self.rank[arrows.target]
        numbers = np.arange(len(source))
        at_once = arrows.begin == arrows.end
        parts = (  # kind, index, time, rank of its span, place among the events of that span
            (np.where(self.marks, _MARK, _SPAN), np.arange(len(t)), self.start, self.rank, 0),
            (_JUDGED, self.judged, self.start[self.judged], self.rank[self.judged], 3),
            (_ARROW, numbers, arrows.begin, source, 1),
            (_ARROW_END, numbers, arrows.end, np.where(at_once, np.maximum(source, target), target), 2),
            (_SAMPLE, self.samples, since(t.counter_ns[self.samples], self.base), len(t), 0),
        )
        kind, index, time, rank, place = (
            np.concatenate([np.broadcast_to(part[column], part[1].shape) for part in parts])
            for column in range(5)
        )
        order = np.lexsort((place, rank, time))
        writers = self._writers()
        for first in range(0, len(order), BLOCK):
            block = order[first : first + BLOCK]
            lines = np.empty(len(block), dtype=object)
            for number, write in enumerate(writers):
                mine = kind[block] == number
                if mine.any():
                    lines[mine] = write(index[block[mine]])
            yield ",\n" + ",\n".join(lines)

    def _writers(self) -> tuple[Callable[[np.ndarray], list[str]], ...]:
        """For each kind of event a function from indices to JSON texts, one an event."""
        t, arrows = self.t, self.arrows
        names = _texts(json.dumps(unicode_text(text)) for text in t.names)
        known: dict[str, int] = {}
        odd = np.array(
            [
                text != (u := unicode_text(text)) or known.setdefault(u, i) != i
                for i, text in enumerate(t.names)
            ],
            dtype=bool,
        )
        categories = _texts(CATEGORIES)
        where = [f'"pid":{process + 1},"tid":{i + 1}' for i, process in enumerate(self.tracks.process)]
        below = _texts(f'"pid":1,"tid":{len(where) + 1 + i}' for i in self.judged_track)
        where = _texts(where)
        colours = _texts(f'"cname":"{COLOURS[label]}",' if label in COLOURS else "" for label in OUTCOMES)
        outcomes = _texts(f',"outcome":"{label}"' if label else "" for label in OUTCOMES)
        streams = _texts(_streams(t))
        delay = t.launch_delay_ns()
        more = (
            ("step", t.step, t.step != -1),
            ("correlation", t.launch, t.launch != -1),
            ("launch_delay_ns", delay, delay != NO_DELAY),
            ("origin", t.origin, t.origin != -1),
            ("name_index", t.name, odd[t.name]),
        )
        told = sum((there.astype(np.int64) << bit for bit, (_, _, there) in enumerate(more)), np.int64(0))

        def told_as(i: np.ndarray, head: str, columns: Callable[[np.ndarray], list[list[Any]]]) -> list[str]:
            lines = np.empty(len(i), dtype=object)
            for number in np.unique(told[i]).tolist():
                mine = np.flatnonzero(told[i] == number)
                span = i[mine]
                chosen = [(key, values) for bit, (key, values, _) in enumerate(more) if number >> bit & 1]
                args = "".join(f',"{key}":%d' for key, _ in chosen)
                template = f'{head}"args":{{"span":%d%s%s{args}}}}}'
                rows = zip(
                    names[t.name[span]].tolist(),
                    categories[t.category[span]].tolist(),
                    where[self.tracks.of[span]].tolist(),
                    *columns(span),
                    span.tolist(),
                    streams[t.lane[span]].tolist(),
                    outcomes[t.outcome[span]].tolist(),
                    *(values[span].tolist() for _, values in chosen),
                    strict=True,
                )
                lines[mine] = list(map(template.__mod__, rows))
            return lines.tolist()

        def times(i: np.ndarray) -> list[list[Any]]:
            return [*_parts(self.start[i]), *_parts(t.duration_ns[i]), colours[t.outcome[i]].tolist()]

        def spans(i: np.ndarray) -> list[str]:
            return told_as(i, '{"ph":"X","name":%s,"cat":"%s",%s,"ts":%d.%03d,"dur":%d.%03d,%s', times)

        def marks(i: np.ndarray) -> list[str]:
            head = '{"ph":"i","s":"t","name":%s,"cat":"%s",%s,"ts":%d.%03d,'
            return told_as(i, head, lambda i: _parts(self.start[i]))

        def judged(i: np.ndarray) -> list[str]:
            # Without stream and correlation: readers that add up device work would count it twice.
            template = (
                '{"ph":"X","name":%s,"cat":"outcome",%s,"ts":%d.%03d,"dur":%d.%03d,%s"args":{"span":%d%s}}'
            )
            words = [
                json.dumps(f"{OUTCOMES[o]}: {unicode_text(t.names[n])}")
                for o, n in zip(t.outcome[i].tolist(), t.name[i].tolist(), strict=True)
            ]
            place = below[np.searchsorted(self.judged, i)].tolist()
            rows = zip(words, place, *times(i), i.tolist(), outcomes[t.outcome[i]].tolist(), strict=True)
            return list(map(template.__mod__, rows))

        def arrow(i: np.ndarray, phase: str, span: np.ndarray, time: np.ndarray) -> list[str]:
            template = f'{{"ph":{phase},"name":%s,"cat":"%s","id":%d,%s,"ts":%d.%03d}}'
            text = [names[n] if n >= 0 else '"launch"' for n in arrows.name[i].tolist()]
            kind = [ARROWS[k] for k in arrows.kind[i].tolist()]
            place = where[self.tracks.of[span[i]]].tolist()
            rows = zip(text, kind, i.tolist(), place, *_parts(time[i]), strict=True)
            return list(map(template.__mod__, rows))

        def samples(i: np.ndarray) -> list[str]:
            template = '{"ph":"C","name":%s,"cat":"counter","pid":1,"tid":0,"ts":%d.%03d,"args":{"value":%r}}'
            at = since(t.counter_ns[i], self.base)
            rows = zip(
                names[t.counter_name[i]].tolist(), *_parts(at), t.counter_value[i].tolist(), strict=True
            )
            return list(map(template.__mod__, rows))

        return (
            spans,
            marks,
            judged,
            lambda i: arrow(i, '"s"', arrows.source, arrows.begin),
            lambda i: arrow(i, '"f","bp":"e"', arrows.target, arrows.end),
            samples,
        )


@dataclass(frozen=True)
class _Arrows:
    """Arrows that are drawn: spans, times from the base in nanoseconds, index of the name (-1: a launch),
    place of the kind in `ARROWS`; and how many are not drawn."""

    source: np.ndarray
    target: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    name: np.ndarray
    kind: np.ndarray
    not_drawn: int


def _arrows(t: Timeline, start: np.ndarray, end: np.ndarray, marks: np.ndarray) -> _Arrows:
    """The edges, then each host call to its work."""
    calls, work = t.launches().T
    source, target = np.concatenate([t.edge_source, calls]), np.concatenate([t.edge_target, work])
    name = np.concatenate([t.edge_name, np.full(len(calls), -1)])
    kind = np.concatenate([t.edge_kind, np.full(len(calls), ARROWS.index("launch"))])
    last = end - (end > start)
    ordered = np.minimum(last[source], np.maximum(start[source], start[target]))
    begin = np.where(kind == ARROWS.index("edge"), ordered, start[source])
    stop = np.maximum(start[target], begin)
    drawn = (stop <= last[target]) & ~marks[source] & ~marks[target]
    columns = (column[drawn] for column in (source, target, begin, stop, name, kind))
    return _Arrows(*columns, not_drawn=int((~drawn).sum()))


def _streams(t: Timeline) -> list[str]:
    """For each lane what says its stream's number: that in its name, if those tell the streams apart."""
    found = {
        i: re.search(r"(?:^|stream )(\d+)$", lane.name)
        for i, lane in enumerate(t.lanes)
        if lane.kind == "device"
    }
    numbers = {i: int(m[1]) for i, m in found.items() if m and len(m[1]) < 10}
    whose = {(t.lanes[i].device, t.lanes[i].process, number) for i, number in numbers.items()}
    if len(whose) < len(found):
        numbers = {i: i for i in found}
    return [f',"stream":{numbers[i]}' if i in numbers else "" for i in range(len(t.lanes))]


def _texts(texts: Iterable[str]) -> np.ndarray:
    """Texts as an array, so that many are picked at once."""
    return np.array([*texts, None], dtype=object)[:-1]


def _parts(ns: np.ndarray) -> list[list[int]]:
    """Nanoseconds, none negative, as whole microseconds and the rest."""
    return [part.tolist() for part in np.divmod(ns.astype(np.uint64), np.uint64(1000))]


def _head(kind: str, pid: int, tid: int, **args: Any) -> str:
    return json.dumps({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}, separators=(",", ":"))
