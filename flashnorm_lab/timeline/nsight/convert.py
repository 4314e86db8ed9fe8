"""From the rows of an Nsight Systems export to a timeline: numpy from end to end, there are millions."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np

from ...errors import LabError
from ..kineto import steps
from ..kineto.waits import order_edges
from ..kineto.words import STREAM_WAIT, sync_category
from ..nsys import Export
from ..table import Timeline
from .lanes import Lanes, lanes_of
from .rows import Reader
from .saying import count_others, meta_of, what_lacks
from .tables import APART, CODE, COLUMNS, DEVICE, FLAGS, NONE, Rows
from .waits import stream_waits


def timeline_of(export: Export, source: str) -> Timeline:
    """The timeline of an export; see `from_nsight`."""
    reader = Reader(export)
    found = reader.read()
    count_others(export, found, reader.read_tables)
    c = {name: found.column(name) for name in (*COLUMNS, *FLAGS)}
    if not len(c["start"]):
        _refuse_empty(export)
    made = _Conversion(export, found, c)
    made.run()
    plain = made.table()
    known, unknown, lost = stream_waits(
        c, made.launch, made.texts, found.records, made.lanes.places, made.lanes.devices
    )
    found.rows["event records, of which the calls are spans"] = found.recorded - lost
    found.left_out["event records of which the call is not in the file, or failed"] = lost
    edges, more = order_edges(known, plain)
    found.notes += what_lacks(export, plain)
    meta = meta_of(export, found, made.lanes, source) | {"edges_unknown": unknown + more}
    return _finish(plain, edges, {key: value for key, value in meta.items() if value})


def _refuse_empty(export: Export) -> None:
    there = sorted(table for table in export.columns if export.count(table))
    listed = ", ".join(there[:4]) or "none"
    raise LabError(
        f"{export.path}: holds no call, kernel, copy or NVTX range, so there is nothing to show (tables with "
        f"rows: {listed}); record with: nsys profile --trace=cuda,nvtx"
    )


class _Conversion:
    """Works on the rows' columns in place: lanes, launches, steps, and what each row is."""

    def __init__(self, export: Export, found: Rows, columns: dict[str, np.ndarray]) -> None:
        self.export, self.found, self.c = export, found, columns
        self.notes = found.notes
        self.texts = list(found.names.codes)

    def run(self) -> None:
        self._processes()
        self._open_ranges()
        self.lanes: Lanes = lanes_of(self.c, self.export, self.found.threads)
        self._launches()
        self._twice()
        self._judge_syncs()
        self._steps()

    def table(self) -> Timeline:
        """The spans, without edges."""
        c = self.c
        return Timeline(
            names=tuple(self.texts),
            lanes=tuple(self.lanes.lanes),
            name=c["name"],
            lane=self.lanes.lane,
            start_ns=c["start"],
            duration_ns=c["duration"],
            launch=self.launch,
            category=c["category"],
            step=self.step,
            outcome=np.zeros(len(self.step), dtype=np.int8),
            edge_source=(),
            edge_target=(),
            edge_name=(),
            origin=c["origin"],
        )

    def _processes(self) -> None:
        """Work of which the process is not told belongs to the only one that makes calls."""
        c = self.c
        callers = np.unique(c["process"][c["call"] & (c["process"] >= 0)])
        if len(callers) == 1:
            c["process"][(c["side"] == DEVICE) & (c["process"] < 0)] = callers[0]
            for record in self.found.records:
                record["process"][record["process"] < 0] = callers[0]

    def _open_ranges(self) -> None:
        """A range without an end is drawn up to the end of its thread's (or its process's) last event."""
        c = self.c
        for i in np.flatnonzero(c["open"]).tolist():
            near = (c["side"] != DEVICE) & (c["process"] == c["process"][i])
            if c["side"][i] != APART:
                near &= c["thread"] == c["thread"][i]
            last = (c["start"][near] + c["duration"][near]).max()
            c["duration"][i] = last - c["start"][i]
        several = np.flatnonzero(c["open"])
        if len(several):
            first = self.texts[c["name"][several[0]]]
            self.notes.append(
                f"NVTX ranges without an end: {len(several)} (the first is {first[:60]!r}); each is drawn up "
                "to the end of its thread's last event"
            )

    def _launches(self) -> None:
        """Launch numbers: the correlation numbers, those of further processes moved apart."""
        c = self.c
        known = c["correlation"] >= 0
        processes = np.unique(c["process"][known | c["call"]])
        self.launch = np.where(known, c["correlation"], NONE)
        if len(processes) > 1:
            rank = np.searchsorted(processes, c["process"])
            stride = int(self.launch.max()) + 1
            if stride * len(processes) >= 2**62:
                numbers, self.launch = np.unique(self.launch, return_inverse=True)
                stride = len(numbers)
            untold = known & (c["process"] < 0)
            self.launch = np.where(known & ~untold, self.launch + rank * stride, NONE)
            if untold.any():
                self.notes.append(
                    f"rows with a correlation number but without a process, where several make calls: "
                    f"{untold.sum()}; what called them is taken as unknown"
                )
        lacking = int(((c["side"] == DEVICE) & ~c["sync"] & ~known).sum())
        if lacking:
            self.notes.append(
                f"kernels, copies and fills without a correlation number: {lacking}; the calls that enqueued "
                "them are not known"
            )

    def _twice(self) -> None:
        """A call that is recorded once more within itself counts once: the inner one is "other"."""
        c = self.c
        calls = np.flatnonzero(c["call"] & (self.launch >= 0))
        order = calls[np.lexsort((-c["duration"][calls], c["start"][calls], self.launch[calls]))]
        end = c["start"] + c["duration"]
        before, after = order[:-1], order[1:]
        same = np.logical_and.reduce([c[name][before] == c[name][after] for name in ("name", "thread")])
        inner = same & (self.launch[before] == self.launch[after]) & (end[after] <= end[before])
        again = after[inner]
        if len(again):
            c["category"][again] = CODE["other"]
            c["call"][again] = False
            self.notes.append(
                f"calls that are recorded twice, with one correlation number: {len(again)}; the inner ones "
                'stand as "other", so that each call counts once'
            )

    def _judge_syncs(self) -> None:
        """The call says what a synchronization is: files contradict their own table of types."""
        c = self.c
        syncs = np.flatnonzero(c["sync"])
        if not len(syncs):
            return
        calls = np.flatnonzero(c["call"] & (self.launch >= 0))[::-1]
        called = dict(zip(self.launch[calls].tolist(), c["name"][calls].tolist(), strict=True))
        pairs = [
            (name, called.get(number, NONE))
            for name, number in zip(c["name"][syncs].tolist(), self.launch[syncs].tolist(), strict=True)
        ]
        judged: dict[tuple[int, int], tuple[str, str | None]] = {}
        false: Counter[int] = Counter()
        for (name, call), count in Counter(pairs).items():
            entry, told = self.texts[name], self.texts[call] if call >= 0 else None
            word = entry if told is None else sync_word(told, entry)
            judged[name, call] = (word, told)
            if word != entry:
                false[name] += count
                self.notes.append(
                    f"synchronizations of type {entry!r} that belong to {told}: {count}; the call's name "
                    f"decides, so they stand as {word!r}"
                )
        codes = {}
        for (name, call), (word, told) in judged.items():
            if told is None and false[name]:
                word = "Synchronization"  # its type is wrong elsewhere, and no call says what this one is
            if word not in self.texts:
                self.texts.append(word)
            codes[name, call] = (self.texts.index(word), CODE[sync_category(word, told)])
        c["name"][syncs], c["category"][syncs] = np.array([codes[pair] for pair in pairs], dtype=np.int64).T

    def _steps(self) -> None:
        """Steps: of host rows by their start, of device rows by their call, of a step by its own name."""
        c = self.c
        bare = c["bare"]
        named = steps.step_names(tuple(self.texts), np.unique(bare[bare >= 0]))
        own = np.where(bare >= 0, named[bare], NONE)
        host = c["side"] != DEVICE
        self.step = np.full(len(own), NONE, dtype=np.int64)
        for process in np.unique(c["process"][own >= 0]).tolist():
            ranges = np.flatnonzero((own >= 0) & (c["process"] == process))
            at = np.flatnonzero(host & (c["process"] == process))
            start = c["start"][ranges]
            self.step[at] = steps.steps_at(start, start + c["duration"][ranges], own[ranges], c["start"][at])
        self.step[own >= 0] = own[own >= 0]
        calls = np.flatnonzero(c["call"] & (self.launch >= 0))
        calls = calls[np.lexsort((c["start"][calls], self.launch[calls]))]
        numbers, first = np.unique(self.launch[calls], return_index=True)
        work = np.flatnonzero(~host & (self.launch >= 0))
        if len(numbers):
            place = np.minimum(np.searchsorted(numbers, self.launch[work]), len(numbers) - 1)
            hit = numbers[place] == self.launch[work]
            self.step[work[hit]] = self.step[calls[first[place[hit]]]]


def sync_word(call: str, entry: str) -> str:
    """What a synchronization is called, by its call; by its entry where the call says nothing."""
    if "StreamWait" in call:
        return STREAM_WAIT
    if "Event" in call:
        return "Event Sync"
    if "Stream" in call:
        return "Stream Sync"
    return "Context Sync" if re.search(r"(?:Device|Ctx|Context|Thread)Synchronize", call) else entry


def _finish(plain: Timeline, edges: list[tuple[int, int, str]], meta: dict[str, Any]) -> Timeline:
    """The whole timeline, with only the names that are used."""
    used = np.zeros(len(plain.names), dtype=bool)
    used[plain.name] = True
    code = np.cumsum(used) - 1
    names = {plain.names[i]: int(code[i]) for i in np.flatnonzero(used).tolist()}
    edge_name = [names.setdefault(name, len(names)) for _, _, name in edges]
    kept = {
        column: getattr(plain, column)
        for column in (
            "lanes",
            "lane",
            "start_ns",
            "duration_ns",
            "launch",
            "category",
            "step",
            "outcome",
            "origin",
        )
    }
    return Timeline(
        names=tuple(names),
        name=code[plain.name],
        edge_source=[source for source, _, _ in edges],
        edge_target=[target for _, target, _ in edges],
        edge_name=edge_name,
        meta=meta,
        **kept,
    )
