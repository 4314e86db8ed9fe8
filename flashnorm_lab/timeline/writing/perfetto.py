"""Perfetto's own trace format (protobuf), written with Perfetto's own Python package.

- A track for each device and for each process that has threads, and under it a track for each lane, in the
  timeline's order. Where spans of a lane cross, a further track of the same name (see `tracks`), which
  Perfetto shows as one with the first.
- A span is a slice: its begin and its end are two events with times in whole nanoseconds. A mark that lasts
  0 ns is an instant, and a counter has a track of its own.
- An edge is a flow from its source's slice to its target's, where its name is told too; so is the way from a
  host call to the work that it enqueued.
- Names, categories and the names of annotations are interned: written once, then named by number.

Perfetto's times are not negative and end below 2**63. A timeline that starts below 0 is shifted to 0, and
the caller is told; one that ends later than that is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from os import PathLike
from typing import Any

import numpy as np

from ...errors import LabError
from ..table import CATEGORIES, OUTCOMES, Timeline
from .files import REPLACED, unicode_text, whole
from .tracks import nesting, relative, since, title, tracks

SEQUENCE = 1
BLOCK = 20_000
"""So many events are written at a time."""
NOTES = ("step", "launch", "origin", "outcome", "edge")
"""The names of annotations, by their number less one."""
STEP, LAUNCH, ORIGIN, OUTCOME, EDGE = range(1, 6)
BEGIN, END, MARK, SAMPLE = range(4)
TYPES = ("TYPE_SLICE_BEGIN", "TYPE_SLICE_END", "TYPE_INSTANT", "TYPE_COUNTER")

# Tags of protobuf: a field's number and how it is written.
IN_TRACE = b"\x0a"  # Trace.packet = 1
EVENT = b"\x5a"  # TracePacket.track_event = 11
LEAVES, ARRIVES = b"\xf9\x02", b"\x81\x03"  # TrackEvent.flow_ids = 47, terminating_flow_ids = 48
# TracePacket.trusted_packet_sequence_id = 10, sequence_flags = 13, timestamp = 8: what follows is the time.
# Flag 2 says that names are given by number (SEQ_NEEDS_INCREMENTAL_STATE).
PACKET = bytes([0x50, SEQUENCE, 0x68, 2, 0x40])


def export_perfetto(timeline: Timeline, path: str | PathLike[str]) -> tuple[str, ...]:
    """Write the timeline to ``path``, whole or not at all; with gzip where the name ends in ``.gz``.

    Returns what the file does not tell as the timeline does, a line each. ``LabError`` when the file cannot
    be written, and for times that the format cannot hold.
    """
    writer = _Writer(timeline)
    with whole(path) as file:
        file.writelines(writer.blocks())
    return tuple(writer.notes)


class _Writer:
    """Makes the packets: descriptions of tracks first, then events in the order of their times."""

    def __init__(self, t: Timeline) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        self.pb = perfetto_trace_pb2
        self.t = t
        self.notes: list[str] = []
        times = [int(v.min()) for v in (t.start_ns, t.counter_ns) if len(v)]
        first = min(times, default=0)
        start, end = relative(t, first)
        samples = since(t.counter_ns, first)
        last = max((int(v.max()) for v in (end, samples) if len(v)), default=0) + max(first, 0)
        if last >= 2**63:
            raise LabError(
                f"this timeline ends {last} ns after zero; Perfetto's format holds times below {2**63} ns; "
                "write it as Chrome JSON (.json)"
            )
        if first < 0:
            self.notes.append(f"Perfetto knows no negative times: all times are shifted by {-first} ns")
        base = np.uint64(max(first, 0))
        self.start, self.end, self.samples = start + base, end + base, samples + base
        self.tracks = tracks(t)
        self.marks = (t.category == CATEGORIES.index("mark")) & (t.duration_ns == 0)
        self.names = [unicode_text(text) for text in t.names]
        self.counters = np.unique(t.counter_name).tolist()
        if list(t.names) != self.names:
            self.notes.append(REPLACED)
        self.order = self._order()
        self.flows: dict[int, bytes] = {}
        self.known: dict[Any, bytes] = {}
        self._flows()
        # Numbers of tracks: 1 … for processes, then those of lanes, then those of counters.
        processes, lanes = len(self.tracks.processes), len(self.tracks.lane)
        self.lane_track = 1 + processes + np.arange(lanes)
        self.counter_track = {name: 1 + processes + lanes + i for i, name in enumerate(self.counters)}

    def blocks(self) -> Iterator[bytes]:
        """The bytes of the file, a part at a time: a trace's parts are one trace, one behind the other."""
        trace = self.pb.Trace()
        self._describe(trace)
        yield trace.SerializeToString()
        kind, index, time = self.order
        for first in range(0, len(kind), BLOCK):
            rows = slice(first, first + BLOCK)
            yield b"".join(self._events(kind[rows], index[rows], time[rows]))

    def _describe(self, trace: Any) -> None:
        pb, t = self.pb, self.t
        packet = trace.packet.add(
            trusted_packet_sequence_id=SEQUENCE, sequence_flags=pb.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        )
        for i, text in enumerate(self.names):
            packet.interned_data.event_names.add(iid=i + 1, name=text)
        for i, text in enumerate(CATEGORIES):
            packet.interned_data.event_categories.add(iid=i + 1, name=text)
        for i, text in enumerate(NOTES):
            packet.interned_data.debug_annotation_names.add(iid=i + 1, name=text)

        def track(number: int, **fields: Any) -> Any:
            return trace.packet.add(
                trusted_packet_sequence_id=SEQUENCE, track_descriptor={"uuid": number, **fields}
            ).track_descriptor

        explicit = pb.TrackDescriptor.EXPLICIT
        for i, name in enumerate(self.tracks.processes):
            made = track(i + 1, child_ordering=explicit)
            made.process.pid = i + 1
            made.process.process_name = unicode_text(name)
            if len(self.tracks.processes) > 1:
                made.process.process_labels.append(title(t))
        for i, (lane, process) in enumerate(zip(self.tracks.lane, self.tracks.process, strict=True)):
            track(
                int(self.lane_track[i]),
                parent_uuid=process + 1,
                name=unicode_text(t.lanes[lane].name),
                sibling_order_rank=lane,
            )
        for name, number in self.counter_track.items():
            made = track(
                number, parent_uuid=1, name=self.names[name], sibling_order_rank=len(t.lanes) + number
            )
            made.counter.SetInParent()

    def _order(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What each event is (`BEGIN` …), whose, and when; in the order in which they must be read.

        At one time first whatever ends there, the innermost first; then what begins, the outermost first;
        then what begins and ends there at once.
        """
        t = self.t
        spans = np.arange(len(t))
        rank = np.empty(len(t), dtype=np.int64)
        rank[nesting(self.start, self.end)] = spans
        marks = self.marks
        slices = spans[~marks]
        long = self.end[slices] > self.start[slices]
        parts = (  # kind, index, time, order among kinds, order among spans, begin before end
            (
                END,
                slices,
                self.end[slices],
                np.where(long, 0, 2),
                np.where(long, -rank[slices], rank[slices]),
                1,
            ),
            (BEGIN, slices, self.start[slices], np.where(long, 1, 2), rank[slices], 0),
            (MARK, spans[marks], self.start[marks], 2, rank[marks], 0),
            (SAMPLE, np.arange(len(self.samples)), self.samples, 3, 0, 0),
        )
        kind, index, time, *keys = (
            np.concatenate([np.broadcast_to(part[column], part[1].shape) for part in parts])
            for column in range(6)
        )
        order = np.lexsort((keys[2], keys[1], keys[0], time))
        return kind[order], index[order], time[order]

    def _flows(self) -> None:
        """For each span with arrows the flows that leave it and end at it, as they stand in its event."""
        t = self.t
        pairs = np.concatenate([np.stack([t.edge_source, t.edge_target], axis=1), t.launches()])
        kind, index, _ = self.order
        place = np.empty(len(t), dtype=np.int64)
        begins = np.flatnonzero((kind == BEGIN) | (kind == MARK))
        place[index[begins]] = begins
        forward = place[pairs[:, 0]] < place[pairs[:, 1]]
        if not forward.all():
            self.notes.append(
                f"arrows that do not lead to a later event and are left out: {int((~forward).sum()):,}"
            )
        names = [self._annotation(EDGE, string_value=name) for name in self.names]
        edges = [names[name] for name in t.edge_name.tolist()]
        numbers = np.flatnonzero(forward)
        for number, source, target in zip(numbers.tolist(), *pairs[numbers].T.tolist(), strict=True):
            flow = (number + 1).to_bytes(8, "little")
            self.flows[source] = self.flows.get(source, b"") + LEAVES + flow
            self.flows[target] = self.flows.get(target, b"") + ARRIVES + flow
            if number < len(edges):
                self.flows[target] += edges[number]

    def _annotation(self, name: int, **value: Any) -> bytes:
        event = self.pb.TrackEvent()
        event.debug_annotations.add(name_iid=name, **value)
        return event.SerializeToString()

    def _events(self, kind: np.ndarray, index: np.ndarray, time: np.ndarray) -> Iterator[bytes]:
        """The bytes of each packet.

        An object of the package for each of a million events would take half a minute. So an object is made
        for each sort of event, and what is different in each event is put behind its bytes: protobuf's fields
        may stand in any order.
        """
        t = self.t
        spans = np.where(kind == SAMPLE, 0, index) if len(t) else np.empty(0, dtype=np.int64)
        track = self.lane_track[self.tracks.of[spans]]
        sorts = zip(
            *(c.tolist() for c in (track, t.name[spans], t.category[spans], t.outcome[spans])), strict=True
        )
        notes = zip(
            _notes(STEP, t.step[spans]),
            _notes(LAUNCH, t.launch[spans]),
            _notes(ORIGIN, t.origin[spans]),
            strict=True,
        )
        rows = zip_longest(kind.tolist(), index.tolist(), _varints(time), sorts, notes)
        for what, i, at, sort, note in rows:
            if what == SAMPLE:
                body = self._sample(i)
            elif what == END:
                body = self.known.get(sort[0]) or self._end(sort[0])
            else:
                body = self.known.get((what, *sort)) or self._begin(what, *sort)
                body += b"".join(note) + self.flows.get(i, b"")
            packet = PACKET + at + EVENT + _length(body) + body
            yield IN_TRACE + _length(packet) + packet

    def _begin(self, what: int, track: int, name: int, category: int, outcome: int) -> bytes:
        event = self.pb.TrackEvent(type=TYPES[what], track_uuid=track, name_iid=name + 1)
        event.category_iids.append(category + 1)
        if outcome:
            event.debug_annotations.add(name_iid=OUTCOME, string_value=OUTCOMES[outcome])
        return self.known.setdefault((what, track, name, category, outcome), event.SerializeToString())

    def _end(self, track: int) -> bytes:
        event = self.pb.TrackEvent(type=TYPES[END], track_uuid=track)
        return self.known.setdefault(track, event.SerializeToString())

    def _sample(self, i: int) -> bytes:
        event = self.pb.TrackEvent(type=TYPES[SAMPLE])
        event.track_uuid = self.counter_track[int(self.t.counter_name[i])]
        event.double_counter_value = float(self.t.counter_value[i])
        return event.SerializeToString()


def _varints(values: np.ndarray) -> list[bytes]:
    """Whole numbers as protobuf writes them, uint64 [values]: seven bits a byte, the lowest first."""
    shifts = np.arange(0, 70, 7, dtype=np.uint64)
    groups = values[:, None] >> shifts[None, :]
    there = groups > 0
    there[:, 0] = True
    length = there.sum(axis=1)
    more = np.arange(1, 11)[None, :] < length[:, None]
    text = (
        ((groups & np.uint64(0x7F)) | np.where(more, np.uint64(0x80), np.uint64(0)))
        .astype(np.uint8)
        .tobytes()
    )
    return [text[k : k + n] for k, n in zip(range(0, 10 * len(values), 10), length.tolist(), strict=True)]


def _notes(name: int, values: np.ndarray) -> list[bytes]:
    """Debug annotations as they stand in a TrackEvent: nothing for -1."""
    # debug_annotations = 4, its length; name_iid = 1, int_value = 4
    heads = [bytes([0x22, 3 + length, 0x08, name, 0x20]) for length in range(11)]
    numbers = _varints(values.astype(np.int64).view(np.uint64))
    return [b"" if v == -1 else heads[len(n)] + n for v, n in zip(values.tolist(), numbers, strict=True)]


def _length(data: bytes) -> bytes:
    return (
        LENGTHS[len(data)]
        if len(data) < len(LENGTHS)
        else _varints(np.array([len(data)], dtype=np.uint64))[0]
    )


LENGTHS = _varints(np.arange(4096, dtype=np.uint64))
