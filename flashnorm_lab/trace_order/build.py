"""From a profile to a `TraceProgram`: only what is certain becomes a step; the rest becomes a `Gap`."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import LabError
from ..program import KINDS, Barrier, Launch, Query, Record, Step, Stream, Synchronize, Wait
from ..timeline import kineto
from . import calls
from .raw import Call, Place, Raw, Recorded, Sync, Work
from .trace import ASIDE, NOBODY, Gap, Loose, TraceProgram

Key = tuple[float, int, int, int]
"""A place in the host's order: time, number of the call, at it (0), behind it (4) or next to that, number."""
FIRST: Key = (-math.inf, 0, 0, 0)
LAST: Key = (math.inf, 0, 0, 0)


@dataclass(slots=True)
class _Op:
    """What one call gave to one stream. ``key`` is None where its place in the host's order is not known."""

    start: int
    place: Place
    works: list[Work]
    key: Key | None = None
    call: Call | None = None


def _in_order(place: Place) -> list[tuple[bool, int, str]]:
    """Sorts by number, where names are numbers."""
    return [(isinstance(v, str), v if isinstance(v, int) else -1, str(v)) for v in place]


class _Builder:
    def __init__(self, raw: Raw, name: str, kinds: Mapping[str, str]) -> None:
        self.raw, self.name, self.given = raw, name, dict(kinds)
        self.items: list[tuple[Key, str, Any]] = []
        self.counts: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.lost: list[tuple[Place, Key, Key, bool]] = []
        self.aside: set[Place] = set()
        self.touched: dict[Place, list[Key]] = defaultdict(list)
        self.busy: dict[tuple[int, Any, int], list[Key]] = defaultdict(list)
        self._take_calls()
        self._name_things()
        self._check_kinds()
        self._find_unsure()
        self._index_records()

    def _take_calls(self) -> None:
        raw = self.raw
        self.calls: list[Call] = []
        self.tied: dict[tuple[int, int], int] = {}
        for call in sorted(raw.calls, key=lambda c: (c.start, -c.end)):
            known = (call.process, call.correlation)
            if call.correlation >= 0:
                if known in self.tied:
                    continue  # one call seen twice: where the program called, and inside the runtime
                self.tied[known] = len(self.calls)
            self.calls.append(call)
        self.records = {(r.process, r.correlation): r for r in raw.records}
        self.syncs: dict[tuple[int, int], list[Sync]] = defaultdict(list)
        for sync in raw.syncs:
            self.syncs[sync.process, sync.correlation].append(sync)
        self.works: dict[int, list[Work]] = defaultdict(list)
        self.callless: list[Work] = []
        for work in raw.work:
            number = self.tied.get((work.process, work.correlation))
            (self.callless if number is None else self.works[number]).append(work)

    # Names

    def _name_things(self) -> None:
        raw = self.raw
        places = {w.place for w in raw.work} | {r.place for r in raw.records}
        places |= {p for s in raw.syncs for p in (s.place, s.behind) if p is not None}
        processes = {thing.process for thing in (*places, *self.calls, *raw.work, *raw.syncs, *raw.records)}
        pids = Counter(process & 0xFFFFFF for process in processes)
        self.of = dict.fromkeys(processes, "")
        if len(processes) > 1:
            for process in processes:  # those of two machines may have the same number
                number = process & 0xFFFFFF
                self.of[process] = f"process {number if pids[number] == 1 else process} "
        devices, contexts = defaultdict(set), defaultdict(set)
        for p in places:
            devices[p.process].add(p.device)
            contexts[p.process, p.device].add(p.context)
        self.stream: dict[Place, str] = {}
        self.contexts: dict[tuple[int, Any, int], list[Place]] = defaultdict(list)
        for p in sorted(places, key=_in_order):
            words = [f"device {p.device}"] * (len(devices[p.process]) > 1)
            words += [f"context {p.context}"] * (len(contexts[p.process, p.device]) > 1)
            number = str(p.stream)
            words.append(number if number.startswith("stream") else f"stream {number}")
            self.stream[p] = self.of[p.process] + " ".join(words)
            self.contexts[p[:3]].append(p)
        threads = list(dict.fromkeys((c.process, c.thread) for c in self.calls))
        hosts = kineto.host_names(dict.fromkeys(thread for _, thread in threads))
        self.thread = {who: self.of[who[0]] + hosts[who[1]] for who in threads}

    def _at(self, thing: Call | Work | Recorded | Sync) -> str:
        number = f"correlation {thing.correlation}" if thing.correlation >= 0 else "no correlation"
        return self.of[thing.process] + number

    def _by(self, call: Call) -> str:
        return self.thread[call.process, call.thread]

    # Kinds of streams

    def kind_of(self, place: Place) -> tuple[str, str]:
        """A stream's kind, and the kind that it may have where that is not known ("" where it is)."""
        known = self._told_kind(place) or self.given.get("*")
        if known:
            return known, ""
        return "non-blocking", "legacy" if self._may_be_default(place) else "blocking"

    def _told_kind(self, place: Place) -> str | None:
        told = self.given.get(self.stream[place])
        return told or self.raw.kinds.get((place.process, place.context, place.stream))

    def _may_be_default(self, place: Place) -> bool:
        context = self.contexts[place[:3]]
        if any(self._told_kind(p) == "legacy" for p in context):
            return False
        if place.context == -1:  # HIP's number for it, or CUPTI's in the first context
            return place.stream in (0, 7)
        if place.context == 1:
            return place.stream == 7
        # It is made with its context, before all others.
        return place.stream == min((p.stream for p in context if isinstance(p.stream, int)), default=None)

    def _check_kinds(self) -> None:
        names = list(self.stream.values())
        kinds = [kind for kind in KINDS if kind != "out-of-order"]
        for name, kind in self.given.items():
            if name != "*" and name not in names:
                raise LabError(f"kinds: there is no {name!r} in {self.name}; there are {', '.join(names)}")
            if kind not in kinds:
                raise LabError(f"kinds: {name} is {kind!r}; expected one of {', '.join(kinds)}")
        for places in self.contexts.values():
            default = [self.stream[p] for p in places if self.kind_of(p)[0] == "legacy"]
            if len(default) > 1:
                raise LabError(f"kinds: {' and '.join(default)} are legacy; a context has one such stream")

    # What was done to one stream by two threads at once

    def _find_unsure(self) -> None:
        """Calls that came to a stream while another thread's did, or during a capture: in which order?

        The default stream and blocking streams count as one here. Launches on one stream are not meant: the
        device shows their order.
        """
        self.unsure: dict[int, str] = {}
        touched: dict[tuple[Any, ...], list[tuple[int, int, int]]] = defaultdict(list)
        capturing: Counter[int] = Counter()
        for number, call in enumerate(self.calls):
            capture = calls.CAPTURE.search(call.name)
            if capture:
                capturing[call.process] += 1 if capture[1] == "Begin" else -1
            elif capturing[call.process] > 0 and number not in self.works:
                self.unsure[number] = "made while a graph was captured, of which it may have become a part"
            end = call.start if calls.HOST_WAIT.search(call.name) else call.end
            for place in self._places_of(number, call):
                group = place if self.kind_of(place)[0] == "non-blocking" else place[:3]
                touched[group].append((call.start, end, number))
        if len(self.thread) == 1:
            return
        for entries in touched.values():
            running: list[tuple[int, int, int]] = []
            for entry in sorted(entries):
                running = [other for other in running if other[1] >= entry[0]]
                for other in running:
                    if not self._shown(entry[2], other[2]):
                        why = "made at the same time as a call of another thread on the same stream"
                        self.unsure |= dict.fromkeys((entry[2], other[2]), why)
                running.append(entry)

    def _shown(self, one: int, other: int) -> bool:
        """Whether the order of two calls is known: of one thread, or both of them launches on one stream."""
        a, b = self.calls[one], self.calls[other]
        launches = one in self.works and other in self.works
        return a.thread == b.thread or (
            launches and bool(self._places_of(one, a) & self._places_of(other, b))
        )

    def _places_of(self, number: int, call: Call) -> set[Place]:
        if number in self.works:
            return {work.place for work in self.works[number]}
        record = self.records.get((call.process, call.correlation))
        if record is not None:
            return {record.place}
        entries = self.syncs.get((call.process, call.correlation), ()) if call.correlation >= 0 else ()
        return {sync.place for sync in entries if sync.place is not None}

    # Records, and which of them a wait is for

    def _index_records(self) -> None:
        self.recorded: dict[tuple[int, int], list[tuple[int, Recorded]]] = defaultdict(list)
        self.unnamed: dict[int, list[int]] = defaultdict(list)
        for call in self.calls:
            if not calls.RECORD.search(call.name) or call.ok is False:
                continue
            record = self.records.get((call.process, call.correlation))
            if record is None or record.event < 0:
                self.unnamed[call.process].append(call.start)
            if record is not None:
                self.recorded[call.process, record.event].append((call.start, record))
        self.callless_records: dict[int, set[int]] = defaultdict(set)  # their events, by process
        for record in self.raw.records:
            if (record.process, record.correlation) not in self.tied:
                self.callless_records[record.process].add(record.event)
        self.tickets = {(r.process, r.ticket): r for r in self.raw.records if r.ticket >= 0}

    def resolve(self, sync: Sync, call: Call) -> tuple[Recorded | None, str]:
        """The record that a call waits for, and "" or why that is not sure.

        A profiler's own word for it is not always right: Kineto looks the event up when all is collected, and
        may name a record that came after the wait, or, as its buffers come in any order, one that another had
        followed. So there must be no record between the two that may be of the same event.
        """
        ticket = self.tickets.get((sync.process, sync.ticket))
        alike = self.recorded.get((sync.process, sync.event), []) if sync.event >= 0 else []
        if sync.record >= 0:
            record = self.records.get((sync.process, sync.record))
        elif ticket is not None:
            record = ticket
        else:
            i = bisect_left(alike, call.start, key=lambda entry: entry[0])
            record = alike[i - 1][1] if i else None
        number = self.tied.get((record.process, record.correlation)) if record is not None else None
        if record is None or number is None:
            return None, ""
        made = self.calls[number]
        if made.start >= call.start or made.ok is False or not calls.RECORD.search(made.name):
            return None, ""
        if number in self.unsure:
            return record, f"its record was {self.unsure[number]}"
        if record is ticket:
            return record, ""
        unnamed = self.unnamed[sync.process]
        between = bisect_left(unnamed, call.end) - bisect_right(unnamed, made.start)
        between += sum(made.start < start < call.end for start, _ in alike)
        if {sync.event, -1} & self.callless_records[sync.process]:
            return record, "the event may also have been recorded by a call that is not in the trace"
        if between or len({other.place.context for _, other in alike}) > 1:
            return record, f"the event may have been recorded again since {self._at(record)}"
        return record, ""

    def event(self, record: Recorded) -> str:
        """One name for each record, so that a wait can be bound to it and to no other."""
        return f"event {record.event if record.event >= 0 else '?'}@{self._at(record)}"

    # Calls

    def gather(self) -> None:
        """Turn every call, and every piece of work, into items that have a place in the host's order."""
        ops = [_Op(work.start, work.place, [work]) for work in self.callless]
        for number, call in enumerate(self.calls):
            key: Key = (call.start, number, 0, 0)
            if number in self.works:
                ops += self._given(key, number, call)
            else:
                self._call(key, number, call)
        for sync in self.raw.syncs:
            if (sync.process, sync.correlation) not in self.tied:
                self._lone_sync(sync)
        for record in self.raw.records:
            if (record.process, record.correlation) not in self.tied:
                self.counts["event records of which the call is not in the trace"] += 1
                self.lost.append((record.place, FIRST, LAST, False))
        self._place(ops)

    def _given(self, key: Key, number: int, call: Call) -> list[_Op]:
        """The work of one call; that of a graph, or of a batch, is in no order."""
        works = sorted(self.works[number], key=lambda w: (w.start, w.end))
        if len(works) == 1 or not calls.UNORDERED.search(call.name):
            if number in self.unsure:
                self.counts[f"launches {self.unsure[number]}"] += 1
                return [_Op(w.start, w.place, [w]) for w in works]
            return [_Op(w.start, w.place, [w], key, call) for w in works]
        if len({w.place for w in works}) == 1 and number not in self.unsure:
            return [_Op(works[0].start, works[0].place, works, key, call)]
        self.items.append((key, "spread", (call, works)))
        return []

    def _gap(
        self, key: Key, kind: str, by: Call | Sync, what: str, text: str, stream: Place | None = None,
        behind: Place | None = None, event: str = "",
    ) -> None:  # fmt: skip
        thread = self._by(by) if isinstance(by, Call) else ""
        names = [self.stream[place] if place is not None else "" for place in (stream, behind)]
        gap = Gap(-1, kind, by.process, thread, what, text, names[0], event, names[1])
        self.counts[what] += kind != "memory"
        self.items.append((key, "gap", gap))
        if stream is not None:
            self._touch(key, stream)

    def _touch(self, key: Key, place: Place) -> None:
        """The host did something to a stream, other than to give it work."""
        self.touched[place].append(key)
        self.busy[place[:3]].append(key)

    def _call(self, key: Key, number: int, call: Call) -> None:
        name, told = call.name, f"{call.name} ({self._at(call)})"
        if calls.QUERY.search(name) or calls.HOST_WAIT.search(name):
            self._host_waits(key, number, call, told)
        elif call.ok is False:
            pass  # it failed, so it did nothing
        elif calls.RECORD.search(name):
            record = self.records.get((call.process, call.correlation))
            if record is None:
                what = "event records of which the stream is not known"
                self._gap(key, "launch", call, what, f"{told} on a stream that is not known")
            else:
                self._touch(key, record.place)
                self.items.append((key, "record", (record, call)))
        elif calls.WAIT.search(name):
            self._wait(key, number, call, told)
        elif calls.HIDDEN_WAIT.search(name):
            what = "waits of streams for a value in memory or for a semaphore from outside"
            self._gap(key, "wait", call, what, f"{told}: a stream waits for something outside the trace")
        elif calls.CALLBACK.search(name):
            what = "functions of the host that a stream runs"
            self._gap(
                key, "host", call, what, f"{told}: what it runs on the host may let another thread go on"
            )
        elif calls.MEMORY.search(name):
            self._gap(key, "memory", call, name, told)
        elif calls.GIVES_WORK.search(name):
            what = "launches and copies of which the work is not in the trace"
            kind = "host" if "Mem" in name and "Async" not in name else "launch"
            self._gap(key, kind, call, what, f"{told}, of which the work is not in the trace")

    def _wait(self, key: Key, number: int, call: Call, told: str) -> None:
        entries = self.syncs.get((call.process, call.correlation), ()) if call.correlation >= 0 else ()
        if len(entries) != 1 or entries[0].place is None:
            what = "stream waits of which neither the stream nor the record is known"
            self._gap(key, "wait", call, what, f"{told}, of which the trace knows neither stream nor event")
            return
        (sync,) = entries
        place = sync.place
        record, doubt = self.resolve(sync, call)
        doubt = doubt or (f"it was {self.unsure[number]}" if number in self.unsure else "")
        stream = self.stream[place]
        if record is None:
            what = "stream waits of which the record is not known"
            text = f"the wait of {stream} ({self._at(call)}) for an event of which the record is not known"
            self._gap(key, "wait", call, what, text, place, sync.behind)
        elif doubt:
            what = "stream waits of which it is not sure what they are for"
            self._gap(key, "wait", call, what, f"the wait of {stream} ({self._at(call)}): {doubt}", place)
        else:
            self._touch(key, place)
            self.items.append((key, "wait", (place, record, call)))

    def _host_waits(self, key: Key, number: int, call: Call, told: str) -> None:
        """A synchronization, or a query, which is one if it was told "done"."""
        asks = calls.QUERY.search(call.name) is not None
        if call.ok is False:
            return
        entries = self.syncs.get((call.process, call.correlation), ()) if call.correlation >= 0 else ()
        sync = entries[0] if len(entries) == 1 else None
        target: tuple[str, Any] | None = None
        doubt, event = "", ""
        if "Event" in call.name:
            record, doubt = self.resolve(sync, call) if sync is not None else (None, "")
            if record is not None and not doubt:
                target, event = ("event", record), self.event(record)
        elif "Stream" in call.name:
            if sync is not None and sync.place is not None:
                target = ("stream", sync.place)
        else:
            context = self._context_of(call, sync)
            target = ("context", context) if context is not None else None
        what = "queries" if asks else "synchronizations"
        if number in self.unsure:
            doubt, event = self.unsure[number], ""
        if target is None or doubt:
            reason = (
                "of which it is not sure what they are for" if doubt else "of which it is not known what for"
            )
            self._gap(key, "host", call, f"{what} {reason}", f"{told}{': ' * bool(doubt)}{doubt}")
        elif asks and call.ok is None:
            what = "queries of which the answer is not known"
            self._gap(
                key, "host", call, what, f"{told}, of which the answer is not in the trace", event=event
            )
        else:
            for place in self._waited_for(*target):
                self._touch(key, place)
            self.items.append((key, "query" if asks else "synchronize", (*target, call)))

    def _waited_for(self, kind: str, thing: Any) -> list[Place]:
        return [] if kind == "event" else [thing] if kind == "stream" else self.contexts[thing]

    def _context_of(self, call: Call, sync: Sync | None) -> tuple[int, Any, int] | None:
        """Which context a synchronization of the device waits for."""
        own = [context for context in self.contexts if context[0] == call.process]
        if sync is not None and sync.context >= 0 and len(own) > 1:
            own = [context for context in own if context[2] == sync.context]
        return own[0] if len(own) == 1 else None

    def _lone_sync(self, sync: Sync) -> None:
        """An entry on a wait or synchronization of which the call is not in the trace."""
        key: Key = (sync.start, -1, 0, 0)
        text = f"a {sync.what} ({self._at(sync)}) of which the call is not in the trace"
        if sync.what == "Stream Wait Event":
            what = "stream waits of which the call is not in the trace"
            self._gap(key, "wait", sync, what, text, sync.place, sync.behind)
        else:
            what = "synchronizations or queries of which the call is not in the trace"
            self._gap(key, "host", sync, what, text)

    # Places in the host's order

    def _place(self, ops: list[_Op]) -> None:
        """Give each piece of work its place, also where its call is not in the trace."""
        streams: dict[Place, list[_Op]] = defaultdict(list)
        for op in ops:
            streams[op.place].append(op)
        unplaced: list[tuple[Place, Key, Key, list[_Op]]] = []
        for place, on_stream in streams.items():
            on_stream.sort(key=lambda op: (op.start, op.key or LAST))
            self._straighten(on_stream)
            low, run = FIRST, []
            for op in on_stream:
                if op.key is None:
                    run.append(op)
                    continue
                self.items.append((op.key, "launch", op))
                self.busy[place[:3]].append(op.key)
                if run:
                    unplaced.append((place, low, op.key, run))
                low, run = op.key, []
            if run:
                unplaced.append((place, low, LAST, run))
        for by in (self.touched, self.busy):
            for keys in by.values():
                keys.sort()
        for place, low, high, run in unplaced:
            self._squeeze(place, low, high, run)

    def _straighten(self, ops: list[_Op]) -> None:
        """Where the calls of two threads overlapped, the stream shows which of them came through first."""
        latest: Key | None = None
        for number, op in enumerate(ops):
            if op.key is None:
                continue
            if latest is not None and op.key < latest:
                assert op.call is not None
                if latest[0] > op.call.end:
                    self.counts["launches that ran in another order than they were issued in"] += 1
                    continue
                op.key = (latest[0], latest[1], 4, number)
            latest = op.key

    def _squeeze(self, place: Place, low: Key, high: Key, run: list[_Op]) -> None:
        """Launches of which the place is not known, between two of the same stream of which it is.

        They are behind the one and before the other, and what the host did to the stream in between may have
        come before them or after them. So they get a stream of their own, which is tied to the real one at
        both ends only.
        """

        def inside(keys: list[Key]) -> bool:
            return bisect_left(keys, high) > bisect_right(keys, low)

        may_wait = any(
            work.category == "copy" and " DtoD" not in work.name for op in run for work in op.works
        )
        self.lost.append((place, low, high, may_wait))
        ids = Counter(op.works[0].correlation for op in run)
        placed = []
        for op in run:
            work = op.works[0]
            if low >= high or (work.correlation >= 0 and ids[work.correlation] > 1):
                self.left_out[work.name] += 1  # nodes of a graph, or times that contradict the host's order
            else:
                placed.append(work)
        stream = self.stream[place]
        before = (high[0], high[1], high[2] - 1)
        kind = self.kind_of(place)[0]
        if not inside(self.busy[place[:3]] if kind != "non-blocking" else self.touched[place]):
            self.items += [((*before, n), "floating", (work, stream)) for n, work in enumerate(placed)]
            return
        self.aside.add(place)
        aside = stream + ASIDE
        begin, end = (f"{where} of unseen calls {len(self.lost)}" for where in ("start", "end"))
        if low > FIRST:
            after = (low[0], low[1], low[2] + 1, 0)
            self.items.append((after, "step", Record(begin, stream, NOBODY)))
            self.items.append(((*before, -1), "step", Wait(begin, aside, NOBODY)))
        self.items += [((*before, n), "floating", (work, aside)) for n, work in enumerate(placed)]
        if high < LAST:
            self.items.append(((*before, len(run)), "step", Record(end, aside, NOBODY)))
            self.items.append(((*before, len(run) + 1), "step", Wait(end, stream, NOBODY)))

    # Steps

    def build(self) -> TraceProgram:
        """The items, in the host's order, as steps."""
        self.items.sort(key=lambda item: item[0])
        self.steps: list[Step] = []
        self.gaps: list[Gap] = []
        self.times: dict[int, tuple[int, int]] = {}
        self.graphs: dict[int, str] = {}
        self.floating: list[int] = []
        self.early: list[int] = []
        kinds = {name: self.kind_of(place) for place, name in self.stream.items()}
        self.streams = {
            name: Stream(kinds[name][0], self._context_name(place)) for place, name in self.stream.items()
        }
        self.process = {name: place.process for place, name in self.stream.items()}
        for place in self.aside:
            aside = self.stream[place] + ASIDE
            self.streams[aside] = Stream("non-blocking", self._context_name(place))
            self.process[aside] = place.process
        self.process |= {name: who[0] for who, name in self.thread.items()}
        keys: list[Key] = []
        numbers: list[int] = []
        for key, kind, what in self.items:
            keys.append(key)
            numbers.append(len(self.steps))
            self._item(kind, what)
        keys.append(LAST)
        numbers.append(len(self.steps))
        return TraceProgram(
            tuple(self.steps),
            self.streams,
            name=self.name,
            unseen=tuple(self._unseen(kinds)),
            times=self.times,
            gaps=tuple(self.gaps),
            maybe={name: may for name, (_, may) in kinds.items() if may},
            process=self.process,
            floating=frozenset(self.floating),
            loose=tuple(
                Loose(
                    numbers[bisect_left(keys, low)],
                    numbers[bisect_left(keys, high)],
                    self.stream[place],
                    waits,
                )
                for place, low, high, waits in self.lost
            ),
            graphs=self.graphs,
            early=frozenset(self.early),
            left_out=self.left_out,
        )

    def _item(self, kind: str, what: Any) -> None:
        match kind:
            case "gap":
                self.gaps.append(replace(what, at=len(self.steps)))
            case "launch":
                self._launch(what)
            case "step":
                self.steps.append(what)
            case "floating":
                work, stream = what
                self.floating.append(len(self.steps))
                self._add_work(work, stream, NOBODY)
            case "spread":
                self._spread_graph(*what)
            case "record":
                record, call = what
                self._add(Record(self.event(record), self.stream[record.place]), call)
            case "wait":
                place, record, call = what
                self._add(Wait(self.event(record), self.stream[place]), call)
            case "query" | "synchronize":
                self._host_step(kind, *what)

    def _context_name(self, place: Place) -> str:
        return "/".join(str(part) for part in place[:3])

    def _add(self, step: Step, call: Call) -> None:
        self.steps.append(replace(step, thread=self._by(call), source=self._at(call)))

    def _add_work(self, work: Work, stream: str, thread: str, **more: Any) -> None:
        self.times[len(self.steps)] = (work.start, work.end)
        self.steps.append(
            Launch(work.name, stream, category=work.category, thread=thread, source=self._at(work), **more)
        )

    def _launch(self, op: _Op) -> None:
        call, stream = op.call, self.stream[op.place]
        assert call is not None
        if len(op.works) > 1:
            self._graph(op, call, stream)
            return
        (work,) = op.works
        waits = calls.blocking(call.name, work)
        if waits == "before":
            self._add(Synchronize(stream), call)
        if calls.EARLY.search(call.name):
            self.early.append(len(self.steps))
        self._add_work(work, stream, self._by(call), blocks=waits == "blocks")
        if waits == "unknown":
            what = "copies of which it is not known whether the host waits for them"
            self.counts[what] += 1
            text = f"{call.name} ({self._at(call)}), for which the host may have waited"
            self.gaps.append(Gap(len(self.steps), "host", call.process, self._by(call), what, text))

    def _graph(self, op: _Op, call: Call, stream: str) -> None:
        """A graph's nodes: behind all that its stream had, before all that it gets, in no order among them.

        A profiler shows the nodes on the stream that the graph was launched on, also where they ran at once.
        """
        queue = f"graphs on {stream}"
        self.streams.setdefault(queue, Stream("out-of-order", self._context_name(op.place)))
        self.process[queue] = call.process
        begin, end = f"start of a graph@{self._at(call)}", f"end of a graph@{self._at(call)}"
        self._add(Record(begin, stream), call)
        self._nodes(op.works, queue, call, (begin,))
        self._add(Barrier(queue, event=end), call)
        self._add(Wait(end, stream), call)

    def _spread_graph(self, call: Call, works: list[Work]) -> None:
        """A graph of which the profile does not tell the stream: its nodes are shown on several."""
        queue = f"graph launched at {self._at(call)}"
        self.streams[queue] = Stream("out-of-order", self._context_name(works[0].place))
        self.process[queue] = call.process
        self.floating += range(len(self.steps), len(self.steps) + len(works))
        self._nodes(works, queue, call, ())
        what = "graph launches of which the stream is not known"
        self.counts[what] += 1
        text = f"{call.name} ({self._at(call)}) on a stream that is not known"
        self.gaps.append(Gap(len(self.steps), "launch", call.process, self._by(call), what, text))

    def _nodes(self, works: list[Work], queue: str, call: Call, after: tuple[str, ...]) -> None:
        for work in works:
            self.graphs[len(self.steps)] = self._at(call)
            self._add_work(work, queue, self._by(call), after=after)

    def _host_step(self, kind: str, target: str, thing: Any, call: Call) -> None:
        if target == "context" and len(self.contexts) == 1:
            self._add(Synchronize(), call)
            return
        on = [{"stream": self.stream[place]} for place in self._waited_for(target, thing)]
        for what in on or [{"event": self.event(thing)}]:
            self._add(Query(True, **what) if kind == "query" else Synchronize(**what), call)

    def _unseen(self, kinds: Mapping[str, tuple[str, str]]) -> Iterator[str]:
        """In words and counts, all that the steps leave out."""
        yield "buffers: a trace does not say what its work touches, so it answers for order, not for races"
        yield from self.raw.unseen
        maybe = {name: may for name, (_, may) in kinds.items() if may}
        if maybe:
            default = [name for name, may in maybe.items() if may == "legacy"]
            may_be = f"; {' and '.join(default)} may be the default stream" if default else ""
            yield (
                f"the kinds of {len(maybe)} of {len(kinds)} streams, taken as non-blocking, which promises "
                f"least{may_be}"
            )
        if len(self.thread) > 1:
            yield f"what the {len(self.thread)} host threads hand over to each other: taken as nothing"
        if self.graphs:
            launches = len(set(self.graphs.values()))
            yield f"edges inside graphs: {len(self.graphs)} nodes of {launches} launches, taken as unordered"
        floating = sum(number not in self.graphs for number in self.floating)
        if floating:
            yield f"calls that launched {floating} kernels and copies, which stand in their streams' order"
        if self.left_out:
            total = sum(self.left_out.values())
            yield f"where {total} kernels and copies were issued: left out, since no place would be safe"
        for what, count in self.counts.items():
            if count:
                yield f"{what}: {count}"
        if self.early:
            yield (
                "launches that may have asked to start before the kernel ahead on their stream has ended "
                f"(LaunchKernelEx, programmatic stream serialization), taken as in order: {len(self.early)}"
            )
        memory = Counter(gap.what for gap in self.gaps if gap.kind == "memory")
        if memory:
            told = ", ".join(f"{name} ({count})" for name, count in memory.most_common())
            yield f"waiting inside {told}: often for the whole device, which CUDA does not promise"
        yield "what the host learns in other ways, such as from memory that a kernel writes"


def build(raw: Raw, name: str, kinds: Mapping[str, str]) -> TraceProgram:
    """The program of a profile. ``kinds``: stream, or "*" for all others, to its kind, where it is given."""
    builder = _Builder(raw, name, kinds)
    builder.gather()
    return builder.build()
