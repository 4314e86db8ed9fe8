"""A part of a timeline: the spans of a window of time, and what belongs to them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import LabError
from .table import COLUMNS, COUNTER_COLUMNS, EDGE_COLUMNS, ENQUEUES, Timeline


def choose(t: Timeline, spans: np.ndarray) -> Timeline:
    """The timeline of these spans alone: bool [spans], or indices in the order that is wanted.

    Lanes and names stay as they are, so that their numbers keep their meaning. An edge stays if both of its
    ends do. Counters stay. ``meta`` stays, with "left_out" counting the spans and edges that went.
    """
    chosen = np.flatnonzero(spans) if np.asarray(spans).dtype == bool else np.asarray(spans, dtype=np.int64)
    place = np.full(len(t), -1, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    edges = (place[t.edge_source] >= 0) & (place[t.edge_target] >= 0)
    columns = {column: getattr(t, column)[chosen] for column in COLUMNS}
    columns |= {column: getattr(t, column)[edges] for column in EDGE_COLUMNS}
    columns["edge_source"] = place[columns["edge_source"]]
    columns["edge_target"] = place[columns["edge_target"]]
    gone = {
        "spans that were not chosen": len(t) - len(chosen),
        "edges of spans that were not chosen": int((~edges).sum()),
    }
    left_out = dict(t.meta.get("left_out", {}))
    for what, count in gone.items():
        if count:
            left_out[what] = left_out.get(what, 0) + count
    return replace(t, **columns, meta=t.meta | ({"left_out": left_out} if left_out else {}))


def within(t: Timeline, window: tuple[int, int]) -> Timeline:
    """The spans that touch a window, whole, and the host calls that enqueued them, wherever those are, with
    the host's operators and ranges around these calls: what a kernel belongs to is told from them.

    window: start and end in absolute nanoseconds; the start belongs to it, the end does not. Samples of
    counters outside of it go too. ``LabError`` for a window that does not end after it starts, or in which
    there is nothing.
    """
    start, end = check_window(window)
    inside = (t.start_ns < end) & ((t.end_ns > start) | ((t.duration_ns == 0) & (t.start_ns >= start)))
    if not inside.any():
        raise nothing_there(t, start, end)
    calls, work = t.launches().T
    calls = calls[inside[work]]
    inside[calls] = True
    inside |= _around(t, calls)
    samples = (t.counter_ns >= start) & (t.counter_ns < end)
    left_out = dict(t.meta.get("left_out", {}))
    if not samples.all():
        what = "counter samples outside of the window"
        left_out[what] = left_out.get(what, 0) + int((~samples).sum())
    counters = {column: getattr(t, column)[samples] for column in COUNTER_COLUMNS}
    meta = t.meta | ({"left_out": left_out} if left_out else {})
    return choose(replace(t, **counters, meta=meta), inside)


def _around(t: Timeline, calls: np.ndarray) -> np.ndarray:
    """Which spans are operators or ranges of the host that stand around the start of one of these calls."""
    found = np.zeros(len(t), dtype=bool)
    context = np.flatnonzero(~t.on_device() & t.is_category("op", "range"))
    for lane in np.unique(t.lane[calls]):
        moments = np.sort(t.start_ns[calls[t.lane[calls] == lane]])
        mine = context[t.lane[context] == lane]
        first, last = np.searchsorted(moments, [t.start_ns[mine], t.end_ns[mine]])
        found[mine[first < last]] = True
    return found


def launched_within(t: Timeline, window: tuple[int, int]) -> Timeline:
    """The host calls that start in a window, and the operations that they enqueued, wherever those are.

    For figures of calls, of which a window of the device shows those that belong to other work. The timeline
    is empty where no call enqueued anything then. ``LabError`` as `check_window` raises it.
    """
    start, end = check_window(window)
    chosen = ~t.on_device() & t.is_category(*ENQUEUES) & (t.start_ns >= start) & (t.start_ns < end)
    calls, work = t.launches().T
    chosen[work[chosen[calls]]] = True
    return choose(t, chosen)


def clipped(t: Timeline, window: tuple[int, int]) -> Timeline:
    """What `within` gives, with the spans of device lanes cut at the window's edges.

    For figures of time: what lies outside of the window is then in none of them. Host calls stay whole, so
    that an operation still has its launch.
    """
    part = within(t, window)
    device = part.on_device()
    begin = np.where(device, np.clip(part.start_ns, *window), part.start_ns)
    end = np.where(device, np.clip(part.end_ns, *window), part.end_ns)
    return replace(part, start_ns=begin, duration_ns=end - begin)


def check_window(window: tuple[int, int]) -> tuple[int, int]:
    """The window as two whole numbers. ``LabError`` if it does not end after it starts."""
    start, end = (int(edge) for edge in window)
    if end <= start:
        raise LabError(f"window {start} to {end} ns: it must end after it starts")
    return start, end


def nothing_there(t: Timeline, start: int, end: int) -> LabError:
    """What to raise for a window that no span touches."""
    first, last = extent(t)
    return LabError(
        f"window {start} to {end} ns: no span touches it; this timeline goes from {first} to {last} ns"
    )


def extent(t: Timeline) -> tuple[int, int]:
    """The first start and the last end of all spans, absolute nanoseconds; (0, 0) where there are none."""
    return (int(t.start_ns.min()), int(t.end_ns.max())) if len(t) else (0, 0)
