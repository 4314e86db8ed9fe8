"""A second opinion on hazards, made to be read rather than to be quick: for small programs only.

It shares nothing with `flashnorm_lab.hazards` but the steps' names. There, vector clocks are carried along in
one pass. Here, every call and every piece of work is a node of a graph, every rule of CUDA or OpenCL is an
arrow that says what a node waits for, and order is whatever a path of arrows connects. From that come all
pairs of accesses that nothing orders, and, by running a program in every order that the arrows allow, all
values that anybody can see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from flashnorm_lab.program import (
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
    Synchronize,
    UserEvent,
    Wait,
)

RANK = ("use before allocation", "use after free", "reuse", "RAW", "WAR", "WAW")


class Deadlock(Exception):
    """The host waits for what only it could let go."""


class Silent(Exception):
    """The rules that are written down here do not say what happens."""


@dataclass
class Life:
    """A buffer between its allocation and its free; a name may be given again, and so may the bytes.

    ``recorded``: streams that its life was extended to, and ``guards`` what they had at the free.
    """

    name: str
    memory: str
    base: int
    nbytes: int
    allocation: int | None = None
    free: int | None = None
    how: str = ""
    recorded: set[str] = field(default_factory=set)
    guards: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Touch:
    """A node touches bytes of a memory, as part of a life."""

    node: int
    life: int
    start: int
    stop: int
    writes: bool


@dataclass(frozen=True)
class Pair:
    """Two nodes that nothing orders and that conflict; ``first`` comes first in the host's order."""

    kind: str
    buffer: str
    first: int
    second: int
    new: str = ""


@dataclass
class Template:
    """A graph being captured: its launches, what each waits for, and how far every stream has come."""

    origin: str
    broken: bool = False
    ended: bool = False
    nodes: list[tuple[object, set[int]]] = field(default_factory=list)
    tails: dict[str, set[int]] = field(default_factory=dict)
    end: int | None = None


class Brute:
    """Everything about one program. ``waits[n]`` are the nodes that node ``n`` waits for."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.waits: list[set[int]] = []
        self.names: list[str] = []
        self.number: list[int] = []
        self.source: list[str] = []
        self.touches: list[Touch] = []
        self.late: list[Pair] = []  # uses after the free in the host's order, wrong under any ordering
        self.lives: list[Life] = []
        self.errors: list[str] = []
        self.work: list[int] = []  # nodes that are launches, host accesses, allocations or frees
        self._live: dict[str, int] = {}
        self._tail: dict[str, int] = {}
        self._given: dict[str, set[int]] = {name: set() for name in program.streams}
        self._floor: dict[str, set[int]] = {name: set() for name in program.streams}
        self._host: dict[str, set[int]] = {}
        self._heard: dict[str, set[int]] = {}
        self._records: dict[str, list[tuple[int | None, int]]] = {}
        self._gates: dict[str, int] = {}
        self._unset: dict[str, int] = {}
        self._captured: dict[str, Template] = {}
        self._captured_events: dict[str, tuple[Template, set[int]]] = {}
        self._graphs: dict[str, Template] = {}
        for name, nbytes in program.buffers.items():
            self._live[name] = len(self.lives)
            self.lives.append(Life(name, f"buffer {name}", 0, (1 << 62) if nbytes is None else nbytes))
        for step in program.unrolled():
            self._take(step)
        self._close()
        if any(not runs for node, runs in enumerate(self.runs) if node not in self._unset.values()):
            self.errors.append("never set")

    # Nodes

    def _node(self, name: str, waits: set[int], step: object = None) -> int:
        self.waits.append(set(waits))
        self.names.append(name)
        self.number.append(getattr(step, "step", -1))
        self.source.append(getattr(step, "source", ""))
        return len(self.waits) - 1

    def _call(self, thread: str) -> int:
        """A host thread calls: after all that it did and was told before."""
        node = self._node("call", self._host.get(thread, set()))
        self._host[thread] = {node}
        self._heard.setdefault(thread, set()).add(node)
        return node

    def _host_waits(self, thread: str, what: set[int]) -> None:
        self._host[thread] = {self._node("host goes on", self._host[thread] | what)}

    def _put(self, name: str, stream: str, waits: set[int], step: object = None) -> int:
        """Something on a stream that runs in order, with what the default stream's rule adds."""
        waits = waits | {self._tail[s] for s in self._tied(stream) if s in self._tail}
        node = self._tail[stream] = self._node(name, waits, step)
        return node

    def _ordered(self, stream: str) -> bool:
        return self.program.streams[stream].kind != "out-of-order"

    def _recorded(self, stream: str, call: int) -> int:
        """An event recorded on a stream: behind all that the stream was given."""
        if self._ordered(stream):
            return self._put("record", stream, {call})
        return self._node("record", {call} | self._given_to(stream))

    def _given_to(self, stream: str) -> set[int]:
        """What the host waits for when it waits for a stream."""
        if not self._ordered(stream):
            return self._given[stream] | self._floor[stream]
        return {self._tail[s] for s in self._tied(stream) if s in self._tail}

    def _tied(self, stream: str) -> list[str]:
        """The stream, and those that it waits for by the default stream's rule before it does anything."""
        own, blocking = self.program.streams[stream], ("blocking", "per-thread")
        return [
            name
            for name, other in self.program.streams.items()
            if name == stream
            or (
                other.context == own.context
                and (
                    (own.kind == "legacy" and other.kind in blocking)
                    or (own.kind in blocking and other.kind == "legacy")
                )
            )
        ]

    def _bound(self, event: str, thread: str) -> set[int]:
        """What an event stands for when this thread asks now."""
        if event in self._captured_events:
            raise Silent(f"{event} was recorded in a capture")
        if event in self._gates:
            return {self._gates[event]}
        records = self._records.get(event, [])
        heard = [call is None or call in self._heard[thread] for call, _ in records]
        if any(heard) and not heard[-1]:
            raise Silent(f"which record of {event} counts depends on how two threads run")
        return {records[-1][1]} if any(heard) else set()

    def _complete(self, event: str, call: int | None, node: int) -> None:
        """The event stands for a node; ``call`` is what another thread has to know of, None for nothing.

        A command's own event comes into being with the command: nobody can name it before.
        """
        self._records.setdefault(event, []).append((call, node))
        self._gates.pop(event, None)
        self._captured_events.pop(event, None)

    # Steps

    def _take(self, step: object) -> None:
        thread = step.thread
        if self._captured and self._capture(step):
            return
        call = self._call(thread)
        match step:
            case Launch():
                waits = {call}.union(*(self._bound(e, thread) for e in step.after))
                if self._ordered(step.stream):
                    node = self._put(step.name, step.stream, waits, step)
                else:
                    node = self._node(step.name, waits | self._floor[step.stream], step)
                    self._given[step.stream].add(node)
                self._accesses(node, [(a.buffer, a.start, a.stop, a.writes) for a in step.accesses])
                if step.event:
                    self._complete(step.event, None, node)
                if step.blocks:
                    self._host_waits(thread, {node})
            case Record():
                self._complete(step.event, call, self._recorded(step.stream, call))
            case Wait():
                waits = {call} | self._bound(step.event, thread)
                if self._ordered(step.stream):
                    self._put("wait", step.stream, waits)
                else:
                    node = self._node("wait", waits | self._floor[step.stream])
                    self._given[step.stream].add(node)
                    self._floor[step.stream] = {node}
            case Barrier():
                waits = {call}.union(*(self._bound(e, thread) for e in step.after))
                if self._ordered(step.stream):
                    node = self._put("barrier", step.stream, waits)
                else:
                    waits |= self._floor[step.stream]
                    if not step.after:
                        waits |= self._given[step.stream]
                    node = self._node("barrier", waits)
                    self._given[step.stream].add(node)
                    self._floor[step.stream] = {node}
                if step.event:
                    self._complete(step.event, None, node)
            case Synchronize() | Query():
                if isinstance(step, Query) and not step.done:
                    return
                if step.event is not None:
                    self._host_waits(thread, self._bound(step.event, thread))
                else:
                    streams = self.program.streams if step.stream is None else [step.stream]
                    self._host_waits(thread, set().union(*(self._given_to(s) for s in streams)))
            case HostRead() | HostWrite():
                writes = isinstance(step, HostWrite)
                node = self._node(f"host {'write' if writes else 'read'} of {step.buffer}", {call}, step)
                self._host[thread] = {node}
                stop = self.lives[self._live[step.buffer]].nbytes if step.stop is None else step.stop
                self._accesses(node, [(step.buffer, step.start, stop, writes)])
            case Allocate():
                self._allocate(step, call)
            case Free():
                self._free(step, call)
            case RecordStream():
                self.lives[self._live[step.buffer]].recorded.add(step.stream)
            case BeginCapture():
                template = self._captured[step.stream] = Template(step.stream)
                template.tails[step.stream] = set()
                self._graphs[step.graph] = template
            case EndCapture():
                raise Silent("nothing is being captured there")
            case GraphLaunch():
                self._launch_graph(step, call)
            case UserEvent():
                self._gates[step.event] = self._unset[step.event] = self._node("gate", set())
            case SetEvent():
                self.waits[self._unset.pop(step.event)].add(call)
            case DestroyEvent():
                self._records.pop(step.event, None)
            case HandOver():
                self._host.setdefault(step.to, set()).add(call)
                self._heard.setdefault(step.to, set()).update(self._heard[thread])
            case _:
                raise Silent(f"{step}")

    # Memory

    def _accesses(self, node: int, accesses: list[tuple[str, int, int, bool]]) -> None:
        self.work.append(node)
        for name, start, stop, writes in accesses:
            number = self._live[name]
            life = self.lives[number]
            if life.free is not None:
                self.late.append(Pair("use after free", name, life.free, node))
            elif start < stop:
                self.touches.append(Touch(node, number, life.base + start, life.base + stop, writes))

    def _allocate(self, step: Allocate, call: int) -> None:
        memory = f"allocation {len(self.lives)}" if step.address is None else f"memory {step.memory}"
        life = Life(step.buffer, memory, step.address or 0, step.nbytes)
        before = [
            old
            for old in self.lives
            if old.memory == memory
            and old.base < life.base + life.nbytes
            and life.base < old.base + old.nbytes
        ]
        guards = {guard for old in before for guard in old.guards}
        if guards:
            self._host_waits(step.thread, guards)
        if step.stream is not None:
            freed = {old.free for old in before if old.how == "stream"}
            node = self._put(
                f"allocation of {step.buffer}", step.stream, {call} | self._host[step.thread] | freed, step
            )
            self.work.append(node)
            life.allocation = node
        self._live[step.buffer] = len(self.lives)
        self.lives.append(life)

    def _free(self, step: Free, call: int) -> None:
        life = self.lives[self._live[step.buffer]]
        name = f"free of {step.buffer}"
        # A pool that has been told of further streams records an event on each of them.
        life.guards = {self._recorded(stream, call) for stream in sorted(life.recorded)}
        if step.how == "stream":
            life.free = self._put(name, step.stream, {call}, step)
        else:
            life.free = self._node(name, {call}, step)
            self._host[step.thread] = {life.free}
        life.how = step.how
        self.work.append(life.free)

    # Graphs

    def _capture(self, step: object) -> bool:
        """Take a step into the capture that it belongs to, or refuse it; tells whether that is all."""
        blocking = ("blocking", "per-thread")
        streams = self.program.streams

        def implicit(name: str) -> list[str]:
            if streams[name].kind != "legacy":
                return []
            return [
                s
                for s in self._captured
                if streams[s].kind in blocking and streams[s].context == streams[name].context
            ]

        match step:
            case Synchronize() | Query():
                if step.event is not None:
                    if step.event in self._captured_events and not self._captured_events[step.event][0].ended:
                        self._break(self._captured_events[step.event][0], "cudaErrorCapturedEvent")
                        return True
                    return False
                if step.stream is None:
                    for template in {id(t): t for t in self._captured.values()}.values():
                        self._break(template, "cudaErrorStreamCaptureUnsupported")
                    return True
                for other in implicit(step.stream):
                    self._break(self._captured[other], "cudaErrorStreamCaptureImplicit")
                    return True
                if step.stream in self._captured:
                    self._break(self._captured[step.stream], "cudaErrorStreamCaptureUnsupported")
                    return True
                return False
            case Launch() | Record() | Wait() | Barrier():
                for other in implicit(step.stream):
                    self._break(self._captured[other], "cudaErrorStreamCaptureImplicit")
                    return True
                after = step.after if isinstance(step, Launch | Barrier) else ()
                after = (step.event,) if isinstance(step, Wait) else after
                template = self._captured.get(step.stream)
                if template is None:
                    inside = [self._captured_events[e][0] for e in after if e in self._captured_events]
                    inside = [t for t in inside if not t.ended]
                    if not inside:
                        return False
                    template = self._captured[step.stream] = inside[0]
                    template.tails[step.stream] = set()
                waits = set(template.tails[step.stream])
                for event in after:
                    found = self._captured_events.get(event)
                    if found is not None and found[0] is template:
                        waits |= found[1]
                    elif found is not None or event in self._records:
                        self._break(template, "cudaErrorStreamCaptureIsolation")
                if isinstance(step, Launch):
                    template.nodes.append((step, waits))
                    waits = {len(template.nodes) - 1}
                template.tails[step.stream] = waits
                completes = step.event if isinstance(step, Launch | Record | Barrier) else ""
                if completes:
                    self._captured_events[completes] = (template, waits)
                    self._records.pop(completes, None)
                return True
            case EndCapture():
                if step.stream not in self._captured:
                    raise Silent(f"nothing is captured on {step.stream}")
                template = self._captured[step.stream]
                if template.origin != step.stream:
                    self._break(template, "cudaErrorStreamCaptureUnmatched")
                inside: set[int] = set()
                todo = set(template.tails[template.origin])
                while todo:
                    node = todo.pop()
                    inside.add(node)
                    todo |= template.nodes[node][1] - inside
                if len(inside) < len(template.nodes):
                    self._break(template, "cudaErrorStreamCaptureUnjoined")
                template.ended = True
                self._captured = {s: t for s, t in self._captured.items() if t is not template}
                return True
        return False

    def _break(self, template: Template, code: str) -> None:
        template.broken = True
        self.errors.append(code)

    def _launch_graph(self, step: GraphLaunch, call: int) -> None:
        template = self._graphs[step.graph]
        if template.broken:
            return
        begin = self._put("graph begins", step.stream, {call})
        if template.end is not None:
            self.waits[begin].add(template.end)
        made: list[int] = []
        for launch, waits in template.nodes:
            node = self._node(
                launch.name, {begin} | {made[w] for w in waits}, replace(launch, step=step.step)
            )
            self._accesses(node, [(a.buffer, a.start, a.stop, a.writes) for a in launch.accesses])
            made.append(node)
        template.end = self._put("graph ends", step.stream, set(made))

    # Order

    def _close(self) -> None:
        """``before[n]``: the nodes done before ``n`` starts, as bits. ``runs[n]``: whether it ever does."""
        never = 0
        for gate in self._unset.values():
            never |= 1 << gate
        self.before = self.closed()
        self.runs = [not ((self.before[n] | 1 << n) & never) for n in range(len(self.waits))]
        if any(not self.runs[n] for n, name in enumerate(self.names) if name in ("call", "host goes on")):
            raise Deadlock

    def closed(self, added: Sequence[tuple[int, int]] = ()) -> list[int]:
        """For every node those before it, as bits, with arrows (from, to) added. `Deadlock` for a circle."""
        waits = [set(w) for w in self.waits]
        for first, second in added:
            waits[second].add(first)
        followers: list[list[int]] = [[] for _ in waits]
        for node, others in enumerate(waits):
            for other in others:
                followers[other].append(node)
        before = [0] * len(waits)
        left = [len(others) for others in waits]
        ready = [node for node, count in enumerate(left) if not count]
        done = 0
        while ready:
            node = ready.pop()
            done += 1
            for other in waits[node]:
                before[node] |= before[other] | 1 << other
            for other in followers[node]:
                left[other] -= 1
                if not left[other]:
                    ready.append(other)
        if done < len(waits):
            raise Deadlock
        return before

    def precedes(self, first: int, second: int) -> bool:
        """Whether ``first`` is done before ``second`` starts, in every run."""
        return bool(self.before[second] >> first & 1)

    def order(self) -> frozenset[tuple[int, int]]:
        """Every ordered pair of pieces of work, each by its place in `work`."""
        places = range(len(self.work))
        return frozenset((a, b) for a in places for b in places if self.precedes(self.work[a], self.work[b]))

    # Pairs that nothing orders

    def all_touches(self) -> list[Touch]:
        """Accesses, and the allocations and frees that count as writes of the whole life."""
        found = list(self.touches)
        for number, life in enumerate(self.lives):
            whole = (number, life.base, life.base + life.nbytes, True)
            if life.allocation is not None:
                found.append(Touch(life.allocation, *whole))
            if life.free is not None and life.how != "pool":
                found.append(Touch(life.free, *whole))
        return sorted(found, key=lambda t: t.node)

    def pairs(self, nearest: bool = False) -> list[Pair]:
        """All conflicts that nothing orders; with ``nearest`` those with no write of some byte in between."""
        touches = self.all_touches()
        found: dict[tuple[int, int, str, str], Pair] = {
            (p.first, p.second, p.buffer, ""): p for p in self.late
        }
        for i, a in enumerate(touches):
            for b in touches[i + 1 :]:
                pair = self._conflict(a, b)
                if pair is None or (nearest and not self._adjacent(a, b, touches)):
                    continue
                key = (pair.first, pair.second, pair.buffer, pair.new)
                if key not in found or RANK.index(pair.kind) < RANK.index(found[key].kind):
                    found[key] = pair
        return list(found.values())

    def _conflict(self, a: Touch, b: Touch) -> Pair | None:
        old, new = self.lives[a.life], self.lives[b.life]
        if a.node == b.node or old.memory != new.memory or a.stop <= b.start or b.stop <= a.start:
            return None
        if not (a.writes or b.writes) or not (self.runs[a.node] and self.runs[b.node]):
            return None
        if self.precedes(a.node, b.node):
            return None
        if (
            self.precedes(b.node, a.node) and b.node != old.free
        ):  # held work; a free is too early all the same
            return None
        if a.life != b.life:
            marks = (old.allocation, new.allocation, new.free, old.free if old.how == "pool" else None)
            if a.node in marks or b.node in marks:
                return None  # to be allocated or freed touches no byte of another life
            return Pair("reuse", old.name, a.node, b.node, new.name)
        if a.node == old.allocation:
            kind = "use before allocation"
        elif b.node == old.free:
            kind = "use after free"
        else:
            kind = "RAW" if a.writes and not b.writes else "WAW" if a.writes else "WAR"
        return Pair(kind, old.name, a.node, b.node)

    def _adjacent(self, a: Touch, b: Touch, touches: list[Touch]) -> bool:
        left = [(max(a.start, b.start), min(a.stop, b.stop))]
        memory = self.lives[a.life].memory
        for t in touches:
            life = self.lives[t.life]  # its allocation and its free overwrite nothing of other lives
            mark = t.node in (life.allocation, life.free) and t.life != a.life
            between = a.node < t.node < b.node and self.runs[t.node]
            if t.writes and between and life.memory == memory and not mark:
                left = [
                    part
                    for start, stop in left
                    for part in ((start, min(stop, t.start)), (max(start, t.stop), stop))
                    if part[0] < part[1]
                ]
        return bool(left)

    # All interleavings

    def cells(self) -> list[tuple[str, int, int]]:
        """The program's bytes, cut wherever an access begins or ends."""
        cuts: dict[str, set[int]] = {}
        for t in self.touches:
            cuts.setdefault(self.lives[t.life].memory, set()).update((t.start, t.stop))
        return [
            (memory, a, b)
            for memory, found in cuts.items()
            for a, b in zip(sorted(found), sorted(found)[1:], strict=False)
        ]

    def interleavings(self) -> Iterator[tuple[int, ...]]:
        """Every order in which the nodes that touch memory may run, one at a time."""
        nodes = sorted({t.node for t in self.touches if self.runs[t.node]})
        waits = {n: {m for m in nodes if self.precedes(m, n)} for n in nodes}

        def extend(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
            if len(done) == len(nodes):
                yield done
                return
            for n in nodes:
                if n not in done and waits[n] <= set(done):
                    yield from extend((*done, n))

        yield from extend(())

    def run(self, order: tuple[int, ...]) -> dict[tuple[int | str, str, int], object]:
        """What is seen in one order: by whom, reading or replacing, in which cell; and what is left.

        A value is the node that wrote it, None for what was there at the start.
        """
        cells = self.cells()
        memory: dict[int, object] = dict.fromkeys(range(len(cells)))
        seen: dict[tuple[int | str, str, int], object] = {}
        touched: dict[int, list[tuple[int, bool]]] = {}
        for t in self.touches:
            for number, (where, start, _) in enumerate(cells):
                if where == self.lives[t.life].memory and t.start <= start < t.stop:
                    touched.setdefault(t.node, []).append((number, t.writes))
        for node in order:
            for number, writes in touched[node]:
                seen[node, "replaces" if writes else "reads", number] = memory[number]
            for number, writes in touched[node]:
                if writes:
                    memory[number] = node
        seen |= {("left", "reads", number): value for number, value in memory.items()}
        return seen

    def outcomes(self) -> dict[tuple[int | str, str, int], set[object]]:
        """Everything that can be seen, over all interleavings."""
        found: dict[tuple[int | str, str, int], set[object]] = {}
        for order in self.interleavings():
            for key, value in self.run(order).items():
                found.setdefault(key, set()).add(value)
        return found


def keys(brute: Brute, pairs: list[Pair]) -> set[tuple[str, str, str, str, int]]:
    """Pairs as (kind, buffer, first, second, iterations apart), as the corpus writes them."""
    found = set()
    for p in pairs:
        a, b = brute.number[p.first], brute.number[p.second]
        apart = b - a if a >= 0 and b >= 0 else 0
        found.add((p.kind, p.buffer, brute.names[p.first], brute.names[p.second], apart))
    return found
