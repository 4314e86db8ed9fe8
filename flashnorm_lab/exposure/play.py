"""A program played back on an OpenCL device: real queues, real events, stand-in kernels.

Every stream is a command queue, on one half of the device or the other in turn, so that work really runs at
once. A launch first notes what it finds in the words that it reads, then writes a number of its own into
those that it writes. What is ordered is what OpenCL orders, by queues, wait lists, barriers and the host's
own waiting; nothing is looked up in an analysis.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from .. import kernels
from ..devices.opencl import PAGE, OpenCLDevice
from ..errors import LabError
from ..program import (
    Allocate,
    Barrier,
    DestroyEvent,
    Free,
    GraphLaunch,
    HostRead,
    HostWrite,
    Launch,
    Query,
    Record,
    SetEvent,
    Synchronize,
    UserEvent,
    Wait,
    label,
)
from .plan import Part, Plan, Work, in_order

PATIENCE_S = 60.0
"""How long work that nothing holds back may take, before it is taken for stuck."""
WITNESS_S = 0.01
"""How long work that waits for what is held is watched, to see that it does not start."""
FREED, FRESH = 0xDEAD0000, 0xA110C000
"""What freed and what newly allocated bytes hold; the lower digits number the buffer's life."""

START, LAUNCH, FREE, ALLOCATION, TAKEN = "start", "launch", "free", "allocation", "taken"


@dataclass(frozen=True, slots=True)
class Spot:
    """A piece of work: a step by its place, and for a graph's launch one of its nodes (None: all of them)."""

    index: int
    node: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Who left a value: the start, a piece of work by its number, a free or an allocation by the life's.

    ``life``: of the buffer that it was left in.
    """

    kind: str
    number: int
    text: str
    life: int = 0


@dataclass(frozen=True)
class Played:
    """What a run left. Logs and memory are uint32, one word for each piece of memory."""

    seen: np.ndarray
    ran: frozenset[int]
    """Numbers of the pieces of work that ran; what waits for an event that is never set does not."""
    memory: np.ndarray
    sources: Mapping[tuple[int, int], Source]
    """(word, value) to who left it."""
    kept: bool | None
    """Whether the one was held until the other was done; None where nothing was to be held."""
    why: str

    def source(self, word: int, value: int) -> Source:
        return self.sources.get((word, value), Source("unknown", 0, "a value that no work has written"))


class _Gate:
    """A user event that this run has made, and whether it is set."""

    __slots__ = ("event", "open")

    def __init__(self, event: Any) -> None:
        self.event, self.open = event, False


@dataclass(frozen=True, slots=True)
class _Command:
    """A command's event, and the gates that were shut between it and its start when it was given."""

    event: Any
    gates: frozenset[_Gate]

    def shut(self) -> set[_Gate]:
        return {g for g in self.gates if not g.open}


class _Queue:
    __slots__ = ("barrier", "gates", "in_order", "legacy", "newest", "queue")

    def __init__(self, queue: Any, kind: str) -> None:
        self.queue, self.in_order = queue, kind != "out-of-order"
        self.newest: _Command | None = None
        self.gates: frozenset[_Gate] = frozenset()  # of all that it was given
        self.barrier: _Command | None = None  # the latest one of an out-of-order queue
        self.legacy: _Command | None = None  # what it last waited for on the legacy stream


class Player:
    """One run of a plan.

    ``settle``: wait after every step for all that can finish, so that the steps happen in the host's order.
    ``hold``: two pieces of work; the first is kept from starting until the second is done, if that can be.
    ``threads``: until then, host threads go only as far as the second needs it ("needed"), or that with no
    regard to how two of them take turns on one stream ("loose"), or as far as they can ("eager").
    ``spare``: a free that leaves its bytes alone; the others mark those that their buffer's work touches.
    ``take``: a pool's free, behind which the pool gives the bytes to somebody else at once. ``fresh``: a
    stream-ordered allocation that marks its bytes, to show when it came. ``about``: lives of buffers of which
    all bytes are marked.
    """

    def __init__(
        self,
        device: OpenCLDevice,
        plan: Plan,
        settle: bool = False,
        hold: tuple[Spot, Spot] | None = None,
        spare: int = -1,
        take: int = -1,
        fresh: int = -1,
        threads: str = "needed",
        about: frozenset[int] = frozenset(),
    ) -> None:
        cl = self.cl = device._cl
        self.device, self.plan = device, plan
        self.settled, self.hold = settle, hold
        self.spare, self.take, self.fresh = spare, take, fresh
        self.threads, self.about = threads, about
        self.needs = plan.loose if threads == "loose" else plan.needs
        self.words = _page_aligned(max(1, plan.words))
        self.words[: plan.words] = _hashes(0, (), range(plan.words))
        self.start = self.words.copy()
        self.host_seen = np.zeros(max(1, plan.slots), np.uint32)
        flags = cl.mem_flags.READ_WRITE
        used = cl.mem_flags.USE_HOST_PTR if device.in_place else cl.mem_flags.COPY_HOST_PTR
        self.arena = cl.Buffer(device.context, flags | used, hostbuf=self.words)
        self.seen = cl.Buffer(device.context, flags, 4 * max(1, plan.slots))
        places = np.array(plan.places or (0,), np.int32)
        self.places = cl.Buffer(device.context, flags | cl.mem_flags.COPY_HOST_PTR, hostbuf=places)
        self.observe, self.produce = (
            cl.Kernel(device.program(name, kernels.load(name).defines(target)), name)
            for target in ["cpu" if device.is_cpu else "cuda"]
            for name in ("observe", "produce")
        )
        self.halves = device.halves or [device.device]
        self.made = 0
        self.queues = {name: self._queue(what.kind) for name, what in plan.streams.items()}
        self.graph_queues: dict[tuple[str, str], _Queue] = {}
        self.graph_ends: dict[str, _Command] = {}
        self.events: dict[str, _Command] = {}
        self.user_events: dict[str, _Gate] = {}
        self.gates: list[_Gate] = []
        self.unfinished: list[_Command] = []
        self.many = 1000
        self.works: dict[int, _Command | None] = {}
        self.frees: dict[int, _Command] = {}
        self.life_ends: dict[int, list[_Command]] = {}
        self.left_by: list[tuple[Part, int, Source]] = []
        self.done: set[int] = set()
        self.gate = self._new_gate() if hold else None
        self.second: _Command | None = None
        self.kept: bool | None = None
        self.why = ""

    # The whole run

    def play(self) -> Played:
        try:
            self._all_steps()
            self._settle()
            return self._look_back()
        finally:  # whatever happened, no queue is left shut
            for gate in self.gates:
                self._open(gate)
            for queue in (*self.queues.values(), *self.graph_queues.values()):
                queue.queue.finish()

    def _all_steps(self) -> None:
        steps = [at for index in range(len(self.plan.steps)) for at in self.plan.parts_of(index)]
        later: set[int] = set()
        if self.hold:
            first, second = (spot.index for spot in self.hold)
            wanted, by_host = self._behind(second), self._by_host(first)
            if by_host and first in wanted:
                self._give_up("the host does the one before it comes to the other")
            elif by_host:  # a gate cannot hold what the host does itself, but its thread can be late
                later = self._ahead(first)
            if self.threads == "eager":
                wanted.update(at for at in steps if in_order(at) < in_order(second) and at not in later)
            for at in steps:
                if at in wanted:
                    self._step(at)
        for at in steps:
            if at not in later or not self._holding:
                self._step(at)
        if self._holding:
            self._give_up("it does not come to run before")
        for at in steps:
            self._step(at)

    def _by_host(self, index: int) -> bool:
        step = self.plan.steps[index]
        return isinstance(step, HostRead | HostWrite) or (
            isinstance(step, Allocate | Free) and step.stream is None
        )

    def _behind(self, index: int) -> set[int]:
        """The steps that the host has to come past for this one, this one among them."""
        found: set[int] = set()
        todo = [index]
        while todo:
            at = todo.pop()
            if at not in found:
                found.add(at)
                todo.extend(self.needs[at])
        return found

    def _ahead(self, index: int) -> set[int]:
        """The steps that can be made only after this one, this one among them."""
        found = {index}
        for later in range(index, len(self.plan.steps)):
            for at in self.plan.parts_of(later):
                if not found.isdisjoint(self.needs[at]):
                    found.add(at)
        return found

    def _step(self, index: int) -> None:
        if index in self.done:
            return
        self.done.add(index)
        if index < 0:
            self._wait_for_launch(~index)
            return
        step = self.plan.steps[index]
        if index in self.plan.silent:
            if isinstance(step, Launch | Record | Barrier):
                self.events.pop(step.event, None)  # it is an event of the graph now
            return
        self._do(index, step)
        if self._holding and self.hold[1].index == index and self._by_host(index):
            self._release(True)
        if self.settled or self.hold:
            self._settle()
        if self._holding:
            self._look_at_second()

    def _look_back(self) -> Played:
        """What the run has left, before anything that was never to start is let go."""
        plan, cl = self.plan, self.cl
        seen = np.zeros(max(1, plan.slots), np.uint32)
        cl.enqueue_copy(self.device.transfer, seen, self.seen)
        memory = self._host_look(0, plan.words)
        ran = frozenset(n for n, c in self.works.items() if c is None or not c.shut())
        sources: dict[tuple[int, int], Source] = {}
        for word in range(plan.words):
            sources[word, int(self.start[word])] = Source(START, 0, "what was there at the start")
        for part, value, source in self.left_by:
            sources.update(((word, value), source) for word in part.words)
        for work in plan.all_works():
            if work.number not in ran:
                continue
            slots = slice(work.slot, work.slot + work.reads + work.writes)
            if self.works[work.number] is None:
                seen[slots] = self.host_seen[slots]
            places = plan.places[work.place + work.reads : work.place + work.reads + work.writes]
            values = map(int, _hashes(work.number, seen[work.slot : work.slot + work.reads], places))
            lives = (part.life for part in work.parts if part.writes for _ in part.words)
            text = f"what {work.name} wrote"
            for place, value, life in zip(places, values, lives, strict=True):
                sources[place, value] = Source(LAUNCH, work.number, text, life)
        return Played(seen, ran, memory, sources, self.kept, self.why)

    # Holding the first until the second is done

    @property
    def _holding(self) -> bool:
        return self.gate is not None and not self.gate.open

    def _gate_for(self, index: int, node: int | None = None) -> list[_Command]:
        """The gate, where this is the piece of work that is to be held."""
        if not self._holding or self.hold[0].index != index or self.hold[0].node not in (None, node):
            return []
        return [_Command(self.gate.event, frozenset({self.gate}))]

    def _given(self, index: int, command: _Command, node: int | None = None) -> None:
        """Note the piece of work that the other is held for."""
        if self.hold and self.hold[1] == Spot(index, node):
            self.second = command

    def _look_at_second(self) -> None:
        if self.second is None:
            return
        shut = self.second.shut()
        if self.gate in shut:
            self._watch(self.second)
            self._give_up(f"{self._name(1)} waits for {self._name(0)}")
        elif not shut:
            self._until_done(self.second)
            self._release(True)

    def _watch(self, command: _Command) -> None:
        """See that a command which is behind the gate does not run while the gate is shut."""
        deadline = time.perf_counter() + WITNESS_S
        while time.perf_counter() < deadline:
            if self._is_done(command):
                raise LabError(
                    f"{self.device.name} has run {self._name(1)} before an event that it waits for"
                )
            time.sleep(WITNESS_S / 10)

    def _release(self, kept: bool, why: str = "") -> None:
        self.kept, self.why = kept, why
        self._open(self.gate)

    def _give_up(self, why: str) -> None:
        self._release(False, f"{self._name(0)} cannot be held until {self._name(1)} is done: {why}")

    def _name(self, which: int) -> str:
        spot = self.hold[which]
        if spot.node is not None:
            return self.plan.nodes[spot.index][spot.node].work.label
        return label(self.plan.steps[spot.index])

    # Waiting, on the host

    def _host_waits(
        self, index: int, commands: Iterable[_Command], gates: Iterable[_Gate], wait: Any
    ) -> None:
        """The host's own waiting, unless what it waits for cannot come to an end as things stand."""
        commands = [c for c in commands if c is not None]
        shut = {g for g in (*gates, *(g for c in commands for g in c.gates)) if not g.open}
        if self.gate in shut:
            self._give_up(f"step {index} ({label(self.plan.steps[index])}) makes the host wait for it")
            shut.discard(self.gate)
        for gate in list(shut):
            name = next((n for n, g in self.user_events.items() if g is gate), "")
            setters = [i for i, s in enumerate(self.plan.steps)
                       if isinstance(s, SetEvent) and s.event == name and i not in self.done
                       and index not in self._behind(i)]  # fmt: skip
            if not setters:
                raise LabError(
                    f"step {index} ({label(self.plan.steps[index])}): the host would wait for ever for user "
                    f"event {name!r}, which is not set yet; set it before"
                )
            for at in sorted(self._behind(setters[0]), key=in_order):
                self._step(at)
        for command in commands:
            self._until_done(command)
        wait()

    def _wait_for_launch(self, index: int) -> None:
        command = self.works[self.plan.works[index].number]
        self._host_waits(index, [command], (), command.event.wait)

    def _is_done(self, command: _Command) -> bool:
        status = command.event.command_execution_status
        if status < 0:
            raise LabError(f"{self.device.name} failed to run a command (OpenCL status {status})")
        return status == self.cl.command_execution_status.COMPLETE

    def _until_done(self, command: _Command) -> None:
        """Wait for a command that nothing holds back, though not for ever."""
        deadline = time.perf_counter() + PATIENCE_S
        for queue in (*self.queues.values(), *self.graph_queues.values()):
            queue.queue.flush()
        while not self._is_done(command):
            if time.perf_counter() > deadline:
                raise LabError(f"{self.device.name} did not finish a command within {PATIENCE_S:.0f} s")
            time.sleep(1e-5)

    def _settle(self) -> None:
        """Wait for all that can finish."""
        held = []
        for command in self.unfinished:
            if command.shut():
                held.append(command)
            else:
                self._until_done(command)
        self.unfinished = held

    # Commands

    def _queue(self, kind: str) -> _Queue:
        cl, half = self.cl, self.halves[self.made % len(self.halves)]
        self.made += 1
        properties = 0
        if kind == "out-of-order":
            properties = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
            if not half.queue_properties & properties:
                raise LabError(f"{self.device.name} has no out-of-order queues, and the program has one")
        return _Queue(cl.CommandQueue(self.device.context, half, properties=properties), kind)

    def _new_gate(self) -> _Gate:
        gate = _Gate(self.cl.UserEvent(self.device.context))
        self.gates.append(gate)
        return gate

    def _open(self, gate: _Gate) -> None:
        if not gate.open:
            gate.open = True
            gate.event.set_status(self.cl.command_execution_status.COMPLETE)

    def _give(
        self, queue: _Queue, call: Any, waits: Iterable[_Command], all_before: bool = False
    ) -> _Command:
        """One command: ``call`` takes the wait list and returns the event."""
        waits = [w for w in waits if w is not None]
        if queue.barrier is not None and not all_before:
            waits.append(queue.barrier)  # PoCL 3.0 lets a barrier with a wait list pass the barrier before it
        gates = {g for w in waits for g in w.gates}
        if queue.in_order and queue.newest is not None:
            gates |= queue.newest.gates
        if all_before:
            gates |= queue.gates
        event = call([w.event for w in waits] or None)
        command = _Command(event, frozenset(g for g in gates if not g.open))
        queue.newest = command
        queue.gates = frozenset(g for g in queue.gates if not g.open) | command.gates
        self.unfinished.append(command)
        if len(self.unfinished) > self.many:
            self.unfinished = [c for c in self.unfinished if c.shut() or not self._is_done(c)]
            self.many = 1000 + 2 * len(self.unfinished)
        return command

    def _kernel(self, queue: _Queue, kernel: Any, arguments: tuple[Any, ...], waits: Any) -> _Command:
        numbers = [a if isinstance(a, self.cl.Buffer) else np.int32(a) for a in arguments]
        kernel.set_args(*numbers)
        launch = partial(self.cl.enqueue_nd_range_kernel, queue.queue, kernel, (1,), (1,), None)
        return self._give(queue, launch, waits)

    def _work(self, queue: _Queue, work: Work, waits: Iterable[_Command]) -> _Command:
        """What a launch does here: look, then write."""
        looks = work.reads + work.writes
        if looks:
            arguments = (self.arena, self.places, self.seen, work.place, work.slot, looks)
            waits = [self._kernel(queue, self.observe, arguments, waits)]
        arguments = (self.seen, self.places, self.arena, work.number, work.place, work.slot, work.reads,
                     work.writes)  # fmt: skip
        command = self.works[work.number] = self._kernel(queue, self.produce, arguments, waits)
        return command

    def _nothing(self, queue: _Queue, waits: Iterable[_Command] = ()) -> _Command:
        """A command that does nothing, behind what its place on the queue and its wait list say."""
        return self._kernel(queue, self.produce, (self.seen, self.places, self.arena, 0, 0, 0, 0, 0), waits)

    def _fill(self, queue: _Queue, index: int, source: Source, waits: Iterable[_Command]) -> _Command:
        """Mark the bytes that an allocation or a free is about, as work on a stream."""
        command = self._nothing(queue, waits)
        for part in self._marked(index):
            value = np.uint32(self._note_mark(part, source))
            fill = partial(self.cl.enqueue_fill_buffer, queue.queue, self.arena, value, 4 * part.first,
                           4 * len(part.words))  # fmt: skip
            command = self._give(queue, lambda wait, fill=fill: fill(wait_for=wait), [command])
        return command

    def _marked(self, index: int) -> tuple[Part, ...]:
        """The bytes that show when an allocation or a free came."""
        part = self.plan.memory[index]
        return (part,) if part.life in self.about else self.plan.touched[index]

    def _note_mark(self, part: Part, source: Source) -> int:
        value = FRESH + part.life % 0x1000 if source.kind == ALLOCATION else FREED + part.life % 0x10000
        self.left_by.append((part, value, replace(source, number=part.life, life=part.life)))
        return value

    def _barrier(self, queue: _Queue, waits: Iterable[_Command]) -> _Command:
        """Everything later waits: for these or, in an out-of-order queue without any, for all before."""
        waits = [w for w in waits if w is not None]
        call = partial(self.cl.enqueue_barrier, queue.queue)
        command = self._give(queue, lambda wait: call(wait_for=wait), waits, all_before=not waits)
        if not queue.in_order:
            queue.barrier = command
        return command

    def _everything(self, queue: _Queue) -> _Command | None:
        """A command that stands for all that the queue was given; None for nothing."""
        if queue.in_order:
            return queue.newest
        marker = partial(self.cl.enqueue_marker, queue.queue)
        return self._give(queue, lambda wait: marker(), (), all_before=True)

    def _arrive(self, name: str) -> _Queue:
        """A stream, about to be given something: the legacy stream and the blocking ones wait for another."""
        queue, kind = self.queues[name], self.plan.streams[name].kind
        if kind == "legacy":
            newest = [self.queues[n].newest for n in self._others(name, ("blocking", "per-thread"))]
            if any(newest):
                self._barrier(queue, newest)
        elif kind in ("blocking", "per-thread"):
            for other in self._others(name, ("legacy",)):
                newest = self.queues[other].newest
                if newest is not None and queue.legacy is not newest:
                    queue.legacy = newest
                    self._barrier(queue, [newest])
        return queue

    def _others(self, name: str, kinds: tuple[str, ...]) -> list[str]:
        """The streams of these kinds in a stream's own context."""
        streams = self.plan.streams
        return [n for n, s in streams.items() if s.kind in kinds and s.context == streams[name].context]

    # Steps

    def _do(self, index: int, step: Any) -> None:
        match step:
            case Launch():
                queue = self._arrive(step.stream)
                waits = [self.events.get(e) for e in step.after]
                command = self._work(queue, self.plan.works[index], waits + self._gate_for(index))
                self._given(index, command)
                if step.event:
                    self.events[step.event] = command
            case Record():
                self._complete(step.event, self._everything(self._arrive(step.stream)))
            case Wait():
                queue = self._arrive(step.stream)
                if self.events.get(step.event) is not None:
                    self._barrier(queue, [self.events[step.event]])
            case Barrier():
                self._do_barrier(step)
            case Synchronize() | Query():
                self._ask(index, step)
            case HostRead() | HostWrite():
                self._host_access(self.plan.works[index])
            case Allocate():
                self._allocate(index, step)
            case Free():
                self._free(index, step)
            case GraphLaunch():
                self._graph(index, step)
            case UserEvent():
                gate = self.user_events[step.event] = self._new_gate()
                self.events[step.event] = _Command(gate.event, frozenset({gate}))
            case SetEvent():
                self._open(self.user_events[step.event])
            case DestroyEvent():
                self.events.pop(step.event, None)

    def _complete(self, event: str, command: _Command | None) -> None:
        if command is None:  # recorded on a stream that was given nothing: there is nothing to wait for
            self.events.pop(event, None)
        elif event:
            self.events[event] = command

    def _do_barrier(self, step: Barrier) -> None:
        queue = self._arrive(step.stream)
        waits = [c for e in step.after if (c := self.events.get(e)) is not None]
        if step.after and not waits:  # none of its events was ever recorded: it is behind the last barrier
            command: _Command | None = self._nothing(queue)
        elif waits or not queue.in_order:
            command = self._barrier(queue, waits)
        else:
            command = queue.newest
        self._complete(step.event, command)

    def _ask(self, index: int, step: Synchronize | Query) -> None:
        if isinstance(step, Query) and not step.done:
            return
        if step.event is not None:
            command = self.events.get(step.event)
            if command is not None:
                self._host_waits(index, [command], (), command.event.wait)
            return
        names = list(self.queues) if step.stream is None else [step.stream]
        if step.stream is not None and self.plan.streams[step.stream].kind == "legacy":
            names += self._others(step.stream, ("blocking", "per-thread"))
        for name in names:
            # A blocking stream waits for what was done on the legacy one, though it has no work itself.
            legacy = self.plan.streams[name].kind == "legacy"
            queue = self.queues[name] if legacy else self._arrive(name)
            self._host_waits(index, (), queue.gates, queue.queue.finish)

    def _host_access(self, work: Work) -> None:
        (part,) = work.parts
        values = self._host_look(part.first, part.last)
        self.host_seen[work.slot : work.slot + len(part.words)] = values
        if part.writes:
            self._host_put(part, _hashes(work.number, (), part.words))
        self.works[work.number] = None

    def _host_look(self, first: int, last: int) -> np.ndarray:
        values = self.words[first:last].copy()
        if not self.device.in_place and len(values):
            self.cl.enqueue_copy(self.device.transfer, values, self.arena, src_offset=4 * first)
        return values

    def _host_put(self, part: Part, values: np.ndarray) -> None:
        if self.device.in_place:
            self.words[part.first : part.last] = values
        elif part.words:
            self.cl.enqueue_copy(self.device.transfer, self.arena, values, dst_offset=4 * part.first)

    def _allocate(self, index: int, step: Allocate) -> None:
        for free in self.plan.behind[index]:
            ends = self.life_ends.get(free, ())
            self._host_waits(index, ends, (), lambda ends=ends: [c.event.wait() for c in ends])
        if step.stream is None:
            return
        queue = self._arrive(step.stream)
        behind = [c for f in self.plan.behind[index] if (c := self.frees.get(f)) is not None]
        behind += self._gate_for(index)
        if index == self.fresh:
            source = Source(ALLOCATION, 0, f"the undefined bytes of the new {step.buffer}")
            command = self._fill(queue, index, source, behind)
        else:
            command = self._nothing(queue, behind)
        self._given(index, command)

    def _free(self, index: int, step: Free) -> None:
        source = Source(FREE, 0, f"what the free of {step.buffer} left there")
        if step.how == "pool":
            ends = (self._everything(self._arrive(name)) for name in self.plan.extended[index])
            self.life_ends[index] = [c for c in ends if c is not None]
            if index != self.take:
                return
            source = Source(TAKEN, 0, f"what the pool's next user of {step.buffer}'s bytes wrote")
        if step.how == "stream":
            queue, waits = self._arrive(step.stream), self._gate_for(index)
            spared = index == self.spare
            self.frees[index] = (
                self._nothing(queue, waits) if spared else self._fill(queue, index, source, waits)
            )
            self._given(index, self.frees[index])
        elif index != self.spare:
            for part in self._marked(index):
                self._host_put(part, np.full(len(part.words), self._note_mark(part, source), np.uint32))

    def _graph(self, index: int, step: GraphLaunch) -> None:
        nodes = self.plan.nodes[index]
        queue = self._arrive(step.stream)
        before = [self._everything(queue), self.graph_ends.get(step.graph), *self._gate_for(index)]
        given: list[_Command] = []
        for number, node in enumerate(nodes):
            waits = [given[i] for i in node.after] or before
            if self.hold and self.hold[0].node is not None:
                waits = waits + self._gate_for(index, number)
            key = (step.graph, self.plan.steps[node.described].stream)
            if key not in self.graph_queues:
                self.graph_queues[key] = self._queue("out-of-order")
            command = self._work(self.graph_queues[key], node.work, waits)
            self._given(index, command, number)
            given.append(command)
            if self.settled or self.hold:
                self._settle()
                if self._holding:
                    self._look_at_second()
        if given:
            self.graph_ends[step.graph] = self._barrier(queue, given)
            self._given(index, self.graph_ends[step.graph])


def _hashes(number: int, seen: Iterable[int], places: Iterable[int]) -> np.ndarray:
    """What kernels/produce.cu writes: one number for each place, of all that was seen."""
    state = (2166136261 ^ number) * 16777619 & 0xFFFFFFFF
    for value in seen:
        state = (state ^ int(value)) * 16777619 & 0xFFFFFFFF
    values = (np.uint64(state) ^ np.fromiter(places, np.uint64)) * np.uint64(2654435769) & np.uint64(
        0xFFFFFFFF
    )
    return (values ^ (values >> np.uint64(15))).astype(np.uint32)


def _page_aligned(words: int) -> np.ndarray:
    """Zeros at the start of a page, so that the device can use the memory in place."""
    raw = np.zeros(4 * words + PAGE, np.uint8)
    start = -raw.ctypes.data % PAGE
    return raw[start : start + 4 * words].view(np.uint32)
