"""What every device promises, and what both implementations share."""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import hazards
from ..errors import LabError
from ..schedule import Buffer, Copy, Launch, Schedule

if TYPE_CHECKING:
    from ..timeline import Timeline
    from ._recording import CallRecorder


LET_GO_S = 0.002
"""How long a launch is held whose edges make ``until`` wait for it: several times what a small kernel takes.
Then it is let go, and what comes out must be right whether this is long or short."""

WRITE = "write HOLD:UNTIL or HOLD:UNTIL+N, for instance projection:post_scale"
"""How a force is written, for messages."""


@dataclass(frozen=True)
class Force:
    """An interleaving made certain: ``hold`` (a launch or a copy) starts only when ``until`` is done.

    With ``distance`` 0 both are of one step. Else ``until`` is of the step so many later: ``hold`` of step 0
    waits for ``until`` of step ``distance``, and so on with the next group of `steps` steps. ``LabError`` for
    a distance that is no whole number from 0 on.
    """

    hold: str
    until: str
    distance: int = 0

    def __post_init__(self) -> None:
        d = self.distance
        if isinstance(d, bool) or not isinstance(d, int) or d < 0:
            raise LabError(f"force: distance={d!r}; give a whole number of steps, 0 for the same step")

    @classmethod
    def parse(cls, text: str) -> Force:
        """From ``"projection:post_scale"``, or from ``"projection:copy x+1"`` for copy x of the next step."""
        hold, colon, until = text.partition(":")
        until, plus, distance = until.partition("+")
        if not (hold and colon and until):
            raise LabError(f"force={text!r}: {WRITE}")
        if plus and not (distance.isascii() and distance.isdigit()):
            raise LabError(f"force={text!r}: N in HOLD:UNTIL+N is a number of steps")
        if len(distance) > 9:
            raise LabError(f"force={text[:60]!r}: N in HOLD:UNTIL+N is at most 999999999 steps")
        return cls(hold, until, int(distance or 0))

    def __str__(self) -> str:
        return f"{self.hold}:{self.until}" + (f"+{self.distance}" if self.distance else "")

    @property
    def steps(self) -> int:
        """How many steps it spans: they run as a group, from a known state."""
        return self.distance + 1

    @property
    def awaited(self) -> str:
        """What is waited for, in words: "copy x of the next step"."""
        which = ("", " of the next step", f" {self.distance} steps later")[min(self.distance, 2)]
        return self.until + which


class Device(abc.ABC):
    """A place where schedules run. ``reason`` says why this one was picked."""

    kind: str
    name: str
    reason: str
    queues: dict[str, Any]
    """The streams by name. Two handles on the same streams are one device, and compare equal."""

    def __init__(self) -> None:
        self._notes: dict[str, Any] = {"recorder": None}  # shared by all handles on this device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.queues is self.queues

    def __hash__(self) -> int:
        return id(self.queues)

    @property
    def recorder(self) -> Any:
        """What notes the calls of the plans' steps at present, or None."""
        return self._notes["recorder"]

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Name, kind, driver and library versions, and which unit each stream runs on."""

    @abc.abstractmethod
    def prepare(self, schedule: Schedule, steps: int = 1, share: Mapping[str, Any] | None = None) -> Plan:
        """Compile, allocate and bind once.

        ``steps`` is how many rows per-step buffers get; step number t uses row t modulo ``steps``.
        ``share`` gives memory for some buffers, by name (numpy arrays here, CuPy arrays or torch tensors
        on CUDA), used in place where the device can. Every other buffer starts as NaN, so that a read
        before any write shows.
        """

    @abc.abstractmethod
    def wait(self) -> None:
        """Make the host wait for every stream."""

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recorder]:
        """While it is open, every step of every plan is recorded. One at a time.

        ::

            with device.recording() as recorder:
                plan.step()
            timeline = recorder.timeline()

        ``LabError`` where a recording is open already, and on CUDA where torch cannot use the GPU: the
        device's times come from CUPTI there, through torch.profiler.
        """
        with self._noting(profile=True) as recorder:
            yield recorder
            recorder.host("wait for every stream", "synchronize", self.wait)

    @contextlib.contextmanager
    def annotating(self) -> Iterator[None]:
        """While it is open, every call of every plan's step has an NVTX range, named as in a recording.

        Nothing is recorded, so that another profiler can be: Nsight Systems and the recording on CUDA both
        use CUPTI, which as a rule serves one of them at a time.
        """
        with self._noting(profile=False):
            yield

    @contextlib.contextmanager
    def _noting(self, profile: bool) -> Iterator[Any]:
        if self.recorder is not None:
            raise LabError(f"{self.name} is being recorded already; close that recording first")
        self.wait()
        recorder = self.new_recorder()
        with recorder.profiling() if profile else contextlib.nullcontext():
            self._notes["recorder"] = recorder
            try:
                yield recorder
            finally:
                self._notes["recorder"] = None
                recorder.close()

    @abc.abstractmethod
    def clock_offset(self) -> tuple[int, int]:
        """``(offset, error)`` in ns: host time (``perf_counter_ns``) = device time + offset, ± error."""

    @abc.abstractmethod
    def new_recorder(self) -> CallRecorder:
        """A recorder that notes calls and pushes their NVTX ranges."""


class Recorder(Protocol):
    """What `Device.recording` gives."""

    def host(self, name: str, category: str, function: Callable[[], Any]) -> Any:
        """Make a call of the host's, timed, inside an NVTX range of that name; returns what it returns."""

    def begin(self, name: str) -> None:
        """Start a new step: spans from here on carry the next number, and a host range has this name."""

    def timeline(self) -> Timeline:
        """What was recorded. Only after the recording is closed."""


class Gate(abc.ABC):
    """What holds a launch of a group of steps, and knows what waits behind it.

    The device tells it of each call: `holds` and `waits` before a piece of work, `given` after it, `recorded`
    with each record, `synchronizing` before the host waits. It waits for every piece of work that is not
    behind the gate, which leaves nothing to luck. Without a ``force`` that is all it does.
    """

    def __init__(self, force: Force | None) -> None:
        self.force = force
        self.step = 0
        """The number of the step at hand within the group."""
        self.shut = False
        self._opened = False
        self._streams: set[str] = set()
        self._events: set[str] = set()
        """What waits behind the gate, in what was given so far."""
        self._until: Any = None
        self._in_time = False

    def holds(self, name: str) -> bool:
        """Whether the gate stands before this piece of work."""
        return self.force is not None and self.step == 0 and name == self.force.hold

    def waits(self, stream: str, event: str) -> None:
        """The stream waits for an event from here on."""
        if event in self._events:
            self._streams.add(stream)

    def recorded(self, event: str, stream: str) -> None:
        """The event stands for what the stream was given so far."""
        (self._events.add if stream in self._streams else self._events.discard)(event)

    def given(self, name: str, stream: str, work: Any) -> None:
        """A piece of work was given to the stream; ``work`` is what the device knows it by."""
        if self.holds(name):
            self.shut = True
            self._streams.add(stream)
        behind = stream in self._streams
        if not behind:
            self.finish(name, work)
        if self.force is not None and name == self.force.until and self.step == self.force.distance:
            self._until, self._in_time = work, not behind
        if self.shut and self._until is not None:
            self._release()

    def synchronizing(self, stream: str | None) -> None:
        """The host is about to wait for a stream, or for all of them: nothing there may stay held."""
        if self.shut and (stream is None or stream in self._streams):
            self._release()

    def open(self) -> None:
        """Let go of what is held, now and for the rest of the group."""
        self.shut = False
        if self.force is not None and not self._opened:
            self._opened = True
            self.let_go()

    def _release(self) -> None:
        if self._until is not None and not self._in_time:
            end = time.monotonic() + LET_GO_S
            while not self.is_done(self._until) and time.monotonic() < end:
                time.sleep(LET_GO_S / 100)
        self.open()
        self.drain()
        self._streams.clear()
        self._events.clear()

    @abc.abstractmethod
    def finish(self, name: str, work: Any) -> None:
        """Wait until a piece of work is done. ``LabError`` where it does not get on."""

    @abc.abstractmethod
    def is_done(self, work: Any) -> bool:
        """Whether a piece of work is done."""

    @abc.abstractmethod
    def let_go(self) -> None:
        """Open the gate."""

    @abc.abstractmethod
    def drain(self) -> None:
        """Wait until everything that was given is done."""


class Plan(abc.ABC):
    """A schedule bound to a device's memory."""

    schedule: Schedule
    device: Device

    def step(self, force: Force | None = None) -> None:
        """Replay the step once, with whatever waits the schedule has and no others.

        With ``force`` (checked already, see `check_force`; both of one step) it is made to go that way: see
        `run`. The host then waits for the device, so that the next step starts from a known state.
        """
        if force is None and self.device.recorder is None:
            self._replay()
        elif force is None:
            self._observed_step(None)
        else:
            self._forced(1, force)

    def run(self, steps: int, force: Force | str | None = None, anyway: bool = False) -> None:
        """Replay ``steps`` times and wait for the device; with ``force``, every step goes that way.

        A force that spans several steps takes them in groups, one after the other, each from a known state.
        The gate before ``hold`` opens when ``until`` is done, and then the host waits for the device.
        Whatever is not behind the gate runs in the host's own order, each piece done before the next is
        given, so that luck has no part. So do the last steps where they are too few for a group.

        ``anyway`` takes a force that the edges forbid: the gate opens `LET_GO_S` after ``until`` was given,
        which is all that a device can do, since ``until`` then waits behind it.
        """
        check_steps(steps)
        self._run(steps, check_force(self.schedule, force, steps, anyway))
        self.device.wait()

    def record(self, steps: int = 1, force: Force | str | None = None, anyway: bool = False) -> Timeline:
        """`run`, and return what happened when: host calls, device spans on each stream, the edges."""
        check_steps(steps)
        forced = check_force(self.schedule, force, steps, anyway)
        with self.device.recording() as recorder:
            self._run(steps, forced)
        return recorder.timeline().with_meta(
            schedule=self.schedule.name,
            shape=list(self.schedule.shape),
            edges=[e for e in self.schedule.all_edges if e in self.schedule.edges],
            dropped=list(self.schedule.dropped),
            **({"force": str(forced)} if forced else {}),
        )

    def _run(self, steps: int, force: Force | None) -> None:
        size = force.steps if force else 1
        for first in range(0, steps, size):
            if force is None:
                self._begin(first)
                self.step()
            elif first + size <= steps:
                self._forced(size, force, first)
            else:
                self._forced(steps - first, None, first)

    def _begin(self, number: int) -> None:
        if self.device.recorder is not None:
            self.device.recorder.begin(f"step {number}")

    def _forced(self, steps: int, force: Force | None, first: int | None = None) -> None:
        """One group of steps, in the host's own order but for what ``force`` holds.

        ``first`` numbers the group's first step in a recording; without it the caller has begun one.
        """
        gate = self._gate(force)
        try:
            for number in range(steps):
                if first is not None:
                    self._begin(first + number)
                gate.step = number
                self._observed_step(gate)
        finally:
            gate.open()  # an error on the way must not leave the stream shut for ever
        if self.device.recorder is not None:
            self.device.recorder.host("wait for every stream", "synchronize", self.device.wait)
        else:
            self.device.wait()

    @abc.abstractmethod
    def _replay(self) -> None:
        """The step once, as quickly as the driver allows."""

    @abc.abstractmethod
    def _observed_step(self, gate: Gate | None) -> None:
        """The step once more, slower: each call timed where there is a recorder, and watched by the gate."""

    @abc.abstractmethod
    def _gate(self, force: Force | None) -> Gate:
        """A gate of this device's own kind."""

    @abc.abstractmethod
    def rewind(self) -> None:
        """Let the next step be number 0 again. Buffers keep what they hold."""

    @abc.abstractmethod
    def write(self, name: str, values: np.ndarray) -> None:
        """Put values into a buffer, outside the schedule. ``LabError`` if the shape or dtype is wrong."""

    @abc.abstractmethod
    def read(self, name: str) -> np.ndarray:
        """A copy of a buffer's values, outside the schedule."""

    @abc.abstractmethod
    def tensor(self, name: str) -> Any:
        """A torch tensor on the buffer's own memory: no copy is made."""

    def buffer(self, name: str) -> Buffer:
        """The buffer's declaration; ``LabError`` if the schedule has none of that name."""
        if name not in self.schedule.buffers:
            known = ", ".join(self.schedule.buffers)
            raise LabError(f"the {self.schedule.name} schedule has no buffer {name!r}; it has {known}")
        return self.schedule.buffers[name]


def check_shape(name: str, wanted: tuple[int, ...], given: tuple[int, ...]) -> None:
    """``LabError`` unless the two shapes are the same."""
    if wanted != given:
        raise LabError(f"{name} has shape {list(given)}, expected {list(wanted)}")


def check_numbers(name: str, wanted: tuple[int, ...], values: Any) -> np.ndarray:
    """The values as an array. ``LabError`` unless they are real numbers of that shape."""
    array = np.asarray(values)
    check_shape(name, wanted, array.shape)
    if array.dtype.kind not in "fiu":
        raise LabError(f"{name} was given {array.dtype}; real numbers were expected")
    return array


def check_steps(steps: int) -> None:
    """``LabError`` unless ``steps`` is a whole number of at least 1."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise LabError(f"steps={steps!r}: give a whole number of at least 1")


def check_force(
    schedule: Schedule, force: Force | str | None, steps: int = 1, anyway: bool = False
) -> Force | None:
    """The interleaving asked for, or ``LabError`` where it names no launch or the edges forbid it.

    ``steps``: how many steps run one after the other, which a force must not span more of. ``anyway`` takes
    one that the edges forbid.
    """
    if force is None:
        return None
    if isinstance(force, str):
        force = Force.parse(force)
    if not isinstance(force, Force):
        raise LabError(f"force={force!r}: {WRITE}")
    launches = [s.name for s in schedule.steps if isinstance(s, Launch | Copy)]
    for name in (force.hold, force.until):
        if name not in launches:
            raise LabError(f"force: there is no launch or copy {name!r} in the {schedule.name} schedule; "
                           f"there are {', '.join(launches)}")  # fmt: skip
    if force.hold == force.until:  # of another step: a stream runs its work in order
        raise LabError(f"force: {force.hold} cannot be held until it is done itself; name two launches")
    if force.steps > steps:
        runs = f"{steps} run{'s' * (steps == 1)} at a time here"
        raise LabError(f"force: {force} spans {force.steps} steps, and {runs}; give it {force.steps} or more")
    if not anyway and hazards.ordered(schedule, force.hold, force.until, force.distance):
        if len(schedule.streams) == 1:
            why = "one stream runs them in that order"
        else:
            in_place = ", ".join(e for e in schedule.all_edges if e in schedule.edges)
            why = f"the edges in place ({in_place}) forbid it"
        raise LabError(
            f"force: {force.hold} cannot be held until {force.awaited} is done: {force.until} waits for "
            f"{force.hold}, and {why}; drop the edge between them first"
        )
    return force


def rows(buffer: Buffer, steps: int) -> tuple[int, ...]:
    """The shape of a buffer in memory: a per-step buffer has one row a step."""
    return (steps, *buffer.shape) if buffer.per_step else buffer.shape
