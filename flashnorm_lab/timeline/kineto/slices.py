"""What of a trace's events becomes a span, with its times: complete events, pairs, marks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from ...errors import LabError
from ..reading import MISSING, Events
from .pairs import Pairs, pair

MARKS = b"iIRnTpP"
"""Phases that are points in time: instants, those within an async range, samples."""
ASYNC_BEGIN, ASYNC_END = b"bS", b"eF"
ASYNC = b"bSeFnTp"
FLOWS = b"stf"
_TAKEN = b"XBECM" + MARKS + ASYNC_BEGIN + ASYNC_END + FLOWS
_WORDS = {
    0: "events without a phase (ph)",
    ord("N"): "objects (phase N)",
    ord("O"): "objects (phase O)",
    ord("D"): "objects (phase D)",
    ord("V"): "memory dumps (phase V)",
    ord("v"): "memory dumps (phase v)",
    ord("c"): "clock readings (phase c)",
    ord("="): "links between ids (phase =)",
    ord("("): "contexts (phase '(')",
    ord(")"): "contexts (phase ')')",
}


@dataclass
class Slices:
    """Spans in the making, in the file's order: place of the event, start, duration; whether it is a point
    (mark), whether it belongs to an async range (apart).

    left_out: events that are no part of the timeline. rows: events that are in it in another way than as a
    span of their own. notes: what was made of odd ones.
    """

    origin: np.ndarray
    start: np.ndarray
    duration: np.ndarray
    mark: np.ndarray
    apart: np.ndarray
    left_out: Counter[str] = field(default_factory=Counter)
    rows: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_phase(events: Events, letters: bytes) -> np.ndarray:
    """Whether each event has one of these phases, bool [events]."""
    wanted = np.zeros(256, dtype=bool)
    wanted[list(letters)] = True
    return wanted[events.phase]


def place_of(events: Events, place: int) -> str:
    """Where an event stands, for messages."""
    name = events.names[events.name[place]] if events.name[place] >= 0 else ""
    return f"{events.where}, event {place}" + (f" ({name})" if name else "")


def check(events: Events) -> None:
    """``LabError`` for the first event that cannot be read, and for one without the time that it needs."""
    if events.broken:
        place, what = min(events.broken)
        raise LabError(f"{place_of(events, place)}: {what}")
    timed = is_phase(events, b"".join((b"XBEC", MARKS, ASYNC_BEGIN, ASYNC_END, FLOWS)))
    without = np.flatnonzero(timed & (events.ts == MISSING))
    if len(without):
        raise LabError(
            f"{place_of(events, int(without[0]))}: ts cannot be read: it is missing; microseconds were "
            f"expected ({len(without)} of {len(events)} events have none); export the trace again"
        )


def slices(events: Events, thread: np.ndarray, group: np.ndarray) -> Slices:
    """The spans of a trace. thread, group int [events]: the thread, and for async events their range."""
    whole = np.flatnonzero(events.phase == ord("X"))
    points = np.flatnonzero(is_phase(events, MARKS))
    dur = events.dur[whole]
    missing, negative = dur == MISSING, (dur < 0) & (dur != MISSING)
    dur = np.maximum(dur, 0)
    rows = {"metadata rows (phase M)": int((events.phase == ord("M")).sum())}
    found = Slices(*[np.empty(0)] * 5, rows=rows)
    _say(found.notes, "without a duration (dur)", events, whole[missing])
    _say(found.notes, "with a negative duration (dur)", events, whole[negative])
    parts = [(whole, events.ts[whole], dur), (points, events.ts[points], np.zeros(len(points), np.int64))]
    for letters, ends, by, what in (
        (b"BE", b"E", thread, "ranges (phases B and E)"),
        (ASYNC_BEGIN + ASYNC_END, ASYNC_END, group, "async ranges (phases b and e)"),
    ):
        both = np.flatnonzero(is_phase(events, letters))
        if len(both):
            parts += _ranges(events, both, is_phase(events, ends)[both], by, what, found)
    origin = np.concatenate([p[0] for p in parts])
    order = np.argsort(origin, kind="stable") if len(origin) > len(whole) else slice(None)
    found.origin = origin[order]
    found.start = np.concatenate([p[1] for p in parts])[order]
    found.duration = np.concatenate([p[2] for p in parts])[order]
    found.mark = is_phase(events, MARKS)[found.origin]
    found.apart = is_phase(events, ASYNC)[found.origin]
    for phase, count in Counter(events.phase[~is_phase(events, _TAKEN)].tolist()).items():
        found.left_out[_WORDS.get(phase, f"events of phase {chr(phase)}")] += count
    if len(origin) and int(found.start.max()) + int(found.duration.max()) >= 2**63:
        late = int(found.origin[np.argmax(found.start)])
        raise LabError(f"{place_of(events, late)}: its end does not fit into 64 bits of nanoseconds")
    return found


def _ranges(
    events: Events, both: np.ndarray, ends: np.ndarray, by: np.ndarray, what: str, found: Slices
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    at = events.ts[both]
    pairs: Pairs = pair(by[both], at, ~ends)
    first, second, unclosed = both[pairs.first], both[pairs.second], both[pairs.unclosed]
    found.rows[f"ends of {what}"] = len(second)
    if len(pairs.unopened):
        found.left_out[f"ends of {what} that nothing began"] = len(pairs.unopened)
    if len(unclosed):
        found.notes.append(
            f"{what} without an end: {len(unclosed)}, the first of them {_example(events, unclosed)}; each "
            "is drawn up to the end of the last event of its thread"
        )
    last = _last_ends(events, by)
    return [
        (first, events.ts[first], events.ts[second] - events.ts[first]),
        (unclosed, events.ts[unclosed], last[by[unclosed]] - events.ts[unclosed]),
    ]


def _last_ends(events: Events, by: np.ndarray) -> np.ndarray:
    """When the last event of each thread (or async range) ended, int64 [threads]."""
    timed = np.flatnonzero((events.ts != MISSING) & (events.phase != ord("M")))
    ends = events.ts[timed] + np.maximum(events.dur[timed], 0)
    last = np.full(int(by.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(last, by[timed], ends)
    return last


def _say(notes: list[str], what: str, events: Events, places: np.ndarray) -> None:
    if len(places):
        notes.append(
            f"complete events {what}: {len(places)}, the first of them {_example(events, places)}; they are "
            "drawn as 0 ns at their start, so every busy time lacks them"
        )


def _example(events: Events, places: np.ndarray) -> str:
    place = int(places[0])
    name = events.names[events.name[place]] if events.name[place] >= 0 else "unnamed"
    return f"event {place} ({name if len(name) <= 60 else name[:57] + '...'})"
