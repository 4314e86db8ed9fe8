"""What two kinds of profile say about order, in one form: calls, device work, synchronizations, records.

Nothing is concluded here. A number that a profile does not know is -1; so is one that it marks as unknown.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import LabError
from ..timeline import kineto, nsys
from ..timeline.reading import MISSING, Events, read_events
from ..timeline.table import DEVICE_WORK


class Place(NamedTuple):
    """A stream as a profile names it. The context is -1 where a profile knows none."""

    process: int
    device: Any
    context: int
    stream: Any


class Call(NamedTuple):
    """A call of the runtime or driver. ``ok``: whether it returned success; None where that is not said."""

    name: str
    process: int
    thread: tuple[Any, Any]
    start: int
    end: int
    correlation: int
    ok: bool | None


class Work(NamedTuple):
    """A kernel, a copy, a fill, or a whole graph, as it ran."""

    name: str
    place: Place
    start: int
    end: int
    process: int
    correlation: int
    category: str


class Sync(NamedTuple):
    """A profile's entry on one wait or synchronization.

    ``what`` is its own word for it. ``event`` numbers the event, ``record`` is the correlation of the call
    that recorded it, ``ticket`` a number that the entry has in common with that record, ``behind`` the stream
    that it was recorded on.
    """

    what: str
    process: int
    correlation: int
    start: int
    context: int
    place: Place | None
    event: int
    record: int
    ticket: int
    behind: Place | None


class Recorded(NamedTuple):
    """What is known of one call that recorded an event."""

    process: int
    correlation: int
    place: Place
    event: int
    ticket: int


@dataclass
class Raw:
    """One profile. ``kinds``: (process, context, stream) to the stream's kind, where the profile knows it."""

    calls: list[Call] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    records: list[Recorded] = field(default_factory=list)
    kinds: dict[tuple[int, int, Any], str] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)


_SUFFIX = re.compile(r"(?:_v\d+|_pt[sd][sz])+$")


def plain(name: str) -> str:
    """A call's name without the suffixes that headers and profilers give it: ``_v3020``, ``_ptsz``."""
    return _SUFFIX.sub("", name)


def read(path: Path) -> Raw:
    """The profile in a file: an Nsight Systems export if it is an SQLite database, else a Kineto trace."""
    nsys.refuse_report(path)
    try:
        with path.open("rb") as file:
            head = file.read(len(nsys.MAGIC))
    except OSError:
        head = b""  # the JSON reader says what is wrong with it
    return _nsight(path) if head == nsys.MAGIC else _kineto(path)


# Kineto


def _kineto(path: Path) -> Raw:
    events = read_events(path)
    kineto.check(events)
    raw = Raw()
    meanings = [*map(kineto.meaning, events.categories), kineto.OTHER]
    whole = events.phase == ord("X")
    calls = whole & np.array([m.call for m in meanings])[events.category]
    work = whole & np.array([m.category in DEVICE_WORK for m in meanings])[events.category]
    syncs = whole & np.array([m.sync for m in meanings])[events.category]
    _check_durations(events, np.flatnonzero(calls | work))
    numbers = np.unique(np.stack([events.correlation[calls], _same(events, events.pid)[calls]]), axis=1)[0]
    several, count = np.unique(numbers[numbers >= 0], return_counts=True)
    shared = set(several[count > 1].tolist())
    if shared:
        raw.unseen.append(f"what belongs to correlation numbers that several processes use: {len(shared)}")

    def tie(correlation: int) -> int:
        return -1 if correlation in shared else correlation

    names = [*map(plain, events.names), ""]
    ids = [*events.ids, None]
    for name, pid, tid, start, duration, correlation in _columns(
        events, calls, "name", "pid", "tid", "ts", "dur", "correlation"
    ):
        thread = (ids[pid], ids[tid])
        raw.calls.append(Call(names[name], 0, thread, start, start + duration, tie(correlation), None))
    nowhere = 0
    names = [*events.names, ""]
    columns = ("name", "category", "pid", "tid", "ts", "dur", "correlation", "device", "context", "stream")
    for name, category, pid, tid, start, duration, correlation, device, context, stream in _columns(
        events, work, *columns
    ):
        where = ids[stream if stream >= 0 else tid]
        if where is None:
            nowhere += 1
            continue
        number = _id(where)
        place = Place(
            0, ids[device if device >= 0 else pid], _id(ids[context]), number if number >= 0 else where
        )
        kind = meanings[category].category
        raw.work.append(Work(names[name], place, start, start + duration, 0, tie(correlation), kind))
    if nowhere:
        raw.unseen.append(f"kernels and copies of which the stream is not known, left out: {nowhere}")
    if not raw.work:
        launches = sum("Launch" in call.name for call in raw.calls)
        told = f", though {launches} launches" if launches else ""
        raise LabError(
            f"{path}: holds no kernel, copy or fill that ran on a stream{told}, so nothing can be ordered; "
            "profile with the GPU's activities switched on (ProfilerActivity.CUDA)"
        )
    _kineto_syncs(raw, events, np.flatnonzero(syncs).tolist(), tie)
    return raw


def _columns(events: Events, chosen: np.ndarray, *names: str) -> Iterator[tuple[int, ...]]:
    """Some columns of the chosen events, row by row, as Python's own integers."""
    return zip(*(getattr(events, name)[chosen].tolist() for name in names), strict=True)


def _same(events: Events, column: np.ndarray) -> np.ndarray:
    """The column with one number for each value as it reads, so that "7" and 7 are the same process."""
    known: dict[str, int] = {}
    codes = [known.setdefault(str(value), len(known)) for value in events.ids]
    return np.array([*codes, -1], dtype=np.int64)[column]


def _check_durations(events: Events, places: np.ndarray) -> None:
    for place in places[events.dur[places] < 0][:1].tolist():
        told = "cannot be read: it is missing" if events.dur[place] == MISSING else "is negative"
        raise LabError(f"{kineto.place_of(events, place)}: dur {told}; what ran first cannot be told from it")


def _id(value: Any) -> int:
    """A number that stands for something; -1, "not known", for whatever is no number of at least 0."""
    try:
        return max(int(value), -1)
    except (TypeError, ValueError):
        return -1


def _kineto_syncs(raw: Raw, events: Events, places: list[int], tie: Callable[[int], int]) -> None:
    numbered: dict[Any, set[Place]] = defaultdict(set)
    for w in raw.work:
        numbered[w.place.stream].add(w.place)
    one_context = len({w.place[:3] for w in raw.work}) == 1
    named: dict[int, set[tuple[Place, int]]] = defaultdict(set)
    for i in places:
        args = events.args(i)
        device = events.ids[events.device[i]] if events.device[i] >= 0 else None
        here = Place(0, device, _id(args.get("context")), -1)
        other = _id(args.get("wait_on_stream"))
        behind = _waited_for(other, numbered[other], here, one_context)
        own = _id(args.get("stream"))
        sync = Sync(
            what=events.names[events.name[i]] if events.name[i] >= 0 else "",
            process=0,
            correlation=tie(_id(args.get("correlation"))),
            start=int(events.ts[i]),
            context=here.context,
            place=_waiting(own, numbered[own], here),
            event=_id(args.get("wait_on_cuda_event_id")),
            record=tie(_id(args.get("wait_on_cuda_event_record_corr_id"))),
            ticket=-1,
            behind=behind,
        )
        raw.syncs.append(sync)
        if sync.record >= 0 and behind is not None:
            named[sync.record].add((behind, sync.event))
    for correlation, what in named.items():
        if len(what) == 1:  # two entries that contradict each other say nothing
            ((place, number),) = what
            raw.records.append(Recorded(0, correlation, place, number, -1))


def _waiting(stream: int, known: set[Place], here: Place) -> Place | None:
    """The stream of that number in the entry's own context; one that is not known there is a new stream."""
    if stream < 0:
        return None
    exact = {place for place in known if place.context == here.context}
    if exact or (known and here.context < 0):
        found = exact or known
        return next(iter(found)) if len(found) == 1 else None
    return here._replace(stream=stream)


def _waited_for(stream: int, known: set[Place], here: Place, one_context: bool) -> Place | None:
    """The stream of that number, of which the entry does not say the context."""
    if stream >= 0 and not known and one_context:
        return here._replace(stream=stream)
    return next(iter(known)) if stream >= 0 and len(known) == 1 else None


# Nsight Systems

_ACTIVITY = nsys.ACTIVITY
_UNKNOWN = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


def _number(value: Any) -> int:
    return value if isinstance(value, int) and value >= 0 and value not in _UNKNOWN else -1


def _process(identifier: Any) -> int:
    """The process in a serialized global identifier, told apart from those of other machines."""
    return identifier >> 24 if isinstance(identifier, int) else -1


def _nsight(path: Path) -> Raw:
    raw = Raw()
    with nsys.Export(path) as export:
        texts = export.texts()
        columns = ("start", "end", "globalTid", "correlationId", "nameId", "returnValue")
        for row, (start, end, thread, correlation, name, returned) in enumerate(
            export.rows(nsys.CALLS, *columns)
        ):
            _check_times(path, nsys.CALLS, row, start, end)
            process = _process(thread)
            who = (process & 0xFFFFFF, (thread or 0) & 0xFFFFFF)
            ok = None if returned is None else returned == 0
            called = plain(texts.get(name, f"call {name}"))
            raw.calls.append(Call(called, process, who, start, end, _number(correlation), ok))
        devices = _nsight_work(raw, export, texts)
        if not raw.work:
            launches = sum("Launch" in call.name for call in raw.calls)
            missing = "" if _ACTIVITY + "KERNEL" in export.columns else f" (no table {_ACTIVITY}KERNEL)"
            raise LabError(
                f"{path}: holds {launches} launches, and no kernel, copy or fill that ran{missing}, so "
                "nothing can be ordered; profile with nsys profile --trace=cuda, and export anew"
            )
        _nsight_syncs(raw, export, devices)
        _nsight_kinds(raw, export)
    return raw


def _nsight_work(raw: Raw, export: nsys.Export, texts: dict[int, str]) -> dict[tuple[int, int], int]:
    """Read what ran; returns the device of each (process, context)."""
    devices: dict[tuple[int, int], int] = {}
    called_by = {call.process for call in raw.calls}

    def rows(table: str, category: str, name: Callable[..., str], *columns: str) -> None:
        common = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
        for row, (start, end, device, context, stream, correlation, pid, *more) in enumerate(
            export.rows(_ACTIVITY + table, *common, *columns)
        ):
            _check_times(export.path, _ACTIVITY + table, row, start, end)
            process = _process(pid)
            if process < 0 and len(called_by) == 1:
                (process,) = called_by
            devices.setdefault((process, context), device)
            place = Place(process, device, context, stream)
            number = _number(correlation)
            raw.work.append(Work(name(*more), place, start, end, process, number, category))

    def kernel(name: Any, short: Any) -> str:
        return texts.get(name) or texts.get(short) or f"kernel {name}"

    rows("KERNEL", "kernel", kernel, "demangledName", "shortName")
    rows("MEMCPY", "copy", nsys.copy_name, "copyKind", "srcKind", "dstKind")
    rows("MEMSET", "fill", nsys.fill_name, "memKind")
    rows("GRAPH_TRACE", "graph", lambda graph: f"graph {graph}", "graphId")
    return devices


def _nsight_syncs(raw: Raw, export: nsys.Export, devices: dict[tuple[int, int], int]) -> None:
    def place(process: int, context: int, stream: Any) -> Place | None:
        # These tables name the wrong device here and there: the context says which it is.
        number = _number(stream)
        return Place(process, devices.get((process, context), 0), context, number) if number >= 0 else None

    columns = (
        "start",
        "contextId",
        "streamId",
        "correlationId",
        "globalPid",
        "syncType",
        "eventId",
        "eventSyncId",
    )
    for row, (start, context, stream, correlation, pid, what, event, ticket) in enumerate(
        export.rows(_ACTIVITY + "SYNCHRONIZATION", *columns)
    ):
        _check_times(export.path, _ACTIVITY + "SYNCHRONIZATION", row, start, start)
        process = _process(pid)
        raw.syncs.append(
            Sync(
                what=nsys.SYNCS.get(what, "synchronization"),
                process=process,
                correlation=_number(correlation),
                start=start,
                context=_number(context),
                place=place(process, context, stream),
                event=_number(event),
                record=-1,
                ticket=_number(ticket) or -1,
                behind=None,
            )
        )
    columns = ("contextId", "streamId", "correlationId", "globalPid", "eventId", "eventSyncId")
    for context, stream, correlation, pid, event, ticket in export.rows(_ACTIVITY + "CUDA_EVENT", *columns):
        process = _process(pid)
        where = place(process, context, stream)
        if where is not None and _number(correlation) >= 0:
            raw.records.append(Recorded(process, correlation, where, _number(event), _number(ticket) or -1))


def _nsight_kinds(raw: Raw, export: nsys.Export) -> None:
    """Stream kinds. Their tables have plain process numbers, which count where no two processes share one."""
    processes: dict[int, set[int]] = defaultdict(set)
    for w in raw.work:
        processes[w.process & 0xFFFFFF].add(w.process)
    listed = export.rows("TARGET_INFO_CUDA_STREAM", "processId", "contextId", "streamId", "flag")
    default = [
        *export.rows("TARGET_INFO_CUDA_NULL_STREAM", "processId", "contextId", "streamId"),
        *export.rows("TARGET_INFO_CUDA_CONTEXT_INFO", "processId", "contextId", "nullStreamId"),
    ]
    for pid, context, stream, flag in [*listed, *((*row, 3) for row in default)]:
        if flag in nsys.STREAM_KINDS and len(processes[pid]) == 1:
            (process,) = processes[pid]
            raw.kinds[process, context, stream] = nsys.STREAM_KINDS[flag]


def _check_times(path: Path, table: str, row: int, start: Any, end: Any) -> None:
    if not isinstance(start, int) or not isinstance(end, int) or end < start:
        raise LabError(
            f"{path}, table {table}, row {row}: start {start!r} and end {end!r}; expected were "
            "nanoseconds, and an end no earlier than the start"
        )
