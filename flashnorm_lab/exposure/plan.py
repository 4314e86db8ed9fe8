"""What has to be known before a program is played back: its words, who touches which, what a graph holds.

A program may talk of gigabytes. Only where ranges begin and end matters, so all those ends cut a memory into
pieces, and each piece is one 32-bit word of an arena: overlaps, reuse and addresses stay as they are.

Nothing here says what is ordered before what on the device: that is for the device's own queues to show.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ..errors import LabError
from ..program import (
    Allocate,
    Barrier,
    BeginCapture,
    DestroyEvent,
    EndCapture,
    Free,
    GraphLaunch,
    HandOver,
    HostRead,
    HostWrite,
    Launch,
    Program,
    Query,
    Record,
    RecordStream,
    SetEvent,
    Step,
    Stream,
    Synchronize,
    UserEvent,
    Wait,
    label,
)

MAX_STEPS = 20_000
"""How many steps are played back at most: one takes about 0.1 ms, and each keeps what it observed."""
MAX_WORDS = 4_000_000
"""How many words all launches together may touch."""
ENDLESS = 1 << 62
"""Stands for the end of a buffer whose size is not known."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes ``start`` to ``stop`` of a buffer (None: to its end), which are words ``first`` to ``last``."""

    buffer: str
    start: int
    stop: int | None
    writes: bool
    first: int
    last: int
    base: int
    """Address of the buffer."""
    life: int
    """Number of the buffer's life: a name may be allocated again."""

    @property
    def words(self) -> range:
        return range(self.first, self.last)


@dataclass(frozen=True, slots=True)
class Work:
    """A launch, a node of a graph's launch, or a host access: what it touches, reads first.

    ``number`` is its own in the whole program. Its words are ``places`` from ``place`` on, and what it
    observes there is kept in as many slots from ``slot`` on. ``name``: what messages call it, which no other
    work is called.
    """

    number: int
    index: int
    label: str
    name: str
    step: int
    parts: tuple[Part, ...]
    reads: int
    writes: int
    place: int
    slot: int


@dataclass(frozen=True, slots=True)
class Node:
    """A launch inside a graph, behind other nodes of the same run of it; captured at step ``described``."""

    work: Work
    after: tuple[int, ...]
    described: int


@dataclass(frozen=True)
class Plan:
    """A program, ready to be played back. Keys of the mappings are places in ``steps``, the unrolled list."""

    name: str
    streams: Mapping[str, Stream]
    steps: tuple[Step, ...]
    words: int
    slots: int
    places: tuple[int, ...]
    works: Mapping[int, Work]
    nodes: Mapping[int, tuple[Node, ...]]
    memory: Mapping[int, Part]
    """What an allocation or a free is about."""
    touched: Mapping[int, tuple[Part, ...]]
    """The bytes of it that some work touches; of the others, no work can tell when they came and went."""
    bounds: tuple[tuple[int, int], ...]
    """The addresses at which each word's piece of memory starts and stops."""
    behind: Mapping[int, tuple[int, ...]]
    """For an allocation: the frees that gave it its bytes."""
    extended: Mapping[int, tuple[str, ...]]
    """For a free: the streams that the buffer's life was extended to."""
    silent: frozenset[int]
    """Steps that only describe a graph, or launch one that could not be captured: they run nothing."""
    needs: Mapping[int, tuple[int, ...]]
    """For each step: those that the host must have come past, whichever of its threads runs first. For a
    launch that the host waits for, ``~index`` is that waiting."""
    loose: Mapping[int, tuple[int, ...]]
    """The same, if the calls of two threads on one stream may come in any order."""
    left: tuple[Part, ...]
    """The buffers that live when the program ends."""
    gone: tuple[Part, ...]
    """Those that were freed before."""

    def parts_of(self, index: int) -> tuple[int, ...]:
        """A step, and the waiting for it where the host waits."""
        return (index, ~index) if ~index in self.needs else (index,)

    def all_works(self) -> Iterator[Work]:
        yield from self.works.values()
        for nodes in self.nodes.values():
            yield from (node.work for node in nodes)


@dataclass(frozen=True, slots=True)
class _Range:
    """Bytes of a buffer, and where they lie; ``stop`` None: to the end of a buffer of unknown size."""

    buffer: str
    start: int
    stop: int | None
    writes: bool
    of: _Buffer


@dataclass(frozen=True, slots=True)
class _Buffer:
    space: str
    base: int
    nbytes: int | None
    allocated: int  # the step, or -1: there from the start
    life: int


@dataclass
class _Capture:
    graph: str
    origin: str
    tips: dict[str, frozenset[int]]
    """The nodes that the next one on each stream comes behind."""
    events: dict[str, frozenset[int]] = field(default_factory=dict)
    nodes: list[tuple[int, frozenset[int]]] = field(default_factory=list)
    broken: bool = False

    def reached(self) -> set[int]:
        """The nodes that the origin's newest work comes behind."""
        found: set[int] = set()
        todo = set(self.tips[self.origin])
        while todo:
            node = todo.pop()
            found.add(node)
            todo |= self.nodes[node][1] - found
        return found


class _Reader:
    """One pass over the steps in the host's order."""

    def __init__(self, program: Program) -> None:
        self.streams = program.streams
        self.steps = tuple(program.unrolled())
        self.index = 0
        self.ends: dict[str, set[int]] = {}
        self.buffers: dict[str, _Buffer] = {}
        self.ranges: dict[int, tuple[_Range, ...]] = {}
        self.graph_runs: dict[int, list[tuple[int, frozenset[int]]]] = {}
        self.memory: dict[int, _Range] = {}
        self.freed: dict[int, int] = {}  # frees, and the allocations that ended there (-1: since the start)
        self.dead: dict[str, int] = {}
        self.behind: dict[int, tuple[int, ...]] = {}
        self.extended: dict[int, tuple[str, ...]] = {}
        self.longer: dict[str, list[str]] = {}
        self.lives = 0
        self.silent: set[int] = set()
        self.needs: dict[int, tuple[int, ...]] = {}
        self.loose: dict[int, tuple[int, ...]] = {}
        self.captures: list[_Capture] = []
        self.graphs: dict[str, tuple[_Capture | None, int]] = {}
        self.recorded: set[str] = set()
        self.user_events: set[str] = set()
        self.made: dict[str, int] = {}  # events of commands and of users, and the steps that made them
        self.calls: dict[str, tuple[set[int], set[int]]] = {}
        """The latest call on a stream, and those that came since and may come in any order."""
        self.threads: dict[str, set[int]] = {}  # what a thread's next step has to come behind
        for name, nbytes in program.buffers.items():
            self._bind(name, f"{name} from the start", 0, nbytes, -1)

    def read(self) -> None:
        for index, step in enumerate(self.steps):
            self.index = index
            name = getattr(step, "stream", None)
            if name is not None and name not in self.streams:
                known = ", ".join(self.streams) or "none"
                raise self._refuse(f"there is no stream {name!r}; there are {known}")
            needs = self.threads.get(step.thread, set())
            on_streams: set[int] = set()
            if not self._captured(step):
                self._step(step)
                on_streams = self._order_on_streams(step)
                needs = needs | self._makers(step)
                self._note_event(step)
            self.needs[index], self.loose[index] = tuple(needs | on_streams), tuple(needs)
            self.threads[step.thread] = {index}
            if isinstance(step, Launch) and step.blocks and index not in self.silent:
                self.needs[~index] = self.loose[~index] = (index,)
                self.threads[step.thread] = {~index}
            if isinstance(step, HandOver):
                self.threads.setdefault(step.to, set()).add(self.index)

    def _refuse(self, text: str) -> LabError:
        step = self.steps[self.index]
        source = f", {step.source}" if step.source else ""
        return LabError(f"step {self.index} ({label(step)}{source}): {text}")

    # Bytes

    def _bind(self, name: str, space: str, base: int, nbytes: int | None, allocated: int) -> None:
        ends = self.ends.setdefault(space, set())
        ends.update((base, base + (ENDLESS if nbytes is None else nbytes)))
        self.lives += 1
        self.buffers[name] = _Buffer(space, base, nbytes, allocated, self.lives)

    def _buffer(self, name: str) -> _Buffer:
        if name not in self.buffers:
            known = ", ".join(list(self.buffers)[:12]) or "none"
            raise self._refuse(f"there is no buffer {name!r}; there are {known}")
        return self.buffers[name]

    def _range(self, name: str, start: int, stop: int | None, writes: bool) -> _Range:
        buffer = self._buffer(name)
        if stop is None:
            stop = buffer.nbytes
        if start < 0 or (stop is not None and stop < start):
            raise self._refuse(f"bytes {start} to {stop} of {name} are no range")
        if buffer.nbytes is not None and stop is not None and stop > buffer.nbytes:
            raise self._refuse(f"bytes {start} to {stop} of {name} lie outside its {buffer.nbytes} bytes")
        ends = self.ends[buffer.space]
        ends.add(buffer.base + start)
        if stop is not None:
            ends.add(buffer.base + stop)
        return _Range(name, start, stop, writes, buffer)

    def _touches(self, step: Launch | HostRead | HostWrite) -> tuple[_Range, ...]:
        if isinstance(step, Launch):
            ordered = sorted(step.accesses, key=lambda a: a.writes)
            return tuple(self._range(a.buffer, a.start, a.stop, a.writes) for a in ordered)
        return (self._range(step.buffer, step.start, step.stop, isinstance(step, HostWrite)),)

    # Steps

    def _step(self, step: Step) -> None:
        at = self.index
        match step:
            case Launch() | HostRead() | HostWrite():
                self.ranges[at] = self._touches(step)
            case Allocate():
                space = f"allocation {at}" if step.address is None else f"memory {step.memory}"
                base = step.address or 0
                self.behind[at] = self._given_back(space, base, step.nbytes)
                self.dead.pop(step.buffer, None)
                self.longer.pop(step.buffer, None)
                self._bind(step.buffer, space, base, step.nbytes, at)
                self.memory[at] = self._range(step.buffer, 0, step.nbytes, True)
            case Free():
                if step.buffer in self.dead:
                    raise self._refuse(f"{step.buffer} was freed before, at step {self.dead[step.buffer]}")
                if (step.stream is not None) != (step.how == "stream"):
                    raise self._refuse("how='stream' goes with a stream, and a stream with how='stream'")
                self.memory[at] = self._range(step.buffer, 0, None, True)
                self.freed[at] = self._buffer(step.buffer).allocated
                self.dead[step.buffer] = at
                streams = self.longer.pop(step.buffer, [])
                self.extended[at] = tuple(streams) if step.how == "pool" else ()
            case RecordStream():
                self._buffer(step.buffer)
                self.longer.setdefault(step.buffer, []).append(step.stream)
            case GraphLaunch():
                if step.graph not in self.graphs:
                    known = ", ".join(self.graphs) or "none"
                    raise self._refuse(f"there is no graph {step.graph!r}; captured so far: {known}")
                capture = self.graphs[step.graph][0]
                if capture is None:
                    self.silent.add(at)
                else:
                    self.graph_runs[at] = capture.nodes
            case UserEvent():
                self.user_events.add(step.event)
            case SetEvent():
                if step.event not in self.user_events:
                    raise self._refuse(f"{step.event!r} is no user event that is yet to be set")
                self.user_events.remove(step.event)

    def _note_event(self, step: Step) -> None:
        event = getattr(step, "event", None)
        if isinstance(step, DestroyEvent):
            self.recorded.discard(step.event)
            self.made.pop(step.event, None)
        elif event and isinstance(step, Record | Launch | Barrier | UserEvent):
            self.recorded.add(event)
            self.made.pop(event, None)
            if not isinstance(step, Record):
                self.made[event] = self.index
            for capture in self.captures:
                capture.events.pop(event, None)

    def _given_back(self, space: str, base: int, nbytes: int) -> tuple[int, ...]:
        """The frees that ended the buffers which had these bytes before."""
        return tuple(
            at
            for at in self.freed
            if self.memory[at].of.space == space
            and self.memory[at].of.base < base + nbytes
            and base < self.memory[at].of.base + (self.memory[at].stop or 0)
        )

    # Capture

    def _captured(self, step: Step) -> bool:
        """Whether the step goes into a graph, or begins or ends one, and so runs nothing itself."""
        match step:
            case BeginCapture():
                self._begin(step)
            case EndCapture():
                self._end(step)
            case Synchronize() | Query() if self.captures:
                return self._host_asks(step)
            case Launch() | Record() | Wait() | Barrier() if self.captures:
                return self._into_graph(step)
            case _:
                return False
        self.silent.add(self.index)
        return True

    def _capture_of(self, stream: str) -> _Capture | None:
        return next((c for c in self.captures if stream in c.tips), None)

    def _begin(self, step: BeginCapture) -> None:
        kind = self.streams[step.stream].kind
        if kind == "out-of-order" or self._capture_of(step.stream):
            raise self._refuse(f"{step.stream} is out-of-order, or is being captured already")
        self.graphs[step.graph] = (None, self.index)
        if kind != "legacy":  # CUDA refuses to capture that one
            self.captures.append(_Capture(step.graph, step.stream, {step.stream: frozenset()}))

    def _end(self, step: EndCapture) -> None:
        capture = self._capture_of(step.stream)
        if capture is None:
            raise self._refuse(f"nothing is being captured on {step.stream}; begin a capture first")
        self.captures.remove(capture)
        joined = capture.reached()
        unjoined = any(not tip <= joined for tip in capture.tips.values())
        if not capture.broken and not unjoined and step.stream == capture.origin:
            self.graphs[capture.graph] = (capture, self.index)

    def _host_asks(self, step: Synchronize | Query) -> bool:
        """A question that CUDA refuses during a capture waits for nothing, and breaks the capture."""
        if step.event is not None:
            broken = [c for c in self.captures if step.event in c.events]
        elif step.stream is not None:
            names = {step.stream}
            if self.streams[step.stream].kind == "legacy":
                names |= set(self._blocking(step.stream))
            broken = [c for c in self.captures if not names.isdisjoint(c.tips)]
        else:
            broken = self.captures
        for capture in broken:
            capture.broken = True
        if broken:
            self.silent.add(self.index)
        return bool(broken)

    def _break_for_legacy(self, name: str) -> bool:
        """Using the legacy stream ends the captures of the blocking streams of its context."""
        if self.streams[name].kind != "legacy":
            return False
        hit = [c for s in self._blocking(name) if (c := self._capture_of(s)) is not None]
        for capture in hit:
            capture.broken = True
        return bool(hit)

    def _blocking(self, name: str) -> list[str]:
        context = self.streams[name].context
        return [n for n, s in self.streams.items()
                if s.context == context and s.kind in ("blocking", "per-thread")]  # fmt: skip

    def _into_graph(self, step: Launch | Record | Wait | Barrier) -> bool:
        stream, after = step.stream, (step.event,) if isinstance(step, Wait) else getattr(step, "after", ())
        if self._break_for_legacy(stream):
            self.silent.add(self.index)
            return True
        capture = self._capture_of(stream)
        if capture is None:
            capture = next((c for c in self.captures if any(e in c.events for e in after)), None)
            if capture is None:
                return False
            capture.tips[stream] = frozenset()
        tip = capture.tips[stream]
        for event in after:
            if event in capture.events:
                tip |= capture.events[event]
            elif event in self.recorded or any(event in c.events for c in self.captures):
                capture.broken = True  # it waits for what is outside
        if isinstance(step, Launch):
            self.ranges[self.index] = self._touches(step)
            capture.nodes.append((self.index, tip))
            tip = frozenset({len(capture.nodes) - 1})
        capture.tips[stream] = tip
        event = "" if isinstance(step, Wait) else step.event
        if event:
            capture.events[event] = tip
            self.recorded.discard(event)
        self.silent.add(self.index)
        return True

    # The host's threads

    def _order_on_streams(self, step: Step) -> set[int]:
        """The calls before this one on its stream, which keep their order whichever thread makes them."""
        needs: set[int] = set()
        names: set[str] = set()
        if isinstance(step, Synchronize) and step.stream is None and step.event is None:
            names |= set(self.streams)
        elif isinstance(step, Free):
            names |= set(self.extended[self.index])
        if getattr(step, "stream", None) is not None and not isinstance(step, RecordStream):
            names.add(step.stream)
        for name in names:
            for other in (name, *self._implied(name)):
                needs |= self._before_on(other, step)
        if not isinstance(step, Synchronize | Query):
            for name in names:
                self._note_action(name, step)
        return needs

    def _makers(self, step: Step) -> set[int]:
        """The steps without which this one cannot be.

        Nobody has a buffer's address before it is allocated, an allocator has no bytes before they are given
        back, and nobody can name a command's event before the command is given, or a graph before its capture
        has ended.
        """
        needs = set(self.behind.get(self.index, ()))
        if self.index in self.ranges:
            needs |= {self.buffers[r.buffer].allocated for r in self.ranges[self.index]}
        if self.index in self.freed:
            needs.add(self.freed[self.index])
        if isinstance(step, GraphLaunch):
            needs.add(self.graphs[step.graph][1])
        events = (*getattr(step, "after", ()), getattr(step, "event", None))
        needs |= {self.made[e] for e in events if e in self.made}
        return needs - {-1, self.index}

    def _before_on(self, name: str, step: Step) -> set[int]:
        """The calls on a stream that this one comes behind: of an out-of-order queue, not all."""
        floor, since = self.calls.get(name, (set(), set()))
        free = isinstance(step, Launch) and self.streams[name].kind == "out-of-order"
        return floor if free else floor | since

    def _note_action(self, name: str, step: Step) -> None:
        floor, since = self.calls.get(name, (set(), set()))
        if self.streams[name].kind == "out-of-order" and not isinstance(step, Wait | Barrier):
            self.calls[name] = floor, since | {self.index}
        else:
            self.calls[name] = {self.index}, set()

    def _implied(self, name: str) -> list[str]:
        """The streams that an action on this one waits for, without being told to."""
        what = self.streams[name]
        if what.kind == "legacy":
            return self._blocking(name)
        if what.kind in ("blocking", "per-thread"):
            return [n for n, s in self.streams.items() if s.kind == "legacy" and s.context == what.context]
        return []


def in_order(at: int) -> tuple[int, bool]:
    """Sorts steps and the host's waiting for them, ``~index``, into the host's order."""
    return (at, False) if at >= 0 else (~at, True)


def read_program(program: Program) -> Plan:
    """Read a program through once. ``LabError``, naming the step, for one that cannot be played back."""
    count = len(program) * program.repeat
    if count > MAX_STEPS:
        raise LabError(
            f"{program.name} has {count} steps, and at most {MAX_STEPS} are played back; take fewer repeats"
        )
    reader = _Reader(program)
    reader.read()
    return _Writer(reader).plan(program)


class _Writer:
    """Gives every piece of memory its word, every piece of work its number."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader
        self.base: dict[str, int] = {}
        self.ends: dict[str, list[int]] = {}
        self.words = 0
        for space, ends in reader.ends.items():
            self.base[space], self.ends[space] = self.words, sorted(ends)
            self.words += len(ends) - 1
        self.slots = 0
        self.number = 0
        self.places: list[int] = []
        self.place_of: dict[int, int] = {}
        self.touched: dict[int, set[int]] = {}
        self.named: Counter[tuple[str, int]] = Counter()
        self.alike: Counter[tuple[str, int]] = Counter()
        for index, step in enumerate(reader.steps):
            if index in reader.ranges and index not in reader.silent:
                self.alike[label(step), step.step] += 1
            for at, _ in reader.graph_runs.get(index, ()):
                self.alike[label(reader.steps[at]), step.step] += 1

    def plan(self, program: Program) -> Plan:
        reader = self.reader
        works: dict[int, Work] = {}
        nodes: dict[int, tuple[Node, ...]] = {}
        for index, step in enumerate(reader.steps):
            if index in reader.ranges and index not in reader.silent:
                works[index] = self._work(index, index, step)
            elif index in reader.graph_runs:
                run = reader.graph_runs[index]
                nodes[index] = tuple(
                    Node(self._work(at, index, step), tuple(sorted(after)), at) for at, after in run
                )
        left, gone = [], []
        for name, b in reader.buffers.items():
            (gone if name in reader.dead else left).append(self._part(_Range(name, 0, b.nbytes, False, b)))
        return Plan(
            name=program.name,
            streams=program.streams,
            steps=reader.steps,
            words=self.words,
            slots=self.slots,
            places=tuple(self.places),
            works=works,
            nodes=nodes,
            memory={index: self._part(r) for index, r in reader.memory.items()},
            touched={index: self._touched(r) for index, r in reader.memory.items()},
            bounds=tuple(pair for ends in self.ends.values() for pair in itertools.pairwise(ends)),
            behind=reader.behind,
            extended=reader.extended,
            silent=frozenset(reader.silent),
            needs=reader.needs,
            loose=reader.loose,
            left=tuple(left),
            gone=tuple(gone),
        )

    def _part(self, r: _Range) -> Part:
        ends, base = self.ends[r.of.space], self.base[r.of.space]
        first = base + bisect_left(ends, r.of.base + r.start)
        last = base + (len(ends) - 1 if r.stop is None else bisect_left(ends, r.of.base + r.stop))
        return Part(r.buffer, r.start, r.stop, r.writes, first, last, r.of.base, r.of.life)

    def _touched(self, r: _Range) -> tuple[Part, ...]:
        """The parts of a buffer that are touched in this life of it."""
        part = self._part(r)
        words = sorted(self.touched.get(part.life, ()))
        starts = [w for i, w in enumerate(words) if i == 0 or words[i - 1] != w - 1]
        stops = [w + 1 for i, w in enumerate(words) if i == len(words) - 1 or words[i + 1] != w + 1]
        return tuple(replace(part, first=a, last=b) for a, b in zip(starts, stops, strict=True))

    def _work(self, described: int, index: int, step: Step) -> Work:
        """The work that the step at ``described`` describes, done by the step at ``index``."""
        what = self.reader.steps[described]
        parts = tuple(map(self._part, self.reader.ranges[described]))
        reads = sum(len(p.words) for p in parts if not p.writes)
        writes = sum(len(p.words) for p in parts if p.writes)
        for part in parts:
            self.touched.setdefault(part.life, set()).update(part.words)
        if described not in self.place_of:
            self.place_of[described] = len(self.places)
            self.places.extend(word for p in parts for word in p.words)
        self.number += 1
        slot, self.slots = self.slots, self.slots + reads + writes
        if self.slots > MAX_WORDS:
            raise LabError(
                f"step {index} ({label(step)}): up to here, launches touch more than {MAX_WORDS} pieces of "
                "memory, too many to play back; take fewer repeats"
            )
        iteration = what.step if index == described else step.step
        name = self._name(what, iteration)
        return Work(self.number, index, label(what), name, iteration, parts, reads, writes,
                    self.place_of[described], slot)  # fmt: skip

    def _name(self, what: Step, iteration: int) -> str:
        """What messages call a piece of work, with its number where others are called the same."""
        key = label(what), iteration
        self.named[key] += 1
        name = label(what) if isinstance(what, Launch) else "the host"
        if iteration >= 0:
            name += f" in step {iteration}"
        return f"{name} (no. {self.named[key]})" if self.alike[key] > 1 else name
