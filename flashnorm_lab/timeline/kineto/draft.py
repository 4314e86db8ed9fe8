"""A trace on its way to a timeline: its columns, what its slices are, and what was counted on the way."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from ..reading import Events
from ..table import CATEGORIES, DEVICE_WORK
from .arrows import agreed
from .places import Ids, Labels, distinct
from .slices import Slices, check, is_phase, slices
from .words import OTHER, Side, call_categories, meaning

CODE = {category: i for i, category in enumerate(CATEGORIES)}
_WORK = [CODE[category] for category in DEVICE_WORK]
_DEVICE_LABEL = re.compile(r"(?:GPU|MTIA|XPU|HPU|NPU|TPU)\s*\d+")


@dataclass
class Draft:
    """Columns [events]: pid, tid (codes in ``ids``), thread (a row of ``threads``, which holds pid and tid).

    Columns [slices], in the order of ``found``: name (index into the events' names, -1 for none), category
    (int8 into `CATEGORIES`), call, sync, device, operation (bool). left_out, rows, notes: see `Slices`.
    """

    events: Events
    ids: Ids
    pid: np.ndarray
    tid: np.ndarray
    threads: np.ndarray
    thread: np.ndarray
    labels: Labels
    found: Slices
    name: np.ndarray
    category: np.ndarray
    call: np.ndarray
    sync: np.ndarray
    device: np.ndarray
    operation: np.ndarray
    left_out: Counter[str]
    rows: dict[str, int]
    notes: list[str]

    def category_text(self, category: int) -> str:
        """A category as the trace writes it, by its index in the events."""
        return self.events.categories[category] if category >= 0 else "uncategorized"

    def leave_out(self, what: str, places: np.ndarray) -> None:
        """Count these events as left out, by category: ``what`` holds a {} for it."""
        for category, count in Counter(self.events.category[places].tolist()).items():
            self.left_out[what.format(self.category_text(category))] += count


def draft(events: Events) -> Draft:
    """The slices of these events and what they are. ``LabError`` for events that cannot be read."""
    check(events)
    ids = Ids(events)
    pid, tid = ids.of(events.pid), ids.of(events.tid)
    threads, thread = distinct(pid, tid)
    labels = Labels.read(events, ids, pid, tid)
    found = slices(events, thread, _async_ranges(events, pid, thread))
    written = events.category[found.origin]
    name = events.name[found.origin]
    meanings = [*map(meaning, events.categories), OTHER]  # the last one is for index -1
    category = np.array([CODE[m.category] for m in meanings], dtype=np.int8)[written]
    side = np.array([m.side for m in meanings], dtype=np.int8)[written]
    plain = ~found.mark & ~found.apart
    call = np.array([m.call for m in meanings])[written] & plain & (name >= 0)
    called = name[call]
    category[call] = call_categories(events.names, np.unique(called).tolist())[called]
    category[found.apart] = CODE["other"]
    category[found.mark] = CODE["mark"]
    side[found.apart] = Side.HOST
    device = _on_device(side, thread[found.origin], threads, labels, ids)
    return Draft(
        events=events,
        ids=ids,
        pid=pid,
        tid=tid,
        threads=threads,
        thread=thread,
        labels=labels,
        found=found,
        name=name,
        category=category,
        call=call,
        sync=np.array([m.sync for m in meanings])[written] & plain,
        device=device,
        operation=device & np.isin(category, _WORK),
        left_out=found.left_out,
        rows=found.rows,
        notes=[*events.notes, *found.notes],
    )


def by_process(key: np.ndarray, pid: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Keys with the process as a part of those that begin in several processes; int [events].

    A file that was put together from several ranks has each id once for each rank.
    """
    begun = np.flatnonzero(starts)
    size = int(key.max(initial=0)) + 1
    owner = agreed(key[begun], pid[begun].astype(np.int64), size)
    several = np.zeros(size, dtype=bool)
    several[key[begun]] = True
    several &= owner < 0
    return distinct(key, np.where(several[key], pid, 0))[1]


def _async_ranges(events: Events, pid: np.ndarray, thread: np.ndarray) -> np.ndarray:
    """What the two ends of an async range have in common, int [events]."""
    begins = is_phase(events, b"bS")
    if not begins.any():
        return thread
    known = events.id >= 0  # events without an id belong together where they are on one thread
    own = np.where(known, 0, thread + 1)
    return by_process(distinct(events.category + 1, np.where(known, events.id + 1, 0), own)[1], pid, begins)


def _on_device(
    side: np.ndarray, thread: np.ndarray, threads: np.ndarray, labels: Labels, ids: Ids
) -> np.ndarray:
    """Whether each slice is on a device, bool [slices].

    A slice that may stand on either side goes by what else its thread has, then by its process' label.
    """
    has = {}
    for which in (Side.HOST, Side.DEVICE):
        has[which] = np.zeros(len(threads), dtype=bool)
        has[which][thread[side == which]] = True
    gpu = [bool(_DEVICE_LABEL.fullmatch(labels.labels.get(value, ""))) for value in ids.values]
    labelled = np.array(gpu, dtype=bool)[threads[:, 0]] if len(threads) else np.zeros(0, dtype=bool)
    known = has[Side.HOST] | has[Side.DEVICE]
    to_device = np.where(known, has[Side.DEVICE] & ~has[Side.HOST], labelled)
    return (side == Side.DEVICE) | ((side == Side.EITHER) & to_device[thread])
