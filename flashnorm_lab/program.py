"""Any program's schedule: the host's calls in their order, with the bytes that each piece of work touches.

`flashnorm_lab.schedule` describes one step of the lab's own; a `Program` describes anybody's: recorded with
`flashnorm_lab.record`, read from a file, taken from a profiler's trace, or written by hand. It needs no
device. `flashnorm_lab.hazards` judges it.

The words are CUDA's; an OpenCL queue is a stream, a wait list is `Launch.after`, a command's event is
`Launch.event`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from . import schedule as own
from .errors import LabError
from .schedule import Access, Schedule

KINDS = ("blocking", "non-blocking", "legacy", "per-thread", "out-of-order")
"""What a stream can be.

``legacy`` is CUDA's default stream 0: whatever is done on it waits for all blocking streams of its context,
and they wait for it. ``blocking`` is what cudaStreamCreate makes, and ``per-thread`` a thread's own default
stream, which is a blocking one. ``non-blocking`` streams have no part in that. All of these run their work
in order; an ``out-of-order`` queue is OpenCL's, where only wait lists and barriers give an order.
"""

FREES = ("host", "stream", "pool")
"""How memory is freed.

``host``: at once, with no regard to the device, as the host sees it. ``stream``: as a piece of work on a
stream (cudaFreeAsync). ``pool``: given back to a caching allocator (CuPy's, PyTorch's), which touches
nothing, but may hand the same bytes out again.
"""


@dataclass(frozen=True, slots=True)
class Stream:
    """What a stream is: one of `KINDS`. The default stream synchronizes within one ``context``."""

    kind: str = "non-blocking"
    context: str = "0"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise LabError(f"stream kind {self.kind!r} is not one of {', '.join(KINDS)}")


# The steps. ``thread`` is the host thread that makes the call; ``source`` the line that did, "train.py:31".


@dataclass(frozen=True, slots=True)
class Launch:
    """Work given to a stream: a kernel, a copy, a fill, a host function (``category``).

    It starts when all before it on its stream is done (if the stream is in order) and the events in
    ``after`` are complete. ``event`` is completed by it. With ``blocks`` the host goes on only when it is
    done. ``step`` numbers the iteration that it belongs to, -1 for none.
    """

    name: str
    stream: str
    accesses: tuple[Access, ...] = ()
    after: tuple[str, ...] = ()
    event: str = ""
    blocks: bool = False
    category: str = "kernel"
    step: int = -1
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """An event recorded on a stream: it stands for all that the stream was given before. Moves the event."""

    event: str
    stream: str
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """A stream waits, from here on, for the event's latest record before this call. The host goes on."""

    event: str
    stream: str
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Work on this stream from here on waits for all before it and for ``after``; ``event`` is completed."""

    stream: str
    after: tuple[str, ...] = ()
    event: str = ""
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class Synchronize:
    """The host waits: for a stream, for an event, or, with neither, for every stream of the device."""

    stream: str | None = None
    event: str | None = None
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class Query:
    """The host asks whether a stream or an event is done and is told ``done``. Only a yes orders anything."""

    done: bool
    stream: str | None = None
    event: str | None = None
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class HostRead:
    """The host itself reads bytes ``start`` to ``stop`` of a buffer (``stop`` None: to its end)."""

    buffer: str
    start: int = 0
    stop: int | None = None
    step: int = -1
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class HostWrite:
    """The host itself writes bytes ``start`` to ``stop`` of a buffer (``stop`` None: to its end)."""

    buffer: str
    start: int = 0
    stop: int | None = None
    step: int = -1
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class Allocate:
    """A buffer comes to life: ``nbytes`` at ``address`` of ``memory``, or, with None, at bytes of its own.

    With ``stream`` it is ordered on that stream (cudaMallocAsync): other streams have to wait for it.
    """

    buffer: str
    nbytes: int
    address: int | None = None
    memory: str = "device"
    stream: str | None = None
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class Free:
    """A buffer's life ends: ``how`` is one of `FREES`, ``stream`` goes with "stream"."""

    buffer: str
    how: str = "host"
    stream: str | None = None
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class RecordStream:
    """A pool must not hand a buffer's bytes out again before ``stream`` has done all it has by the free."""

    buffer: str
    stream: str
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class BeginCapture:
    """From here on, what ``stream`` is given (and streams that wait for its events) goes into ``graph``."""

    stream: str
    graph: str
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class EndCapture:
    """The capture that began on ``stream`` ends. Every stream that it forked to must have been joined."""

    stream: str
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class GraphLaunch:
    """Run a captured graph behind all that ``stream`` has, and before all that it gets; one run at a time."""

    graph: str
    stream: str
    step: int = -1
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class UserEvent:
    """An event that the host completes itself, later, with `SetEvent` (OpenCL)."""

    event: str
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class SetEvent:
    """The host completes a user event: what waits for it may start."""

    event: str
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class DestroyEvent:
    """An event is needed no more. Waits that were given before stay as they are."""

    event: str
    thread: str = "host"
    source: str = ""


@dataclass(frozen=True, slots=True)
class HandOver:
    """``to`` goes on only after ``thread`` has come this far: a lock, a queue, a thread's start or end."""

    to: str
    thread: str = "host"
    source: str = ""


Step = (
    Launch
    | Record
    | Wait
    | Barrier
    | Synchronize
    | Query
    | HostRead
    | HostWrite
    | Allocate
    | Free
    | RecordStream
    | BeginCapture
    | EndCapture
    | GraphLaunch
    | UserEvent
    | SetEvent
    | DestroyEvent
    | HandOver
)
STEPS: tuple[type, ...] = Step.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Program:
    """The host's calls in their order.

    ``streams``: name to `Stream`. ``buffers``: name to bytes of those that are there from the start (None:
    size not known); others come with `Allocate`. ``repeat``: how often the steps are made, one after the
    other, as a loop does; `unrolled` numbers the iterations. ``unseen``: in words, what this description
    leaves out, so that nothing that was not seen is taken as safe. ``words``: in whose words a verdict tells
    its repair unless it is asked otherwise; one of `flashnorm_lab.hazards.WORDS`.
    """

    steps: tuple[Step, ...]
    streams: Mapping[str, Stream]
    buffers: Mapping[str, int | None] = field(default_factory=dict)
    name: str = "program"
    repeat: int = 1
    unseen: tuple[str, ...] = ()
    words: str = field(default="cupy", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))
        object.__setattr__(self, "streams", MappingProxyType(dict(self.streams)))
        object.__setattr__(self, "buffers", MappingProxyType(dict(self.buffers)))
        if isinstance(self.repeat, bool) or not isinstance(self.repeat, int) or self.repeat < 1:
            raise LabError(f"repeat={self.repeat!r}: give a whole number of at least 1")

    def __reduce__(self) -> tuple[object, ...]:
        streams, buffers = dict(self.streams), dict(self.buffers)
        return type(self), (self.steps, streams, buffers, self.name, self.repeat, self.unseen, self.words)

    def __len__(self) -> int:
        return len(self.steps)

    def unrolled(self) -> Iterator[Step]:
        """Every step of every iteration. With ``repeat`` > 1, work carries its iteration's number."""
        if self.repeat == 1:
            yield from self.steps
            return
        for number in range(self.repeat):
            for s in self.steps:
                yield replace(s, step=number) if isinstance(s, NUMBERED) else s

    @functools.cached_property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """For each step the places, its own among them, at which the same line of code does the same.

        In a loop that was written out, as a recording writes it, one line is many steps. A step without a
        source line is alone.
        """
        places: dict[tuple[object, ...], list[int]] = {}
        for place, s in enumerate(self.steps):
            key = (type(s), pattern(label(s)), getattr(s, "stream", None), s.thread, s.source or place)
            places.setdefault(key, []).append(place)
        found: list[tuple[int, ...]] = [()] * len(self.steps)
        for alike in places.values():
            for place in alike:
                found[place] = tuple(alike)
        return tuple(found)

    def with_steps(self, steps: Iterable[Step]) -> Program:
        """The same program with other steps."""
        return replace(self, steps=tuple(steps))

    def __str__(self) -> str:
        times = f", {self.repeat} times" if self.repeat > 1 else ""
        head = f"{self.name}: {len(self.steps)} steps{times}"
        return "\n".join([head, *(f"  {number:>4} {describe(s)}" for number, s in enumerate(self.steps))])


NUMBERED = (Launch, HostRead, HostWrite, GraphLaunch)


def reads(buffer: str, start: int, stop: int) -> Access:
    """Bytes ``start`` to ``stop`` of a buffer, read."""
    return Access(buffer, start, stop, False)


def writes(buffer: str, start: int, stop: int) -> Access:
    """Bytes ``start`` to ``stop`` of a buffer, written."""
    return Access(buffer, start, stop, True)


def label(step: Step) -> str:
    """A step's short name, as hazards and messages call it."""
    match step:
        case Launch():
            return step.name
        case HostRead():
            return f"host read of {step.buffer}"
        case HostWrite():
            return f"host write of {step.buffer}"
        case Allocate():
            return f"allocation of {step.buffer}"
        case Free():
            return f"free of {step.buffer}"
        case GraphLaunch():
            return f"launch of graph {step.graph}"
        case Synchronize() | Query():
            verb = "synchronize" if isinstance(step, Synchronize) else "query"
            return f"{verb} {step.event or step.stream or 'device'}"
        case HandOver():
            return f"hand over to {step.to}"
        case RecordStream():
            return f"record_stream of {step.buffer}"
        case BeginCapture() | EndCapture() | Barrier():
            words = {BeginCapture: "begin capture", EndCapture: "end capture", Barrier: "barrier"}
            return f"{words[type(step)]} on {step.stream}"
        case UserEvent() | SetEvent() | DestroyEvent() | Record() | Wait():
            words = {UserEvent: "user event", SetEvent: "set", DestroyEvent: "destroy", Record: "record",
                     Wait: "wait for"}  # fmt: skip
            return f"{words[type(step)]} {step.event}"
    raise LabError(f"{step!r} is no step of a program")


def pattern(text: str) -> str:
    """A text without its numbers: what names of one line of code, made anew in every turn, have in common."""
    return re.sub(r"\d+", "#", text)


def describe(step: Step) -> str:
    """A step in one line of words: where, what, which bytes, which source line."""
    where = getattr(step, "stream", None) or step.thread
    text = f"{where:<8} {label(step)}"
    if isinstance(step, Launch):
        parts = [f"{'writes' if a.writes else 'reads'} {a.buffer}[{a.start}:{a.stop}]" for a in step.accesses]
        parts += [f"after {', '.join(step.after)}"] * bool(step.after)
        parts += [f"completes {step.event}"] * bool(step.event)
        parts += ["the host waits for it"] * step.blocks
        text += f": {'; '.join(parts)}" if parts else ""
    elif isinstance(step, Query):
        text += ": done" if step.done else ": not yet"
    elif isinstance(step, Allocate):
        text += f": {step.nbytes} bytes" + ("" if step.address is None else f" at {step.address:#x}")
    elif isinstance(step, Free):
        text += f" ({step.how})"
    return f"{text}  [{step.source}]" if step.source else text


def from_schedule(schedule: Schedule, repeats: int = 2) -> Program:
    """One of the lab's own schedules, run ``repeats`` times in a row, as a program.

    Its streams are non-blocking, and every iteration uses its own row of a per-step buffer.
    """
    steps: list[Step] = []
    for number in range(repeats):
        for s in schedule.steps:
            steps += _from_step(schedule, s, number)
    used = dict.fromkeys(
        s.stream for s in steps if isinstance(s, Launch | Record | Wait | Synchronize) and s.stream
    )
    buffers = {b.name: b.nbytes * (repeats if b.per_step else 1) for b in schedule.buffers.values()}
    return Program(tuple(steps), dict.fromkeys(used, Stream()), buffers, schedule.name)


def _from_step(schedule: Schedule, step: own.Step, number: int) -> list[Step]:
    """One step of the lab's own, in its iteration."""
    accesses = tuple(
        Access(a.buffer, a.start + row, a.stop + row, a.writes)
        for a in schedule.accesses(step)
        for row in [number * schedule.buffers[a.buffer].nbytes if a.per_step else 0]
    )
    match step:
        case own.Launch() | own.Copy() | own.External():
            category = "copy" if isinstance(step, own.Copy) else "kernel"
            return [Launch(step.name, step.stream, accesses, category=category, step=number)]
        case own.HostWrite() | own.HostRead():
            kind = HostWrite if isinstance(step, own.HostWrite) else HostRead
            return [kind(step.buffer, a.start, a.stop, number) for a in accesses]
        case own.Record():
            return [Record(step.event, step.stream)]
        case own.Wait():
            return [Wait(step.event, step.stream)]
        case own.Synchronize():
            return [Synchronize(step.stream)]
    raise LabError(f"{step!r} is no step of a schedule")
