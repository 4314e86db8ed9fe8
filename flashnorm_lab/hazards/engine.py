"""The analysis itself: one pass over a program's steps, with vector clocks and bounded memory.

Every stream, and every host thread, carries a vector clock (Mattern, "Virtual Time and Global States of
Distributed Systems", 1989): how much of every other one is known to be done when its next work starts. An
access is kept as one entry of that clock, as in FastTrack (Flanagan and Freund, 2009): later work is ordered
behind it if and only if its clock has reached that entry. So an access costs one comparison for each access
before it that no write has covered since, and memory is bounded by streams times live byte ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import LabError
from ..program import (
    FREES,
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
)
from ..schedule import Access
from .findings import Findings
from .graphs import Captures
from .held import HeldSteps
from .memory import ENDLESS, READERS, BufferState, Memory, Past, Segment
from .state import BLOCKING, Clock, Context, Event, Host, Mark, StreamState, covered, fresh, merge
from .verdict import Problem, Redundant, Verdict


class Checker(Findings, HeldSteps, Captures):
    """The analysis, one step at a time: `feed` the steps in the host's order, then ask for the `verdict`.

    ``streams``: name to `flashnorm_lab.program.Stream`. ``buffers``: name to bytes of those that are there
    from the start (None: size not known). ``length``: of how many steps one iteration is, where the steps are
    a loop's; it tells apart waits for one event that have no source line.

    Memory is bounded by streams times live byte ranges, however many steps there are. `feed` raises
    ``LabError``, naming the step, for one that cannot be: an unknown stream or buffer, bytes outside a
    buffer, a free of what is not there, a host that would wait for ever.
    """

    def __init__(
        self,
        streams: Mapping[str, Stream],
        buffers: Mapping[str, int | None] | None = None,
        name: str = "program",
        unseen: Iterable[str] = (),
        length: int = 1,
    ) -> None:
        super().__init__(name, unseen)
        self.length = length
        self._host("host")
        if not isinstance(streams, Mapping):
            raise LabError(f"streams={streams!r:.60}: give them by name, as in {{'main': program.Stream()}}")
        if not isinstance(buffers, Mapping | None):
            raise LabError(f"buffers={buffers!r:.60}: give their bytes by name, as in {{'x': 64}}")
        for stream, what in streams.items():
            self.add_stream(stream, what)
        for buffer, nbytes in (buffers or {}).items():
            self.add_buffer(buffer, nbytes)
        self._do: dict[type, Callable[[Any], None]] = {
            Launch: self._launch,
            Record: self._record,
            Wait: self._wait,
            Barrier: self._barrier,
            Synchronize: self._synchronize,
            Query: self._query,
            HostRead: self._host_access,
            HostWrite: self._host_access,
            Allocate: self._allocate,
            Free: self._free,
            RecordStream: self._record_stream,
            BeginCapture: self._begin_capture,
            EndCapture: self._end_capture,
            GraphLaunch: self._graph_launch,
            UserEvent: self._user_event,
            SetEvent: self._set_event,
            DestroyEvent: self._destroy_event,
            HandOver: self._hand_over,
        }

    # What there is

    def add_stream(self, name: str, what: Stream) -> None:
        """A stream that steps may use from here on. ``LabError`` if there is one of that name."""
        if name in self._streams:
            raise LabError(f"there are two streams called {name!r}; give each its own name")
        if not isinstance(what, Stream):
            raise LabError(f"stream {name!r} is {what!r}; expected a program.Stream")
        context = self._contexts.setdefault(what.context, Context())
        stream = StreamState(name, what.kind, context, *self._component())
        if what.kind == "legacy":
            if context.legacy is not None:
                raise LabError(
                    f"streams {context.legacy.name!r} and {name!r} are both the legacy default stream of "
                    f"context {what.context!r}; a context has one"
                )
            context.legacy = stream
        elif what.kind in BLOCKING:
            context.blocking.append(stream)
        self._streams[name] = stream
        for other in context.blocking:
            other.special = context.legacy is not None

    def add_buffer(self, name: str, nbytes: int | None) -> None:
        """A buffer with bytes of its own. ``LabError`` if there is one of that name, or for a wrong size."""
        if name in self._buffers and self._buffers[name].freed is None:
            raise LabError(f"there are two buffers called {name!r}; give each its own name")
        if nbytes is not None and (isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0):
            raise LabError(
                f"buffer {name!r} has {nbytes!r} bytes; give a whole number of at least 0, or None"
            )
        self._buffers[name] = BufferState(name, ENDLESS if nbytes is None else nbytes, Memory(), 0)

    # Feeding

    def feed(self, step: Step) -> None:
        """The next step, in the host's order."""
        self._index += 1
        do = self._do.get(type(step))
        if do is None:
            raise LabError(f"step {self._index}: {step!r} is no step of a program")
        if self._careful and (
            ((self._unset or self._held) and self._hold(step)) or (self._captures and self._captured(step))
        ):
            return
        try:
            do(step)
        except (AttributeError, TypeError):
            self._check_accesses(step)
            raise

    def feed_all(self, steps: Program | Iterable[Step]) -> Checker:
        """Feed them all, those of a program as often as it repeats them; returns itself."""
        do = self._do
        if not isinstance(steps, Program | Iterable):
            raise LabError(f"{steps!r:.60} has no steps; give a Program, or steps one behind the other")
        step: Any = None
        try:
            for step in steps.unrolled() if isinstance(steps, Program) else steps:
                call = do.get(type(step))
                if call is None or self._careful:
                    self.feed(step)
                else:
                    self._index += 1
                    call(step)
        except (AttributeError, TypeError):
            self._check_accesses(step)
            raise
        return self

    def _check_accesses(self, step: Any) -> None:
        """``LabError`` where a launch has accesses that are none."""
        accesses = step.accesses if isinstance(step, Launch) else ()
        for access in accesses if isinstance(accesses, Iterable) else (accesses,):
            if not isinstance(access, Access):
                raise LabError(
                    f"step {self._index} ({step.name}): {access!r:.60} is no access; write "
                    "program.reads(buffer, start, stop) or program.writes(buffer, start, stop)"
                ) from None

    @property
    def steps(self) -> int:
        """How many steps were fed."""
        return self._index + 1

    # Work on streams

    def _launch(self, step: Launch) -> None:
        self.launches += 1
        try:
            stream, host = self._streams[step.stream], self._hosts[step.thread]
        except KeyError:
            stream, host = self._stream(step), self._host(step.thread)
        if stream.special or step.after:
            self._special_launch(step, stream, host)
            return
        if stream.waits:
            self._judge_waits(stream, host)
        clock = stream.clock
        if stream.version != host.version:
            merge(clock, host.clock)
            stream.version = host.version
        component = stream.component
        number = clock[component] = clock[component] + 1
        stream.last = mark = (component, number, self._index, step, step.step)
        if step.accesses:
            self._access(mark, step.accesses, clock, (component, step.name))
        if self.watch and step.name in self.watch:
            self.watch[step.name](mark, clock)
        if step.event:
            self._complete(step.event, clock, stream.name, mark, step, host)
        if step.blocks:
            self._learn(host, clock, stream.name, step)

    def _special_launch(self, step: Launch, stream: StreamState, host: Host) -> None:
        for event in step.after:
            self._check_event_name(step, event)
        if stream.kind == "out-of-order":
            clock = self._command_clock(stream, host)
            self._take_after(step, clock, host)
            component = self._chain(stream, clock)
            stream.chains[component] = clock
        else:
            for place, event in enumerate(step.after):
                self._wait_for(event, stream, step, host, place)
            self._arrive(stream, host)
            clock, component = stream.clock, stream.component
        clock[component] += 1
        stream.last = mark = (component, clock[component], self._index, step, step.step)
        self._access(mark, step.accesses, clock, (component, step.name))
        if step.name in self.watch:
            self.watch[step.name](mark, clock)
        self._leave(stream)
        if step.event:
            self._complete(step.event, clock, stream.name, mark, step, host)
        if step.blocks:
            self._learn(host, clock, stream.name, step)

    def _arrive(self, stream: StreamState, host: Host) -> None:
        """What comes next on an in-order stream is about to start: what is it behind?"""
        context = stream.context
        if stream.kind == "legacy":
            for other in context.blocking:
                self._judge_waits(other, host)
                if other.version != host.version:
                    merge(other.clock, host.clock)
                    other.version = host.version
                merge(stream.clock, other.clock)
        elif stream.special and stream.legacy_version != context.version:
            merge(stream.clock, context.legacy.clock)
            stream.legacy_version = context.version
        self._judge_waits(stream, host)
        if stream.version != host.version:
            merge(stream.clock, host.clock)
            stream.version = host.version

    def _leave(self, stream: StreamState) -> None:
        """Something was done on a stream: on the legacy default stream, the blocking ones are behind it."""
        if stream.kind == "legacy":
            stream.context.version = fresh()

    def _command_clock(self, stream: StreamState, host: Host) -> Clock:
        """What a command of an out-of-order queue is behind, before its own wait list is looked at.

        The queue's own clock is that of its last barrier. What a host thread knows is for its own commands.
        """
        self._judge_waits(stream, host)
        clock = stream.clock.copy()
        merge(clock, host.clock)
        return clock

    def _take_after(self, step: Launch, clock: Clock, host: Host) -> None:
        """Put the wait list's events into a command's clock, and note which of them orders something new."""
        taken = []
        for place, name in enumerate(step.after):
            event = self._usable(name, host)
            taken.append((self._site(step, name, step.stream, place), event[0] if event else []))
        self._note_waits(taken, clock)
        for _, other in taken:
            merge(clock, other)

    def _chain(self, stream: StreamState, clock: Clock) -> int:
        """A component for a command of an out-of-order queue: of one that it is behind, else a new one.

        So there are as many as commands ever were free to run at once, and not one for each command.
        """
        for component, last in stream.chains.items():
            if clock[component] >= last[component]:
                return component
        component = self._widen()
        clock.append(0)
        return component

    def _all_of(self, stream: StreamState, host: Host) -> Clock:
        """The clock that stands for everything the stream was given, as the host's call finds it."""
        if stream.kind == "out-of-order":
            clock = self._command_clock(stream, host)
            for chain in stream.chains.values():
                merge(clock, chain)
            return clock
        self._arrive(stream, host)
        self._leave(stream)
        return stream.clock

    def _complete(
        self, event: str, clock: Clock, stream: str, last: Mark | None, step: Step, host: Host
    ) -> None:
        # A command's own event has no name before the command is given, so it needs no hand-over.
        self._events[event] = (clock.copy(), stream, last, step, "", host.tick)
        self._rebind(event)

    def _rebind(self, event: str) -> None:
        """The event stands for something else from here on."""
        self._captured_events.discard(event)
        self._late.pop(event, None)

    def _record(self, step: Record) -> None:
        try:
            stream, host = self._streams[step.stream], self._hosts[step.thread]
        except KeyError:
            stream, host = self._stream(step), self._host(step.thread)
        if stream.special:
            clock = self._all_of(stream, host)
        else:
            if stream.waits:
                self._judge_waits(stream, host)
            clock = stream.clock
            if stream.version != host.version:
                merge(clock, host.clock)
                stream.version = host.version
        event = step.event
        if not event:
            self._check_event_name(step, event)
        self._events[event] = (clock.copy(), stream.name, stream.last, step, host.name, host.tick)
        if self._careful or self._captured_events:
            self._rebind(event)

    def _wait(self, step: Wait) -> None:
        try:
            stream, host = self._streams[step.stream], self._hosts[step.thread]
        except KeyError:
            stream, host = self._stream(step), self._host(step.thread)
        if not step.event:
            self._check_event_name(step, step.event)
        self._wait_for(step.event, stream, step, host)
        if stream.kind == "legacy":  # a wait is an action of its own there, and orders whatever it waits for
            self._site(step, step.event, stream.name)[0] += 1
            self._arrive(stream, host)
            self._leave(stream)

    def _barrier(self, step: Barrier) -> None:
        stream, host = self._stream(step), self._host(step.thread)
        for place, event in enumerate(step.after):
            self._check_event_name(step, event)
            self._wait_for(event, stream, step, host, place)
        if stream.kind == "out-of-order":
            clock = stream.clock
            merge(clock, self._command_clock(stream, host) if step.after else self._all_of(stream, host))
        else:
            clock = self._all_of(stream, host)
        if step.event:
            self._complete(step.event, clock, stream.name, stream.last, step, host)

    def _check_event_name(self, step: Step, event: str) -> None:
        if not isinstance(event, str) or not event:
            raise self._refuse(step, f"{event!r} is no event's name")

    def _usable(self, name: str, host: Host) -> Event | None:
        """The event's latest record that is surely made before this call; None where there is none."""
        event = self._events.get(name)
        if event is None or event[4] in ("", host.name) or host.known.get(event[4], -1) >= event[5]:
            return event
        return None

    def _wait_for(self, name: str, stream: StreamState, step: Any, host: Host, place: int = 0) -> None:
        event = self._events.get(name)
        if event is not None and event[4] != host.name and event[4]:
            event = self._usable(name, host)
        if stream.version != host.version:
            merge(stream.clock, host.clock)
            stream.version = host.version
            if stream.waits:
                stream.base += [0] * (len(stream.clock) - len(stream.base))
                merge(stream.base, host.clock)
        if not stream.waits:
            stream.base = stream.clock.copy()
        source = step.source
        key = (stream.name, source, place) if source else (stream.name, name, self._index % self.length)
        site = self._sites.get(key) or self._site(step, name, stream.name, place)
        if event is None:
            stream.waits.append((site, [], False))
            stream.hints[""] = (step, None)
            return
        clock, on, _, recorded, _, _ = event
        stream.waits.append((site, clock, merge(stream.clock, clock)))
        stream.hints[on] = (step, recorded)

    def _judge_waits(self, stream: StreamState, host: Host | None = None) -> None:
        """Which of the waits since the last work on this stream order something that nothing else does?

        Nothing else: neither what the stream was behind before, nor what ``host`` has waited for since, nor
        the default stream, nor the other waits.
        """
        if not stream.waits:
            return
        waits, stream.waits = stream.waits, []
        for site, _, _ in waits:
            if not site[0]:
                break
        else:
            return  # each has been of use before, and that settles it
        # A host thread, or a stream, that came since then has an entry that the older clock lacks.
        others = stream.base + [0] * (len(stream.clock) - len(stream.base))
        if stream.kind == "legacy":
            for other in stream.context.blocking:
                merge(others, other.clock)
        elif stream.special and stream.kind in BLOCKING:
            merge(others, stream.context.legacy.clock)
        elif len(waits) == 1 and (host is None or stream.version == host.version):
            site, _, new = waits[0]
            site[not new] += 1
            return
        if host is not None and stream.version != host.version:
            merge(others, host.clock)
        self._note_waits([(site, clock) for site, clock, _ in waits], others)

    def _note_waits(self, waits: list[tuple[list[Any], Clock]], base: Clock) -> None:
        kept = list(waits)
        for wait in reversed(waits):
            site, clock = wait
            rest = [other for other in kept if other is not wait]
            besides = base.copy()
            for _, other in rest:
                merge(besides, other)
            useless = covered(clock, besides)
            if useless:
                kept = rest
            site[useless] += 1

    def _site(self, step: Step, event: str, waiter: str, place: int = 0) -> list[Any]:
        """The counts of one place in the program that orders: useful, orders nothing new; and the step.

        A place is a line of the program, and in a wait list the number in the list: an event may be a new one
        in every turn of a loop.
        """
        source = step.source
        key = (waiter, source, place) if source else (waiter, event, self._index % self.length)
        site = self._sites.get(key)
        if site is None:
            site = self._sites[key] = [0, 0, step, event, waiter, self._index]
        return site

    # What the host learns and does

    def _learn(self, host: Host, clock: Clock, stream: str, step: Step, recorded: Any = None) -> None:
        """The host now knows this to be done; by a wait for an event, as it was ``recorded``."""
        merge(host.clock, clock)
        host.version = fresh()
        if stream:
            host.hints[stream] = (step, recorded)

    def _synchronize(self, step: Synchronize) -> None:
        host = self._host(step.thread)
        self._host_waits(step, host)

    def _query(self, step: Query) -> None:
        if step.stream is None and step.event is None:
            raise self._refuse(step, "a query asks for a stream or for an event; give one of them")
        if step.done:
            self._host_waits(step, self._host(step.thread))

    def _host_waits(self, step: Synchronize | Query, host: Host) -> None:
        if step.stream is not None and step.event is not None:
            raise self._refuse(step, "give a stream or an event, not both")
        told: list[tuple[str, Clock, Any]] = []
        if step.event is not None:
            event = self._usable(step.event, host)
            if step.event in self._captured_events:
                text = f"{step.event} was last recorded in a capture, and the host waits for it"
                self._problems.append(Problem("cudaErrorCapturedEvent", text, step.source, self._index))
                return
            if event is not None:
                told.append((event[1], event[0], event[3]))
        else:
            streams = [self._stream(step)] if step.stream is not None else list(self._streams.values())
            if len(streams) == 1 and streams[0].kind == "legacy":
                streams += streams[0].context.blocking
            elif len(streams) == 1 and streams[0].kind in BLOCKING and streams[0].context.legacy is not None:
                streams.append(streams[0].context.legacy)
            for stream in streams:
                self._judge_waits(stream)
                told += [(stream.name, clock, None) for clock in (stream.clock, *stream.chains.values())]
        site = self._site(step, step.event or step.stream or "", host.name)
        before = list(host.clock)
        for name, clock, recorded in told:
            self._learn(host, clock, name, step, recorded)
        site[host.clock == before] += 1

    def _host_access(self, step: HostRead | HostWrite) -> None:
        host = self._host(step.thread)
        stop = step.stop
        if stop is None:
            stop = self._buffer(step, step.buffer).nbytes
        access = Access(step.buffer, step.start, stop, isinstance(step, HostWrite))
        self._access(self._host_mark(host, step, step.step), (access,), host.clock,
                     (host.component, type(step).__name__))  # fmt: skip

    def _host_mark(self, host: Host, step: Step, number: int = -1) -> Mark:
        host.clock[host.component] += 1
        host.version = fresh()
        return host.component, host.clock[host.component], self._index, step, number

    def _hand_over(self, step: HandOver) -> None:
        host, to = self._host(step.thread), self._host(step.to)
        if host is to:
            raise self._refuse(step, f"thread {step.to!r} cannot hand over to itself")
        merge(to.clock, host.clock)
        to.version = fresh()
        for thread, tick in (*host.known.items(), (host.name, host.tick)):
            to.known[thread] = max(tick, to.known.get(thread, -1))
        host.tick += 1

    # Memory

    def _buffer(self, step: Step, name: str) -> BufferState:
        try:
            return self._buffers[name]
        except KeyError:
            known = ", ".join(list(self._buffers)[:12]) or "none"
            raise self._refuse(step, f"there is no buffer {name!r}; there are {known}") from None

    def _access(self, mark: Mark, accesses: tuple[Access, ...], clock: Clock, key: tuple[int, str]) -> None:
        """Set every access against those before it, and remember it."""
        buffers = self._buffers
        for a in accesses:
            try:
                segments = buffers[a.buffer].cache[a.start, a.stop]
            except KeyError:
                segments = self._segments(mark, a)
            for segment in segments:
                write = segment.write
                if a.writes:
                    if write is not None and clock[write[0]] < write[1]:
                        self._hazard("WAW", write, mark, a.buffer, segment)
                    reads = segment.reads
                    if reads:
                        for read in reads.values():
                            if clock[read[0]] < read[1]:
                                self._hazard("WAR", read, mark, a.buffer, segment)
                        segment.reads = {key: mark} if reads.get(key) is mark else {}
                    if write is not None:
                        segment.older, segment.before = segment.before, write
                    segment.write = mark
                else:
                    if write is mark:  # written by the same launch, which reads what was there before that
                        write = segment.before
                    if write is not None and clock[write[0]] < write[1]:
                        self._hazard("RAW", write, mark, a.buffer, segment)
                    reads = segment.reads
                    reads[key] = mark
                    if len(reads) > READERS:
                        self._forget_readers(segment)
                if segment.old:
                    self._check_old(mark, a, segment, clock)

    def _forget_readers(self, segment: Segment) -> None:
        """Keep the latest reader on each stream, which decides, and the newest of the others."""
        latest = {mark[0]: key for key, mark in sorted(segment.reads.items(), key=lambda item: item[1][1])}
        decides = set(latest.values())
        newest = sorted(segment.reads.items(), key=lambda item: (item[0] in decides, item[1][2]))
        segment.reads = dict(newest[-max(len(decides), READERS // 2) :])

    def _segments(self, mark: Mark, access: Access) -> tuple[Segment, ...]:
        """The segments of an access, looked up for the first time since its memory was last cut."""
        step = mark[3]
        buffer = self._buffer(step, access.buffer)
        start, stop = access.start, access.stop
        if not (isinstance(start, int) and isinstance(stop, int)) or not 0 <= start <= stop:
            raise self._refuse(step, f"bytes {start!r} to {stop!r} of {buffer.name} are no range")
        if stop > buffer.nbytes:
            raise self._refuse(
                step, f"bytes {start} to {stop} of {buffer.name} lie outside its {buffer.nbytes} bytes"
            )
        if buffer.freed is not None and self._index < buffer.freed[2] and buffer.freed[3].how == "pool":
            # Held until now, and issued before its buffer was given back.
            if buffer.retired:
                self._touch_reused(mark, access, buffer)
                return ()
        elif buffer.freed is not None:
            self._hazard("use after free", buffer.freed, mark, buffer.name,
                         Segment(buffer.base + start, buffer.base + stop))  # fmt: skip
            return ()
        segments = buffer.memory.between(buffer.base + start, buffer.base + stop)
        buffer.cache[start, stop] = segments
        return segments

    def _touch_reused(self, mark: Mark, access: Access, buffer: BufferState) -> None:
        """An access that was held while its bytes were handed out again."""
        start, stop = buffer.base + access.start, buffer.base + access.stop
        for segment in buffer.memory.between(start, stop):
            owner = next(
                (o.name for o in buffer.memory.users if o.base <= segment.start < o.base + o.nbytes), ""
            )
            others = [segment.write] if segment.write is not None else []
            if access.writes:
                others += segment.reads.values()
            for other in others:
                self._hazard("reuse", mark, other, buffer.name, segment, owner)
            segment.old = (*segment.old, (mark, access.writes, buffer.name, [], []))[-READERS:]

    def _check_old(self, mark: Mark, access: Access, segment: Segment, clock: Clock) -> None:
        for old, wrote, name, _, _ in segment.old:
            if (wrote or access.writes) and clock[old[0]] < old[1]:
                self._hazard("reuse", old, mark, name, segment, access.buffer)
        if access.writes:
            segment.old = ()

    def _allocate(self, step: Allocate) -> None:
        host = self._host(step.thread)
        for label_, value in (("bytes", step.nbytes), ("address", step.address)):
            given = value is None and label_ == "address"
            if not given and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise self._refuse(step, f"{label_}={value!r}: give a whole number of at least 0")
        taken = self._buffers.get(step.buffer)
        if taken is not None and taken.freed is None:
            raise self._refuse(step, f"there is a buffer {step.buffer!r} already; free it first")
        memory, base = Memory(), 0
        if step.address is not None:
            memory, base = self._memories.setdefault(step.memory, Memory()), step.address
            for other in memory.users:
                if other.base < base + step.nbytes and base < other.base + other.nbytes and not other.freed:
                    raise self._refuse(
                        step,
                        f"bytes {base:#x} to {base + step.nbytes:#x} lie over {other.name}, which is in use",
                    )
        mark = None
        if step.stream is not None:
            stream = self._stream(step)
            if stream.kind == "out-of-order":
                raise self._refuse(step, "an out-of-order queue has no stream-ordered allocation")
            self._arrive(stream, host)
        for other in [o for o in memory.users if o.base < base + step.nbytes and base < o.base + o.nbytes]:
            self._retire(other)
        for segment in memory.between(base, base + step.nbytes):
            for _, _, _, freed, extended in segment.old:
                if extended:  # the allocator has seen that the streams the life was extended to are done
                    merge(host.clock, extended)
                    host.version = fresh()
                if step.stream is not None:  # the driver puts an allocation behind the free of its bytes
                    merge(stream.clock, extended)
                    merge(stream.clock, freed)
        if taken is not None and taken in taken.memory.users:
            self._retire(taken)
        if step.stream is not None:
            stream.clock[stream.component] += 1
            stream.last = mark = (stream.component, stream.clock[stream.component], self._index, step, -1)
            self._leave(stream)
        buffer = self._buffers[step.buffer] = BufferState(step.buffer, step.nbytes, memory, base)
        for segment in memory.between(base, base + step.nbytes):
            segment.own(mark)
            segment.old = tuple(o for o in segment.old if host.clock[o[0][0]] < o[0][1])
        buffer.cache.clear()

    def _retire(self, buffer: BufferState) -> None:
        """The buffer's bytes get a new owner: what was done to them becomes the past of those bytes."""
        buffer.memory.users.remove(buffer)
        freed = buffer.freed
        assert freed is not None
        buffer.retired = True
        for segment in buffer.memory.between(buffer.base, buffer.base + buffer.nbytes):
            past: list[Past] = []
            if freed[3].how == "pool":
                marks = [(mark, False) for mark in segment.reads.values()]
                marks += [(segment.write, True)] * (segment.write is not None)
                past += [(mark, wrote, buffer.name, [], buffer.extended) for mark, wrote in marks]
            else:
                clock = buffer.free_clock if freed[3].how == "stream" else []
                past.append((freed, True, buffer.name, clock, []))
            segment.old = (*segment.old, *past)[-READERS:]
            segment.own(None)

    def _free(self, step: Free) -> None:
        host = self._host(step.thread)
        buffer = self._buffer(step, step.buffer)
        if step.how not in FREES:
            raise self._refuse(step, f"how={step.how!r} is not one of {', '.join(FREES)}")
        if buffer.freed is not None:
            raise self._refuse(
                step, f"{step.buffer} was freed before, at step {buffer.freed[2]}; take one of the two out"
            )
        if (step.stream is not None) != (step.how == "stream"):
            raise self._refuse(step, "how='stream' goes with a stream, and a stream with how='stream'")
        if step.how == "stream":
            stream = self._stream(step)
            if stream.kind == "out-of-order":
                raise self._refuse(step, "an out-of-order queue has no stream-ordered free")
            self._arrive(stream, host)
            stream.clock[stream.component] += 1
            mark: Mark = (stream.component, stream.clock[stream.component], self._index, step, -1)
            stream.last = mark
            clock = stream.clock
            self._leave(stream)
        else:
            mark, clock = self._host_mark(host, step), host.clock
        if step.how != "pool":
            for segment in buffer.memory.between(buffer.base, buffer.base + buffer.nbytes):
                for other in [*([segment.write] if segment.write else []), *segment.reads.values()]:
                    if clock[other[0]] < other[1]:
                        self._hazard("use after free", other, mark, buffer.name, segment)
        for name in buffer.streams:
            extended = list(self._all_of(self._streams[name], host))
            buffer.extended += [0] * (len(extended) - len(buffer.extended))
            merge(buffer.extended, extended)
        buffer.freed, buffer.free_clock = mark, list(clock)
        buffer.cache.clear()
        if step.how != "pool":
            buffer.streams.clear()

    def _record_stream(self, step: RecordStream) -> None:
        buffer = self._buffer(step, step.buffer)
        if buffer.freed is not None:
            raise self._refuse(step, f"{step.buffer} was freed at step {buffer.freed[2]}")
        buffer.streams[self._stream(step).name] = None

    def verdict(self) -> Verdict:
        """What was found so far. Without a search for repairs, which needs the whole program."""
        problems = list(self._problems)
        for capture in self._captures:
            problems.append(
                Problem("capture not ended", f"capture of graph {capture.graph} on {capture.origin} is never "
                        "ended", capture.step.source, self._index)
            )  # fmt: skip
        for event, (_, step) in self._unset.items():
            held = sum(len(queue) for queue in self._held.values())
            if held:
                problems.append(
                    Problem("never set", f"user event {event!r} is never set; {held} steps never start",
                            step.source, self._index)
                )  # fmt: skip
        for stream in self._streams.values():
            self._judge_waits(stream)
        redundant = [
            Redundant(
                "wait" if not isinstance(step, Synchronize | Query) else "host wait",
                event,
                waiter,
                step.source,
                index,
                useless,
            )
            for useful, useless, step, event, waiter, index in self._sites.values()
            if not useful and useless and not isinstance(step, Query)
        ]
        return Verdict(
            name=self.name,
            hazards=tuple(found.freeze() for found in self._found.values()),
            errors=tuple(problems),
            redundant=tuple(redundant),
            unseen=self.unseen,
            launches=self.launches,
            steps=self.steps,
            more=self.more,
        )
