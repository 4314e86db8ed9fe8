"""Chrome trace JSON, out and in.

The export opens in Perfetto and in chrome://tracing, and reads back as the same timeline to the nanosecond.

- One track (``tid``) a lane, named and in the timeline's order.
- A span is a complete event (``ph`` "X"). ``ts`` and ``dur`` are microseconds with exactly three decimals,
  written from whole nanoseconds. ``ts`` counts from ``baseTimeNanoseconds``, as torch.profiler writes it,
  since viewers hold times in a float64, which cannot hold nanoseconds since 1970.
- An edge is a flow arrow of category "edge": it starts ("s") at the last nanosecond of its source and ends
  ("f", bound to the enclosing slice) at the start of its target. An arrow of category "launch" leads from
  each host call to the work it enqueued, from start to start. Where the clocks or a long wait would turn an
  arrow back in time, its ends are moved within their own slices; one that cannot point forward even so is
  left out of the picture, counted in ``arrows_not_drawn``, and still kept in ``otherData``.
- A result that is not fresh has its outcome in ``args`` and a colour of its own, and stands in words on a
  track below the lanes, so that it does not depend on colour.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LabError
from . import jsonfile
from .kineto import from_kineto
from .table import CATEGORIES, NO_DELAY, OUTCOMES, Timeline, TimelineBuilder

FORMAT = "flashnorm_lab timeline"
VERSION = 1
PID = 1
COLOURS = {"stale": "terrible", "torn": "bad", "early": "yellow"}
"""Names of chrome://tracing for a red, an orange and a yellow."""


def export_chrome(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Write the timeline to ``path``, whole or not at all (a temporary name beside it, then a rename).

    A link stays a link: the file that it points to is written. ``LabError`` as `check_target` raises it, and
    when the file cannot be written after all, for instance because the disk is full.
    """
    path = check_target(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        try:
            with part.open("x", encoding="ascii", newline="\n") as file:
                file.writelines(_text(timeline))
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise LabError(f"{path}: cannot be written ({error.strerror}); choose another folder") from None


def check_target(path: str | PathLike[str]) -> Path:
    """The file that an export to ``path`` writes. Worth a call before a long measurement.

    ``LabError`` for an empty name, a folder that does not exist or cannot be written, and for anything that
    is there and is no file: a folder, a device, a pipe.
    """
    if not isinstance(path, str | PathLike) or not str(path):
        raise LabError(f"{path!r} is no file name; give one, for instance timeline.json")
    path = Path(path).resolve()
    if not path.parent.is_dir():
        raise LabError(f"{path}: the folder {path.parent} does not exist; create it first or choose another")
    if path.is_dir():
        raise LabError(f"{path}: this is a folder; give the name of a file in it")
    if path.exists() and not path.is_file():
        raise LabError(f"{path}: this is a device or a pipe; give the name of a file")
    if not os.access(path.parent, os.W_OK):
        raise LabError(f"{path}: the folder {path.parent} cannot be written; choose another")
    return path


def open(path: str | PathLike[str]) -> Timeline:
    """Read a timeline: the lab's own export (lossless) or Chrome JSON of torch.profiler, plain or gzip.

    Raises ``LabError``, in one line, for a file that is missing, broken, or holds nothing that can be shown.
    """
    content = jsonfile.load(path)
    other = content.get("otherData") if isinstance(content, dict) else None
    if isinstance(other, dict) and other.get("format") == FORMAT:
        return _read_own(content, other, Path(path))
    return from_kineto(content, source=str(path))


def _text(t: Timeline) -> Iterator[str]:
    base = int(t.start_ns.min()) if len(t) else 0
    events, not_drawn = _events(t, base)
    other = {
        "format": FORMAT,
        "version": VERSION,
        "meta": t.meta,
        "lanes": [[lane.name, lane.kind] for lane in t.lanes],
        "names": list(t.names),
        "edges": [
            [s, e, t.names[n]]
            for s, e, n in zip(
                t.edge_source.tolist(), t.edge_target.tolist(), t.edge_name.tolist(), strict=True
            )
        ],
        "arrows_not_drawn": not_drawn,
    }
    yield f'{{"displayTimeUnit":"ns","baseTimeNanoseconds":{base},\n"otherData":{json.dumps(other)},\n'
    yield '"traceEvents":[\n'
    yield from _metadata(t)
    for _, _, _, text in events:
        yield ",\n" + text
    yield "\n]}\n"


def _metadata(t: Timeline) -> Iterator[str]:
    def row(kind: str, tid: int, **args: Any) -> str:
        return json.dumps(
            {"ph": "M", "name": kind, "pid": PID, "tid": tid, "args": args}, separators=(",", ":")
        )

    title = ", ".join(str(t.meta[key]) for key in ("schedule", "device", "provenance") if t.meta.get(key))
    yield row("process_name", 0, name=title or "timeline")
    rows = [lane.name for lane in t.lanes]
    if t.outcome.size and t.outcome.max() >= OUTCOMES.index("stale"):
        rows.append("results that are not fresh")
    for i, name in enumerate(rows):
        yield ",\n" + row("thread_name", i + 1, name=name)
        yield ",\n" + row("thread_sort_index", i + 1, sort_index=i)


Event = tuple[int, int, int, str]  # time, rank of its span, place among the events of that span, JSON text


def _events(t: Timeline, base: int) -> tuple[list[Event], int]:
    """Every event in the order of its time, an enclosing span before what it encloses."""
    order = np.lexsort((-t.duration_ns, t.start_ns))
    rank = np.empty(len(t), dtype=np.int64)
    rank[order] = np.arange(len(t))
    names = [json.dumps(text) for text in t.names]
    start, duration, ranks = (t.start_ns - base).tolist(), t.duration_ns.tolist(), rank.tolist()
    name, lane, category = t.name.tolist(), t.lane.tolist(), t.category.tolist()
    launch, step, outcome, delay = (
        t.launch.tolist(),
        t.step.tolist(),
        t.outcome.tolist(),
        t.launch_delay_ns().tolist(),
    )
    events: list[Event] = []
    for i in range(len(t)):
        label = OUTCOMES[outcome[i]]
        where = f'"ts":{_microseconds(start[i])},"dur":{_microseconds(duration[i])}'
        args = f'"span":{i}'
        if step[i] >= 0:
            args += f',"step":{step[i]}'
        if launch[i] >= 0:
            args += f',"launch":{launch[i]}'
        if delay[i] != NO_DELAY:
            args += f',"launch_delay_ns":{delay[i]}'
        if label:
            args += f',"outcome":"{label}"'
        colour = f'"cname":"{COLOURS[label]}",' if label in COLOURS else ""
        text = (
            f'{{"ph":"X","name":{names[name[i]]},"cat":"{CATEGORIES[category[i]]}","pid":{PID},'
            f'"tid":{lane[i] + 1},{where},{colour}"args":{{{args}}}}}'
        )
        events.append((start[i], ranks[i], 0, text))
        if label in COLOURS:
            text = (
                f'{{"ph":"X","name":{json.dumps(label + ": " + t.names[name[i]])},"cat":"outcome",'
                f'"pid":{PID},"tid":{len(t.lanes) + 1},{where},{colour}"args":{{{args}}}}}'
            )
            events.append((start[i], ranks[i], 3, text))

    not_drawn = 0
    for number, (source, target, text, kind) in enumerate(_arrows(t, names)):
        last = [start[i] + max(duration[i] - 1, 0) for i in (source, target)]
        begin = start[source]
        if kind == "edge":
            begin = min(last[0], max(begin, start[target]))
        end = max(start[target], begin)
        if end > last[1]:
            not_drawn += 1
            continue
        head = f'"name":{text},"cat":"{kind}","id":{number},"pid":{PID}'
        places = (ranks[source], ranks[target])
        events.append(
            (begin, places[0], 1, f'{{"ph":"s",{head},"tid":{lane[source] + 1},"ts":{_microseconds(begin)}}}')
        )
        events.append(
            (
                end,
                max(places) if begin == end else places[1],
                2,
                f'{{"ph":"f","bp":"e",{head},"tid":{lane[target] + 1},"ts":{_microseconds(end)}}}',
            )
        )
    events.sort(key=lambda event: event[:3])
    return events, not_drawn


def _arrows(t: Timeline, names: list[str]) -> Iterator[tuple[int, int, str, str]]:
    """Source span, target span, name as JSON, category: the edges, then each host call to its work."""
    for source, target, name in zip(
        t.edge_source.tolist(), t.edge_target.tolist(), t.edge_name.tolist(), strict=True
    ):
        yield source, target, names[name], "edge"
    for source, target in t.launches():
        yield source, target, '"launch"', "launch"


def _microseconds(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _read_own(content: dict[str, Any], other: dict[str, Any], path: Path) -> Timeline:
    if other.get("version") != VERSION:
        raise LabError(
            f"{path}: written as version {other.get('version')} of this format; this installation reads "
            f"version {VERSION}; update flashnorm_lab"
        )
    try:
        base = int(content["baseTimeNanoseconds"])
        lanes = [tuple(lane) for lane in other["lanes"]]
        spans = {
            event["args"]["span"]: event
            for event in content["traceEvents"]
            if event.get("ph") == "X" and event.get("cat") != "outcome"
        }
        build = TimelineBuilder()
        for text in other["names"]:
            build.name(text)
        for lane in lanes:
            build.lane(*lane)
        for i in range(len(spans)):
            event = spans[i]
            args = event["args"]
            build.span(
                event["name"],
                lanes[event["tid"] - 1][0],
                base + jsonfile.nanoseconds(event["ts"]),
                jsonfile.nanoseconds(event["dur"]),
                event["cat"],
                args.get("launch", -1),
                args.get("step", -1),
                args.get("outcome", ""),
            )
        for source, target, text in other["edges"]:
            build.edge(source, target, text)
        return build.build(**_floats(other["meta"]))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, LabError) as error:
        raise LabError(
            f"{path}: the file was changed after its export and does not fit together ({error!r})"
        ) from None


def _floats(value: Any) -> Any:
    """JSON as Python usually reads it: what the reader kept as decimal text becomes a float again."""
    if isinstance(value, dict):
        return {k: _floats(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_floats(v) for v in value]
    return value if value is None or isinstance(value, str | int) else float(value)
