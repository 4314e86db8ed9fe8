"""Puts several timelines onto one: the ranks of a run, or two runs one above the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import LabError
from .table import COLUMNS, COUNTER_COLUMNS, EDGE_COLUMNS, PROVENANCES, Lane, Timeline

ALIGN = ("clock", "start")
_ROOM = 2**63 - 1


def merge(timelines: Mapping[str, Timeline], align: str = "clock") -> Timeline:
    """One timeline of several, by name: ``merge({"rank 0": a, "rank 1": b})``.

    Lanes keep their order and get the name in front ("rank 0 · stream 7"), and so do devices, processes and
    counters, so that equal ones of two timelines stay apart. Launch numbers are moved apart where two
    timelines use the same. Spans stand one timeline after the other; ``origin`` is the place in the file of
    the span's own timeline.

    align: "clock" leaves all times as they are, except those of Nsight Systems, which count from the start of
    each recording: where all timelines tell when that was (``meta["session_start_ns"]``), they count from the
    first one's. "start" moves each timeline so that its first span or counter
    starts with that of the first timeline, and keeps by how much in ``meta["shift_ns"]`` [name to ns].

    ``meta["merged"]`` holds each timeline's own meta by its name. What was left out and what was noted stand
    in ``left_out`` and ``notes`` with the name in front. The provenance is the weakest of all. A note tells
    of clocks that cannot be compared: timelines that have no moment in common.

    ``LabError`` for no timeline, an unknown ``align``, and times that do not fit into 64 bits once moved.
    """
    if align not in ALIGN:
        raise LabError(f"align={align!r} is not one of {', '.join(map(repr, ALIGN))}")
    if not timelines:
        raise LabError("there is no timeline to merge; give at least one, by name")
    shifts = _shifts(timelines) if align == "start" else _session_shifts(timelines)
    moved = {name: _moved(name, t, shifts[name]) for name, t in timelines.items()}
    launches = _launch_shifts(moved)
    names: dict[str, int] = {}
    lanes: list[Lane] = []
    spans = 0
    parts: list[dict[str, np.ndarray]] = []
    for name, t in moved.items():
        counters = set(np.unique(t.counter_name).tolist())
        code = np.array([names.setdefault(text, len(names)) for text in t.names], dtype=np.int64)
        counter = np.array(
            [
                names.setdefault(_under(name, text), len(names)) if i in counters else -1
                for i, text in enumerate(t.names)
            ],
            dtype=np.int64,
        )
        part = {column: getattr(t, column) for column in (*COLUMNS, *EDGE_COLUMNS, *COUNTER_COLUMNS)}
        part["name"] = code[t.name]
        part["lane"] = t.lane + len(lanes)
        part["launch"] = np.where(t.launch >= 0, t.launch + launches[name], -1)
        part["edge_source"], part["edge_target"] = t.edge_source + spans, t.edge_target + spans
        part["edge_name"] = code[t.edge_name]
        part["counter_name"] = counter[t.counter_name]
        parts.append(part)
        lanes += [_lane(name, lane) for lane in t.lanes]
        spans += len(t)
    columns = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
    meta = _meta(moved)
    if align == "start" or any(shifts.values()):
        meta["shift_ns"] = shifts
    return _with_used_names(
        Timeline(names=tuple(names), lanes=tuple(_apart(lanes)), **columns, meta=meta),
    )


def _under(name: str, text: str) -> str:
    return f"{name} · {text}"


def _lane(name: str, lane: Lane) -> Lane:
    device = f"{name} device {lane.device}" if lane.device.isdecimal() else f"{name} {lane.device}".strip()
    process = f"{name} {lane.process}".strip()
    return Lane(_under(name, lane.name), lane.kind, device if lane.kind == "device" else "", process)


def _apart(lanes: list[Lane]) -> list[Lane]:
    """The lanes with a number behind names that came out equal ("a · b" under "c", "b" under "c · a")."""
    taken: set[str] = set()
    for i, lane in enumerate(lanes):
        name, n = lane.name, 2
        while name in taken:
            name, n = f"{lane.name} ({n})", n + 1
        taken.add(name)
        lanes[i] = Lane(name, lane.kind, lane.device, lane.process)
    return lanes


def _window(t: Timeline) -> tuple[int, int] | None:
    """First start and last end of everything in it; None where there is nothing."""
    starts = [int(times.min()) for times in (t.start_ns, t.counter_ns) if len(times)]
    ends = [int(times.max()) for times in (t.end_ns, t.counter_ns) if len(times)]
    return (min(starts), max(ends)) if starts else None


def _shifts(timelines: Mapping[str, Timeline]) -> dict[str, int]:
    windows = {name: _window(t) for name, t in timelines.items()}
    zero = next((w[0] for w in windows.values() if w), 0)
    return {name: zero - w[0] if w else 0 for name, w in windows.items()}


def _session_shifts(timelines: Mapping[str, Timeline]) -> dict[str, int]:
    """What to add to times that count from the start of each recording; 0 where not all tell when it was."""
    began = {name: int(t.meta.get("session_start_ns", 0)) for name, t in timelines.items()}
    first = min(began.values())
    return {name: at - first if first else 0 for name, at in began.items()}


def _moved(name: str, t: Timeline, shift: int) -> Timeline:
    if not shift:
        return t
    window = _window(t)
    if window is not None and window[1] + shift > _ROOM:
        raise LabError(f"{name}: moved by {shift} ns, its end does not fit into 64 bits of nanoseconds")
    return replace(t, start_ns=t.start_ns + shift, counter_ns=t.counter_ns + shift)


def _launch_shifts(timelines: Mapping[str, Timeline]) -> dict[str, int]:
    """What to add to each timeline's launch numbers: nothing where all are apart as they are."""
    used = {name: np.unique(t.launch[t.launch >= 0]) for name, t in timelines.items()}
    every = np.concatenate(list(used.values()))
    shifts = dict.fromkeys(timelines, 0)
    if len(np.unique(every)) == len(every):
        return shifts
    at = 0
    for name, numbers in used.items():
        if len(numbers):
            shifts[name] = at - (int(numbers[0]) if at else 0)
            at = shifts[name] + int(numbers[-1]) + 1
    if at > _ROOM:
        raise LabError("the launch numbers of these timelines do not fit into 64 bits next to each other")
    return shifts


def _meta(timelines: Mapping[str, Timeline]) -> dict[str, Any]:
    metas = {name: t.meta for name, t in timelines.items()}
    told = [m["provenance"] for m in metas.values() if "provenance" in m]
    notes = [_under(name, note) for name, t in timelines.items() for note in t.notes]
    found = {
        "device": ", ".join(dict.fromkeys(str(m["device"]) for m in metas.values() if m.get("device"))),
        "provenance": max(told, key=PROVENANCES.index, default=""),
        "left_out": {
            _under(name, what): count
            for name, m in metas.items()
            for what, count in m.get("left_out", {}).items()
        },
        "edges_unknown": sum(m.get("edges_unknown", 0) for m in metas.values()),
        "clock_error_ns": max((m.get("clock_error_ns", 0) for m in metas.values()), default=0),
        "notes": [*_session_notes(timelines), *_clock_notes(timelines), *notes],
    }
    return {key: value for key, value in found.items() if value} | {"merged": metas}


def _session_notes(timelines: Mapping[str, Timeline]) -> list[str]:
    """A line for each that counts from the start of its recording, and does not tell when that was."""
    untold = [
        name
        for name, t in timelines.items()
        if "tables" in (t.meta.get("file") or {}) and not t.meta.get("session_start_ns")
    ]
    return [
        f"{name} counts from the start of its recording, and does not tell when that was: its clock cannot "
        "be compared with that of another"
        for name in untold
        if len(timelines) > 1
    ]


def _clock_notes(timelines: Mapping[str, Timeline]) -> list[str]:
    """A line for each timeline that has no moment in common with any timeline before it."""
    notes = []
    seen: tuple[int, int] | None = None
    for name, t in timelines.items():
        window = _window(t)
        if window is None:
            continue
        if seen is not None and (window[0] > seen[1] or window[1] < seen[0]):
            apart = max(window[0] - seen[1], seen[0] - window[1])
            side = "behind the end" if window[0] > seen[1] else "before the start"
            notes.append(
                f"{name} lies {apart / 1e9:.6g} s {side} of the timelines before it; if they ran together, "
                'their clocks cannot be compared, and align="start" puts their starts together'
            )
        seen = window if seen is None else (min(seen[0], window[0]), max(seen[1], window[1]))
    return notes


def _with_used_names(t: Timeline) -> Timeline:
    """The same timeline with only the names that it uses, in their order."""
    used = np.zeros(len(t.names), dtype=bool)
    for column in (t.name, t.edge_name, t.counter_name):
        used[column] = True
    code = np.cumsum(used) - 1
    return replace(
        t,
        names=tuple(name for name, keep in zip(t.names, used.tolist(), strict=True) if keep),
        name=code[t.name],
        edge_name=code[t.edge_name],
        counter_name=code[t.counter_name],
    )
