"""The lanes of a trace, in their order: threads that make calls, other threads, async ranges, streams."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..table import Lane
from .draft import Draft
from .places import UNKNOWN, distinct, in_order, stream_id

_LAST = 2**62


@dataclass(frozen=True)
class Row:
    """A lane in the making. key: (process, thread), (process, category) or (process, device, stream)."""

    key: tuple[Any, ...]
    order: tuple[Any, ...]
    lane: Lane


def lanes_of(draft: Draft, streams: Mapping[Any, str]) -> tuple[list[Row], np.ndarray]:
    """The lanes, and which one each slice is on, int64 [slices]. ``streams``: names of streams by number."""
    apart = draft.found.apart
    rows: list[Row] = []
    lane = np.full(len(apart), -1, dtype=np.int64)
    hosts = np.flatnonzero(~draft.device & ~apart)
    asyncs, devices = np.flatnonzero(apart), np.flatnonzero(draft.device)
    for part, (new, which) in (
        (hosts, _hosts(draft, hosts)),
        (asyncs, _asyncs(draft, asyncs)),
        (devices, _streams(draft, devices, streams)),
    ):
        order = sorted(range(len(new)), key=lambda i: new[i].order)
        rank = np.empty(len(new), dtype=np.int64)
        rank[order] = np.arange(len(rows), len(rows) + len(new))
        rows += [new[i] for i in order]
        lane[part] = rank[which]
    return _told_apart(rows), lane


def _hosts(draft: Draft, part: np.ndarray) -> tuple[list[Row], np.ndarray]:
    values, labels, origin = draft.ids.values, draft.labels, draft.found.origin[part]
    keys, which = distinct(draft.pid[origin], draft.tid[origin])
    start, calls = draft.found.start[part], draft.call[part]
    first = _least(which, start, len(keys))
    first_call = _least(which[calls], start[calls], len(keys))
    calling = np.zeros(len(keys), dtype=bool)
    calling[which[calls]] = True
    named = [(values[p], values[t]) for p, t in keys.tolist()]
    bare = Counter(thread for who in named if who not in labels.threads for thread in who[1:])
    rows = []
    for i, (process, thread) in enumerate(named):
        only = (
            calling.sum() == 1 if calling[i] else len(keys) == 1 and (process, thread) not in labels.threads
        )
        name = "host" if only else _thread_name(draft, process, thread, bare[thread] > 1)
        place = (labels.orders.get(process, _LAST), labels.orders.get((process, thread), _LAST))
        order = (0, int(first_call[i])) if calling[i] else (1, *place, int(first[i]))
        rows.append(Row((process, thread), order, Lane(name, "host", "", labels.process(process))))
    return rows, which


def _thread_name(draft: Draft, process: Any, thread: Any, repeated: bool) -> str:
    """What a thread is called: as the trace names it, else by its id, and the process' where that repeats."""
    labels = draft.labels
    told = labels.threads.get((process, thread), "")
    if told:
        return told
    if thread == UNKNOWN:
        return "trace" if process == UNKNOWN else f"process {labels.process(process)}"
    if isinstance(thread, str):
        return thread
    if process == -1 and process in labels.processes:  # Kineto puts its own overhead there
        return labels.processes[process]
    return f"host {process}/{thread}" if repeated else f"host {thread}"


def _asyncs(draft: Draft, part: np.ndarray) -> tuple[list[Row], np.ndarray]:
    origin = draft.found.origin[part]
    keys, which = distinct(draft.pid[origin], draft.events.category[origin] + 1)
    first = _least(which, draft.found.start[part], len(keys))
    rows = []
    for i, (pid, category) in enumerate(keys.tolist()):
        process = draft.ids.values[pid]
        text = draft.events.categories[category - 1] if category else ""
        lane = Lane(f"async {text}".strip(), "host", "", draft.labels.process(process))
        rows.append(Row((process, text), (int(first[i]),), lane))
    return rows, which


def _streams(draft: Draft, part: np.ndarray, streams: Mapping[Any, str]) -> tuple[list[Row], np.ndarray]:
    """Work and waits say their device and stream themselves; what else is on their thread of the trace goes
    with them; else the process and thread of the trace stand for device and stream."""
    events, ids = draft.events, draft.ids
    origin = draft.found.origin[part]
    thread, operation = draft.thread[origin], draft.operation[part]
    says = operation | draft.sync[part]
    stream_of_tid = np.array([ids.code(stream_id(value)) for value in ids.values], dtype=np.int64)
    device, stream = draft.pid[origin].astype(np.int64), stream_of_tid[draft.tid[origin]]
    for column, told in ((device, events.device[origin]), (stream, events.stream[origin])):
        there = says & (told >= 0)
        column[there] = ids.of(told[there])
    numbered = operation | (says & (events.stream[origin] >= 0))
    work = np.flatnonzero(operation)[::-1]
    for column in (device, stream):
        of_thread = np.full(len(draft.threads), -1, dtype=np.int64)
        of_thread[thread[work]] = column[work]
        with_work = ~says & (of_thread[thread] >= 0)
        column[with_work] = of_thread[thread[with_work]]
    keys, which = distinct(draft.pid[origin], device, stream)
    is_numbered = np.zeros(len(keys), dtype=bool)
    is_numbered[which[numbered]] = True
    example = np.zeros(len(keys), dtype=np.int64)
    example[which[::-1]] = origin[::-1]
    several = len(set(keys[:, 1].tolist())) > 1
    values = ids.values
    rows = []
    for i, key in enumerate(keys.tolist()):
        process, owner, number = (values[k] for k in key)
        place = int(example[i])
        told = draft.labels.threads.get((process, values[draft.tid[place]]), "")
        if number in streams:
            name = streams[number]
        elif number in (UNKNOWN, -1):
            name = "no stream"
        elif told and stream_id(told) != number:
            name = told
        elif is_numbered[i] or told:
            name = f"stream {number}"
        else:
            name = draft.category_text(int(events.category[place]))
        if several:
            name = f"unknown device {name}" if owner == UNKNOWN else f"device {owner} {name}"
        order = (in_order(owner), in_order(process), number in (UNKNOWN, -1), in_order(number))
        rows.append(Row((process, owner, number), order, Lane(name, "device", str(owner))))
    return rows, which


def _told_apart(rows: list[Row]) -> list[Row]:
    """The same rows with names that are all different: equal ones get their thread, then their process."""
    names = [row.lane.name for row in rows]
    for part in (-1, 0):
        seen = Counter(names)
        for i, row in enumerate(rows):
            more = str(row.key[part])
            if seen[names[i]] > 1 and more and more not in names[i].split():
                names[i] = f"{names[i]} · {more}"
    taken: set[str] = set()
    told = []
    for row, plain in zip(rows, names, strict=True):
        name, n = plain, 2
        while name in taken:
            name, n = f"{plain} ({n})", n + 1
        taken.add(name)
        told.append(Row(row.key, row.order, Lane(name, row.lane.kind, row.lane.device, row.lane.process)))
    return told


def _least(group: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    least = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(least, group, values)
    return least
