"""Which record a stream's wait was for, as far as an Nsight Systems export tells it. Nothing is guessed."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..kineto.waits import StreamWait
from ..table import CATEGORIES

_RECORD, _WAIT = CATEGORIES.index("record"), CATEGORIES.index("wait")


class _Call(NamedTuple):
    launch: int
    process: int
    thread: int
    start: int
    end: int


class _Record(NamedTuple):
    """One row of the table of event records, with its call (None where that is not in the file)."""

    call: _Call | None
    process: int
    context: int
    event: int
    lane: int


def stream_waits(
    columns: Mapping[str, np.ndarray],
    launch: np.ndarray,
    texts: Sequence[str],
    records: Sequence[Mapping[str, np.ndarray]],
    lanes: Mapping[tuple[int, int, int, int], int],
    devices: Mapping[tuple[int, int], int],
) -> tuple[list[StreamWait], int, int]:
    """The waits of which the record is sure, the number of the others, and of records without their call.

    columns: of `tables.Rows`; launch int64 [rows]: launch numbers. lanes: (process, device, context,
    stream) to the lane; devices: (process, context) to the device.

    A wait and its record have a number in common (eventSyncId, since 2025). Without it the record is the
    latest one of the same event, if the event's number is known for every record that may have come between
    the two, and no call was part of a graph's capture.
    """
    resolver = _Resolver(columns, launch, texts, records, lanes, devices)
    return (*resolver.waits(), resolver.lost)


class _Resolver:
    def __init__(
        self,
        columns: Mapping[str, np.ndarray],
        launch: np.ndarray,
        texts: Sequence[str],
        records: Sequence[Mapping[str, np.ndarray]],
        lanes: Mapping[tuple[int, int, int, int], int],
        devices: Mapping[tuple[int, int], int],
    ) -> None:
        self.c, self.launch, self.lanes, self.devices = columns, launch, lanes, devices
        made = self._calls(_RECORD)
        self.by_correlation = {
            (call.process, int(correlation)): call
            for call, correlation in zip(
                made.values(), columns["correlation"][list(made)].tolist(), strict=True
            )
        }
        self._index(records)
        self.captures = self._captures(texts)

    def _calls(self, category: int) -> dict[int, _Call]:
        """Calls of this category that did not fail, by row, in the order of their starts."""
        c = self.c
        rows = np.flatnonzero(c["call"] & ~c["failed"] & (c["category"] == category))
        rows = rows[np.argsort(c["start"][rows], kind="stable")]
        columns = (
            self.launch,
            c["process"],
            c["thread"],
            c["start"],
            c["start"] + c["duration"],
        )
        told = zip(*(column[rows].tolist() for column in columns), strict=True)
        return {row: _Call(*values) for row, values in zip(rows.tolist(), told, strict=True)}

    def _index(self, records: Sequence[Mapping[str, np.ndarray]]) -> None:
        self.of_event: dict[tuple[int, int], list[_Record]] = defaultdict(list)
        self.of_ticket: dict[tuple[int, int], list[_Record]] = defaultdict(list)
        self.callless: set[tuple[int, int]] = set()
        self.lost = 0
        named: set[tuple[int, int]] = set()
        for part in records:
            for process, device, context, stream, correlation, event, ticket in zip(
                *(
                    part[name].tolist()
                    for name in ("process", "device", "context", "stream", "correlation", "event", "ticket")
                ),
                strict=True,
            ):
                device = self.devices.get((process, context), device)
                lane = self.lanes.get((process, device, context, stream), -1) if stream >= 0 else -1
                call = self.by_correlation.get((process, correlation))
                record = _Record(call, process, context, event, lane)
                if ticket >= 0:
                    self.of_ticket[process, ticket].append(record)
                if call is None:
                    self.lost += 1
                    self.callless.add((process, event))
                elif event >= 0:
                    self.of_event[process, event].append(record)
                    named.add((process, correlation))
        for alike in self.of_event.values():
            alike.sort(key=lambda record: record.call.start)
        self.unnamed: dict[int, list[int]] = defaultdict(list)
        for key, call in self.by_correlation.items():
            if key not in named:
                self.unnamed[call.process].append(call.start)
        for starts in self.unnamed.values():
            starts.sort()

    def _captures(self, texts: Sequence[str]) -> dict[int, tuple[list[int], list[int]]]:
        """When captures of graphs began and ended, by process."""
        c = self.c
        found: dict[int, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for which, word in enumerate(("StreamBeginCapture", "StreamEndCapture")):
            codes = [i for i, text in enumerate(texts) if word in text]
            rows = np.flatnonzero(c["call"] & np.isin(c["name"], codes)) if codes else []
            for row in rows:
                found[int(c["process"][row])][which].append(int(c["start"][row]))
        for began, ended in found.values():
            began.sort()
            ended.sort()
        return found

    def _captured(self, call: _Call) -> bool:
        began, ended = self.captures.get(call.process, ((), ()))
        return bisect_right(began, call.start) > bisect_right(ended, call.start)

    def waits(self) -> tuple[list[StreamWait], int]:
        c = self.c
        entries: dict[int, list[int]] = defaultdict(list)
        rows = np.flatnonzero(c["sync"] & (c["category"] == _WAIT))
        for row, number in zip(rows.tolist(), self.launch[rows].tolist(), strict=True):
            entries[number].append(row)
        found, unknown = [], 0
        called = set()
        for call in self._calls(_WAIT).values():
            called.add(call.launch)
            told = entries.get(call.launch, []) if call.launch >= 0 else []
            record = self._record(call, told[0]) if len(told) == 1 else None
            if record is None or record.lane < 0:
                unknown += 1
            else:
                found.append(self._edge(call, told[0], record))
        failed = set(self.launch[c["call"] & c["failed"]].tolist())
        unknown += sum(len(told) for number, told in entries.items() if number not in called | failed)
        return found, unknown

    def _edge(self, call: _Call, entry: int, record: _Record) -> StreamWait:
        c = self.c
        place = tuple(int(c[name][entry]) for name in ("process", "device", "context", "stream"))
        event = int(c["event"][entry])
        name = f"event {event if event >= 0 else record.event}"
        return StreamWait(record.call.launch, call.launch, record.lane, self.lanes.get(place, -1), name)

    def _record(self, call: _Call, entry: int) -> _Record | None:
        """The record that this wait was for, or None where that is not sure."""
        event, ticket = int(self.c["event"][entry]), int(self.c["ticket"][entry])
        if int(self.c["stream"][entry]) < 0 or self._captured(call):
            return None
        if ticket >= 0:
            alike = [r for r in self.of_ticket.get((call.process, ticket), ()) if event in (r.event, -1)]
            record = alike[0] if len(alike) == 1 else None
            sure = record is not None and record.call is not None and record.call.start < call.start
        else:
            record = self._latest(call, event)
            sure = record is not None
        return record if sure and not self._captured(record.call) else None

    def _latest(self, call: _Call, event: int) -> _Record | None:
        alike = self.of_event.get((call.process, event), [])
        at = bisect_left(alike, call.start, key=lambda record: record.call.start)
        if not at or {(call.process, event), (call.process, -1)} & self.callless:
            return None
        record = alike[at - 1]
        later = at < len(alike) and alike[at].call.start < call.end
        unnamed = self.unnamed.get(call.process, [])
        between = bisect_left(unnamed, call.end) - bisect_right(unnamed, record.call.start)
        overlaps = record.call.end > call.start and record.call.thread != call.thread
        if later or between or overlaps or len({other.context for other in alike}) > 1:
            return None
        return record
